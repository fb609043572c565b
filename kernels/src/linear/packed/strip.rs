//! Reader of a block of a packed strip. It returns vectors of unsigned codes, and scales with a
//! lane for each row.
//!
//! All formats are read in sub-blocks of 32 columns, which are eight groups of four columns, in
//! four pairs of groups. A vector in memory has one pair if codes have four bits or four low bits.
//! It has two pairs if they have two bits. Rows are read for one [`Part`]: all 16 rows, or 8 if
//! vectors have 8 lanes.

use ixc_ir::format::packed::{CodesOfScales, STRIP, SUB};
use ixc_ir::format::{Codec, Format, Quants, Scales};
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId};

use super::super::Vectors;
use super::super::file::{self, Shift, bits};
use crate::linear;

/// Number of bytes of a vector in memory: four codes of each row of a strip.
pub const VECTOR: i64 = 4 * STRIP as i64;
pub const ROWS: i64 = STRIP as i64;
/// Number of columns of half a sub-block.
const HALF: usize = SUB / 2;

/// Part of a strip: the rows that are the lanes of one vector.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub lanes: u16,
    /// Index of the part in its strip.
    pub index: i64,
    /// Whether the target can permute the bytes of a vector: see [`Vectors`].
    pub permutes: bool,
}

impl Part {
    /// Returns all parts of a strip.
    pub fn all(vectors: Vectors) -> Vec<Part> {
        let Vectors { lanes, permutes, .. } = vectors;
        (0..ROWS / i64::from(lanes)).map(|index| Part { lanes, index, permutes }).collect()
    }

    /// Returns the offset of the part's rows in data with `bytes` bytes for each row.
    pub fn at(self, bytes: i64) -> i64 {
        self.index * i64::from(self.lanes) * bytes
    }

    /// Returns the type of a vector with four neighbouring columns of each row, a byte each.
    pub fn quants(self) -> Type {
        Type::i8(4 * self.lanes)
    }

    pub fn words(self) -> Type {
        Type::i16(2 * self.lanes)
    }

    pub fn dwords(self) -> Type {
        Type::i32(self.lanes)
    }

    pub fn floats(self) -> Type {
        Type::f32(self.lanes)
    }
}

/// A block of a strip in memory, for reading the rows of one part.
#[derive(Clone)]
pub struct StripBlock {
    pub format: Format,
    pub buffer: BufferId,
    pub offset: Affine,
    pub part: Part,
}

