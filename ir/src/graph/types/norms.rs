//! Type rules of ops that normalise or quantise rows.

use super::rule::Rule;
use super::{TypeError, one, with};
use crate::graph::Type;

pub(super) fn rms_norm(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let (lead, d) = rule.rms_norm()?;
    one(Type::f32(with(lead, d)))
}

pub(super) fn centre(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let (lead, d) = rule.f32_rows("x")?;
    rule.number("x", d)?;
    one(Type::f32(with(lead, d.clone())))
}

pub(super) fn quantise(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let (lead, d) = rule.f32_rows("x")?;
    rule.quantised_types(with(lead, d.clone()))
}

pub(super) fn rms_norm_quantise(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let (lead, d) = rule.rms_norm()?;
    rule.quantised_types(with(lead, d))
}
