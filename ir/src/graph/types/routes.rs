//! Type rules of ops that select experts for each row.

use super::rule::Rule;
use super::{TypeError, one};
use crate::format::Format;
use crate::graph::{Dim, Operand, Type};

pub(super) fn route(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, experts] = rule.f32("logits")?;
    let experts = rule.number("logits", experts)?;
    let top_k = rule.positive("top_k")?;
    if top_k > experts {
        return Err(rule.attr("top_k", format!("at most the {experts} experts")));
    }
    rule.bias("bias", experts)?;
    rule.bias("scales", experts)?;
    if rule.weighs_by_those_left() {
        let plain = rule.find("bias") == Operand::Absent && rule.find_attr("groups").int() == 1;
        if !plain {
            return Err(rule.attr("score", "another one, because the op has a bias, scales or groups"));
        }
    }
    let (groups, kept) = (rule.positive("groups")?, rule.positive("groups_kept")?);
    if rule.not_negative("group_best")? > 1 {
        return Err(rule.attr("group_best", "1, or 0 for two"));
    }
    if !experts.is_multiple_of(groups) || (groups > 1 && experts / groups < 2) {
        return Err(rule
            .attr("groups", format!("a number that divides the {experts} experts into equal groups of two or more")));
    }
    if kept > groups || kept * (experts / groups) < top_k {
        return Err(rule.attr("groups_kept", format!("at most {groups} groups, with {top_k} experts together")));
    }
    let dims = [rows.clone(), Dim::Fixed(top_k)];
    Ok(vec![Type::i32(dims.clone()), Type::f32(dims)])
}

pub(super) fn route_listed(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, experts] = rule.f32("logits")?;
    rule.rows("ids", rows)?;
    rule.number("logits", experts)?;
    let [_, top_k] = rule.weight("table")?;
    if rule.weighs_by_those_left() {
        return Err(rule.attr("score", "a score that gives weights to experts far below the highest"));
    }
    if rule.any_weight("table").format != Format::F32 {
        return Err(rule.operand("table", "a weight in f32, with four bytes for each number"));
    }
    let dims = [rows.clone(), Dim::Fixed(top_k)];
    Ok(vec![Type::i32(dims.clone()), Type::f32(dims)])
}

pub(super) fn route_given(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, slots] = rule.i32("ids")?;
    if rule.f32::<2>("p")? != [rows, slots] {
        return Err(rule.operand("p", format!("f32[{rows}, {slots}], the shape of ids")));
    }
    rule.positive("experts")?;
    let dims = [rows.clone(), slots.clone()];
    Ok(vec![Type::i32(dims.clone()), Type::f32(dims)])
}

pub(super) fn route_identities(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, slots] = rule.i32("ids")?;
    if rule.f32::<2>("p")? != [rows, slots] {
        return Err(rule.operand("p", format!("f32[{rows}, {slots}], the shape of ids")));
    }
    if i32::try_from(rule.positive("experts")?).is_err() {
        return Err(rule.attr("experts", "below 2^31"));
    }
    let dims = [rows.clone(), slots.clone()];
    Ok(vec![Type::i32(dims.clone()), Type::f32(dims), Type::f32([rows.clone(), Dim::Fixed(1)])])
}

pub(super) fn route_owned(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, slots] = rule.i32("ids")?;
    if rule.f32::<2>("p")? != [rows, slots] {
        return Err(rule.operand("p", format!("f32[{rows}, {slots}], the shape of ids")));
    }
    let (first, experts) = (rule.not_negative("first")?, rule.positive("experts")?);
    if i32::try_from(first + experts).is_err() {
        return Err(rule.attr("experts", format!("below {}, so that all ids are below 2^31", (1 << 31) - first)));
    }
    let dims = [rows.clone(), slots.clone()];
    Ok(vec![Type::i32(dims.clone()), Type::f32(dims)])
}

pub(super) fn expert_groups(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, slots] = rule.i32("ids")?;
    let size = rule.positive("size")?;
    if !size.is_power_of_two() || i32::try_from(size).is_err() {
        return Err(rule.attr("size", "a power of two below 2^31"));
    }
    one(Type::i32([rows.clone(), slots.clone()]))
}

pub(super) fn expert_split(rule: &Rule<'_>) -> Result<Vec<Type>, TypeError> {
    let [rows, slots] = rule.i32("ids")?;
    if rule.f32::<2>("p")? != [rows, slots] {
        return Err(rule.operand("p", format!("f32[{rows}, {slots}], the shape of ids")));
    }
    let (now, slots) = (rule.positive("now")?, rule.number("ids", slots)?);
    if now >= slots {
        return Err(rule.attr("now", format!("less than the {slots} slots")));
    }
    let dims = |slots: u64| [rows.clone(), Dim::Fixed(slots)];
    let part = |slots| [Type::i32(dims(slots)), Type::f32(dims(slots))];
    Ok([part(now), part(slots - now)].concat())
}
