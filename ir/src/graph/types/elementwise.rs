//! Type rules of elementwise ops.

use super::rule::Rule;
use super::{TypeError, one, with};
use crate::graph::Type;

pub(super) fn add_or_mul(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let a = rule.f32_any("a")?;
    if rule.f32_any("b")? != a {
        return Err(rule.operand("b", format!("{}, the type of a", Type::f32(a))));
    }
    one(Type::f32(a))
}

pub(super) fn gated(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let gate = rule.f32_any("gate")?;
    if rule.f32_any("up")? != gate {
        return Err(rule.operand("up", format!("{}, the type of gate", Type::f32(gate))));
    }
    rule.gate()?;
    one(Type::f32(gate))
}

pub(super) fn add_bias(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let (lead, n) = rule.f32_rows("x")?;
    let [bias] = rule.weight("bias")?;
    rule.same_number("bias", bias, n)?;
    one(Type::f32(with(lead, n.clone())))
}

pub(super) fn scale_heads(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, width] = rule.f32("x")?;
    let [scale_rows, heads] = rule.f32("s")?;
    rule.same("s", scale_rows, rows)?;
    rule.head_width("x", width, rule.number("s", heads)?)?;
    let ty = Type::f32([rows.clone(), width.clone()]);
    rule.residual(&ty)?;
    one(ty)
}

pub(super) fn unary(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    one(Type::f32(rule.f32_any("x")?))
}
