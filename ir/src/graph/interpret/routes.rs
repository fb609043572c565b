//! Definitions of ops that select experts for each row.

use std::ops::Range;

use super::call::Call;
use super::{InterpretError, Value, math};
use crate::graph::attrs::{RouteAttrs, RouteScore};
use crate::plan::NO_EXPERT;

/// Returns the range of elements of each row of a matrix. If a row has no slots, its range is
/// empty.
fn row_ranges(dims: &[usize]) -> impl Iterator<Item = Range<usize>> {
    let (rows, slots) = (dims[0], dims[1]);
    (0..rows).map(move |row| row * slots..(row + 1) * slots)
}

pub(super) fn route(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let dims = call.dims("logits");
    let route = RouteAttrs::from_op(call.op);
    let (bias, scales) = (call.dequantised_if_given("bias")?, call.dequantised_if_given("scales")?);
    let (ids, weights) = math::route(&call.f32s("logits")?, dims[1], bias.as_deref(), scales.as_deref(), &route);
    let dims = vec![dims[0], route.top_k as usize];
    Ok(vec![Value::I32 { dims: dims.clone(), data: ids }, Value::F32 { dims, data: weights }])
}

pub(super) fn route_listed(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (dims, table) = (call.dims("logits"), call.weight("table"));
    let (bytes, k) = (call.interpreter.bytes(table)?, call.interpreter.weight_dims(table)[1]);
    let listed: Vec<i32> = bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
    let rows = call.ints("ids").iter().map(|&id| {
        let row = call.index("id", id, listed.len() / k)?;
        Ok(&listed[row * k..][..k])
    });
    let rows = rows.collect::<Result<Vec<_>, InterpretError>>()?;
    let (ids, weights) = math::route_listed(
        &call.f32s("logits")?,
        dims[1],
        &rows,
        &RouteAttrs {
            top_k: k as u64,
            score: RouteScore::from_word(call.op.attr("score").word()).unwrap_or(RouteScore::Softmax),
            groups: 1,
            groups_kept: 1,
            group_best: 0,
            normalise: call.op.attr("normalise").bool(),
            scale: call.op.attr("scale").float(),
        },
    );
    let dims = vec![dims[0], k];
    Ok(vec![Value::I32 { dims: dims.clone(), data: ids }, Value::F32 { dims, data: weights }])
}

pub(super) fn route_owned(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let [first, experts] = ["first", "experts"].map(|name| call.op.attr(name).int() as i32);
    let (dims, mut ids, mut p) = (call.dims("ids"), call.ints("ids").to_vec(), call.f32s("p")?.into_owned());
    let own = |id: i32| (first..first + experts).contains(&id).then(|| id - first);
    for row in row_ranges(&dims) {
        let (ids, p) = (&mut ids[row.clone()], &mut p[row]);
        let spare = ids.iter().find_map(|&id| own(id)).unwrap_or(0);
        for (id, p) in ids.iter_mut().zip(p) {
            let local = own(*id);
            *p = if local.is_some() { *p } else { 0.0 };
            *id = local.unwrap_or(spare);
        }
    }
    Ok(vec![Value::I32 { dims: dims.clone(), data: ids }, Value::F32 { dims, data: p }])
}

pub(super) fn expert_groups(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let size = call.op.attr("size").int() as i32;
    let data = call.ints("ids").iter().map(|id| id.div_euclid(size)).collect();
    Ok(vec![Value::I32 { dims: call.dims("ids"), data }])
}

pub(super) fn route_given(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (dims, experts) = (call.dims("ids"), call.op.attr("experts").int().unsigned_abs() as usize);
    let (mut ids, mut p) = (call.ints("ids").to_vec(), call.f32s("p")?.into_owned());
    for row in row_ranges(&dims) {
        let (ids, p) = (&mut ids[row.clone()], &mut p[row]);
        let first = ids.iter().copied().find(|&id| id != NO_EXPERT).unwrap_or(0);
        for (id, p) in ids.iter_mut().zip(p) {
            if *id == NO_EXPERT {
                (*id, *p) = (first, 0.0);
            }
            call.index("expert", *id, experts)?;
        }
    }
    Ok(vec![Value::I32 { dims: dims.clone(), data: ids }, Value::F32 { dims, data: p }])
}

pub(super) fn route_identities(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (dims, experts) = (call.dims("ids"), call.op.attr("experts").int());
    let (mut ids, mut p) = (call.ints("ids").to_vec(), call.f32s("p")?.into_owned());
    let mut passed = Vec::with_capacity(dims[0]);
    for row in row_ranges(&dims) {
        let (ids, p) = (&mut ids[row.clone()], &mut p[row]);
        let is_own = |id: i32| i64::from(id) < experts;
        let first = ids.iter().copied().find(|&id| is_own(id)).unwrap_or(0);
        let mut sum = 0.0;
        for (id, p) in ids.iter_mut().zip(p).filter(|(id, _)| !is_own(**id)) {
            sum += f64::from(*p);
            (*id, *p) = (first, 0.0);
        }
        passed.push(sum as f32);
    }
    let rows = vec![dims[0], 1];
    let of_slots = [Value::I32 { dims: dims.clone(), data: ids }, Value::F32 { dims, data: p }];
    Ok(of_slots.into_iter().chain([Value::F32 { dims: rows, data: passed }]).collect())
}

pub(super) fn expert_split(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (p, dims, now) = (call.f32s("p")?, call.dims("ids"), call.op.attr("now").int() as usize);
    let part = |from: usize, to: usize| {
        let ids = row_ranges(&dims).flat_map(|row| &call.ints("ids")[row][from..to]).copied().collect();
        let p = row_ranges(&dims).flat_map(|row| &p[row][from..to]).copied().collect();
        let dims = vec![dims[0], to - from];
        [Value::I32 { dims: dims.clone(), data: ids }, Value::F32 { dims, data: p }]
    };
    Ok([part(0, now), part(now, dims[1])].concat())
}
