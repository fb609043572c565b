//! Kernels of single rows: embedding, norm, elementwise functions, gather and combine.

use crate::spec::Elementwise;
use crate::spec::KernelSpec;
use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, BufferId, BufferKind, Kernel, KernelBuilder, Op, Type, ValueId};

use crate::generate::{GenerateError, MAX_ROWS, SUM, check, fold_row, for_vectors, spec_fields};
use crate::{linear, math, quantise};

/// One row of a table, dequantised.
pub fn embed(name: String, spec: &KernelSpec) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, Embed { format, rows, n });
    let bytes = quantise::row_bytes(&name, format, n)?;
    let mut b = KernelBuilder::new(name);
    let id = b.buffer("id", BufferKind::Index { below: i64::from(rows).into() }, 4);
    let table = b.read("table", bytes * i64::from(rows));
    let y = b.write("y", i64::from(n) * 4);
    let row = b.load_index("row", id, 0);
    linear::dequantise_row(&mut b, format, n, table, row * bytes, y);
    Ok(b.finish())
}

/// The sum of the squares of a row's elements, in one lane.
fn squares(
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

/// `1 / sqrt(sum / n + eps)`, in one lane.
fn inverse_root(b: &mut KernelBuilder, sum: ValueId, n: u32, eps: f32) -> ValueId {
    let (per_element, eps, one) = (b.splat_f32(1, 1.0 / n as f32), b.splat_f32(1, eps), b.splat_f32(1, 1.0));
    let mean = b.fma(sum, per_element, eps);
    let root = b.same(Op::Sqrt, &[mean]);
    b.same(Op::Div, &[one, root])
}

/// `1 / sqrt(mean(x^2) + eps)` of a row, in one lane.
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

/// Stores `x * scale * w` in the format that follows.
fn store_scaled(
    b: &mut KernelBuilder,
    lanes: u16,
    (out, n): (Format, u32),
    (x, w, y): (BufferId, BufferId, BufferId),
    scale: ValueId,
) {
    quantise::store_row(b, lanes, out, n, y, Affine::constant(0), &mut |b, at, lanes| {
        let v = b.load(Type::f32(lanes), x, at.clone() * 4);
        let w = b.load(Type::f32(lanes), w, at * 4);
        let scale = if lanes == 1 { scale } else { b.broadcast(lanes, scale) };
        let v = b.mul(v, scale);
        b.mul(v, w)
    });
}

/// RMS norm of a row, stored in the format that follows.
pub fn rms_norm(name: String, spec: &KernelSpec, lanes: u16) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, RmsNorm { n, eps, out });
    let bytes = quantise::row_bytes(&name, out, n)?;
    quantise::stored(&name, out, lanes)?;
    let mut b = KernelBuilder::new(name);
    let size = i64::from(n) * 4;
    let (x, w, y) = (b.read("x", size), b.read("w", size), b.write("y", bytes));
    let scale = inverse_rms(&mut b, lanes, n, eps.value(), |b, at, lanes| b.load(Type::f32(lanes), x, at * 4));
    store_scaled(&mut b, lanes, (out, n), (x, w, y), scale);
    Ok(b.finish())
}

/// The sum of the squares of a piece of a row.
pub fn sum_squares(name: String, spec: &KernelSpec, lanes: u16) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, SumSquares { n });
    let mut b = KernelBuilder::new(name);
    let (x, y) = (b.read("x", i64::from(n) * 4), b.write("y", 4));
    let sum = squares(&mut b, lanes, n, |b, at, lanes| b.load(Type::f32(lanes), x, at * 4));
    b.store(y, Affine::constant(0), sum);
    Ok(b.finish())
}

/// RMS norm of a piece of a row, from the sums of the squares of all its pieces, which are added in their order.
pub fn rms_norm_piece(name: String, spec: &KernelSpec, lanes: u16) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, RmsNormPiece { n, row, parts, eps, out });
    let bytes = quantise::row_bytes(&name, out, n)?;
    quantise::stored(&name, out, lanes)?;
    check(&name, "pieces", u64::from(parts), parts > 0, "at least 1")?;
    check(&name, "elements of the row", u64::from(row), row >= n, format!("at least {n}, as the piece has"))?;
    let mut b = KernelBuilder::new(name);
    let (size, parts) = (i64::from(n) * 4, i64::from(parts));
    let (x, sums, w) = (b.read("x", size), b.read("sums", parts * 4), b.read("w", size));
    let y = b.write("y", bytes);
    let first = b.load(Type::f32(1), sums, Affine::constant(0));
    let sum = b.for_carry("part", parts - 1, &[first], |b, i, sum| {
        let next = b.load(Type::f32(1), sums, i * 4 + 4);
        vec![b.add(sum[0], next)]
    });
    let scale = inverse_root(&mut b, sum[0], row, eps.value());
    store_scaled(&mut b, lanes, (out, n), (x, w, y), scale);
    Ok(b.finish())
}

