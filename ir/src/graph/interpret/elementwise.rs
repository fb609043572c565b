//! Definitions of elementwise ops.

use super::call::Call;
use super::{InterpretError, Value, math, one};
use crate::graph::Unary;
use crate::graph::attrs::GateAttrs;

pub(super) fn add(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    one(call.dims("a"), math::add(&call.f32s("a")?, &call.f32s("b")?))
}

pub(super) fn add_bias(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let bias = call.dequantise("bias")?;
    one(call.dims("x"), math::add_bias(&call.f32s("x")?, &bias))
}

pub(super) fn mul(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    one(call.dims("a"), math::mul(&call.f32s("a")?, &call.f32s("b")?))
}

pub(super) fn gated(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let y = math::gated(&call.f32s("gate")?, &call.f32s("up")?, &GateAttrs::from_op(call.op));
    one(call.dims("gate"), y)
}

pub(super) fn scale_heads(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (dims, heads) = (call.dims("x"), call.dims("s")[1]);
    let residual = match call.value_if_given("residual") {
        Some(residual) => Some(call.interpreter.floats(residual)?),
        None => None,
    };
    let y = math::scale_heads(&call.f32s("x")?, &call.f32s("s")?, dims[1] / heads, residual.as_deref());
    one(dims, y)
}

pub(super) fn unary(call: &Call<'_, '_>, function: Unary) -> Result<Vec<Value>, InterpretError> {
    let y = call.f32s("x")?.iter().map(|&x| function.apply(x, &call.op.attrs)).collect();
    one(call.dims("x"), y)
}
