//! Attention of a row over the residual streams of earlier layers and its current value (attention
//! residuals; see the graph op `stream.attend`).
//!
//! ```text
//! score of each = (x . w) / sqrt(mean(x^2) + eps)
//! shares = softmax of scores;  z = sum of shares * x
//! ```
//!
//! Rows are read twice: for the scores, and for the sum. In the sum, vector lanes are elements, and
//! the shares are loaded from memory.

use ixc_ir::kernel::{Affine, BufferId, BufferKind, Kernel, KernelBuilder, Op, Type, ValueId};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::reference::{EXP_BOUND, Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Bits, spec};
use crate::generator::vectors::{SUM, fold_row, for_vectors};
use crate::generator::{math, rms};

spec! {
    /// `z = sum over the streams, and y, of share * stream`. The shares are a softmax of the
    /// scores.
    pub struct StreamAttend "stream_attend" {
        /// Number of streams of earlier layers.
        pub streams: u32,
        /// Number of elements of a stream.
        pub d: u32,
        /// Epsilon of the norm in the scores.
        pub eps: Bits,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("stream_attend", 1, "stream_attend streams=4 d=4096 eps=1e-5"),
];

/// Maximum number of streams. It is limited because the code is unrolled over streams.
const MAX_STREAMS: u32 = 64;

impl Definition for StreamAttend {
    fn name(&self) -> String {
        let StreamAttend { streams, d, eps } = *self;
        format!("stream_attend_s{streams}d{d}_e{:x}", eps.0)
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", BufferContents::Floats)
            .read("y", BufferContents::Floats)
            .read("w", BufferContents::Floats)
            .write("shares", BufferContents::Floats)
            .write("z", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let StreamAttend { streams, d, eps } = *self;
        check(&name, "elements", d.into(), d > 0, "at least 1")?;
        let most = format!("1 to {MAX_STREAMS}");
        check(&name, "streams", streams.into(), (1..=MAX_STREAMS).contains(&streams), most)?;
        let (lanes, count, stream) = (vectors.lanes, i64::from(streams), i64::from(d) * 4);
        let mut b = KernelBuilder::new(name);
        let x = b.read("x", count * stream);
        let y = b.read("y", stream);
        let w = b.read("w", stream);
        let shares = b.buffer("shares", BufferKind::ReadWrite, (count + 1) * 4);
        let z = b.write("z", stream);
        // Buffer and byte offset of each stream, with `y` as the last one.
        let begins: Vec<(BufferId, i64)> = (0..count).map(|j| (x, j * stream)).chain([(y, 0)]).collect();
        let load = |b: &mut KernelBuilder, (buffer, from): (BufferId, i64), at: Affine, lanes: u16| {
            b.load(Type::f32(lanes), buffer, at * 4 + from)
        };
        let mut max: Option<ValueId> = None;
        for (&place, share) in begins.iter().zip((0..).step_by(4)) {
            let scale = rms::inverse_rms(&mut b, lanes, d, eps.value(), |b, at, lanes| load(b, place, at, lanes));
            let product = fold_row(&mut b, lanes, d, SUM, |b, at, lanes, sum| {
                let v = load(b, place, at.clone(), lanes);
                let w = b.load(Type::f32(lanes), w, at * 4);
                b.fma(v, w, sum)
            });
            let score = b.mul(product, scale);
            b.store(shares, share, score);
            max = Some(max.map_or(score, |max| b.same(Op::Max, &[max, score])));
        }
        let (one, mut sum) = (b.splat_f32(1, 1.0), b.splat_f32(1, 0.0));
        for share in (0..=count).map(|j| j * 4) {
            let score = b.load(Type::f32(1), shares, share);
            let below = b.sub(score, max.unwrap_or(score));
            let e = math::exp_of_negative(&mut b, below);
            b.store(shares, share, e);
            sum = b.add(sum, e);
        }
        let inverse = b.same(Op::Div, &[one, sum]);
        for share in (0..=count).map(|j| j * 4) {
            let e = b.load(Type::f32(1), shares, share);
            let e = b.mul(e, inverse);
            b.store(shares, share, e);
        }
        for_vectors(&mut b, lanes, d, |b, at, lanes| {
            let mut sum = None;
            for (&place, share) in begins.iter().zip((0..).step_by(4)) {
                let v = load(b, place, at.clone(), lanes);
                let factor = b.load_splat(Type::f32(lanes), shares, share);
                sum = Some(match sum {
                    None => b.mul(v, factor),
                    Some(sum) => b.fma(v, factor, sum),
                });
            }
            if let Some(sum) = sum {
                b.store(z, at * 4, sum);
            }
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let (d, eps) = (self.d as usize, f64::from(self.eps.value()));
        let (x, y, w) = (input.floats("x")?, input.floats("y")?, input.floats("w")?);
        let (shares, z) = (output.floats("shares")?, output.floats("z")?);
        let all: Vec<&[f64]> = x.chunks_exact(d).chain([&y[..]]).collect();
        // The error of a score comes from a sum of products, and from a norm whose terms are all
        // positive.
        let mut wrong = 0f64;
        let scores: Vec<f64> = all
            .iter()
            .map(|row| {
                let scale = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / d as f64 + eps).sqrt();
                let products = || row.iter().zip(&w).map(|(x, w)| x * w);
                let size = products().map(f64::abs).sum::<f64>() * scale;
                wrong = wrong.max(size * (2 * d + 8) as f64 * UNIT);
                products().sum::<f64>() * scale
            })
            .collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let e: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let sum: f64 = e.iter().sum();
        // The relative error of a share comes from the exponents, from an exponential with a
        // rounded argument, and from the sum of exponentials.
        let spread = scores.iter().map(|score| max - score).fold(0.0, f64::max).min(90.0);
        let relative = (2.0 * wrong + 4.0 * spread * UNIT).exp_m1() + 2.0 * EXP_BOUND + (all.len() + 4) as f64 * UNIT;
        for (j, share) in shares.iter().enumerate() {
            // An exponential below the smallest normal number may be 0.
            close(format_args!("shares[{j}]"), *share, e[j] / sum, e[j] / sum * relative + 1e-37)?;
        }
        for (i, z) in z.iter().enumerate() {
            let products = || all.iter().zip(&e).map(|(row, e)| e / sum * row[i]);
            let size: f64 = products().map(f64::abs).sum();
            close(format_args!("z[{i}]"), *z, products().sum(), size * relative + 1e-30)?;
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
