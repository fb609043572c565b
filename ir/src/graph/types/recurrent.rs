//! Type rules of ops on a `recurrent` state that are not in the table of recurrent ops.

use super::rule::Rule;
use super::{TypeError, one};
use crate::graph::{Dim, TokenOwner, Type};
use crate::ngram;
use crate::state::StateKind;

pub(super) fn column_squares(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    rule.column_squares()?;
    one(rule.value("sums").clone())
}

pub(super) fn ngram(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows] = rule.i32("ids")?;
    let state = rule.state("tokens", StateKind::Recurrent)?;
    let dims: Vec<_> = state.fields.iter().flat_map(|field| field.dims.iter().map(Dim::fixed)).collect();
    if dims != [Some(1), Some(ngram::BEFORE as u64)] {
        return Err(rule.operand("tokens", format!("the token of a recurrent state f32[1, {}]", ngram::BEFORE)));
    }
    for name in ["eos", "m0", "m1", "m2", "m3", "offset"] {
        if rule.find_attr(name).int() < 0 {
            return Err(rule.attr(name, "0 or more"));
        }
    }
    let modulus = rule.positive("modulus")?;
    if rule.find_attr("eos").int() > i64::from(i32::MAX) {
        return Err(rule.attr("eos", "an id"));
    }
    let rows_named = modulus.checked_add(rule.find_attr("offset").int().unsigned_abs());
    if rows_named.is_none_or(|named| named > i32::MAX as u64) {
        return Err(rule.attr("modulus", "a number that is below 2^31 when the offset is added"));
    }
    Ok(vec![Type::i32([rows.clone()]), rule.value("tokens").clone()])
}

pub(super) fn state_begin(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    one(Type::Token(TokenOwner::State(rule.state_operand("state"))))
}
