//! Few rows: dot products along weight rows, as they lie in the file.
//!
//! For a K block each sub-block of 32 is multiplied with `dot2_u8s8`, scaled by its integer scale in `dot2_s16`, and brought in
//! with the activations' scale of these 32; the block's own scale follows once. Minimums (`q4_k`, `q5_k`) and the offset of 32
//! (`q6_k`) come from the sums that the activation format carries. Sums of a block start afresh, so that the only chain from
//! block to block is one multiply-add.

use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId};

use super::fields::{self, Block};
use super::{Destination, LANES, Product, Rows, quantise};

/// Accumulators of a float dot product: they hide the latency of the multiply-add.
const FLOAT_CHAINS: u32 = 4;

/// A row of activations.
#[derive(Clone)]
struct Activations {
    buffer: BufferId,
    format: Format,
    offset: Affine,
}

pub fn multiply(b: &mut KernelBuilder, product: &Product, rows: &Rows, to: &Destination) {
    let Product { format, k, tile, x, x_format, w, .. } = *product;
    let row_bytes = |f: Format| quantise::row_bytes("", f, k).unwrap_or(0);
    let (w_row, x_row) = (row_bytes(format), row_bytes(x_format));
    b.for_each("n", i64::from(tile), |b, n| {
        rows.for_each(b, |b, row, count| {
            for r in 0..i64::from(count) {
                let row = row.clone() + r;
                let x = Activations { buffer: x, format: x_format, offset: row.clone() * x_row };
                let sum = dot(b, format, k, w, n * w_row, &x);
                let at = row * to.row_bytes + n * 4 + to.offset;
                let old = b.load(Type::f32(1), to.buffer, at.clone());
                let sum = b.add(old, sum);
                b.store(to.buffer, at, sum);
            }
        });
    });
}

fn dot(b: &mut KernelBuilder, format: Format, k: u32, w: BufferId, w_at: Affine, x: &Activations) -> ValueId {
    let zero = b.splat_f32(LANES, 0.0);
    let blocks = i64::from(k) / format.block_len() as i64;
    let block_bytes = format.block_bytes() as i64;
    let x_bytes = x.format.block_bytes() as i64;
    let step = |i| {
        let block = Block { buffer: w, offset: w_at.clone() + i * block_bytes, format };
        (block, Activations { offset: x.offset.clone() + i * x_bytes, ..*x })
    };
    match format {
        Format::F32 | Format::F16 | Format::Bf16 => float_dot(b, format, k, w, &w_at, x),
        Format::Q8_0 | Format::Q4_0 => {
            let acc = b.for_carry("b", blocks, &[zero], |b, i, acc| {
                let (block, x) = step(i);
                vec![small_block(b, &block, &x, acc[0])]
            });
            b.op(Op::ReduceAdd, Type::f32(1), &acc)
        }
        Format::Q4K | Format::Q5K => {
            let acc = b.for_carry("b", blocks, &[zero, zero], |b, i, acc| {
                let (block, x) = step(i);
                k_block_with_minimums(b, &block, &x, acc[0], acc[1])
            });
            let sum = b.sub(acc[0], acc[1]);
            b.op(Op::ReduceAdd, Type::f32(1), &[sum])
        }
        Format::Q6K => {
            let acc = b.for_carry("b", blocks, &[zero], |b, i, acc| {
                let (block, x) = step(i);
                vec![q6_block(b, &block, &x, acc[0])]
            });
            b.op(Op::ReduceAdd, Type::f32(1), &acc)
        }
        _ => unreachable!("{format} is not read row by row"),
    }
}

/// A half-precision field of a block, in all lanes.
fn half_lanes(b: &mut KernelBuilder, block: &Block, field: &str) -> ValueId {
    let d = block.half(b, field);
    b.broadcast(LANES, d)
}

fn quants_of(b: &mut KernelBuilder, x: &Activations, group: i64) -> ValueId {
    b.load(fields::BYTES, x.buffer, x.offset.clone() + group * 32)
}

