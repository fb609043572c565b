//! Type rules of ops on a `paged` state: appends, attention, and the selection of positions.

use super::rule::Rule;
use super::{TypeError, one};
use crate::graph::op::OpKind;
use crate::graph::{Dim, Type};
use crate::state::StateKind;

pub(super) fn append(rule: &Rule<'_>, kind: OpKind) -> Result<Vec<Type>, TypeError> {
    rule.check_append(kind)?;
    one(rule.value("kv").clone())
}

pub(super) fn index_top_k(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, heads, d] = rule.f32("q")?;
    let cache = rule.cache("kv")?;
    rule.rows("pos", rows)?;
    if cache.heads != 1 || rule.number("q", d)? != cache.key {
        return Err(rule.operand("kv", format!("the token of a paged state of one head with keys of {d}")));
    }
    let (top_k, every) = (rule.positive("top_k")?, rule.state("kv", StateKind::Paged)?.every);
    if !rule.has("w") {
        rule.blocks_of_heads(top_k, every)?;
        return Ok(vec![Type::i32([rows.clone(), heads.clone(), Dim::Fixed(top_k)]), rule.value("kv").clone()]);
    }
    if rule.f32("w")? != [rows, heads] {
        return Err(rule.operand("w", format!("f32[{rows}, {heads}], one for each head of q")));
    }
    for name in ["block", "local"] {
        if rule.find_attr(name).int() != 0 {
            return Err(rule.attr(name, "0 with weights, by which all heads choose together"));
        }
    }
    if rule.find_attr("entries").bool() {
        if every == 1 {
            return Err(rule.operand("kv", "the token of a state in which several positions share a cache slot"));
        }
        return Ok(vec![Type::i32([rows.clone(), Dim::Fixed(top_k)]), rule.value("kv").clone()]);
    }
    if !top_k.is_multiple_of(every) {
        return Err(
            rule.attr("top_k", format!("a multiple of {every}, the number of positions that share an index key"))
        );
    }
    let chosen = top_k.saturating_add(every - 1);
    Ok(vec![Type::i32([rows.clone(), Dim::Fixed(chosen)]), rule.value("kv").clone()])
}

pub(super) fn attention(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, heads, d] = rule.f32("q")?;
    let cache = rule.cache("kv")?;
    rule.rows("pos", rows)?;
    if rule.state("kv", StateKind::Paged)?.every != 1 {
        return Err(rule.operand("kv", "the token of a state with a cache slot for every position"));
    }
    if rule.number("q", d)? != cache.key {
        return Err(rule.operand("q", format!("f32[rows, heads, {}] as the keys of the state", cache.key)));
    }
    if !rule.number("q", heads)?.is_multiple_of(cache.heads) {
        return Err(rule.operand("q", format!("a type with a multiple of {} heads", cache.heads)));
    }
    rule.bias("sinks", rule.number("q", heads)?)?;
    for name in ["cap", "max_bias", "slope"] {
        if rule.find_attr(name).float() < 0.0 {
            return Err(rule.attr(name, "0 or more"));
        }
    }
    let reach = rule.find_attr("reach").int();
    if !(0..=i64::from(i32::MAX / 2)).contains(&reach) {
        return Err(rule.attr("reach", format!("in 0..={}", i32::MAX / 2)));
    }
    if reach > 0 && rule.state("kv", StateKind::Paged)?.window.is_some() {
        return Err(
            rule.operand("kv", "the token of a state with all positions, because rows attend in both directions")
        );
    }
    rule.choice("chosen", rows, Some(cache.heads))?;
    Ok(vec![Type::f32([rows.clone(), heads.clone(), cache.value.into()]), rule.value("kv").clone()])
}

pub(super) fn attention_entries(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, heads, d] = rule.f32("q")?;
    let (cache, entries) = (rule.cache("kv")?, rule.cache("entries")?);
    rule.rows("pos", rows)?;
    if rule.state("kv", StateKind::Paged)?.every != 1 {
        return Err(rule.operand("kv", "the token of a state with a cache slot for every position"));
    }
    if entries != cache || rule.state("entries", StateKind::Paged)?.every == 1 {
        return Err(rule.operand(
            "entries",
            "the token of a state with the shape of kv, in which several positions share a cache slot",
        ));
    }
    if rule.number("q", d)? != cache.key {
        return Err(rule.operand("q", format!("f32[rows, heads, {}] as the keys of the state", cache.key)));
    }
    if !rule.number("q", heads)?.is_multiple_of(cache.heads) {
        return Err(rule.operand("q", format!("a type with a multiple of {} heads", cache.heads)));
    }
    rule.bias("sinks", rule.number("q", heads)?)?;
    rule.choice("chosen", rows, None)?;
    let y = Type::f32([rows.clone(), heads.clone(), cache.value.into()]);
    Ok(vec![y, rule.value("kv").clone(), rule.value("entries").clone()])
}
