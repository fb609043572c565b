//! Type rules of ops that look up, split, join or select rows and heads.

use super::rule::Rule;
use super::{TypeError, one, with};
use crate::graph::Type;

pub(super) fn embed(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows] = rule.i32("ids")?;
    let [_, d] = rule.weight("table")?;
    one(Type::f32([rows.clone(), d.into()]))
}

pub(super) fn split_heads(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, width] = rule.f32("x")?;
    let heads = rule.positive("heads")?;
    let d = rule.head_width("x", width, heads)?;
    one(Type::f32([rows.clone(), heads.into(), d.into()]))
}

pub(super) fn merge_heads(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, heads, d] = rule.f32("x")?;
    let width = match (heads.fixed(), d.fixed()) {
        (Some(heads), Some(d)) => heads.checked_mul(d),
        (None, _) | (_, None) => None,
    };
    let width = width.ok_or_else(|| rule.operand("x", "f32[rows, heads, d] with numbers for heads and d"))?;
    one(Type::f32([rows.clone(), width.into()]))
}

pub(super) fn slice(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let (lead, d) = rule.f32_rows("x")?;
    let d = rule.number("x", d)?;
    let (from, count) = (rule.not_negative("from")?, rule.positive("count")?);
    if from.checked_add(count).is_none_or(|end| end > d) {
        return Err(rule.attr("count", format!("at most {}, to the end of a row", d.saturating_sub(from))));
    }
    one(Type::f32(with(lead, count.into())))
}

pub(super) fn concat(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let ((lead, m), (other, n)) = (rule.f32_rows("a")?, rule.f32_rows("b")?);
    let sum = rule.number("a", m)?.checked_add(rule.number("b", n)?);
    match sum.filter(|_| lead == other) {
        Some(sum) => one(Type::f32(with(lead, sum.into()))),
        None => Err(rule.operand("b", "a type with the rows of a")),
    }
}

pub(super) fn heads_sum(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, heads, _] = rule.f32("x")?;
    one(Type::f32([rows.clone(), heads.clone()]))
}

pub(super) fn take_rows(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [_, d] = rule.f32("x")?;
    let [rows] = rule.i32("rows")?;
    one(Type::f32([rows.clone(), d.clone()]))
}
