//! Quantisation of rows, in kernel IR. The largest magnitude of the elements that share a scale
//! becomes 127.
//!
//! `d = amax / 127`, `q = round(x * 127 / amax)`, ties to even, exactly as in `quantise` of the
//! graph interpreter. The formats for tile products have the elements as bf16, either in addition
//! or alone.

use ixc_ir::format::{Codec, Format, packed};
use ixc_ir::kernel::{Address, Affine, BufferId, KernelBuilder, Op, Type, ValueId};

use crate::generator::generate::{GenerateError, check, check_word};
use crate::generator::math;
use crate::generator::vectors::{Fold, fold_row, for_vectors};

/// Number of elements of a sub-block, which share a sum.
const SUB: i64 = packed::SUB as i64;

/// Function that returns the `lanes` values from an element offset on.
pub type Values<'a> = &'a mut dyn FnMut(&mut KernelBuilder, Affine, u16) -> ValueId;

/// Returns the distance in bytes from a row of `n` elements to the next row.
pub fn row_bytes(kernel: &str, format: Format, n: u32) -> Result<i64, GenerateError> {
    let bytes = format.row_bytes(u64::from(n));
    check(kernel, "row length", u64::from(n), bytes.is_some(), format!("a multiple of {}", format.block_len()))?;
    Ok(bytes.unwrap_or(0) as i64)
}

/// Returns the number of bytes that [`store_row`] writes for `n` elements, a row or a part of a
/// row.
pub fn written_bytes(kernel: &str, format: Format, n: u32) -> Result<i64, GenerateError> {
    row_bytes(kernel, format, n)?;
    Ok(format.written_bytes(u64::from(n)).unwrap_or(0) as i64)
}

/// Checks that [`store_row`] can write a format. Formats with bf16 need vectors of 16 lanes.
pub fn check_format(kernel: &str, format: Format, lanes: u16) -> Result<(), GenerateError> {
    let has_bf16 = matches!(format.codec(), Codec::Bf16 { .. }) || format.has_field("bf16");
    let ok = format.is_activation() && (lanes >= 16 || !has_bf16);
    let expected = "f32 or an activation format; one with bf16 only for targets of 16 lanes";
    check_word(kernel, "format of the result", format, ok, expected)
}

/// Stores a row of `n` values at `offset` of `y` in `format`, which is f32 or an activation format.
pub fn store_row(
    b: &mut KernelBuilder,
    lanes: u16,
    format: Format,
    n: u32,
    y: BufferId,
    offset: Affine,
    values: Values<'_>,
) {
    if *format.codec() == Codec::Row {
        return store_whole_row(b, lanes, format, n, y, offset, values);
    }
    let (len, bytes) = (format.block_len() as i64, format.block_bytes() as i64);
    let blocks = i64::from(n) / len;
    let block = |block: ixc_ir::kernel::VarId| BlockOf { format, y, lanes, at: offset.clone() + block * bytes };
    match *format.codec() {
        Codec::Bytes { scaled } => b.for_each("block", blocks, |b, i| {
            let block = block(i);
            block.store_pad(b, Affine::constant(0), 1);
            let mut sub_block = |b: &mut KernelBuilder, sub: Affine| {
                block.store_sub_block(b, scaled as i64, sub.clone(), &mut |b, at, lanes| {
                    values(b, i * len + sub.clone() * SUB + at, lanes)
                });
            };
            match len / SUB {
                1 => sub_block(b, Affine::constant(0)),
                subs => b.for_each("sub", subs, |b, sub| sub_block(b, sub.into())),
            }
        }),
        Codec::Bf16 { parts } => b.for_each("block", blocks, |b, i| {
            let block = block(i);
            for_vectors(b, lanes, len as u32, |b, at, lanes| {
                let x = values(b, i * len + at.clone(), lanes);
                let high = b.to_bf16(x);
                b.store(y, block.field("high") + at.clone() * 2, high);
                if parts == 1 {
                    return;
                }
                let high = b.bf16_to_f32(high);
                let rest = b.sub(x, high);
                let low = b.to_bf16(rest);
                b.store(y, block.field("low") + at * 2, low);
            });
        }),
        Codec::Float(_) => for_vectors(b, lanes, n, |b, at, lanes| {
            let v = values(b, at.clone(), lanes);
            b.store(y, offset.clone() + at * 4, v);
        }),
        Codec::Row | Codec::Quants(_) => unreachable!("no kernel writes {format} in blocks"),
    }
}

