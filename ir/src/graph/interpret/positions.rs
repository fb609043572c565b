//! Definitions of ops that depend on positions, except attention.

use super::call::Call;
use super::{InterpretError, Value, math, one};
use crate::graph::Operand;
use crate::graph::attrs::{RopeAttrs, TemperatureAttrs};

pub(super) fn rope(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let dims = call.dims("x");
    let factors = rope_factors(call)?;
    let rope = RopeAttrs::from_op(call.op);
    let pos = call.ints("pos");
    let y = math::rope(&call.f32s("x")?, dims[1], dims[2], pos, &rope, factors.as_deref());
    one(dims, y)
}

pub(super) fn temperature(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (x, pos, of) = (call.f32s("x")?, call.ints("pos"), TemperatureAttrs::from_op(call.op));
    let dims = call.dims("x");
    let width = dims[1..].iter().product::<usize>().max(1);
    let mut y = Vec::with_capacity(x.len());
    for (row, &position) in x.chunks_exact(width).zip(pos) {
        let factor = of.factor(call.index("position", position, i32::MAX as usize)? as u64);
        y.extend(row.iter().map(|&x| (f64::from(x) * factor) as f32));
    }
    one(dims, y)
}

pub(super) fn heads_temperature(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (x, pos, dims) = (call.f32s("x")?, call.ints("pos"), call.dims("x"));
    let [scales, biases] = ["scales", "biases"].map(|name| call.dequantise(name));
    let (scales, biases) = (scales?, biases?);
    let mut y = Vec::with_capacity(x.len());
    for (row, &position) in x.chunks_exact((dims[1] * dims[2]).max(1)).zip(pos) {
        let log = (call.index("position", position, i32::MAX as usize)? as f64).ln_1p();
        for (head, (&scale, &bias)) in row.chunks_exact(dims[2].max(1)).zip(scales.iter().zip(&biases)) {
            let factor = f64::from(bias) + f64::from(scale) * log;
            y.extend(head.iter().map(|&x| (f64::from(x) * factor) as f32));
        }
    }
    one(dims, y)
}

pub(super) fn positions(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (every, back) = (call.op.attr("every").int() as i32, call.op.attr("back").bool());
    let whole = |position: i32| position - position.rem_euclid(every);
    let data = call.ints("pos").iter().map(|&p| if back { -whole(p) } else { whole(p) }).collect();
    Ok(vec![Value::I32 { dims: call.dims("pos"), data }])
}

pub(super) fn ends(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let pos = call.ints("pos");
    let last = pos.iter().copied().max().unwrap_or_default();
    Ok(vec![Value::I32 { dims: call.dims("pos"), data: vec![last; pos.len()] }])
}

pub(super) fn rope_heads(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (dims, heads) = (call.dims("x"), call.op.attr("heads").int() as usize);
    one(vec![dims[0], heads, dims[1] / heads], rotated_heads(call, "x")?)
}

/// Computes `rope.heads` of the operand `name`.
pub(super) fn rotated_heads(call: &Call<'_, '_>, name: &str) -> Result<Vec<f32>, InterpretError> {
    let heads = call.op.attr("heads").int() as usize;
    let (x, size) = (call.f32s(name)?, call.dims(name)[1] / heads);
    let norm = call.dequantised_if_given("norm")?;
    let normed = norm.map(|w| math::rms_norm(&x, &w, size, call.op.attr("eps").float()));
    let (x, factors) = (normed.as_deref().unwrap_or(&x), rope_factors(call)?);
    Ok(math::rope(x, heads, size, call.ints("pos"), &RopeAttrs::from_op(call.op), factors.as_deref()))
}

/// Returns the divisors of RoPE's frequencies, or `None` if the op has none.
fn rope_factors(call: &Call<'_, '_>) -> Result<Option<Vec<f32>>, InterpretError> {
    let has_long = call.op.operand("long") != Operand::Absent;
    match has_long && call.interpreter.context > RopeAttrs::from_op(call.op).original_context {
        true => call.dequantised_if_given("long"),
        false => call.dequantised_if_given("factors"),
    }
}
