//! Root mean squares of rows in kernel IR, for norms and rotations.

use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId};

use crate::generator::quantise;
use crate::generator::reference::{Mismatch, Run, close, floats, step};
use crate::generator::text::Bits;
use crate::generator::vectors::{SUM, fold_row};

/// Returns the sum of the squares of a row's elements, as a scalar.
pub fn squares(
    b: &mut KernelBuilder,
    lanes: u16,
    n: u32,
    mut load: impl FnMut(&mut KernelBuilder, Affine, u16) -> ValueId,
) -> ValueId {
    fold_row(b, lanes, n, SUM, |b, at, lanes, acc| {
        let v = load(b, at, lanes);
        b.fma(v, v, acc)
    })
}

/// Returns `1 / sqrt(sum / n + eps)`, as a scalar.
pub fn inverse_root(b: &mut KernelBuilder, sum: ValueId, n: u32, eps: f32) -> ValueId {
    let (per_element, eps, one) = (b.splat_f32(1, 1.0 / n as f32), b.splat_f32(1, eps), b.splat_f32(1, 1.0));
    let mean = b.fma(sum, per_element, eps);
    let root = b.same(Op::Sqrt, &[mean]);
    b.same(Op::Div, &[one, root])
}

/// Returns `1 / sqrt(mean(x^2) + eps)` of a row, as a scalar.
pub fn inverse_rms(
    b: &mut KernelBuilder,
    lanes: u16,
    n: u32,
    eps: f32,
    load: impl FnMut(&mut KernelBuilder, Affine, u16) -> ValueId,
) -> ValueId {
    let sum = squares(b, lanes, n, load);
    inverse_root(b, sum, n, eps)
}

/// Buffers of a norm of one row.
#[derive(Clone, Copy)]
pub struct NormBuffers {
    /// Row to normalise, in f32.
    pub x: BufferId,
    /// Factor of each element, in f32. `None` if all factors are 1.
    pub w: Option<BufferId>,
    /// Buffer for the normalised row.
    pub y: BufferId,
}

/// Stores `x * scale * w` for `n` elements, in the format `out`.
pub fn store_scaled(b: &mut KernelBuilder, lanes: u16, out: Format, n: u32, buffers: NormBuffers, scale: ValueId) {
    let NormBuffers { x, w, y } = buffers;
    quantise::store_row(b, lanes, out, n, y, Affine::constant(0), &mut |b, at, lanes| {
        let v = b.load(Type::f32(lanes), x, at.clone() * 4);
        let w = w.map(|w| b.load(Type::f32(lanes), w, at * 4));
        let scale = if lanes == 1 { scale } else { b.broadcast(lanes, scale) };
        let v = b.mul(v, scale);
        w.map_or(v, |w| b.mul(v, w))
    });
}

/// Compares `y` with `x * w / sqrt(sum / row + eps)`. `sum` is the sum of the squares of a whole
/// row of `row` elements.
pub fn reference(run: &Run<'_>, sum: f64, row: u32, eps: Bits, out: Format) -> Result<(), Mismatch> {
    let x = run.input().floats("x")?;
    let w = run.input().find("w").map_or_else(|| vec![1.0; x.len()], floats);
    let scale = 1.0 / (sum / f64::from(row) + f64::from(eps.value())).sqrt();
    // If items are columns, `x` and `y` are only a part of the row.
    let mut y = vec![0.0; x.len()];
    out.dequantise(run.output().get("y")?, &mut y);
    let expected: Vec<f64> = x.iter().zip(&w).map(|(x, w)| x * scale * w).collect();
    let amax = expected.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
    let step = step(out, amax);
    let mut values = y.iter().zip(&expected).enumerate();
    values.try_for_each(|(i, (y, expected))| {
        close(format_args!("y[{i}]"), f64::from(*y), *expected, step + (amax + 1e-3) * 1e-5)
    })
}
