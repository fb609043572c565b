//! Reading block formats: nibbles, high bits, scales and minimums, as vectors of 32 unsigned bytes and of 16 scales.

use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId};

pub const BYTES: Type = Type::i8(32);
const WORDS: Type = Type::i16(16);

/// A block of a weight row in memory.
#[derive(Clone)]
pub struct Block {
    pub buffer: BufferId,
    pub offset: Affine,
    pub format: Format,
}

impl Block {
    /// Address of a field.
    pub fn field(&self, name: &str) -> Affine {
        self.offset.clone() + self.format.field(name) as i64
    }

    /// The half-precision scalar field `name` as f32.
    pub fn half(&self, b: &mut KernelBuilder, name: &str) -> ValueId {
        let h = b.load(Type::f16(1), self.buffer, self.field(name));
        b.op(Op::F16ToF32, Type::f32(1), &[h])
    }

    fn load(&self, b: &mut KernelBuilder, name: &str, at: i64) -> ValueId {
        b.load(BYTES, self.buffer, self.field(name) + at)
    }
}

/// `(bytes >> by) & mask` on each byte: shifts are on words, the mask drops what came from the neighbour.
pub fn bits(b: &mut KernelBuilder, bytes: ValueId, shift: Option<(Op, i64)>, mask: i64) -> ValueId {
    let lanes = b.ty(bytes).lanes;
    let shifted = match shift {
        None | Some((_, 0)) => bytes,
        Some((op, by)) => {
            let words = b.bitcast(Type::i16(lanes / 2), bytes);
            let words = b.shift(op, words, by);
            b.bitcast(Type::i8(lanes), words)
        }
    };
    let mask = b.splat_int(Type::i8(lanes), mask);
    b.same(Op::And, &[shifted, mask])
}

/// The 32 elements `32 * group ..` of a block as bytes: unsigned quants for the K formats and `q4_0` (without their offset),
/// signed for `q8_0`.
pub fn quants(b: &mut KernelBuilder, block: &Block, group: i64) -> ValueId {
    match block.format {
        Format::Q8_0 => block.load(b, "quants", 0),
        Format::Q4_0 => {
            let bytes = b.load(Type::i8(16), block.buffer, block.field("quants"));
            let low = bits(b, bytes, None, 15);
            let high = bits(b, bytes, Some((Op::ShrU, 4)), 15);
            b.op(Op::Concat, BYTES, &[low, high])
        }
        Format::Q4K => low_nibble_or_high(b, block, "quants", group / 2 * 32, group % 2),
        Format::Q5K => {
            let low = low_nibble_or_high(b, block, "quants", group / 2 * 32, group % 2);
            let high = block.load(b, "high", 0);
            // Bit `group` of each byte to bit 4.
            let shift = if group <= 4 { (Op::Shl, 4 - group) } else { (Op::ShrU, group - 4) };
            let high = bits(b, high, Some(shift), 16);
            b.same(Op::Or, &[low, high])
        }
        Format::Q6K => {
            let (half, quarter) = (group / 4, group % 4);
            let low = low_nibble_or_high(b, block, "low", half * 64 + quarter % 2 * 32, quarter / 2);
            let high = block.load(b, "high", half * 32);
            // Bits 2 * quarter and the next to bits 4 and 5.
            let shift = if quarter <= 2 { (Op::Shl, 4 - 2 * quarter) } else { (Op::ShrU, 2) };
            let high = bits(b, high, Some(shift), 48);
            b.same(Op::Or, &[low, high])
        }
        _ => unreachable!("{} has no quants", block.format),
    }
}

fn low_nibble_or_high(b: &mut KernelBuilder, block: &Block, field: &str, at: i64, high: i64) -> ValueId {
    let bytes = block.load(b, field, at);
    bits(b, bytes, (high == 1).then_some((Op::ShrU, 4)), 15)
}

/// The sixteen 8-bit scales of a K block as `i8x16`: for `q4_k` and `q5_k` eight scales, then eight minimums, all below 64; for
/// `q6_k` the signed scales.
pub fn scales(b: &mut KernelBuilder, block: &Block) -> ValueId {
    let ty = Type::i8(16);
    let packed = b.load(ty, block.buffer, block.field("scales"));
    if block.format == Format::Q6K {
        return packed;
    }
    // Dwords u0 u1 u2 hold twelve bytes. Low six bits of u0: scales 0-3; of u1: minimums 0-3. Scales 4-7 are the low nibbles of
    // u2 with the top bits of u0 above, minimums 4-7 the high nibbles of u2 with the top bits of u1.
    let dwords = |order: [Option<u8>; 4]| -> Vec<u8> {
        order.iter().flat_map(|d| (0..4u8).map(move |i| d.map_or(0x80, |d| 4 * d + i))).collect()
    };
    let masks = |m: [u8; 4]| -> Vec<u8> { m.iter().flat_map(|&m| [m; 4]).collect() };
    let order = b.bytes(ty, dwords([Some(0), Some(2), Some(1), Some(2)]));
    let body = b.same(Op::ShuffleBytes, &[packed, order]);
    let order = b.bytes(ty, dwords([None, Some(0), None, Some(1)]));
    let top = b.same(Op::ShuffleBytes, &[packed, order]);
    let low_mask = b.bytes(ty, masks([0x3f, 0x0f, 0x3f, 0]));
    let low = b.same(Op::And, &[body, low_mask]);
    let words = b.bitcast(Type::i16(8), body);
    let words = b.shift(Op::ShrU, words, 4);
    let high = b.bitcast(ty, words);
    let high_mask = b.bytes(ty, masks([0, 0, 0, 0x0f]));
    let high = b.same(Op::And, &[high, high_mask]);
    let words = b.bitcast(Type::i16(8), top);
    let words = b.shift(Op::ShrU, words, 2);
    let top = b.bitcast(ty, words);
    let top_mask = b.splat_int(ty, 0x30);
    let top = b.same(Op::And, &[top, top_mask]);
    let both = b.same(Op::Or, &[low, high]);
    b.same(Op::Or, &[both, top])
}

/// [`scales`] as words.
pub fn scale_words(b: &mut KernelBuilder, block: &Block) -> ValueId {
    let bytes = scales(b, block);
    let op = if block.format == Format::Q6K { Op::ExtendS } else { Op::ExtendU };
    b.op(op, WORDS, &[bytes])
}
