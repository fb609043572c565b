//! Type rules of collectives, which exchange data between ranks.

use super::rule::Rule;
use super::{TypeError, one, with};
use crate::graph::{Group, TokenOwner, Type};

pub(super) fn ranks_begin(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let most = u64::from(Group::MAX_RANKS);
    let ranks = rule.positive("ranks")?;
    if ranks > most {
        return Err(rule.attr("ranks", format!("in 1..={most}")));
    }
    let rank = rule.not_negative("rank")?;
    if rank >= ranks {
        return Err(rule.attr("rank", format!("less than the {ranks} ranks")));
    }
    one(Type::Token(TokenOwner::Ranks(Group { rank: rank as u32, ranks: ranks as u32 })))
}

pub(super) fn all_reduce(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let group = rule.group()?;
    Ok(vec![Type::f32(rule.f32_any("x")?), Type::Token(TokenOwner::Ranks(group))])
}

pub(super) fn all_gather(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let group = rule.group()?;
    let (lead, d) = rule.f32_rows("x")?;
    let width = rule.number("x", d)?.checked_mul(group.ranks.into());
    let width = width.ok_or_else(|| rule.operand("x", "a type whose rows of all ranks together fit 64 bits"))?;
    Ok(vec![Type::f32(with(lead, width.into())), Type::Token(TokenOwner::Ranks(group))])
}

pub(super) fn send(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let group = rule.group()?;
    let [_, width] = rule.f32("x")?;
    rule.number("x", width)?;
    rule.peer("to", group)?;
    one(Type::Token(TokenOwner::Ranks(group)))
}

pub(super) fn recv(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let group = rule.group()?;
    let [rows] = rule.i32("rows")?;
    rule.peer("from", group)?;
    let width = rule.positive("width")?;
    Ok(vec![Type::f32([rows.clone(), width.into()]), Type::Token(TokenOwner::Ranks(group))])
}
