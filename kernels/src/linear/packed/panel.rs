//! Inputs of sums: codes with one byte each, and scales. They are read from a strip's block, or
//! from a *panel*, which contains unpacked blocks of a strip.
//!
//! For each block, a panel first has the codes of every group of four columns, in vectors of 64
//! bytes (16 rows). All [`Item`]s of the block follow. [`Source`] returns the same values from a
//! strip and from a panel.

use ixc_ir::format::packed::STRIP;
use ixc_ir::format::{Codec, Float, Format, Minimum};
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId, VarId};

use super::super::Vectors;
use super::SUB;
use super::strip::{Part, StripBlock, VECTOR};
use crate::linear;

/// Number of columns of a panel: 16 KiB of bytes, which stay in L1.
const STRETCH: i64 = 1024;
/// Number of columns of a panel for a format with magnitudes in addition to codes. The next
/// constant is the number for floats.
const LONG_STRETCH: i64 = 512;
const FLOAT_STRETCH: i64 = 256;

/// Data of a block in addition to its codes, with a lane for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// Scale of 16 or 32 columns. For products of pairs it is in both words of a lane; for
    /// `dot4_u8s8` it is a float.
    Scale,
    /// Minimum of a sub-block, as a float.
    Minimum,
    /// Minimums of the two halves of a sub-block, as words.
    Minimums,
    /// Zero point times the scales of the two halves of a sub-block, as words.
    Correction,
    /// Float scale `d` of a block, or of a sub-block.
    D,
    /// Float scale `dmin` of the minimums, negated.
    Dmin,
    /// Float `m` that is added to each element.
    M,
}

/// Instructions that sum products of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dots {
    /// Two products are summed in a 16-bit word.
    Dot2,
    /// Four products are summed in a 32-bit lane.
    Dot4,
}

/// Returns the items of a format's block in the order of a panel, and how many of each item a block
/// has.
fn items(format: Format, dots: Dots) -> Vec<(Item, i64)> {
    let (codec, len) = (linear::quants(format), format.block_len() as i64);
    let numbers = len / format.d_columns() as i64;
    let Some(scaled) = codec.scale_group_len() else {
        let mut items = vec![(Item::D, numbers)];
        items.extend((codec.minimum == Minimum::Half).then_some((Item::M, numbers)));
        return items;
    };
    let mut items = vec![(Item::Scale, len / scaled as i64)];
    // With `dot4_u8s8`, the initial values of sums contain the contribution of the zero point, so
    // they need no correction.
    let corrects = codec.zero() > 0 && dots == Dots::Dot2 && !has_magnitudes(format, dots);
    items.extend(corrects.then_some((Item::Correction, len / SUB)));
    let minimum = if codec.scale_group_len() == Some(SUB as usize) { Item::Minimum } else { Item::Minimums };
    items.extend((codec.minimum == Minimum::Scaled).then_some((minimum, len / SUB)));
    items.push((Item::D, 1));
    items.extend((codec.minimum == Minimum::Scaled).then_some((Item::Dmin, 1)));
    items
}

/// Whether products of pairs multiply unsigned magnitudes, with the signs on the other factor. This
/// is the case if two products of the largest byte exceed a 16-bit word. In formats whose words
/// always sum two groups of columns, it is the case if four products do.
pub fn has_magnitudes(format: Format, dots: Dots) -> bool {
    let least = if format.has_row_scale() { 2 } else { 1 };
    dots == Dots::Dot2 && format.quants().is_some_and(|codec| codec.pairs_in_a_word() < least)
}

/// Whether a 16-bit word sums the products of only one group of columns. This is the case if four
/// products of the largest byte, or of the largest magnitude, exceed the word.
pub fn by_groups(format: Format, dots: Dots) -> bool {
    dots == Dots::Dot2 && format.quants().is_some_and(|codec| codec.pairs_in_a_word() < 2)
}

/// Returns the offset of an item in a block of a panel. For `None`, returns the size of the block.
fn place(format: Format, dots: Dots, item: Option<Item>) -> i64 {
    let vectors = format.block_len() as i64 / 4 * if has_magnitudes(format, dots) { 2 } else { 1 };
    let before = items(format, dots).into_iter().take_while(|(other, _)| Some(*other) != item);
    (vectors + before.map(|(_, count)| count).sum::<i64>()) * VECTOR
}

/// Returns the number of bytes of a block of a panel. For floats, a block is a column.
pub fn block_bytes(format: Format, dots: Dots) -> i64 {
    if format.is_quantised() { place(format, dots, None) } else { VECTOR }
}

/// Returns the number of blocks of a panel. For floats, a block is a column.
pub fn stretch(format: Format, dots: Dots) -> i64 {
    let columns = match format.is_quantised() {
        true if has_magnitudes(format, dots) => LONG_STRETCH,
        true => STRETCH,
        false => FLOAT_STRETCH,
    };
    columns / format.block_len() as i64
}

