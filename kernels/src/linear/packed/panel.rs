//! What sums are made of: quants, a byte each, and scales, read from a strip's block or from a *panel*, a strip's blocks unpacked.
//!
//! A panel holds for each block, in vectors of 64 bytes (16 rows), the quants of every group of four columns, then each [`Item`] as
//! often as the block has it. What [`Source`] gives is the same from both.

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId, VarId};

use super::activations::SUB;
use super::strip::{Part, StripBlock, VECTOR};

/// Columns that a panel of quants covers: 16 KiB of bytes, which stay in a first-level cache.
const STRETCH: i64 = 1024;
/// The same of a format with magnitudes beside the quants, and of floats.
const LONG_STRETCH: i64 = 512;
const FLOAT_STRETCH: i64 = 256;

/// What a block has beside its quants, a lane for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// The scale of 16 or 32 columns: in both words of a lane for products by pairs, as a float for those by fours.
    Scale,
    /// The minimum of a sub-block, as a float.
    Minimum,
    /// 32 times the scales of both halves of a sub-block, as words: for quants that are stored plus 32.
    Correction,
    /// The float scale of a block, or of a sub-block.
    D,
    /// The float scale of the minimums, negated.
    Dmin,
}

/// How products of bytes are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dots {
    /// Two to a 16-bit word.
    Pairs,
    /// Four to a 32-bit lane.
    Fours,
}

/// Items of a format's block in the order of a panel, and how many.
fn items(format: Format, dots: Dots) -> Vec<(Item, i64)> {
    match format {
        Format::Q4KR16 | Format::Q5KR16 => vec![(Item::Scale, 8), (Item::Minimum, 8), (Item::D, 1), (Item::Dmin, 1)],
        Format::Q6KR16 if dots == Dots::Pairs => vec![(Item::Scale, 16), (Item::Correction, 8), (Item::D, 1)],
        Format::Q6KR16 => vec![(Item::Scale, 16), (Item::D, 1)],
        _ => vec![(Item::D, 2)],
    }
}

/// Whether products by pairs want signed quants and, unsigned, their magnitudes: of eight bits, two products exceed a word.
pub fn has_magnitudes(format: Format, dots: Dots) -> bool {
    format == Format::Q8_0R16 && dots == Dots::Pairs
}

/// Where the items of a block begin.
fn place(format: Format, dots: Dots, item: Option<Item>) -> i64 {
    let vectors = format.block_len() as i64 / 4 * if has_magnitudes(format, dots) { 2 } else { 1 };
    let before = items(format, dots).into_iter().take_while(|(other, _)| Some(*other) != item);
    (vectors + before.map(|(_, count)| count).sum::<i64>()) * VECTOR
}

/// Bytes of a block of a panel; of floats, of a column.
pub fn block_bytes(format: Format, dots: Dots) -> i64 {
    if format.is_quantised() { place(format, dots, None) } else { VECTOR }
}

/// Blocks (of floats, columns) of a panel.
pub fn stretch(format: Format, dots: Dots) -> i64 {
    let columns = match format.is_quantised() {
        true if has_magnitudes(format, dots) => LONG_STRETCH,
        true => STRETCH,
        false => FLOAT_STRETCH,
    };
    columns / format.block_len() as i64
}

/// A block of weights.
#[derive(Clone)]
pub struct Source {
    /// Where it is: in a strip, or unpacked in a panel.
    pub panel: bool,
    pub format: Format,
    pub dots: Dots,
    pub buffer: BufferId,
    pub offset: Affine,
}

impl Source {
    fn strip(&self, part: Part) -> StripBlock {
        StripBlock { format: self.format, buffer: self.buffer, offset: self.offset.clone(), part }
    }

    /// Block `i` behind this one.
    pub fn block(&self, i: impl Into<Affine>) -> Source {
        let bytes = match self.panel {
            true => block_bytes(self.format, self.dots),
            false => STRIP as i64 * self.format.block_bytes() as i64,
        };
        Source { offset: self.offset.clone() + i.into() * bytes, ..self.clone() }
    }

    /// What [`Source::pair`] needs of a sub-block.
    pub fn high(&self, b: &mut KernelBuilder, sub: VarId, part: Part) -> Vec<ValueId> {
        if self.panel { Vec::new() } else { self.strip(part).high(b, sub) }
    }

