//! Products of the interpreter: rows times a matrix, experts' matrices, or heads' matrices.

use std::collections::BTreeMap;

use super::math::Matrix;
use super::{InterpretError, Interpreter, add, add_bias, index};
use crate::graph::{Operand, WeightId};

impl Interpreter<'_> {
    pub(super) fn project(&self, weight: WeightId, x: &[f32]) -> Result<Vec<f32>, InterpretError> {
        Ok(self.matrix(weight, &self.bytes(weight)?).project(x))
    }

    pub(super) fn linear(&self, x: &[f32], w: Operand, bias: Operand) -> Result<Vec<f32>, InterpretError> {
        let Operand::Weight(w) = w else { unreachable!("verified: {w:?} is no weight") };
        let y = self.project(w, x)?;
        Ok(match self.optional(bias)? {
            Some(bias) => add_bias(&y, &bias),
            None => y,
        })
    }

    /// Computes `expert.matmul` with a weight, and returns the number of rows of an expert.
    pub(super) fn experts(
        &self,
        op: &'static str,
        weight: WeightId,
        x: &[f32],
        ids: &[i32],
        slots: usize,
    ) -> Result<(Vec<f32>, usize), InterpretError> {
        let bytes = self.bytes(weight)?;
        let dims = self.weight_dims(weight);
        Ok((expert_project(op, &self.matrix(weight, &bytes), dims[0], x, ids, slots)?, dims[1]))
    }

    /// Multiplies heads of rows by their own matrices of `weight`, and returns the number of rows
    /// of a matrix.
    pub(super) fn heads(&self, weight: WeightId, x: &[f32], heads: usize) -> Result<(Vec<f32>, usize), InterpretError> {
        let bytes = self.bytes(weight)?;
        Ok((heads_project(&self.matrix(weight, &bytes), heads, x), self.weight_dims(weight)[1]))
    }

    /// Adds to each row of `y` the bias of its expert.
    pub(super) fn add_expert_bias(
        &self,
        op: &'static str,
        y: &[f32],
        ids: &[i32],
        bias: WeightId,
    ) -> Result<Vec<f32>, InterpretError> {
        let (dims, bias) = (self.weight_dims(bias), self.dequantised(bias)?);
        let mut out = Vec::with_capacity(y.len());
        for (y, &id) in y.chunks_exact(dims[1]).zip(ids) {
            let expert = index(op, "expert", id, dims[0])?;
            out.extend(add(y, &bias[expert * dims[1]..][..dims[1]]));
        }
        Ok(out)
    }
}

/// Multiplies the row of `x` for every row and slot by the transpose of its expert. `x` has one row
/// per row, or one per row and slot. It goes expert by expert, so that each routed one is
/// dequantised once and no other at all.
pub(super) fn expert_project(
    op: &'static str,
    matrix: &Matrix<'_>,
    experts: usize,
    x: &[f32],
    ids: &[i32],
    slots: usize,
) -> Result<Vec<f32>, InterpretError> {
    let n = matrix.bytes.len() / matrix.row_bytes() / experts;
    let shared = x.len() / matrix.width != ids.len();
    let mut places: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (place, &id) in ids.iter().enumerate() {
        places.entry(index(op, "expert", id, experts)?).or_default().push(place);
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

/// Multiplies heads of rows by the transposes of their own parts of a matrix.
pub(super) fn heads_project(matrix: &Matrix<'_>, heads: usize, x: &[f32]) -> Vec<f32> {
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

/// Sums `p * y` over a row's slots. A slot of weight 0 adds nothing, for any row.
pub(super) fn combine(y: &[f32], p: &[f32], slots: usize, n: usize) -> Vec<f32> {
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
