//! Type rules of products of rows with one matrix, or with a matrix for each head.

use super::rule::Rule;
use super::{TypeError, one, with};
use crate::graph::{Dim, Type};

pub(super) fn dequantise(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let weight = rule.any_weight("w");
    one(Type::f32(weight.shape.iter().map(|&n| Dim::Fixed(n)).collect::<Vec<_>>()))
}

pub(super) fn matmul(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let (lead, k) = rule.f32_rows("x")?;
    let [n, wk] = rule.f32("w")?;
    rule.same("w", wk, k)?;
    one(Type::f32(with(lead, n.clone())))
}

pub(super) fn heads_matmul(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, heads, k] = rule.f32("x")?;
    let [of_heads, n, wk] = rule.f32("w")?;
    rule.same("w", of_heads, heads)?;
    rule.same("w", wk, k)?;
    one(Type::f32([rows.clone(), heads.clone(), n.clone()]))
}

pub(super) fn linear_heads(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, heads, k] = rule.activation("x", rule.any_weight("w"))?;
    let [of_heads, n, wk] = rule.weight("w")?;
    rule.same_number("w", of_heads, heads)?;
    rule.same_number("w", wk, k)?;
    one(Type::f32([rows.clone(), heads.clone(), n.into()]))
}

pub(super) fn linear(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let weight = rule.any_weight("w");
    let [rows, k] = rule.activation("x", weight)?;
    let [n, wk] = rule.weight("w")?;
    rule.same_number("w", wk, k)?;
    rule.bias("bias", n)?;
    let ty = Type::f32([rows.clone(), n.into()]);
    rule.residual(&ty)?;
    one(ty)
}

pub(super) fn linear_qkv(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let parts = [("xq", "wq", "bq"), ("xk", "wk", "bk"), ("xv", "wv", "bv")];
    let [first, k] = rule.activation("xq", rule.any_weight("wq"))?;
    let mut types = Vec::with_capacity(parts.len());
    for (x, w, bias) in parts {
        let weight = rule.any_weight(w);
        let [rows, xk] = rule.activation(x, weight)?;
        if rows != first || xk != k {
            return Err(rule.operand(x, format!("{}[{first}, {k}], the rows of xq", weight.format.activation())));
        }
        let [n, wk] = rule.weight(w)?;
        rule.same_number(w, wk, k)?;
        rule.bias(bias, n)?;
        types.push(Type::f32([rows.clone(), n.into()]));
    }
    Ok(types)
}

pub(super) fn linear_swiglu(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let (gate, up) = rule.gate_up()?;
    let [rows, k] = rule.activation("x", gate)?;
    let [n, wk] = rule.weight("gate")?;
    let _: [u64; 2] = rule.weight("up")?;
    rule.same_number("gate", wk, k)?;
    debug_assert_eq!(gate.shape, up.shape);
    rule.bias("gate_bias", n)?;
    rule.bias("up_bias", n)?;
    rule.gate()?;
    rule.quantised_in_blocks([rows.clone(), n.into()])
}