/// Reduction that finds the largest value of a row.
const MAX: Fold = Fold { start: 0.0, reduce: Op::ReduceMax, combine: Op::Max };

/// Stores a row that has a single scale. It finds the largest magnitude first, and then computes
/// the values again.
fn store_whole_row(
    b: &mut KernelBuilder,
    lanes: u16,
    format: Format,
    n: u32,
    y: BufferId,
    offset: Affine,
    values: Values<'_>,
) {
    let amax = fold_row(b, lanes, n, MAX, |b, at, lanes, amax| {
        let x = values(b, at, lanes);
        let x = math::abs(b, x);
        b.same(Op::Max, &[amax, x])
    });
    let Scale { d, inverse } = Scale::build(b, amax);
    // Blocks of these formats consist of whole vectors.
    let zero = b.splat_int(Type::i32(lanes), 0);
    let sums = b.for_carry("i", i64::from(n) / i64::from(lanes), &[zero], |b, i, sums| {
        let at = Affine::from(i) * i64::from(lanes);
        let x = values(b, at.clone(), lanes);
        let every = b.broadcast(lanes, inverse);
        let x = b.mul(x, every);
        let q = b.op(Op::ToI32, Type::i32(lanes), &[x]);
        let narrow = b.op(Op::NarrowS, Type::i8(lanes), &[q]);
        b.store(y, offset.clone() + at, narrow);
        vec![b.iadd(sums[0], q)]
    });
    let sum = b.op(Op::ReduceAdd, Type::i32(1), &sums);
    let tail = |name: &str| offset.clone() + (i64::from(n) + format.tail_field(name) as i64);
    b.store(y, tail("d"), d);
    b.store(y, tail("sum"), sum);
    let zero = b.splat_int(Type::i32(2), 0);
    for i in 0..format.row().tail.iter().find(|field| field.name == "pad").map_or(0, |pad| pad.bytes as i64 / 8) {
        b.store(y, tail("pad") + i * 8, zero);
    }
}

/// Stores `n` values of one band: sub-blocks of the block at `to`, from sub-block `band * n / SUB`
/// on. The bands of a block together store the same bytes as [`store_row`].
pub fn store_band(
    b: &mut KernelBuilder,
    lanes: u16,
    format: Format,
    n: u32,
    band: Affine,
    to: Address,
    values: Values<'_>,
) {
    let Codec::Bytes { scaled } = *format.codec() else { unreachable!("{format} has no sub-blocks") };
    let (block, subs) = (BlockOf { format, y: to.buffer, lanes, at: to.offset }, i64::from(n) / SUB);
    block.store_pad(b, band.clone(), format.block_len() as i64 / i64::from(n));
    b.for_each("sub", subs, |b, sub| {
        block.store_sub_block(b, scaled as i64, band.clone() * subs + sub, &mut |b, at, lanes| {
            values(b, sub * SUB + at, lanes)
        });
    });
}

/// Scale of values whose largest magnitude is known, and the inverse of the scale.
pub(crate) struct Scale {
    pub(crate) d: ValueId,
    pub(crate) inverse: ValueId,
}

impl Scale {
    pub(crate) fn build(b: &mut KernelBuilder, amax: ValueId) -> Scale {
        let (zero, full, unit) = (b.splat_f32(1, 0.0), b.splat_f32(1, 127.0), b.splat_f32(1, 1.0 / 127.0));
        let d = b.mul(amax, unit);
        let inverse = b.same(Op::Div, &[full, amax]);
        let positive = b.op(Op::CmpLtF, Type::i32(1), &[zero, amax]);
        let inverse = b.op(Op::Select, Type::f32(1), &[positive, inverse, zero]);
        Scale { d, inverse }
    }
}

/// Sums of the codes that share a scale, and the scale.
struct Sums {
    /// Sums of every 16 codes, as scalars.
    of_16: Vec<ValueId>,
    /// Scale of these codes.
    d: ValueId,
}

/// A block of a row that is being stored.
struct BlockOf {
    format: Format,
    y: BufferId,
    lanes: u16,
    at: Affine,
}

