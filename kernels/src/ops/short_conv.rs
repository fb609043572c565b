//! Causal convolution with a few taps over the rows of a step, separately for each channel. The
//! state has the earlier rows.
//!
//! `y[t, c] = sum of w[c, j] * x[t - (taps - 1) + j, c]`, in the order of the taps. Vector lanes
//! are channels. The earlier rows stay in registers from row to row, and are stored in the state at
//! the end. The taps of a channel are adjacent in the weight, so the kernel transposes the weight
//! first. With a `dilation` of n, taps are n rows apart.

use ixc_ir::kernel::{Affine, BufferKind, Kernel, KernelBuilder, Type};
use ixc_ir::plan::DimInput;

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, MAX_ROWS, Vectors, check};
use crate::generator::reference::{Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_vectors;

spec! {
    /// `y[t, c] = sum of w[c, j] * x[t - (taps - 1) + j, c]`, for a slice of the channels.
    pub struct ShortConv "short_conv" {
        /// Number of channels of a row.
        pub channels: u32,
        /// Number of channels that a call computes.
        pub n: u32,
        /// Number of taps. The last tap belongs to the row itself.
        pub taps: u32,
        /// Distance in rows from one tap to the next, or `None` if it is 1.
        pub dilation: Option<u32>,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("short_conv", 1, "short_conv channels=8192 n=512 taps=4"),
    row("short_conv_rows", 32, "short_conv channels=2048 n=256 taps=3"),
    row("short_conv_dilated", 32, "short_conv channels=10240 n=256 taps=4 dilation=3"),
];

/// Maximum number of taps. The earlier rows stay in registers, so the next constant limits their
/// number too.
const MAX_TAPS: u32 = 8;
const MAX_BEFORE: u32 = 12;

impl Definition for ShortConv {
    fn name(&self) -> String {
        let ShortConv { channels, n, taps, dilation } = *self;
        let dilation = dilation.map_or(String::new(), |dilation| format!("d{dilation}"));
        format!("short_conv_c{channels}n{n}t{taps}{dilation}")
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .update("state", BufferContents::Floats)
            .read("x", BufferContents::Floats)
            .read("w", BufferContents::Floats)
            .write("y", BufferContents::Floats)
            .scratch("apart")
            .dim("rows", DimInput::Rows)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let ShortConv { channels, n, taps, dilation } = *self;
        check(&name, "channels", n.into(), n > 0 && n <= channels, "1 to those of a row")?;
        check(&name, "taps", taps.into(), (2..=MAX_TAPS).contains(&taps), format!("2 to {MAX_TAPS}"))?;
        let dilation = dilation.unwrap_or(1);
        let reach = dilation.saturating_mul(taps - 1);
        let ok = dilation > 0 && reach <= MAX_BEFORE;
        check(&name, "dilation", dilation.into(), ok, format!("1 to {}", MAX_BEFORE / (taps - 1)))?;
        let (row, own, count) = (i64::from(channels) * 4, i64::from(n) * 4, i64::from(taps));
        let (reach, dilation) = (i64::from(reach), dilation as usize);
        let mut b = KernelBuilder::new(name);
        let rows = b.dim("rows", 1, MAX_ROWS);
        // A call computes a slice of the channels, but the distance between rows is that of whole
        // rows.
        let state = b.buffer("state", BufferKind::ReadWrite, (reach - 1) * row + own);
        let x = b.read("x", rows * row + (own - row));
        let w = b.read("w", own * count);
        let y = b.write("y", rows * row + (own - row));
        let apart = b.buffer("apart", BufferKind::Scratch, own * count);
        b.for_each("c", i64::from(n), |b, c| {
            for tap in 0..count {
                let factor = b.load(Type::f32(1), w, c * (count * 4) + tap * 4);
                b.store(apart, c * 4 + tap * own, factor);
            }
        });
        for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
            let ty = Type::f32(lanes);
            let at: Affine = at * 4;
            let before: Vec<_> = (0..reach).map(|r| b.load(ty, state, at.clone() + r * row)).collect();
            let factors = |b: &mut KernelBuilder| -> Vec<_> {
                (0..count).map(|tap| b.load(ty, apart, at.clone() + tap * own)).collect()
            };
            // With a dilation, earlier rows leave no registers for the factors of the taps.
            let kept = (dilation == 1).then(|| factors(b));
            let after = b.for_carry("t", rows, &before, |b, t, before| {
                let new = b.load(ty, x, t * row + at.clone());
                let window: Vec<_> = before.iter().copied().chain([new]).collect();
                let factors = kept.clone().unwrap_or_else(|| factors(b));
                let of_taps: Vec<_> = window.iter().copied().step_by(dilation).collect();
                let first = b.mul(of_taps[0], factors[0]);
                let sum = of_taps[1..].iter().zip(&factors[1..]).fold(first, |sum, (&x, &w)| b.fma(x, w, sum));
                b.store(y, t * row + at.clone(), sum);
                window[1..].to_vec()
            });
            for (tap, value) in after.into_iter().enumerate() {
                b.store(state, at.clone() + tap as i64 * row, value);
            }
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let ShortConv { channels, n, taps, dilation } = self;
        let (channels, n, taps) = (*channels as usize, *n as usize, *taps as usize);
        let dilation = dilation.unwrap_or(1) as usize;
        let reach = (taps - 1) * dilation;
        let (input, output) = (run.input(), run.output());
        let (state, x, w) = (input.floats("state")?, input.floats("x")?, input.floats("w")?);
        let (after, y) = (output.floats("state")?, output.floats("y")?);
        let rows = run.dim("rows") as usize;
        // Rows of the state come before those of the input.
        let at = |r: usize, c: usize| if r < reach { state[r * channels + c] } else { x[(r - reach) * channels + c] };
        for c in 0..n {
            for t in 0..rows {
                let products = (0..taps).map(|j| w[c * taps + j] * at(t + j * dilation, c));
                let (expected, size): (f64, f64) = (products.clone().sum(), products.map(f64::abs).sum());
                close(format_args!("y[{t}, {c}]"), y[t * channels + c], expected, size * taps as f64 * UNIT)?;
            }
            for j in 0..reach {
                close(format_args!("state[{j}, {c}]"), after[j * channels + c], at(rows + j, c), 0.0)?;
            }
        }
        Ok(())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