/// Reader of a block of weights, in a strip or in a panel.
#[derive(Clone)]
pub struct Source {
    /// Whether the block is unpacked, in a panel. Otherwise it is in a strip.
    pub panel: bool,
    pub format: Format,
    pub dots: Dots,
    pub buffer: BufferId,
    pub offset: Affine,
}

impl Source {
    pub fn strip(&self, part: Part) -> StripBlock {
        StripBlock { format: self.format, buffer: self.buffer, offset: self.offset.clone(), part }
    }

    /// Returns a reader of block `i` after this one.
    pub fn block(&self, i: impl Into<Affine>) -> Source {
        let bytes = match self.panel {
            true => block_bytes(self.format, self.dots),
            false => STRIP as i64 * self.format.block_bytes() as i64,
        };
        Source { offset: self.offset.clone() + i.into() * bytes, ..self.clone() }
    }

    /// Returns a reader of this block from sub-block `number` on. Scales must be read from the
    /// whole block.
    pub fn sub_block(&self, number: i64) -> Source {
        let bytes = linear::quants(self.format).vectors().1 as i64 * VECTOR;
        Source { offset: self.offset.clone() + number * bytes, ..self.clone() }
    }

    /// Returns vectors that are the same for all pairs of groups of a sub-block. [`Source::pair`]
    /// needs them.
    pub fn high(&self, b: &mut KernelBuilder, sub: VarId, part: Part) -> Vec<ValueId> {
        if self.panel { Vec::new() } else { self.strip(part).high(b, sub) }
    }

    /// Returns vectors for [`Source::pair`], for columns whose scale has index `at` in the block.
    /// Only formats whose codes are multiplied by this scale have them.
    pub fn multiples(&self, b: &mut KernelBuilder, at: i64, part: Part) -> Vec<ValueId> {
        self.strip(part).multiples(b, at)
    }

    /// Returns the codes of groups `2 * pair` and `2 * pair + 1` of a sub-block. They are signed if
    /// the format has magnitudes.
    pub fn pair(&self, b: &mut KernelBuilder, sub: VarId, pair: i64, part: Part, high: &[ValueId]) -> [ValueId; 2] {
        if self.panel {
            let at = self.offset.clone() + sub * (8 * VECTOR) + (2 * pair * VECTOR + part.at(4));
            return [0, VECTOR].map(|next| b.load(part.quants(), self.buffer, at.clone() + next));
        }
        let quants = self.strip(part).pair(b, sub, pair, high);
        if !has_magnitudes(self.format, self.dots) {
            return quants;
        }
        // Codes in the panel are numbers plus the zero point.
        match linear::quants(self.format).zero() {
            128 => {
                let top = b.splat_int(part.quants(), -128);
                quants.map(|quants| b.same(Op::Xor, &[quants, top]))
            }
            zero => {
                let zero = b.splat_int(part.quants(), zero.into());
                quants.map(|quants| b.same(Op::ISub, &[quants, zero]))
            }
        }
    }

    /// Returns the magnitudes of the signed numbers that [`Source::pair`] returned.
    pub fn magnitudes(&self, b: &mut KernelBuilder, sub: VarId, group: i64, part: Part, quants: ValueId) -> ValueId {
        if !self.panel {
            return b.same(Op::IAbs, &[quants]);
        }
        let behind = self.format.block_len() as i64 / 4 * VECTOR;
        let at = self.offset.clone() + sub * (8 * VECTOR) + (behind + group * VECTOR + part.at(4));
        b.load(part.quants(), self.buffer, at)
    }

    /// Returns the index of the [`Item::D`] or [`Item::M`] for half `half` of sub-block `sub`.
    pub fn number_of(&self, sub: VarId, half: i64, part: Part) -> Affine {
        self.strip(part).number_of(sub, half)
    }