impl BlockOf {
    fn field(&self, name: &str) -> Affine {
        self.at.clone() + self.format.field(name) as i64
    }

    /// Stores zeros in the format's padding. The work is divided among `shares` calls of equal
    /// size; this is call `share`.
    fn store_pad(&self, b: &mut KernelBuilder, share: Affine, shares: i64) {
        for field in self.format.row().fields.iter().filter(|field| field.name == "pad") {
            let mut left = field.bytes as i64 / shares;
            let mut at = share.clone() * left + field.offset as i64;
            for words in [8u16, 4, 2, 1] {
                while left >= i64::from(words) * 4 {
                    let zero = b.splat_int(Type::i32(words), 0);
                    b.store(self.y, self.at.clone() + at.clone(), zero);
                    at = at + i64::from(words) * 4;
                    left -= i64::from(words) * 4;
                }
            }
        }
    }

    /// Stores sub-block `sub` of the block. Each `scaled` values have a scale. Also stores the sums
    /// of the values.
    fn store_sub_block(&self, b: &mut KernelBuilder, scaled: i64, sub: Affine, values: Values<'_>) {
        let mut parts = Vec::new();
        for part in 0..SUB / scaled {
            let number = sub.clone() * (SUB / scaled) + part;
            let sums = self.store_scaled(b, scaled, number, &mut |b, at, lanes| values(b, at + part * scaled, lanes));
            if self.format.has_field("sums16") {
                for (half, sum) in sums.of_16.iter().enumerate() {
                    let word = b.op(Op::NarrowS, Type::i16(1), &[*sum]);
                    let at = sub.clone() * 4 + part * scaled / 8 + half as i64 * 2;
                    b.store(self.y, self.field("sums16") + at, word);
                }
            }
            let sum = sums.of_16[1..].iter().fold(sums.of_16[0], |sum, next| b.iadd(sum, *next));
            let sum = b.op(Op::ToF32, Type::f32(1), &[sum]);
            parts.push(b.mul(sum, sums.d));
        }
        let sum = parts[1..].iter().fold(parts[0], |sum, part| b.add(sum, *part));
        b.store(self.y, self.field("sums") + sub * 4, sum);
    }

    /// Stores `count` values with one scale; they are group `part` of the block. If the format has
    /// the field `bf16`, also stores them as bf16.
    fn store_scaled(&self, b: &mut KernelBuilder, count: i64, part: Affine, values: Values<'_>) -> Sums {
        // A vector has at most the 16 elements that share a sum.
        let lanes = self.lanes.min(16);
        let width = i64::from(lanes);
        let vectors = count / width;
        let x: Vec<ValueId> = (0..vectors).map(|i| values(b, Affine::constant(i * width), lanes)).collect();
        if self.format.has_field("bf16") {
            for (i, x) in x.iter().enumerate() {
                let halves = b.to_bf16(*x);
                b.store(self.y, self.field("bf16") + part.clone() * (2 * count) + i as i64 * (2 * width), halves);
            }
        }
        let magnitudes: Vec<ValueId> = x.iter().map(|x| math::abs(b, *x)).collect();
        let amax = magnitudes[1..].iter().fold(magnitudes[0], |m, x| b.same(Op::Max, &[m, *x]));
        let amax = b.op(Op::ReduceMax, Type::f32(1), &[amax]);
        let Scale { d, inverse } = Scale::build(b, amax);
        b.store(self.y, self.field("d") + part.clone() * 4, d);
        let inverse = b.broadcast(lanes, inverse);
        let q: Vec<ValueId> = x
            .into_iter()
            .enumerate()
            .map(|(i, x)| {
                let scaled = b.mul(x, inverse);
                let q = b.op(Op::ToI32, Type::i32(lanes), &[scaled]);
                let narrow = b.op(Op::NarrowS, Type::i8(lanes), &[q]);
                b.store(self.y, self.field("quants") + part.clone() * count + i as i64 * width, narrow);
                q
            })
            .collect();
        let of_16 = q
            .chunks_exact(16 / usize::from(lanes))
            .map(|q| {
                let sum = q[1..].iter().fold(q[0], |s, q| b.iadd(s, *q));
                b.op(Op::ReduceAdd, Type::i32(1), &[sum])
            })
            .collect();
        Sums { of_16, d }
    }
}
