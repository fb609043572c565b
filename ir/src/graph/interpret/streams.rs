//! Definitions of ops on residual streams: their mixing weights, and the mixing itself (Xie et al.,
//! "mHC: Manifold-Constrained Hyper-Connections", 2026; DeepSeek-V4).
//!
//! ```text
//! a, b, C = x                                         // of n streams: [n], [n], [n, n]
//! input   = sigmoid(a * scale[0] + base) + eps        // of a block, by stream
//! output  = magnitude sigmoid(b * scale[1] + base)
//! mixed   = softmax of rows(C * scale[2] + base) + eps; columns over their sums + eps;
//!           then rows and columns, iterations - 1 times
//! ```
//!
//! Without the matrix C, streams are not mixed with each other (independent hyper-connections).
//! `eps` is then also added to the weights of the output.
//!
//! The module also has attention over the earlier streams of a row (Kimi Team, "Attention
//! Residuals", 2026).
//!
//! All computations are in f64 and rounded once.

use super::call::Call;
use super::{InterpretError, Value, one};

pub(super) fn stream_weights(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (scale, base) = (call.dequantise("scale")?, call.dequantise("base")?);
    let (n, iterations) = (call.op.attr("streams").int() as usize, call.op.attr("iterations").int());
    let x = call.f32s("x")?;
    let [eps, magnitude] = ["eps", "magnitude"].map(|attr| call.op.attr(attr).float());
    let y = weights(&x, &scale, &base, n, iterations, eps, magnitude);
    one(call.dims("x"), y)
}

pub(super) fn stream_input(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (dims, of_row) = (call.dims("x"), call.dims("w")[1]);
    let y = input(&call.f32s("x")?, &call.f32s("w")?, dims[1], dims[2], of_row);
    one(vec![dims[0], dims[2]], y)
}

pub(super) fn stream_mix(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let (dims, of_row) = (call.dims("x"), call.dims("w")[1]);
    let (x, y, w) = (call.f32s("x")?, call.f32s("y")?, call.f32s("w")?);
    one(dims.clone(), mix(&x, &y, &w, dims[1], dims[2], of_row))
}

pub(super) fn stream_attend(call: &Call<'_, '_>) -> Result<Vec<Value>, InterpretError> {
    let dims = call.dims("x");
    let (x, y, w) = (call.f32s("x")?, call.f32s("y")?, call.dequantise("w")?);
    one(vec![dims[0], dims[2]], attend(&x, &y, &w, dims[1], dims[2], call.op.attr("eps").float()))
}

/// Returns the mixing weights of each row of `x`: those of the input and, if rows are long enough,
/// those of the output and the matrix.
fn weights(x: &[f32], scale: &[f32], base: &[f32], n: usize, iterations: i64, eps: f64, magnitude: f64) -> Vec<f32> {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(base.len()) {
        let part = |i: usize| (i / n).min(2);
        let row: Vec<f64> = row
            .iter()
            .zip(base)
            .enumerate()
            .map(|(i, (&x, &base))| f64::from(x) * f64::from(scale[part(i)]) + f64::from(base))
            .collect();
        out.extend(row[..n].iter().map(|&x| (sigmoid(x) + eps) as f32));
        if row.len() > n {
            let added = if row.len() == 2 * n { eps } else { 0.0 };
            out.extend(row[n..2 * n].iter().map(|&x| (magnitude * sigmoid(x) + added) as f32));
        }
        if row.len() > 2 * n {
            out.extend(sinkhorn(&row[2 * n..], n, iterations, eps).into_iter().map(|x| x as f32));
        }
    }
    out
}

/// Computes the softmax of each row of a matrix. Then divides columns and rows by their sums in
/// turn (Sinkhorn and Knopp), and returns the matrix.
fn sinkhorn(x: &[f64], n: usize, iterations: i64, eps: f64) -> Vec<f64> {
    let mut matrix = Vec::with_capacity(n * n);
    for row in x.chunks_exact(n) {
        let max = row.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
        matrix.extend(row.iter().map(|x| (x - max).exp() / sum + eps));
    }
    for iteration in 0..iterations {
        if iteration > 0 {
            for row in matrix.chunks_exact_mut(n) {
                let sum = row.iter().sum::<f64>() + eps;
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
        for column in 0..n {
            let sum = (0..n).map(|row| matrix[row * n + column]).sum::<f64>() + eps;
            (0..n).for_each(|row| matrix[row * n + column] /= sum);
        }
    }
    matrix
}

/// Returns, for each row, the weighted sum of its `n` streams of `d` elements. A row has `of_row`
/// weights, and the first `n` of them are used here.
fn input(x: &[f32], w: &[f32], n: usize, d: usize, of_row: usize) -> Vec<f32> {
    let rows = x.chunks_exact(n * d).zip(w.chunks_exact(of_row));
    let sum = |(x, w): (&[f32], &[f32]), i: usize| -> f32 {
        (0..n).map(|j| f64::from(w[j]) * f64::from(x[j * d + i])).sum::<f64>() as f32
    };
    rows.flat_map(|row| (0..d).map(move |i| sum(row, i))).collect()
}

/// Returns, for each row, the `n` streams of `d` elements after a block (attention or network) with
/// the result `y`. A row has `of_row` weights.
fn mix(x: &[f32], y: &[f32], w: &[f32], n: usize, d: usize, of_row: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for ((x, y), w) in x.chunks_exact(n * d).zip(y.chunks_exact(d)).zip(w.chunks_exact(of_row)) {
        let weight = |j: usize, k: usize| f64::from(w[(2 + j) * n + k]);
        for k in 0..n {
            out.extend((0..d).map(|i| {
                let streams: f64 = match of_row == 2 * n {
                    true => x[k * d + i].into(),
                    false => (0..n).map(|j| weight(j, k) * f64::from(x[j * d + i])).sum(),
                };
                (f64::from(w[n + k]) * f64::from(y[i]) + streams) as f32
            }));
        }
    }
    out
}

/// Returns, for each row, a weighted sum of its `n` streams of `d` elements and of `y`. The weights
/// are a softmax over the products of `w` with each normalised stream, and with normalised `y`.
fn attend(x: &[f32], y: &[f32], w: &[f32], n: usize, d: usize, eps: f64) -> Vec<f32> {
    let mut out = Vec::with_capacity(y.len());
    for (i, y) in y.chunks_exact(d).enumerate() {
        let all = || x[i * n * d..(i + 1) * n * d].chunks_exact(d).chain([y]);
        let score = |row: &[f32]| {
            let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
            let product: f64 = row.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
            product / (squares / d as f64 + eps).sqrt()
        };
        let scores: Vec<f64> = all().map(score).collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let shares: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let sum: f64 = shares.iter().sum();
        let element = |i: usize| all().zip(&shares).map(|(row, share)| share / sum * f64::from(row[i])).sum::<f64>();
        out.extend((0..d).map(|i| element(i) as f32));
    }
    out
}
