//! Weights of the streams of a hyper-connection, from a row's projections (manifold-constrained
//! hyper-connections; see the graph op `stream.weights`).
//!
//! ```text
//! x = projections * scale of their part + base
//! y = sigmoid(x) + eps | magnitude sigmoid(x) | balanced(x)       // n, n, n * n
//! balanced: the softmax of rows plus eps; columns over their sums plus eps; then rows and columns, iterations - 1 times
//! ```
//!
//! Without a matrix (`apart`), eps is added to the output's weights too. A row of the matrix is one
//! or two vectors of [`LANES`] lanes. Sums of columns add registers, and sums of rows add lanes.
//! The matrix stays in registers.

use ixc_ir::kernel::{Kernel, KernelBuilder, Op, Type, ValueId};
use serde::{Deserialize, Serialize};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::math;
use crate::generator::reference::{EXP_BOUND, Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Bits, Words, spec, words};
use crate::generator::vectors::for_vectors;

/// Parts of a hyper-connection for which a row has weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StreamParts {
    /// Weights of a block's input only.
    Input,
    /// Weights of a block's input and output. Streams are not mixed.
    Apart,
    /// Weights of a block's input and output, and a matrix that mixes the streams.
    Mixed,
}

words! { StreamParts { Input "input", Apart "apart", Mixed "mixed" } }

impl StreamParts {
    /// Returns the parts for which rows of `width` numbers have weights, as in the op's type rule.
    pub fn of_width(width: u64, streams: u64) -> StreamParts {
        match width / streams.max(1) {
            0 | 1 => StreamParts::Input,
            2 => StreamParts::Apart,
            _ => StreamParts::Mixed,
        }
    }

    /// Returns the number of weights of a row, and the number of scales.
    fn lengths(self, streams: i64) -> (i64, i64) {
        match self {
            StreamParts::Input => (streams, 1),
            StreamParts::Apart => (2 * streams, 2),
            StreamParts::Mixed => (row_len(streams), 3),
        }
    }
}

