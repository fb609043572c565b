//! Activations into their formats: the largest magnitude of a block becomes 127.
//!
//! `d = amax / 127`, `q = round(x * 127 / amax)`, ties to even, exactly as the graph interpreter's `quantise`.

use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, BufferId, Kernel, KernelBuilder, Op, Type, ValueId};
use ixc_ir::plan::KernelSpec;

use super::{GenerateError, LANES, check, for_vectors, math, spec_fields};

/// Gives the vector of `lanes` values from an element offset on. It is called twice for each element.
pub type Values<'a> = &'a mut dyn FnMut(&mut KernelBuilder, Affine, u16) -> ValueId;

/// Buffers: x f32[n], y out[n].
pub fn quantise(name: String, spec: &KernelSpec) -> Result<Kernel, GenerateError> {
    spec_fields!(spec, Quantise { n, out });
    let bytes = row_bytes(&name, out, n)?;
    let mut b = KernelBuilder::new(name);
    let (x, y) = (b.read("x", i64::from(n) * 4), b.write("y", bytes));
    store_row(&mut b, out, n, y, Affine::constant(0), &mut |b, at, lanes| b.load(Type::f32(lanes), x, at * 4));
    Ok(b.finish())
}

/// Bytes of a row of `n` elements.
pub fn row_bytes(kernel: &str, format: Format, n: u32) -> Result<i64, GenerateError> {
    let bytes = format.row_bytes(u64::from(n));
    check(kernel, "row length", u64::from(n), bytes.is_some(), format!("a multiple of {}", format.block_len()))?;
    Ok(bytes.unwrap_or(0) as i64)
}

/// Stores a row of `n` values at `offset` of `y` in `format`, which is f32 or an activation format.
pub fn store_row(b: &mut KernelBuilder, format: Format, n: u32, y: BufferId, offset: Affine, values: Values<'_>) {
    match format {
        Format::A8Super | Format::A8Small => {
            let (len, bytes) = (format.block_len() as i64, format.block_bytes() as i64);
            b.for_each("block", i64::from(n) / len, |b, block| {
                let to = offset.clone() + block * bytes;
                store_block(b, format, y, to, &mut |b, at, lanes| values(b, block * len + at, lanes));
            });
        }
        Format::F32
        | Format::F16
        | Format::Bf16
        | Format::Q8_0
        | Format::Q4_0
        | Format::Q4K
        | Format::Q5K
        | Format::Q6K => for_vectors(b, n, |b, at, lanes| {
            let v = values(b, at.clone(), lanes);
            b.store(y, offset.clone() + at * 4, v);
        }),
    }
}

fn store_block(b: &mut KernelBuilder, format: Format, y: BufferId, to: Affine, values: Values<'_>) {
    let len = format.block_len() as i64;
    let vectors = len / i64::from(LANES);
    let zero = b.splat_f32(LANES, 0.0);
    let amax = b.for_carry("i", vectors, &[zero], |b, i, acc| {
        let v = values(b, i * i64::from(LANES), LANES);
        let v = math::abs(b, v);
        vec![b.same(Op::Max, &[acc[0], v])]
    });
    let amax = b.op(Op::ReduceMax, Type::f32(1), &amax);
    let (zero, full, unit) = (b.splat_f32(1, 0.0), b.splat_f32(1, 127.0), b.splat_f32(1, 1.0 / 127.0));
    let d = b.mul(amax, unit);
    b.store(y, to.clone() + format.field("d") as i64, d);
    let inverse = b.same(Op::Div, &[full, amax]);
    let positive = b.op(Op::CmpLtF, Type::i32(1), &[zero, amax]);
    let inverse = b.op(Op::Select, Type::f32(1), &[positive, inverse, zero]);
    let inverse = b.broadcast(LANES, inverse);
    let quants = to.clone() + format.field("quants") as i64;
    let mut store_vector = |b: &mut KernelBuilder, at: Affine| {
        let v = values(b, at.clone(), LANES);
        let v = b.mul(v, inverse);
        let q = b.op(Op::ToI32, Type::i32(LANES), &[v]);
        let narrow = b.op(Op::NarrowS, Type::i8(LANES), &[q]);
        b.store(y, quants.clone() + at, narrow);
        q
    };
    if format == Format::A8Small {
        let sum = b.splat_int(Type::i32(LANES), 0);
        let sum = b.for_carry("i", vectors, &[sum], |b, i, sum| {
            let q = store_vector(b, i * i64::from(LANES));
            vec![b.iadd(sum[0], q)]
        });
        let sum = b.op(Op::ReduceAdd, Type::i32(1), &sum);
        b.store(y, to + format.field("sum") as i64, sum);
        return;
    }
    b.for_each("sub", len / 32, |b, sub| {
        let mut halves = [None, None];
        for (half, sum16) in halves.iter_mut().enumerate() {
            let at = sub * 32 + half as i64 * 16;
            let (q0, q1) = (store_vector(b, at.clone()), store_vector(b, at + i64::from(LANES)));
            let q = b.iadd(q0, q1);
            let sum = b.op(Op::ReduceAdd, Type::i32(1), &[q]);
            let word = b.op(Op::NarrowS, Type::i16(1), &[sum]);
            b.store(y, to.clone() + format.field("sums16") as i64 + sub * 4 + half as i64 * 2, word);
            *sum16 = Some(sum);
        }
        if let [Some(low), Some(high)] = halves {
            let sum = b.iadd(low, high);
            let word = b.op(Op::NarrowS, Type::i16(1), &[sum]);
            b.store(y, to.clone() + format.field("sums32") as i64 + sub * 2, word);
        }
    });
}
