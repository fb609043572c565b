//! Reading a block of a packed strip: vectors of 64 unsigned quants, and scales with a lane for each row.
//!
//! All formats are read as sub-blocks of 32 columns, which are eight groups of four, in pairs: where quants have four bits or four low
//! ones, a vector in memory is a pair.

use ixc_ir::format::Format;
use ixc_ir::format::packed::{STRIP, sub_block_vectors};
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId};

use super::super::fields::bits;
use super::{LANES, SINGLES};

/// Unsigned quants: four neighbouring columns of each row.
pub const QUANTS: Type = Type::i8(4 * LANES);
const VECTOR: i64 = 4 * STRIP as i64;

/// A block of a strip in memory.
#[derive(Clone)]
pub struct StripBlock {
    pub format: Format,
    pub buffer: BufferId,
    pub offset: Affine,
}

impl StripBlock {
    fn field(&self, name: &str) -> Affine {
        self.offset.clone() + self.format.field(name) as i64
    }

    /// Half-precision numbers of the rows.
    pub fn halves(&self, b: &mut KernelBuilder, name: &str, at: impl Into<Affine>) -> ValueId {
        let at = at.into() * (2 * STRIP as i64);
        let halves = b.load(Type::f16(LANES), self.buffer, self.field(name) + at);
        b.op(Op::F16ToF32, SINGLES, &[halves])
    }

    /// Number `at` of the rows' 8-bit scales or minimums, times `d`.
    pub fn scaled(&self, b: &mut KernelBuilder, name: &str, at: impl Into<Affine>, d: ValueId) -> ValueId {
        let signed = self.format == Format::Q6KR16;
        let bytes = b.load(Type::i8(LANES), self.buffer, self.field(name) + at.into() * STRIP as i64);
        let ints = b.op(if signed { Op::ExtendS } else { Op::ExtendU }, Type::i32(LANES), &[bytes]);
        let floats = b.op(Op::ToF32, SINGLES, &[ints]);
        b.mul(floats, d)
    }

    /// Where a sub-block's quants begin.
    fn quants(&self, sub: Affine) -> Affine {
        self.field("quants") + sub * (sub_block_vectors(self.format).1 as i64 * VECTOR)
    }

    /// The vectors of high bits of a sub-block, for [`StripBlock::pair`].
    pub fn high(&self, b: &mut KernelBuilder, sub: impl Into<Affine>) -> Vec<ValueId> {
        let at = self.quants(sub.into());
        let (high, _) = sub_block_vectors(self.format);
        (0..high as i64).map(|v| b.load(QUANTS, self.buffer, at.clone() + v * VECTOR)).collect()
    }

    /// Groups `2 * pair` and `2 * pair + 1` of a sub-block.
    pub fn pair(&self, b: &mut KernelBuilder, sub: impl Into<Affine>, pair: i64, high: &[ValueId]) -> [ValueId; 2] {
        let at = self.quants(sub.into());
        if self.format == Format::Q8_0R16 {
            let at = at + pair * (2 * VECTOR);
            return [0, VECTOR].map(|next| b.load(QUANTS, self.buffer, at.clone() + next));
        }
        let (first, _) = sub_block_vectors(self.format);
        let both = b.load(QUANTS, self.buffer, at + (first as i64 + pair) * VECTOR);
        let nibbles = [bits(b, both, None, 15), bits(b, both, Some((Op::ShrU, 4)), 15)];
        let mut groups = nibbles;
        for (group, quants) in (2 * pair..).zip(&mut groups) {
            // Where a group's high bits are, and where they go: to bit 4 and up.
            let (from, width, high) = match (self.format, high) {
                (Format::Q5KR16, [high]) => (group, 1, *high),
                (Format::Q6KR16, [first, second]) => (2 * (group % 4), 2, if group < 4 { *first } else { *second }),
                _ => continue,
            };
            let shift = if from <= 4 { (Op::Shl, 4 - from) } else { (Op::ShrU, from - 4) };
            let high = bits(b, high, Some(shift), ((1 << width) - 1) << 4);
            *quants = b.same(Op::Or, &[*quants, high]);
        }
        groups
    }
}