spec! {
    /// Weights of a row's streams, computed from its projections.
    pub struct StreamWeights "stream_weights" {
        /// Number of residual streams of the hyper-connection.
        pub streams: u32,
        /// Parts of the hyper-connection for which a row has weights.
        pub parts: StreamParts,
        /// Number of times that columns are divided by their sums.
        pub iterations: u32,
        /// Epsilon that is added to weights and to sums.
        pub eps: Bits,
        /// Upper bound of the weights of a block's output.
        pub magnitude: Bits,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("stream_weights", 1, "stream_weights streams=4 parts=mixed iterations=20 eps=1e-6 magnitude=2.0"),
    row("stream_weights_input", 1, "stream_weights streams=4 parts=input iterations=20 eps=1e-6 magnitude=2.0"),
    row("stream_weights_apart", 1, "stream_weights streams=4 parts=apart iterations=0 eps=1e-6 magnitude=1.5"),
];

/// Maximum number of streams. The matrix of larger numbers would not fit in registers.
pub(crate) const MAX_STREAMS: u32 = 8;
/// Number of lanes of the matrix's vectors.
const LANES: u16 = 4;
/// Maximum number of iterations. Known models have 20.
const MAX_ITERATIONS: u32 = 1 << 10;

/// Returns the number of weights of a row with `streams` streams.
pub(crate) fn row_len(streams: i64) -> i64 {
    (2 + streams) * streams
}

impl Definition for StreamWeights {
    fn name(&self) -> String {
        let StreamWeights { streams, parts, iterations, eps, magnitude } = *self;
        format!("stream_weights_{}_s{streams}i{iterations}_e{:x}_m{:x}", parts.word(), eps.0, magnitude.0)
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", BufferContents::Floats)
            .read("scale", BufferContents::Floats)
            .read("base", BufferContents::Floats)
            .write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let StreamWeights { streams, parts, iterations, eps, magnitude } = *self;
        let mixed = parts == StreamParts::Mixed;
        let lanes = u32::from(LANES);
        check(
            &name,
            "streams",
            streams.into(),
            (1..=MAX_STREAMS).contains(&streams) && (!mixed || streams.is_multiple_of(lanes)),
            format!("a multiple of {lanes}, at most {MAX_STREAMS}"),
        )?;
        let some = !mixed || (1..=MAX_ITERATIONS).contains(&iterations);
        check(&name, "iterations", iterations.into(), some, format!("1 to {MAX_ITERATIONS}"))?;
        let (n, eps) = (i64::from(streams), eps.value());
        let (width, scales) = parts.lengths(n);
        let mut b = KernelBuilder::new(name);
        let x = b.read("x", width * 4);
        let scale = b.read("scale", scales * 4);
        let base = b.read("base", width * 4);
        let y = b.write("y", width * 4);
        let load = |b: &mut KernelBuilder, part: i64, at: ixc_ir::kernel::Affine, lanes: u16| {
            let ty = Type::f32(lanes);
            let x = b.load(ty, x, at.clone());
            let scale = b.load_splat(ty, scale, part * 4);
            let base = b.load(ty, base, at);
            b.fma(x, scale, base)
        };
        for part in 0..scales.min(2) {
            for_vectors(&mut b, vectors.lanes, streams, |b, at, lanes| {
                let at = at * 4 + part * n * 4;
                let x = load(b, part, at.clone(), lanes);
                let share = math::sigmoid(b, x);
                let weight = match part {
                    0 => {
                        let eps = b.splat_f32(lanes, eps);
                        b.add(share, eps)
                    }
                    _ => {
                        let magnitude = b.splat_f32(lanes, magnitude.value());
                        let weight = b.mul(share, magnitude);
                        let eps = b.splat_f32(lanes, eps);
                        if mixed { weight } else { b.add(weight, eps) }
                    }
                };
                b.store(y, at, weight);
            });
        }
        if mixed {
            let vectors = n / i64::from(LANES);
            let at = |i: i64| ixc_ir::kernel::Affine::constant(2 * n * 4 + i * i64::from(LANES) * 4);
            let x: Vec<ValueId> = (0..n * vectors).map(|i| load(&mut b, 2, at(i), LANES)).collect();
            let matrix = Matrix { vectors: vectors as usize, eps };
            let start = matrix.softmax(&mut b, x);
            let start = matrix.columns(&mut b, start);
            let end = b.for_carry("i", i64::from(iterations) - 1, &start, |b, _, x| {
                let x = matrix.rows(b, x.to_vec());
                matrix.columns(b, x)
            });
            for (weight, i) in end.into_iter().zip(0..) {
                b.store(y, at(i), weight);
            }
        }
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let (n, eps) = (self.streams as usize, f64::from(self.eps.value()));
        let (x, scale, base) = (input.floats("x")?, input.floats("scale")?, input.floats("base")?);
        let x: Vec<f64> = x.iter().zip(&base).enumerate().map(|(i, (x, b))| x * scale[(i / n).min(2)] + b).collect();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let mut expected: Vec<f64> = x[..n].iter().map(|&x| sigmoid(x) + eps).collect();
        let magnitude = f64::from(self.magnitude.value());
        match self.parts {
            StreamParts::Input => {}
            StreamParts::Apart => expected.extend(x[n..].iter().map(|&x| magnitude * sigmoid(x) + eps)),
            StreamParts::Mixed => expected.extend(x[n..2 * n].iter().map(|&x| magnitude * sigmoid(x))),
        }
        if self.parts == StreamParts::Mixed {
            let mut matrix: Vec<f64> = x[2 * n..].to_vec();
            for row in matrix.chunks_exact_mut(n) {
                let sum: f64 = row.iter().map(|x| x.exp()).sum();
                row.iter_mut().for_each(|x| *x = x.exp() / sum + eps);
            }
            for iteration in 0..self.iterations {
                for i in 0..n {
                    let own = |x: &[f64], j: usize| x[i * n + j];
                    let sum: f64 = (0..n).map(|j| own(&matrix, j)).sum::<f64>() + eps;
                    (0..if iteration > 0 { n } else { 0 }).for_each(|j| matrix[i * n + j] /= sum);
                }
                for j in 0..n {
                    let sum: f64 = (0..n).map(|i| matrix[i * n + j]).sum::<f64>() + eps;
                    (0..n).for_each(|i| matrix[i * n + j] /= sum);
                }
            }
            expected.extend(matrix);
        }
        // All terms are positive. The relative error of a sum is thus at most that of its terms,
        // plus one rounding for each term; a division adds two roundings. The argument x is rounded
        // too, which causes a relative error of the exponential.
        let roundings = f64::from(self.iterations) * 2.0 * (n + 3) as f64;
        let bound = EXP_BOUND + roundings * UNIT;
        for (i, (y, expected)) in output.floats("y")?.iter().zip(expected).enumerate() {
            close(format_args!("y[{i}]"), *y, expected, expected * bound * (1.0 + x[i].abs()))?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

/// A matrix in registers. Each row is `vectors` vectors, and rows follow one after the other.
struct Matrix {
    vectors: usize,
    eps: f32,
}

impl Matrix {
    /// Reduces all lanes of a row of the matrix to one number. `both` combines two vectors, and
    /// `reduce` the lanes of one.
    fn across(&self, b: &mut KernelBuilder, row: &[ValueId], both: Op, reduce: Op) -> ValueId {
        let one = row[1..].iter().fold(row[0], |sum, x| b.same(both, &[sum, *x]));
        b.op(reduce, Type::f32(1), &[one])
    }

    fn softmax(&self, b: &mut KernelBuilder, x: Vec<ValueId>) -> Vec<ValueId> {
        let mut out = Vec::with_capacity(x.len());
        for row in x.chunks_exact(self.vectors) {
            let max = self.across(b, row, Op::Max, Op::ReduceMax);
            let max = b.broadcast(LANES, max);
            let row: Vec<ValueId> = row
                .iter()
                .map(|&x| {
                    let x = b.sub(x, max);
                    math::exp_of_negative(b, x)
                })
                .collect();
            let sum = self.across(b, &row, Op::Add, Op::ReduceAdd);
            let sum = b.broadcast(LANES, sum);
            let eps = b.splat_f32(LANES, self.eps);
            for x in row {
                let share = b.same(Op::Div, &[x, sum]);
                out.push(b.add(share, eps));
            }
        }
        out
    }

    /// Divides each row of the matrix by its sum.
    fn rows(&self, b: &mut KernelBuilder, mut x: Vec<ValueId>) -> Vec<ValueId> {
        for row in x.chunks_exact_mut(self.vectors) {
            let sum = self.across(b, row, Op::Add, Op::ReduceAdd);
            let eps = b.splat_f32(1, self.eps);
            let sum = b.add(sum, eps);
            let sum = b.broadcast(LANES, sum);
            row.iter_mut().for_each(|x| *x = b.same(Op::Div, &[*x, sum]));
        }
        x
    }

    /// Divides each column of the matrix by its sum.
    fn columns(&self, b: &mut KernelBuilder, mut x: Vec<ValueId>) -> Vec<ValueId> {
        let eps = b.splat_f32(LANES, self.eps);
        for vector in 0..self.vectors {
            let column = || (vector..x.len()).step_by(self.vectors);
            let sum = column().skip(1).fold(x[vector], |sum, i| b.add(sum, x[i]));
            let sum = b.add(sum, eps);
            let places: Vec<usize> = column().collect();
            places.into_iter().for_each(|i| x[i] = b.same(Op::Div, &[x[i], sum]));
        }
        x
    }
}
