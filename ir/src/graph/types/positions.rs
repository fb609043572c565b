//! Type rules of ops that depend on positions, except attention.

use super::rule::Rule;
use super::{TypeError, one};
use crate::graph::{Dim, Type};

pub(super) fn rope(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, heads, d] = rule.f32("x")?;
    rule.rows("pos", rows)?;
    let size = rule.number("x", d)?;
    rule.rope(size)?;
    one(Type::f32([rows.clone(), heads.clone(), d.clone()]))
}

pub(super) fn temperature(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let dims = rule.f32_any("x")?;
    match dims.first() {
        Some(rows) => rule.rows("pos", rows)?,
        None => return Err(rule.operand("x", "f32 of rows")),
    }
    rule.positive("length")?;
    rule.not_negative("offset")?;
    one(Type::f32(dims))
}

pub(super) fn heads_temperature(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let dims @ [rows, heads, d] = rule.f32("x")?;
    rule.number("x", d)?;
    rule.rows("pos", rows)?;
    for name in ["scales", "biases"] {
        let [n] = rule.weight(name)?;
        rule.same_number(name, n, heads)?;
    }
    one(Type::f32(dims.map(Dim::clone)))
}

pub(super) fn positions(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows] = rule.i32("pos")?;
    if i32::try_from(rule.positive("every")?).is_err() {
        return Err(rule.attr("every", format!("in 1..={}", i32::MAX)));
    }
    one(Type::i32([rows.clone()]))
}

pub(super) fn ends(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows] = rule.i32("pos")?;
    one(Type::i32([rows.clone()]))
}

pub(super) fn rope_heads(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let (rows, heads, d) = rule.rope_heads("x")?;
    one(Type::f32([rows.clone(), heads.into(), d.into()]))
}
