//! Type rules of ops on residual streams.

use super::rule::Rule;
use super::{TypeError, one};
use crate::graph::{Dim, Type};

pub(super) fn stream_weights(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, width] = rule.f32("x")?;
    let n = rule.positive("streams")?;
    rule.eps()?;
    rule.float_above("magnitude", 0.0)?;
    let parts = match (rule.number("x", width)?, stream_widths(n)) {
        (width, _) if width == n => 1,
        (width, [Some(apart), _]) if width == apart => 2,
        (width, [_, Some(mixed)]) if width == mixed => {
            rule.positive("iterations")?;
            3
        }
        _ => {
            let limit = format!("a type with {n}, 2 * {n} or (2 + {n}) * {n} in place of {width}");
            return Err(rule.operand("x", limit));
        }
    };
    let [scales] = rule.weight("scale")?;
    rule.same_number("scale", scales, &Dim::Fixed(parts))?;
    let [base] = rule.weight("base")?;
    rule.same_number("base", base, width)?;
    one(Type::f32([rows.clone(), width.clone()]))
}

pub(super) fn stream_input(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, streams, d] = rule.f32("x")?;
    let [own, weights] = rule.f32("w")?;
    rule.same("w", own, rows)?;
    let n = rule.number("x", streams)?;
    if rule.number("w", weights)? < n {
        return Err(rule.operand("w", format!("a type with a number for each of {n} streams")));
    }
    one(Type::f32([rows.clone(), d.clone()]))
}

pub(super) fn stream_mix(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, streams, d] = rule.f32("x")?;
    if rule.f32("y")? != [rows, d] {
        return Err(rule.operand("y", format!("f32[{rows}, {d}], a row for each of x")));
    }
    let n = rule.number("x", streams)?;
    let [own, weights] = rule.f32("w")?;
    rule.same("w", own, rows)?;
    let weights = Some(rule.number("w", weights)?);
    if !stream_widths(n).contains(&weights) {
        return Err(rule.operand("w", format!("f32[{rows}, 2 * {n}] or f32[{rows}, (2 + {n}) * {n}]")));
    }
    one(Type::f32([rows.clone(), streams.clone(), d.clone()]))
}

pub(super) fn stream_attend(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, streams, d] = rule.f32("x")?;
    if rule.f32("y")? != [rows, d] {
        return Err(rule.operand("y", format!("f32[{rows}, {d}], a row for each of x")));
    }
    rule.number("x", streams)?;
    let [w] = rule.weight("w")?;
    rule.same_number("w", w, d)?;
    rule.eps()?;
    one(Type::f32([rows.clone(), d.clone()]))
}

/// Returns the possible numbers of weights in a row for `n` streams: weights of a block's input and
/// output only, or with a matrix of `n` rows.
fn stream_widths(n: u64) -> [Option<u64>; 2] {
    [n.checked_mul(2), n.checked_add(2).and_then(|parts| parts.checked_mul(n))]
}