    /// Returns the item of this kind at index `at` of the block.
    pub fn item(&self, b: &mut KernelBuilder, item: Item, at: impl Into<Affine>, part: Part) -> ValueId {
        let at = at.into();
        // Formats without integer scales have the scale 1 in 16-bit words, because products of
        // pairs are always multiplied by a scale.
        let constant = match (item, linear::quants(self.format).scale_group_len()) {
            (Item::Scale, None) => Some(1),
            (Item::Correction, None) => Some(linear::quants(self.format).zero()),
            _ => None,
        };
        if let Some(constant) = constant {
            return b.splat_int(part.words(), constant.into());
        }
        if self.panel {
            let words = match item {
                Item::Correction | Item::Minimums => true,
                Item::Scale => self.dots == Dots::Dot2,
                Item::Minimum | Item::D | Item::Dmin | Item::M => false,
            };
            let ty = if words { part.words() } else { part.floats() };
            let to = self.offset.clone() + (place(self.format, self.dots, Some(item)) + part.at(4)) + at * VECTOR;
            return b.load(ty, self.buffer, to);
        }
        let strip = self.strip(part);
        match item {
            Item::Scale if self.dots == Dots::Dot2 => strip.scale_words(b, at.clone(), at),
            Item::Scale => strip.scale(b, at),
            Item::Minimum => strip.minimum(b, at),
            Item::Minimums => strip.minimum_words(b, at),
            Item::Correction => {
                let codec = linear::quants(self.format);
                let units = SUB / codec.scale_group_len().map_or(SUB, |columns| columns as i64);
                let words = strip.scale_words(b, at.clone() * units, at * units + (units - 1));
                times(b, words, codec.zero())
            }
            Item::D => strip.numbers(b, "d", at),
            Item::M => strip.numbers(b, "m", at),
            Item::Dmin => {
                let d = strip.numbers(b, "dmin", at);
                let minus = b.splat_f32(part.lanes, -1.0);
                b.mul(d, minus)
            }
        }
    }

    /// Unpacks the first `filled` sub-blocks of this block of a strip to the block `to` of a panel.
    pub fn unpack(&self, b: &mut KernelBuilder, to: &Source, filled: i64, vectors: Vectors) {
        let store =
            |b: &mut KernelBuilder, at: Affine, value: ValueId| b.store(to.buffer, to.offset.clone() + at, value);
        let subs = self.format.block_len() as i64 / SUB;
        let magnitudes = has_magnitudes(self.format, self.dots).then_some(self.format.block_len() as i64 / 4 * VECTOR);
        let items = items(self.format, self.dots);
        b.for_each("s", filled, |b, s| {
            for part in Part::all(vectors) {
                let high = self.high(b, s, part);
                for pair in 0..4 {
                    for (group, quants) in (2 * pair..).zip(self.pair(b, s, pair, part, &high)) {
                        let at = s * (8 * VECTOR) + (group * VECTOR + part.at(4));
                        store(b, at.clone(), quants);
                        if let Some(behind) = magnitudes {
                            let magnitudes = self.magnitudes(b, s, group, part, quants);
                            store(b, at + behind, magnitudes);
                        }
                    }
                }
                for &(item, count) in items.iter().filter(|(_, count)| *count >= subs) {
                    for i in 0..count / subs {
                        let at = s * (count / subs) + i;
                        let value = self.item(b, item, at.clone(), part);
                        store(b, at * VECTOR + (place(self.format, self.dots, Some(item)) + part.at(4)), value);
                    }
                }
            }
        });
        for &(item, _) in items.iter().filter(|(_, count)| *count < subs) {
            for part in Part::all(vectors) {
                let value = self.item(b, item, 0, part);
                let at = place(self.format, self.dots, Some(item)) + part.at(4);
                store(b, Affine::constant(at), value);
            }
        }
    }
}

/// Unpacks a column of a strip of floats to a panel.
pub fn unpack_column(b: &mut KernelBuilder, strip: &Source, to: &Source, vectors: Vectors) {
    for part in Part::all(vectors) {
        let value = column(b, strip, part);
        b.store(to.buffer, to.offset.clone() + part.at(4), value);
    }
}

/// Loads a column of floats from a strip or a panel.
pub fn column(b: &mut KernelBuilder, source: &Source, part: Part) -> ValueId {
    if source.panel {
        return b.load(part.floats(), source.buffer, source.offset.clone() + part.at(4));
    }
    match source.format.codec() {
        Codec::Float(float) => {
            let at = source.offset.clone() + part.at(float.bytes() as i64);
            floats(b, *float, part.lanes, source.buffer, at)
        }
        Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => {
            unreachable!("{} has no floats", source.format)
        }
    }
}

/// Loads floats of a weight, and converts them to f32.
pub fn floats(b: &mut KernelBuilder, float: Float, lanes: u16, buffer: BufferId, at: Affine) -> ValueId {
    match float {
        Float::F32 => b.load(Type::f32(lanes), buffer, at),
        Float::F16 => {
            let halves = b.load(Type::f16(lanes), buffer, at);
            b.op(Op::F16ToF32, Type::f32(lanes), &[halves])
        }
        Float::Bf16 => {
            let halves = b.load(Type::bf16(lanes), buffer, at);
            b.bf16_to_f32(halves)
        }
    }
}

/// Returns the integers multiplied by a zero point.
pub fn times(b: &mut KernelBuilder, integers: ValueId, zero: u8) -> ValueId {
    match zero.is_power_of_two() {
        true => b.shift(Op::Shl, integers, zero.trailing_zeros().into()),
        false => {
            let zero = b.splat_int(b.ty(integers), zero.into());
            b.same(Op::IMul, &[integers, zero])
        }
    }
}