/// The sum of integer parts times the activations' scale of their 32 elements, in two chains.
fn scaled_sum(b: &mut KernelBuilder, x: &Activations, parts: &[ValueId]) -> ValueId {
    let d = x.offset.clone() + Format::A8Super.field("d") as i64;
    let mut chains: [Option<ValueId>; 2] = [None, None];
    for (j, part) in parts.iter().enumerate() {
        let f = b.op(Op::ToF32, Type::f32(LANES), &[*part]);
        let dx = b.load_splat(Type::f32(LANES), x.buffer, d.clone() + 4 * j as i64);
        let chain = &mut chains[j % 2];
        *chain = Some(match *chain {
            Some(sum) => b.fma(f, dx, sum),
            None => b.mul(f, dx),
        });
    }
    match chains {
        [Some(even), Some(odd)] => b.add(even, odd),
        [Some(one), None] | [None, Some(one)] => one,
        [None, None] => b.splat_f32(LANES, 0.0),
    }
}

fn small_block(b: &mut KernelBuilder, block: &Block, x: &Activations, acc: ValueId) -> ValueId {
    let q = fields::quants(b, block, 0);
    let q = if block.format == Format::Q4_0 {
        let eight = b.splat_int(fields::BYTES, 8);
        b.same(Op::ISub, &[q, eight])
    } else {
        q
    };
    // Unsigned times signed: |w| * (sign(w) * x). |w| <= 128, |x| <= 127: two products stay below 2^15.
    let x_quants = quants_of(b, x, 0);
    let magnitude = b.same(Op::IAbs, &[q]);
    let signed = b.same(Op::Sign, &[x_quants, q]);
    let pairs = b.op(Op::Dot2U8S8, Type::i16(16), &[magnitude, signed]);
    let ones = b.splat_int(Type::i16(16), 1);
    let i = b.op(Op::Dot2S16, Type::i32(LANES), &[pairs, ones]);
    let f = b.op(Op::ToF32, Type::f32(LANES), &[i]);
    // The first four lanes hold the first 16 elements.
    let dx_at = x.offset.clone() + Format::A8Small.field("d") as i64;
    let low = b.load_splat(Type::f32(LANES / 2), x.buffer, dx_at.clone());
    let high = b.load_splat(Type::f32(LANES / 2), x.buffer, dx_at + 4);
    let dx = b.op(Op::Concat, Type::f32(LANES), &[low, high]);
    let d = half_lanes(b, block, "d");
    let d = b.mul(d, dx);
    b.fma(f, d, acc)
}

fn k_block_with_minimums(
    b: &mut KernelBuilder,
    block: &Block,
    x: &Activations,
    acc: ValueId,
    acc_minimums: ValueId,
) -> Vec<ValueId> {
    let words = fields::scale_words(b, block);
    let scales = b.op_imm(Op::Slice, Type::i16(8), &[words], 0);
    let minimums = b.op_imm(Op::Slice, Type::i16(8), &[words], 8);
    let scales = b.op(Op::Concat, Type::i16(16), &[scales, scales]);
    let scales = b.bitcast(fields::BYTES, scales);
    let parts: Vec<ValueId> = (0..8)
        .map(|group| {
            let q = fields::quants(b, block, group);
            let x = quants_of(b, x, group);
            let pairs = b.op(Op::Dot2U8S8, Type::i16(16), &[q, x]);
            // Scale `group` in every word.
            let lane = b.bytes(fields::BYTES, [2 * group as u8, 2 * group as u8 + 1].repeat(16));
            let scale = b.same(Op::ShuffleBytes, &[scales, lane]);
            let scale = b.bitcast(Type::i16(16), scale);
            b.op(Op::Dot2S16, Type::i32(LANES), &[pairs, scale])
        })
        .collect();
    let sum = scaled_sum(b, x, &parts);
    let d = half_lanes(b, block, "d");
    let acc = b.fma(sum, d, acc);
    // A lane is a sub-block: its minimum times the sum of its activations.
    let minimums = b.op(Op::ExtendS, Type::i32(LANES), &[minimums]);
    let minimums = b.op(Op::ToF32, Type::f32(LANES), &[minimums]);
    let sums = b.load(Type::f32(LANES), x.buffer, x.offset.clone() + Format::A8Super.field("sums") as i64);
    let m = b.mul(minimums, sums);
    let dmin = half_lanes(b, block, "dmin");
    vec![acc, b.fma(m, dmin, acc_minimums)]
}

