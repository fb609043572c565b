//! Definitions of ops that compute with the selected experts of each row.

use std::collections::BTreeMap;

use super::call::Call;
use super::math::Matrix;
use super::{InterpretError, Value, math, one, with_new};
use crate::format::Format;
use crate::graph::attrs::GateAttrs;
use crate::graph::quantise::quantise;
use crate::graph::{Operand, WeightId};

pub(super) fn expert_matmul(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let x = call.f32s("x")?;
    let (y, n) = match call.value("w") {
        Value::Weight(w) => project_weight(call, *w, &x)?,
        w => {
            let dims = call.interpreter.dims(w);
            let bytes = quantise(Format::F32, &call.interpreter.floats(w)?);
            let matrix = Matrix { format: Format::F32, bytes: &bytes, width: dims[2] };
            (project(call, &matrix, dims[0], &x)?, dims[1])
        }
    };
    one(with_new(&call.dims("ids"), n), y)
}

pub(super) fn expert_add_bias(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    one(call.dims("y"), add_bias(call, &call.f32s("y")?, call.weight("bias"))?)
}

pub(super) fn expert_scale(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (y, dims, ids) = (call.f32s("y")?, call.dims("y"), call.ints("ids"));
    let factors = call.dequantise("s")?;
    let mut out = Vec::with_capacity(y.len());
    for (y, &id) in y.chunks_exact(dims[2]).zip(ids) {
        let factor = factors[call.index("expert", id, factors.len())?];
        out.extend(y.iter().map(|y| y * factor));
    }
    one(dims, out)
}

pub(super) fn expert_combine(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let dims = call.dims("y");
    let y = combine(&call.f32s("y")?, &call.f32s("p")?, dims[1], dims[2]);
    one(vec![dims[0], dims[2]], y)
}

pub(super) fn expert_swiglu(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let ((gate, n), (up, _)) = (product(call, "gate", "gate_bias")?, product(call, "up", "up_bias")?);
    let y = math::gated(&gate, &up, &GateAttrs::from_op(call.op));
    Ok(vec![call.quantise(with_new(&call.dims("ids"), n), &y)])
}

pub(super) fn expert_down(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let dims = call.dims("ids");
    let (y, n) = product(call, "w", "bias")?;
    let y = call.add_residual(combine(&y, &call.f32s("p")?, dims[1], n))?;
    one(vec![dims[0], n], y)
}

/// Multiplies `x` by the matrices of the chosen experts, and adds their bias unless it is absent.
/// Also returns the number of rows of one expert's matrix.
fn product(call: &Call<'_, '_>, w: &str, bias: &str) -> Result<(Vec<f32>, usize), InterpretError> {
    let (y, n) = project_weight(call, call.weight(w), &call.f32s("x")?)?;
    match call.op.operand(bias) {
        Operand::Weight(bias) => Ok((add_bias(call, &y, bias)?, n)),
        Operand::Value(_) | Operand::State(_) | Operand::Absent => Ok((y, n)),
    }
}

/// Computes `expert.matmul` with a weight. Also returns the number of rows of one expert's matrix.
fn project_weight(call: &Call<'_, '_>, weight: WeightId, x: &[f32]) -> Result<(Vec<f32>, usize), InterpretError> {
    let bytes = call.interpreter.bytes(weight)?;
    let dims = call.interpreter.weight_dims(weight);
    Ok((project(call, &call.interpreter.matrix(weight, &bytes), dims[0], x)?, dims[1]))
}

/// Adds the bias of its expert to each row of `y`.
fn add_bias(call: &Call<'_, '_>, y: &[f32], bias: WeightId) -> Result<Vec<f32>, InterpretError> {
    let (dims, bias) = (call.interpreter.weight_dims(bias), call.interpreter.dequantise(bias)?);
    let mut out = Vec::with_capacity(y.len());
    for (y, &id) in y.chunks_exact(dims[1]).zip(call.ints("ids")) {
        let expert = call.index("expert", id, dims[0])?;
        out.extend(math::add(y, &bias[expert * dims[1]..][..dims[1]]));
    }
    Ok(out)
}

/// Multiplies `x` by the transposed matrix of the expert of each token and slot. `x` has one row
/// for each token, or one for each token and slot. The loop runs over experts, so that each routed
/// expert is dequantised once and other experts are not dequantised.
fn project(call: &Call<'_, '_>, matrix: &Matrix<'_>, experts: usize, x: &[f32]) -> Result<Vec<f32>, InterpretError> {
    let (ids, slots) = (call.ints("ids"), call.dims("ids")[1]);
    let n = matrix.bytes.len() / matrix.row_bytes() / experts;
    let shared = x.len() / matrix.width != ids.len();
    let mut places: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (place, &id) in ids.iter().enumerate() {
        places.entry(call.index("expert", id, experts)?).or_default().push(place);
    }
    let mut out = vec![0f32; ids.len() * n];
    for (expert, places) in places {
        let mut rows = Vec::with_capacity(places.len() * matrix.width);
        for &place in &places {
            let row = if shared { place / slots } else { place };
            rows.extend_from_slice(&x[row * matrix.width..][..matrix.width]);
        }
        let y = matrix.rows(expert * n, n).project(&rows);
        for (y, place) in y.chunks_exact(n).zip(places) {
            out[place * n..][..n].copy_from_slice(y);
        }
    }
    Ok(out)
}

/// Sums `p * y` over the slots of each token. A slot of weight 0 adds nothing, even if its `y` is
/// NaN.
fn combine(y: &[f32], p: &[f32], slots: usize, n: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(y.len() / slots);
    for (y, p) in y.chunks_exact(slots * n).zip(p.chunks_exact(slots)) {
        out.extend((0..n).map(|i| {
            let product = |(j, &p): (usize, &f32)| {
                let y = f64::from(y[j * n + i]);
                f64::from(p) * if p == 0.0 { 0.0_f64.copysign(y) } else { y }
            };
            p.iter().enumerate().map(product).sum::<f64>() as f32
        }));
    }
    out
}
