//! Definitions of products of rows with one matrix, or with a matrix for each head.

use super::call::Call;
use super::math::Matrix;
use super::{InterpretError, Value, math, one, with};
use crate::format::Format;
use crate::graph::WeightId;
use crate::graph::attrs::GateAttrs;
use crate::graph::quantise::quantise;

pub(super) fn dequantise(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    Ok(vec![Value::Weight(call.weight("w"))])
}

pub(super) fn matmul(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (x, dims) = (call.f32s("x")?, call.dims("x"));
    let (data, n) = match call.value("w") {
        Value::Weight(w) => (project(call, *w, &x)?, call.interpreter.weight_dims(*w)[0]),
        w => {
            let (w, dims) = (call.interpreter.floats(w)?, call.interpreter.dims(w));
            let bytes = quantise(Format::F32, &w);
            (Matrix { format: Format::F32, bytes: &bytes, width: dims[1] }.project(&x), dims[0])
        }
    };
    one(with(&dims, n), data)
}

pub(super) fn heads_matmul(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (x, dims) = (call.f32s("x")?, call.dims("x"));
    let (y, n) = match call.value("w") {
        Value::Weight(w) => project_heads(call, *w, &x, dims[1])?,
        w => {
            let w_dims = call.interpreter.dims(w);
            let bytes = quantise(Format::F32, &call.interpreter.floats(w)?);
            let matrix = Matrix { format: Format::F32, bytes: &bytes, width: w_dims[2] };
            (heads_project(&matrix, dims[1], &x), w_dims[1])
        }
    };
    one(with(&dims, n), y)
}

pub(super) fn linear_heads(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let dims = call.dims("x");
    let (y, n) = project_heads(call, call.weight("w"), &call.f32s("x")?, dims[1])?;
    one(with(&dims, n), y)
}

pub(super) fn linear(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let y = call.add_residual(product(call, "x", "w", "bias")?)?;
    let n = call.interpreter.weight_dims(call.weight("w"))[0];
    one(vec![y.len() / n, n], y)
}

pub(super) fn linear_qkv(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let mut results = Vec::with_capacity(3);
    for (x, w, bias) in [("xq", "wq", "bq"), ("xk", "wk", "bk"), ("xv", "wv", "bv")] {
        let y = product(call, x, w, bias)?;
        let n = call.interpreter.weight_dims(call.weight(w))[0];
        results.push(Value::F32 { dims: vec![y.len() / n, n], data: y });
    }
    Ok(results)
}

pub(super) fn linear_swiglu(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let gate = product(call, "x", "gate", "gate_bias")?;
    let up = product(call, "x", "up", "up_bias")?;
    let n = call.interpreter.weight_dims(call.weight("gate"))[0];
    let y = math::gated(&gate, &up, &GateAttrs::from_op(call.op));
    Ok(vec![call.quantise(vec![gate.len() / n, n], &y)])
}

/// Multiplies rows by the transpose of a weight, and adds the bias unless it is absent.
fn product(call: &Call<'_, '_>, x: &str, w: &str, bias: &str) -> Result<Vec<f32>, InterpretError> {
    let y = project(call, call.weight(w), &call.f32s(x)?)?;
    Ok(match call.dequantised_if_given(bias)? {
        Some(bias) => math::add_bias(&y, &bias),
        None => y,
    })
}

fn project(call: &Call<'_, '_>, weight: WeightId, x: &[f32]) -> Result<Vec<f32>, InterpretError> {
    Ok(call.interpreter.matrix(weight, &call.interpreter.bytes(weight)?).project(x))
}

/// Multiplies each head of the rows by the head's own matrix of `weight`. Also returns the number
/// of rows of one matrix.
fn project_heads(
    call: &Call<'_, '_>,
    weight: WeightId,
    x: &[f32],
    heads: usize,
) -> Result<(Vec<f32>, usize), InterpretError> {
    let bytes = call.interpreter.bytes(weight)?;
    let y = heads_project(&call.interpreter.matrix(weight, &bytes), heads, x);
    Ok((y, call.interpreter.weight_dims(weight)[1]))
}

/// Multiplies each head of the rows by the transpose of the head's own rows of a matrix.
fn heads_project(matrix: &Matrix<'_>, heads: usize, x: &[f32]) -> Vec<f32> {
    let (n, k) = (matrix.bytes.len() / matrix.row_bytes() / heads, matrix.width);
    let rows = x.len() / (heads * k);
    let mut out = vec![0f32; rows * heads * n];
    for h in 0..heads {
        let own: Vec<f32> = (0..rows).flat_map(|r| &x[(r * heads + h) * k..][..k]).copied().collect();
        let y = matrix.rows(h * n, n).project(&own);
        for (r, y) in y.chunks_exact(n).enumerate() {
            out[(r * heads + h) * n..][..n].copy_from_slice(y);
        }
    }
    out
}
