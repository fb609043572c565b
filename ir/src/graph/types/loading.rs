//! Type rules of ops that load experts on demand.

use super::rule::Rule;
use super::{TypeError, one};
use crate::graph::{Dim, TokenOwner, Type};

pub(super) fn expert_prefetch(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    rule.experts("slots")?;
    rule.layer()?;
    let _: [&Dim; 2] = rule.i32("ids")?;
    let first = if rule.has("gate") { "gate" } else { "up" };
    let [experts, n, k] = rule.weight(first)?;
    if rule.weight("up")? != [experts, n, k] {
        return Err(rule.operand("up", format!("of the shape of gate, [{experts}, {n}, {k}]")));
    }
    let [down_experts, _, inner] = rule.weight("down")?;
    if (down_experts, inner) != (experts, n) {
        return Err(rule.operand("down", format!("[{experts}, d, {n}], as {first} is [{experts}, {n}, {k}]")));
    }
    one(Type::Token(TokenOwner::Experts))
}

pub(super) fn expert_wait(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    rule.experts("slots")?;
    rule.layer()?;
    let dims = rule.i32::<2>("ids")?;
    Ok(vec![Type::i32(dims.map(Dim::clone)), Type::Token(TokenOwner::Experts)])
}

pub(super) fn expert_evict(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    rule.experts("slots")?;
    rule.layer()?;
    rule.f32_any("after")?;
    one(Type::Token(TokenOwner::Experts))
}