fn q6_block(b: &mut KernelBuilder, block: &Block, x: &Activations, acc: ValueId) -> ValueId {
    let bytes = fields::scales(b, block);
    let parts: Vec<ValueId> = (0..8)
        .map(|group| {
            let q = fields::quants(b, block, group);
            let x = quants_of(b, x, group);
            let pairs = b.op(Op::Dot2U8S8, Type::i16(16), &[q, x]);
            // Scale 2 * group for the first 16 elements, 2 * group + 1 for the others.
            let lane = [[2 * group as u8; 8], [2 * group as u8 + 1; 8]].concat();
            let lane = b.bytes(Type::i8(16), lane);
            let scale = b.same(Op::ShuffleBytes, &[bytes, lane]);
            let scale = b.op(Op::ExtendS, Type::i16(16), &[scale]);
            b.op(Op::Dot2S16, Type::i32(LANES), &[pairs, scale])
        })
        .collect();
    let sum = scaled_sum(b, x, &parts);
    // Quants are stored plus 32: take 32 * scale * (sum of x) off again. A lane is a group of 32 elements.
    let words = b.op(Op::ExtendS, Type::i16(16), &[bytes]);
    let sums = b.load(Type::i16(16), x.buffer, x.offset.clone() + Format::A8Super.field("sums16") as i64);
    let offset = b.op(Op::Dot2S16, Type::i32(LANES), &[words, sums]);
    let offset = b.shift(Op::Shl, offset, 5);
    let offset = b.op(Op::ToF32, Type::f32(LANES), &[offset]);
    let dx = b.load(Type::f32(LANES), x.buffer, x.offset.clone() + Format::A8Super.field("d") as i64);
    let offset = b.mul(offset, dx);
    let sum = b.sub(sum, offset);
    let d = half_lanes(b, block, "d");
    b.fma(sum, d, acc)
}

/// `lanes` weights of a float format as f32.
pub fn float_weights(b: &mut KernelBuilder, format: Format, w: BufferId, at: Affine, lanes: u16) -> ValueId {
    match format {
        Format::F16 => {
            let h = b.load(Type::f16(lanes), w, at);
            b.op(Op::F16ToF32, Type::f32(lanes), &[h])
        }
        Format::Bf16 => {
            let words = b.load(Type::i16(lanes), w, at);
            let dwords = b.op(Op::ExtendU, Type::i32(lanes), &[words]);
            let dwords = b.shift(Op::Shl, dwords, 16);
            b.bitcast(Type::f32(lanes), dwords)
        }
        _ => b.load(Type::f32(lanes), w, at),
    }
}

fn float_dot(b: &mut KernelBuilder, format: Format, k: u32, w: BufferId, w_at: &Affine, x: &Activations) -> ValueId {
    let element = format.block_bytes() as i64;
    let lanes = i64::from(LANES);
    let step = |b: &mut KernelBuilder, at: Affine, lanes: u16, acc: ValueId| {
        let w = float_weights(b, format, w, w_at.clone() + at.clone() * element, lanes);
        let x = b.load(Type::f32(lanes), x.buffer, x.offset.clone() + at * 4);
        b.fma(w, x, acc)
    };
    let chunk = u32::from(LANES) * FLOAT_CHAINS;
    let whole = k / chunk;
    let mut total = None;
    if whole > 0 {
        let init: Vec<ValueId> = (0..FLOAT_CHAINS).map(|_| b.splat_f32(LANES, 0.0)).collect();
        let acc = b.for_carry("i", i64::from(whole), &init, |b, i, acc| {
            (0..i64::from(FLOAT_CHAINS))
                .map(|c| step(b, i * i64::from(chunk) + c * lanes, LANES, acc[c as usize]))
                .collect()
        });
        let (low, high) = (b.add(acc[0], acc[1]), b.add(acc[2], acc[3]));
        let acc = b.add(low, high);
        total = Some(b.op(Op::ReduceAdd, Type::f32(1), &[acc]));
    }
    let done = whole * chunk;
    let mut at = done;
    for lanes in [LANES, LANES, LANES, 4, 2, 1] {
        if k - at >= u32::from(lanes) {
            let zero = b.splat_f32(lanes, 0.0);
            let part = step(b, Affine::constant(i64::from(at)), lanes, zero);
            let part = b.op(Op::ReduceAdd, Type::f32(1), &[part]);
            total = Some(match total {
                Some(total) => b.add(total, part),
                None => part,
            });
            at += u32::from(lanes);
        }
    }
    total.unwrap_or_else(|| b.splat_f32(1, 0.0))
}