/// An elementwise function.
pub fn map(name: String, spec: &KernelSpec, lanes: u16) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, Map { function, n });
    let mut b = KernelBuilder::new(name);
    let size = i64::from(n) * 4;
    let x = b.read("a", size);
    let second = match function {
        Elementwise::Add | Elementwise::Mul => Some(b.read("b", size)),
        Elementwise::Silu => None,
    };
    let y = b.write("y", size);
    for_vectors(&mut b, lanes, n, |b, at, lanes| {
        let v = b.load(Type::f32(lanes), x, at.clone() * 4);
        let operand = second.map(|buffer| b.load(Type::f32(lanes), buffer, at.clone() * 4));
        let v = match (function, operand) {
            (Elementwise::Add, Some(o)) => b.add(v, o),
            (Elementwise::Mul, Some(o)) => b.mul(v, o),
            (Elementwise::Add | Elementwise::Mul, None) | (Elementwise::Silu, _) => math::silu(b, v),
        };
        b.store(y, at * 4, v);
    });
    Ok(b.finish())
}

/// Adds a vector.
pub fn add_bias(name: String, spec: &KernelSpec, lanes: u16) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, AddBias { n });
    let mut b = KernelBuilder::new(name);
    let size = i64::from(n) * 4;
    let (x, bias, y) = (b.read("x", size), b.read("bias", size), b.write("y", size));
    for_vectors(&mut b, lanes, n, |b, at, lanes| {
        let v = b.load(Type::f32(lanes), x, at.clone() * 4);
        let o = b.load(Type::f32(lanes), bias, at.clone() * 4);
        let v = b.add(v, o);
        b.store(y, at * 4, v);
    });
    Ok(b.finish())
}

/// Copies a row that an index names.
pub fn gather(name: String, spec: &KernelSpec) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, Gather { bytes });
    let mut b = KernelBuilder::new(name);
    let rows = b.dim("rows", 1, MAX_ROWS);
    let index = b.buffer("row", BufferKind::Index { below: rows.into() }, 4);
    let (x, y) = (b.read("x", rows * i64::from(bytes)), b.write("y", i64::from(bytes)));
    let row = b.load_index("r", index, 0);
    let vectors = bytes / 32;
    b.for_each("i", i64::from(vectors), |b, i| {
        let v = b.load(Type::i8(32), x, row * i64::from(bytes) + i * 32);
        b.store(y, i * 32, v);
    });
    let mut at = vectors * 32;
    for size in [16u32, 8, 4, 2, 1] {
        if bytes - at >= size {
            let v = b.load(Type::i8(size as u16), x, row * i64::from(bytes) + i64::from(at));
            b.store(y, i64::from(at), v);
            at += size;
        }
    }
    Ok(b.finish())
}

/// The weighted sum of the rows that indices name.
pub fn combine(name: String, spec: &KernelSpec, lanes: u16) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, Combine { n, slots, residual });
    check(&name, "slots", u64::from(slots), slots > 0, "at least 1")?;
    let mut b = KernelBuilder::new(name);
    let size = i64::from(n) * 4;
    let rows = b.dim("rows", 1, MAX_ROWS);
    let slot = b.buffer("slot", BufferKind::Index { below: rows.into() }, i64::from(slots) * 4);
    let p = b.read("p", i64::from(slots) * 4);
    let x = b.read("x", rows * size);
    let base = residual.then(|| b.read("residual", size));
    let y = b.buffer("y", BufferKind::ReadWrite, size);
    for_vectors(&mut b, lanes, n, |b, at, lanes| {
        let v = match base {
            Some(base) => b.load(Type::f32(lanes), base, at.clone() * 4),
            None => b.splat_f32(lanes, 0.0),
        };
        b.store(y, at * 4, v);
    });
    // Slots in the outer loop, so that one row pointer is live at a time; y stays in the first-level cache.
    b.for_each("s", i64::from(slots), |b, s| {
        let row = b.load_index("r", slot, s * 4);
        for_vectors(b, lanes, n, |b, at, lanes| {
            let weight = b.load_splat(Type::f32(lanes), p, s * 4);
            let v = b.load(Type::f32(lanes), x, row * size + at.clone() * 4);
            let sum = b.load(Type::f32(lanes), y, at.clone() * 4);
            let sum = b.fma(v, weight, sum);
            b.store(y, at * 4, sum);
        });
    });
    Ok(b.finish())
}