impl StripBlock {
    /// Returns the codec of the block's integers.
    pub fn codec(&self) -> &'static Quants {
        linear::quants(self.format)
    }

    /// Returns the offset of the part's rows in the field `name`, which has `bytes` bytes for each
    /// row.
    fn field(&self, name: &str, bytes: i64) -> Affine {
        self.offset.clone() + (self.format.field(name) as i64 + self.part.at(bytes))
    }

    /// Returns the index of the block's float for half `half` of sub-block `sub`. For each row, a
    /// block has one float, one for each sub-block, or one for each half.
    pub fn number_of(&self, sub: impl Into<Affine>, half: i64) -> Affine {
        match self.format.d_columns() {
            SUB => sub.into(),
            HALF => sub.into() * 2 + half,
            _ => Affine::constant(0),
        }
    }

    /// Loads the floats `name` of the rows, at index `at` among those of the block.
    pub fn numbers(&self, b: &mut KernelBuilder, name: &str, at: impl Into<Affine>) -> ValueId {
        let number = self.codec().number(name);
        let bytes = number.bytes() as i64;
        file::numbers(b, number, self.part.lanes, self.buffer, self.field(name, bytes) + at.into() * (bytes * ROWS))
    }

    /// Returns the scales of the rows at index `at`, as floats.
    pub fn scale(&self, b: &mut KernelBuilder, at: impl Into<Affine>) -> ValueId {
        let at = at.into();
        if let Some(scales) = self.coded_scales(b, at.clone()) {
            return b.op(Op::ToF32, self.part.floats(), &[scales]);
        }
        let scales = b.load(Type::i8(self.part.lanes), self.buffer, self.field("scales", 1) + at * ROWS);
        let scales = self.scale_bits(b, scales);
        self.widen(b, scales)
    }

    /// Returns the minimums of the rows that belong to the scales at index `at`, as floats.
    pub fn minimum(&self, b: &mut KernelBuilder, at: impl Into<Affine>) -> ValueId {
        let minimums = match self.codec().scales {
            Scales::Nibbles16 => {
                let both = b.load(Type::i8(self.part.lanes), self.buffer, self.field("scales", 1) + at.into() * ROWS);
                bits(b, both, Shift::right(4), 15)
            }
            Scales::SixBits
            | Scales::Signed16
            | Scales::Coded(_)
            | Scales::None
            | Scales::Row
            | Scales::Multiples { .. } => self.minimums(b, at.into()),
        };
        self.widen(b, minimums)
    }

    /// Returns the scales of the rows at index `at` as integers. Returns `None` if the block has no
    /// codes of scales.
    fn coded_scales(&self, b: &mut KernelBuilder, at: Affine) -> Option<ValueId> {
        let (Scales::Coded(scales), Some(grid)) = (self.codec().scales, self.codec().grid()) else { return None };
        let (lanes, dwords) = (self.part.lanes, self.part.dwords());
        let codes = match self.codec().codes_of_scales() {
            CodesOfScales::Bytes => return None,
            CodesOfScales::Nibbles => {
                let at = self.offset.clone() + (self.format.field("scales") as i64) + at * (ROWS / 2);
                let eight = b.load(Type::i8(8), self.buffer, at);
                let eight = b.op(Op::ExtendU, Type::i32(8), &[eight]);
                let low = |b: &mut KernelBuilder| {
                    let mask = b.splat_int(Type::i32(8), 15);
                    b.same(Op::And, &[eight, mask])
                };
                match (lanes, self.part.index) {
                    (8, 0) => low(b),
                    (8, _) => b.shift(Op::ShrU, eight, 4),
                    _ => {
                        let (low, high) = (low(b), b.shift(Op::ShrU, eight, 4));
                        b.op(Op::Concat, dwords, &[low, high])
                    }
                }
            }
            CodesOfScales::AboveSigns => {
                let signs = b.load(dwords, self.buffer, self.quants(at) + grid.index_vectors() as i64 * VECTOR);
                b.shift(Op::ShrU, signs, 28)
            }
            CodesOfScales::High { first, width } => {
                let high = self.high_words(b, grid, at)?;
                let high = b.shift(Op::ShrU, high, first as i64);
                let mask = b.splat_int(dwords, (1 << width) - 1);
                b.same(Op::And, &[high, mask])
            }
        };
        Some(file::scale_numbers(b, &scales, codes))
    }

    /// Converts scales or minimums, bytes, to floats.
    fn widen(&self, b: &mut KernelBuilder, bytes: ValueId) -> ValueId {
        let ints = b.op(self.extend(), self.part.dwords(), &[bytes]);
        b.op(Op::ToF32, self.part.floats(), &[ints])
    }

    /// Returns the op that extends bytes of scales: signed or unsigned.
    fn extend(&self) -> Op {
        match self.codec().scales {
            Scales::Signed16 | Scales::Coded(_) | Scales::Multiples { .. } => Op::ExtendS,
            Scales::SixBits | Scales::Nibbles16 | Scales::None | Scales::Row => Op::ExtendU,
        }
    }

    /// Returns the scales without the bits of minimums that are stored above them.
    fn scale_bits(&self, b: &mut KernelBuilder, scales: ValueId) -> ValueId {
        match self.codec().scales {
            Scales::SixBits => bits(b, scales, Shift::NONE, 63),
            Scales::Nibbles16 => bits(b, scales, Shift::NONE, 15),
            Scales::Signed16 | Scales::Coded(_) | Scales::None | Scales::Row | Scales::Multiples { .. } => scales,
        }
    }

    /// Returns the minimums of sub-block `at`. Two high bits are in the bytes of scales, and four
    /// low bits in a separate field.
    fn minimums(&self, b: &mut KernelBuilder, at: Affine) -> ValueId {
        // The load reads bytes after the part's rows, but stays inside the block.
        let ty = Type::i8(16);
        let high = b.load(ty, self.buffer, self.field("scales", 1) + at.clone() * ROWS);
        let high = bits(b, high, Shift::right(2), 48);
        let low = b.load(ty, self.buffer, self.offset.clone() + self.format.field("mins") as i64 + at * (ROWS / 2));
        // Rows 0 to 7 are the low nibbles of eight bytes, and rows 8 to 15 the high nibbles.
        let words = b.bitcast(Type::i16(8), low);
        let words = b.shift(Op::ShrU, words, 4);
        let shifted = b.bitcast(ty, words);
        let low = match (self.part.lanes, self.part.index) {
            (8, 0) => low,
            (8, _) => shifted,
            _ => b.op_imm(Op::UnpackLo, ty, &[low, shifted], 8),
        };
        let low = bits(b, low, Shift::NONE, 15);
        let minimums = b.same(Op::Or, &[low, high]);
        if self.part.lanes == 8 { b.op_imm(Op::Slice, Type::i8(8), &[minimums], 0) } else { minimums }
    }

    /// Returns the scales of the rows at the indices `first` and `second`, as the two words of a
    /// dword.
    pub fn scale_words(&self, b: &mut KernelBuilder, first: impl Into<Affine>, second: impl Into<Affine>) -> ValueId {
        let (first, second) = (first.into(), second.into());
        if let Some(low) = self.coded_scales(b, first.clone()) {
            // The coded scales of grid formats are positive, so the sign extension of the low word
            // adds no bits to the high word.
            let high = if second == first { Some(low) } else { self.coded_scales(b, second) };
            let high = b.shift(Op::Shl, high.unwrap_or(low), 16);
            let both = b.same(Op::Or, &[low, high]);
            return b.bitcast(self.part.words(), both);
        }
        let pairs = self.scale_pairs(b, first, second);
        let pairs = self.scale_bits(b, pairs);
        b.op(self.extend(), self.part.words(), &[pairs])
    }

    /// Returns the minimums of the two halves of sub-block `sub` as the two words of a dword, for
    /// formats with a minimum for each half.
    pub fn minimum_words(&self, b: &mut KernelBuilder, sub: impl Into<Affine>) -> ValueId {
        let first = sub.into() * 2;
        let pairs = self.scale_pairs(b, first.clone(), first + 1);
        let pairs = bits(b, pairs, Shift::right(4), 15);
        b.op(Op::ExtendU, self.part.words(), &[pairs])
    }

    /// Returns the scales of the rows at the indices `first` and `second`, as adjacent bytes.
    fn scale_pairs(&self, b: &mut KernelBuilder, first: Affine, second: Affine) -> ValueId {
        // The load reads bytes after the part's rows, but stays inside the block.
        let ty = Type::i8(16);
        let [first, second] = [first, second].map(|at| {
            let at = self.field("scales", 1) + at * ROWS;
            b.load(ty, self.buffer, at)
        });
        let pairs = b.op_imm(Op::UnpackLo, ty, &[first, second], 1);
        match self.part.lanes {
            8 => pairs,
            _ => {
                let upper = b.op_imm(Op::UnpackHi, ty, &[first, second], 1);
                b.op(Op::Concat, Type::i8(32), &[pairs, upper])
            }
        }
    }

    /// Returns the offset of a sub-block's codes.
    pub fn quants(&self, sub: Affine) -> Affine {
        self.field("quants", 4) + sub * (self.codec().vectors().1 as i64 * VECTOR)
    }

    /// Returns the vectors of high bits of a sub-block, or other values that are computed once for
    /// it. [`StripBlock::pair`] needs them.
    pub fn high(&self, b: &mut KernelBuilder, sub: impl Into<Affine>) -> Vec<ValueId> {
        let sub = sub.into();
        if let Some(grid) = self.codec().grid() {
            return self.grid_vectors(b, grid, sub);
        }
        let at = self.quants(sub);
        let (high, _) = self.codec().vectors();
        (0..high as i64).map(|v| b.load(self.part.quants(), self.buffer, at.clone() + v * VECTOR)).collect()
    }

    /// Loads the low bits of groups `2 * pair` and `2 * pair + 1` in the layout of memory: each
    /// byte has four bits of each of the two groups.
    pub fn both(&self, b: &mut KernelBuilder, sub: impl Into<Affine>, pair: i64) -> ValueId {
        let at = self.quants(sub.into());
        self.both_at(b, at, pair)
    }

    fn both_at(&self, b: &mut KernelBuilder, quants: Affine, vector: i64) -> ValueId {
        let (high, _) = self.codec().vectors();
        b.load(self.part.quants(), self.buffer, quants + (high as i64 + vector) * VECTOR)
    }

    /// Returns the vectors that multiply codes by the scale at index `at`: words to multiply by,
    /// and words to add. Both bytes of a word are computed at once:
    /// `(256 a + b) s + 257 t = 256 (a s + t) + (b s + t)`. With `t = 128 - zero s`, each byte of
    /// the result is in 0..=255. Returns no vectors for formats whose codes are not multiplied.
    pub fn multiples(&self, b: &mut KernelBuilder, at: i64) -> Vec<ValueId> {
        let codec = self.codec();
        if codec.multiples().is_none() {
            return Vec::new();
        }
        let both = |byte: u8| i64::from(i16::from_le_bytes([byte, byte]));
        let scales = self.scale_words(b, at, at);
        let zero = b.splat_int(self.part.words(), both(codec.zero()));
        let zero = b.same(Op::IMul, &[scales, zero]);
        let top = b.splat_int(self.part.words(), both(codec.zero_of_products()));
        vec![scales, b.same(Op::ISub, &[top, zero])]
    }

    /// Returns groups `2 * pair` and `2 * pair + 1` of a sub-block, as bytes in the form of
    /// [`Quants::byte`]. `vectors` come from [`StripBlock::high`]. For multiples of these bytes,
    /// they come from [`StripBlock::multiples`].
    pub fn pair(&self, b: &mut KernelBuilder, sub: impl Into<Affine>, pair: i64, vectors: &[ValueId]) -> [ValueId; 2] {
        let (at, quants, codec) = (self.quants(sub.into()), self.part.quants(), self.codec());
        if let Some(grid) = codec.grid() {
            let codes = self.grid_pair(b, grid, pair, vectors);
            return codes.map(|codes| file::bytes(b, codec, codes));
        }
        if codec.low.bits == 8 {
            let at = at + pair * (2 * VECTOR);
            return [0, VECTOR].map(|next| b.load(quants, self.buffer, at.clone() + next));
        }
        let low = codec.low.bits as i64;
        // With codes of four bits a vector holds one pair of groups, with two bits two pairs.
        let both = self.both_at(b, at, 2 * pair * low / 8);
        let mut groups = [0, low].map(|next| {
            let from = 2 * pair * low % 8 + next;
            bits(b, both, Shift::right(from), (1 << low) - 1)
        });
        for (group, quants) in (2 * pair..).zip(&mut groups) {
            if let Some(high) = codec.high {
                // The high bits of a group are shifted to their position above the low bits.
                let width = high.bits as i64;
                let (vector, from) = (group * width / 8, group * width % 8);
                let shift = if from <= low { Shift::shift_left(low - from) } else { Shift::right(from - low) };
                let high = bits(b, vectors[vector as usize], shift, ((1 << width) - 1) << low);
                *quants = b.same(Op::Or, &[*quants, high]);
            }
            *quants = file::bytes(b, codec, *quants);
            if let (Some(_), &[scales, added]) = (codec.multiples(), vectors) {
                let words = b.bitcast(self.part.words(), *quants);
                let words = b.same(Op::IMul, &[words, scales]);
                let words = b.iadd(words, added);
                *quants = b.bitcast(self.part.quants(), words);
            }
        }
        groups
    }
}

/// Whether activations for a format have one scale for each sub-block, and the integer sums of its
/// halves. If so, sums of products stay integers for a whole sub-block. Otherwise activations have
/// a scale for each half.
pub fn by_sub_blocks(format: Format) -> bool {
    matches!(format.activation().codec(), Codec::Bytes { scaled } if *scaled == SUB)
}

/// Whether each half of a sub-block has its own float scale.
pub fn by_halves_of_d(format: Format) -> bool {
    format.d_columns() == HALF
}

/// Whether the initial value of sums of products with these activations is the negated contribution
/// of the zero point. This is the case if each half of a sub-block has a scale, and activations
/// have the integer sums of the halves.
pub fn begins_with_zero_point(format: Format, x_format: Format) -> bool {
    !by_sub_blocks(format) && linear::quants(format).zero() > 0 && x_format.has_field("sums16")
}