    /// Groups `2 * pair` and `2 * pair + 1` of a sub-block; signed if there are magnitudes.
    pub fn pair(&self, b: &mut KernelBuilder, sub: VarId, pair: i64, part: Part, high: &[ValueId]) -> [ValueId; 2] {
        if self.panel {
            let at = self.offset.clone() + sub * (8 * VECTOR) + (2 * pair * VECTOR + part.at(4));
            return [0, VECTOR].map(|next| b.load(part.quants(), self.buffer, at.clone() + next));
        }
        let quants = self.strip(part).pair(b, sub, pair, high);
        if !has_magnitudes(self.format, self.dots) {
            return quants;
        }
        // Stored plus 128.
        let top = b.splat_int(part.quants(), -128);
        quants.map(|quants| b.same(Op::Xor, &[quants, top]))
    }

    /// The magnitudes of quants that [`Source::pair`] gave.
    pub fn magnitudes(&self, b: &mut KernelBuilder, sub: VarId, group: i64, part: Part, quants: ValueId) -> ValueId {
        if !self.panel {
            return b.same(Op::IAbs, &[quants]);
        }
        let behind = self.format.block_len() as i64 / 4 * VECTOR;
        let at = self.offset.clone() + sub * (8 * VECTOR) + (behind + group * VECTOR + part.at(4));
        b.load(part.quants(), self.buffer, at)
    }

    /// Number `at` of an item.
    pub fn item(&self, b: &mut KernelBuilder, item: Item, at: impl Into<Affine>, part: Part) -> ValueId {
        let at = at.into();
        if self.panel {
            let words = item == Item::Correction || item == Item::Scale && self.dots == Dots::Pairs;
            let ty = if words { part.words() } else { part.floats() };
            let to = self.offset.clone() + (place(self.format, self.dots, Some(item)) + part.at(4)) + at * VECTOR;
            return b.load(ty, self.buffer, to);
        }
        let strip = self.strip(part);
        match item {
            Item::Scale if self.dots == Dots::Pairs => strip.scale_words(b, at.clone(), at),
            Item::Scale => strip.floats(b, "scales", at),
            Item::Minimum => strip.floats(b, "mins", at),
            Item::Correction => {
                let words = strip.scale_words(b, at.clone() * 2, at * 2 + 1);
                b.shift(Op::Shl, words, 5)
            }
            Item::D => strip.halves(b, "d", at),
            Item::Dmin => {
                let d = strip.halves(b, "dmin", at);
                let minus = b.splat_f32(part.lanes, -1.0);
                b.mul(d, minus)
            }
        }
    }

    /// Unpacks this block of a strip to a panel's.
    pub fn unpack(&self, b: &mut KernelBuilder, to: &Source, lanes: u16) {
        let store =
            |b: &mut KernelBuilder, at: Affine, value: ValueId| b.store(to.buffer, to.offset.clone() + at, value);
        let subs = self.format.block_len() as i64 / SUB;
        let magnitudes = has_magnitudes(self.format, self.dots).then_some(self.format.block_len() as i64 / 4 * VECTOR);
        let items = items(self.format, self.dots);
        b.for_each("s", subs, |b, s| {
            for part in Part::all(lanes) {
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
            for part in Part::all(lanes) {
                let value = self.item(b, item, 0, part);
                let at = place(self.format, self.dots, Some(item)) + part.at(4);
                store(b, Affine::constant(at), value);
            }
        }
    }
}

/// Unpacks a column of a strip of floats.
pub fn unpack_column(b: &mut KernelBuilder, strip: &Source, to: &Source, lanes: u16) {
    for part in Part::all(lanes) {
        let value = column(b, strip, part);
        b.store(to.buffer, to.offset.clone() + part.at(4), value);
    }
}

/// A column of floats.
pub fn column(b: &mut KernelBuilder, source: &Source, part: Part) -> ValueId {
    if source.panel {
        return b.load(part.floats(), source.buffer, source.offset.clone() + part.at(4));
    }
    let at = source.offset.clone() + part.at(2);
    if source.format == Format::F16R16 {
        let halves = b.load(Type::f16(part.lanes), source.buffer, at);
        return b.op(Op::F16ToF32, part.floats(), &[halves]);
    }
    let halves = b.load(Type::bf16(part.lanes), source.buffer, at);
    b.bf16_to_f32(halves)
}
