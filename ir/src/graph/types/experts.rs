//! Type rules of ops that compute with the selected experts of each row.

use super::rule::Rule;
use super::{TypeError, one};
use crate::graph::Type;

pub(super) fn expert_matmul(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [_, n, wk] = rule.f32("w")?;
    let [rows, slots] = rule.i32("ids")?;
    let (lead, k) = rule.f32_rows("x")?;
    if lead != [rows.clone()] && lead != [rows.clone(), slots.clone()] {
        return Err(
            rule.operand("x", format!("f32[{rows}, k] or f32[{rows}, {slots}, k], with the rows and slots of ids"))
        );
    }
    rule.same("w", wk, k)?;
    one(Type::f32([rows.clone(), slots.clone(), n.clone()]))
}

pub(super) fn expert_add_bias(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, slots, n] = rule.f32("y")?;
    if rule.i32::<2>("ids")? != [rows, slots] {
        return Err(rule.operand("ids", format!("i32[{rows}, {slots}], the shape of the slots of y")));
    }
    let [_, width] = rule.weight("bias")?;
    rule.same_number("bias", width, n)?;
    one(Type::f32([rows.clone(), slots.clone(), n.clone()]))
}

pub(super) fn expert_scale(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, slots, n] = rule.f32("y")?;
    if rule.i32::<2>("ids")? != [rows, slots] {
        return Err(rule.operand("ids", format!("i32[{rows}, {slots}], the shape of the slots of y")));
    }
    let [_] = rule.weight("s")?;
    one(Type::f32([rows.clone(), slots.clone(), n.clone()]))
}

pub(super) fn expert_combine(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, slots, n] = rule.f32("y")?;
    let p = rule.f32::<2>("p")?;
    if p != [rows, slots] {
        return Err(rule.operand("p", format!("f32[{rows}, {slots}], the shape of the slots of y")));
    }
    one(Type::f32([rows.clone(), n.clone()]))
}

pub(super) fn expert_swiglu(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let (gate, _) = rule.gate_up()?;
    let [rows, k] = rule.activation("x", gate)?;
    let [experts, n, wk] = rule.weight("gate")?;
    rule.same_number("gate", wk, k)?;
    rule.expert_bias("gate_bias", experts, n)?;
    rule.expert_bias("up_bias", experts, n)?;
    rule.gate()?;
    let [id_rows, slots] = rule.i32("ids")?;
    rule.same("ids", id_rows, rows)?;
    rule.quantised_in_blocks([rows.clone(), slots.clone(), n.into()])
}

pub(super) fn expert_down(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, slots, k] = rule.activation("x", rule.any_weight("w"))?;
    let [experts, n, wk] = rule.weight("w")?;
    rule.same_number("w", wk, k)?;
    rule.expert_bias("bias", experts, n)?;
    if rule.i32::<2>("ids")? != [rows, slots] {
        return Err(rule.operand("ids", format!("i32[{rows}, {slots}], the shape of the slots of x")));
    }
    if rule.f32::<2>("p")? != [rows, slots] {
        return Err(rule.operand("p", format!("f32[{rows}, {slots}], the shape of the slots of x")));
    }
    let ty = Type::f32([rows.clone(), n.into()]);
    rule.residual(&ty)?;
    one(ty)
}
