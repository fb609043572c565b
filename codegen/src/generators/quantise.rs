//! Activations into their formats: the largest magnitude of the elements that share a scale becomes 127.
//!
//! `d = amax / 127`, `q = round(x * 127 / amax)`, ties to even, exactly as the graph interpreter's `quantise`.

use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, BufferId, Kernel, KernelBuilder, Op, Type, ValueId};
use ixc_ir::plan::KernelSpec;

use super::{GenerateError, LANES, check, for_vectors, math, spec_fields};

/// Elements that share a scale in `a8_super`.
const SUB: i64 = 32;
/// Elements that share a scale in `a8_small`.
const HALF: i64 = 16;

/// Gives the vector of `lanes` values from an element offset on.
pub type Values<'a> = &'a mut dyn FnMut(&mut KernelBuilder, Affine, u16) -> ValueId;

/// Buffers: `x f32[n]`, `y out[n]`.
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
        Format::A8Small => {
            let (len, bytes) = (format.block_len() as i64, format.block_bytes() as i64);
            b.for_each("block", i64::from(n) / len, |b, block| {
                let at = offset.clone() + block * bytes;
                let field = |name| at.clone() + format.field(name) as i64;
                let mut parts = Vec::new();
                for half in 0..2 {
                    let (quants, d) = (field("quants") + half * HALF, field("d") + half * 4);
                    let sums = store_scaled(b, HALF, y, quants, d, &mut |b, i, lanes| {
                        values(b, block * len + half * HALF + i, lanes)
                    });
                    let sum = b.op(Op::ToF32, Type::f32(1), &sums.of_16);
                    parts.push(b.mul(sum, sums.d));
                }
                let sum = b.add(parts[0], parts[1]);
                b.store(y, field("sum"), sum);
            });
        }
        Format::A8Super => {
            let (len, bytes) = (format.block_len() as i64, format.block_bytes() as i64);
            b.for_each("block", i64::from(n) / len, |b, block| {
                b.for_each("sub", len / SUB, |b, sub| {
                    let at = offset.clone() + block * bytes;
                    let field = |name| at.clone() + format.field(name) as i64;
                    let sums = store_scaled(
                        b,
                        SUB,
                        y,
                        field("quants") + sub * SUB,
                        field("d") + sub * 4,
                        &mut |b, i, lanes| values(b, block * len + sub * SUB + i, lanes),
                    );
                    for (half, sum) in sums.of_16.iter().enumerate() {
                        let word = b.op(Op::NarrowS, Type::i16(1), &[*sum]);
                        b.store(y, field("sums16") + sub * 4 + half as i64 * 2, word);
                    }
                    let sum = b.iadd(sums.of_16[0], sums.of_16[1]);
                    let sum = b.op(Op::ToF32, Type::f32(1), &[sum]);
                    let sum = b.mul(sum, sums.d);
                    b.store(y, field("sums") + sub * 4, sum);
                });
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
        Format::A8SuperTile
        | Format::A8SmallTile
        | Format::Bf16x2
        | Format::F16R16
        | Format::Bf16R16
        | Format::Q8_0R16
        | Format::Q4_0R16
        | Format::Q4KR16
        | Format::Q5KR16
        | Format::Q6KR16 => {
            unreachable!("no kernel writes {format}")
        }
    }
}

/// What the callers of [`store_scaled`] derive their sums from.
struct Sums {
    /// Sums of each 16 quants, as scalars.
    of_16: Vec<ValueId>,
    /// The scale.
    d: ValueId,
}

/// Quantises `count` values with one scale, which is stored at `d_at`.
fn store_scaled(
    b: &mut KernelBuilder,
    count: i64,
    y: BufferId,
    quants: Affine,
    d_at: Affine,
    values: Values<'_>,
) -> Sums {
    let lanes = i64::from(LANES);
    let vectors = count / lanes;
    let x: Vec<ValueId> = (0..vectors).map(|i| values(b, Affine::constant(i * lanes), LANES)).collect();
    let magnitudes: Vec<ValueId> = x.iter().map(|x| math::abs(b, *x)).collect();
    let amax = magnitudes[1..].iter().fold(magnitudes[0], |m, x| b.same(Op::Max, &[m, *x]));
    let amax = b.op(Op::ReduceMax, Type::f32(1), &[amax]);
    let (zero, full, unit) = (b.splat_f32(1, 0.0), b.splat_f32(1, 127.0), b.splat_f32(1, 1.0 / 127.0));
    let d = b.mul(amax, unit);
    b.store(y, d_at, d);
    let inverse = b.same(Op::Div, &[full, amax]);
    let positive = b.op(Op::CmpLtF, Type::i32(1), &[zero, amax]);
    let inverse = b.op(Op::Select, Type::f32(1), &[positive, inverse, zero]);
    let inverse = b.broadcast(LANES, inverse);
    let q: Vec<ValueId> = x
        .into_iter()
        .enumerate()
        .map(|(i, x)| {
            let scaled = b.mul(x, inverse);
            let q = b.op(Op::ToI32, Type::i32(LANES), &[scaled]);
            let narrow = b.op(Op::NarrowS, Type::i8(LANES), &[q]);
            b.store(y, quants.clone() + i as i64 * lanes, narrow);
            q
        })
        .collect();
    let of_16 = q
        .chunks_exact(16 / usize::from(LANES))
        .map(|q| {
            let sum = q[1..].iter().fold(q[0], |s, q| b.iadd(s, *q));
            b.op(Op::ReduceAdd, Type::i32(1), &[sum])
        })
        .collect();
    Sums { of_16, d }
}
