//! Kernels of single rows: embedding, norm, elementwise functions, gather and combine.

use ixc_ir::kernel::{Affine, BufferKind, Kernel, KernelBuilder, Op, Type, ValueId};
use ixc_ir::plan::KernelSpec;
use ixc_ir::plan::spec::Elementwise;

use super::{GenerateError, MAX_ROWS, SUM, check, fold_row, for_vectors, linear, math, quantise, spec_fields};

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

/// `1 / sqrt(mean(x^2) + eps)` of a row, in one lane.
pub fn inverse_rms(
    b: &mut KernelBuilder,
    lanes: u16,
    n: u32,
    eps: f32,
    mut load: impl FnMut(&mut KernelBuilder, Affine, u16) -> ValueId,
) -> ValueId {
    let sum = fold_row(b, lanes, n, SUM, |b, at, lanes, acc| {
        let v = load(b, at, lanes);
        b.fma(v, v, acc)
    });
    let (per_element, eps, one) = (b.splat_f32(1, 1.0 / n as f32), b.splat_f32(1, eps), b.splat_f32(1, 1.0));
    let mean = b.fma(sum, per_element, eps);
    let root = b.same(Op::Sqrt, &[mean]);
    b.same(Op::Div, &[one, root])
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
    quantise::store_row(&mut b, lanes, out, n, y, Affine::constant(0), &mut |b, at, lanes| {
        let v = b.load(Type::f32(lanes), x, at.clone() * 4);
        let w = b.load(Type::f32(lanes), w, at * 4);
        let scale = if lanes == 1 { scale } else { b.broadcast(lanes, scale) };
        let v = b.mul(v, scale);
        b.mul(v, w)
    });
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
