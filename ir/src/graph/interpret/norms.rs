//! Definitions of ops that normalise or quantise rows.

use super::call::Call;
use super::{InterpretError, Value, math, one};

pub(super) fn rms_norm(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    one(call.dims("x"), rms_norm_rows(call)?)
}

pub(super) fn centre(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (x, dims) = (call.f32s("x")?, call.dims("x"));
    one(dims.clone(), math::centre(&x, dims[dims.len() - 1]))
}

pub(super) fn quantise(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    Ok(vec![call.quantise(call.dims("x"), &call.f32s("x")?)])
}

pub(super) fn rms_norm_quantise(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let y = rms_norm_rows(call)?;
    Ok(vec![call.quantise(call.dims("x"), &y)])
}

/// Computes `rms_norm` of the op's rows along the last dimension. If `x` has heads, each head has
/// its own mean. If the weight has a row for each head, each head is multiplied by its own row.
fn rms_norm_rows(call: &Call<'_, '_>) -> Result<Vec<f32>, InterpretError> {
    let n = call.dims("x").last().copied().unwrap_or(1);
    let w = call.dequantised_if_given("w")?.unwrap_or_else(|| vec![1.0; n]);
    Ok(math::rms_norm(&call.f32s("x")?, &w, n, call.op.attr("eps").float()))
}
