//! Micro-kernel: products of some rows of activations with a stretch (range of columns) of a strip.
//! It serves targets whose vectors hold half a strip, and targets without `dot4_u8s8`.
//!
//! With 16 registers, a block is four rows by two parts of a strip, so that six loads serve eight
//! products. Eight registers hold their integer sums. Float sums of a block, and integer sums of
//! partial sub-blocks, stay in memory (*slots*), which is read and written once for 16 or 32
//! columns. Formats with six bits and a scale for 16 columns would access slots every 8 columns;
//! for these formats, a block is two rows by two parts.
//!
//! Float weights need only float sums. With
//! [`MatmulStrategy::Gemm6`](crate::MatmulStrategy::Gemm6), a block of floats has six rows. With
//! two multiply-adds in a cycle and a latency of four cycles, eight chains would be enough.
//!
//! Products of pairs ([`Dots::Dot2`]) are summed in 16-bit words as long as the sums fit. Then one
//! `dot2_s16` widens and scales them:
//!
//! ```text
//! 4 bits    15 * 127 * 2 * 8 = 30480     32 columns; 16 where these have a scale of the activations
//! 5 bits    31 * 127 * 2 * 4 = 31496     16 columns
//! 6 bits    63 * 127 * 2 * 2 = 32004      8 columns
//! 7 bits   126 * 127 * 2     = 32004      4 columns, of the largest of a grid
//! 8 bits   128 * 127 * 2     = 32512      4 columns, of magnitudes: signs go to the activations
//! ```
//!
//! The results are computed from `d` and `dmin` of the weight (one number in each lane), and from
//! `dx` and sums of the activations (the same number in all lanes):
//!
//! ```text
//! integer scales   y += -dmin * (sum over sub-blocks of min * sums);              t += sum * dx for eight sub-blocks;  y += t * d
//! and 2 minimums   y += -dmin * (sum over sub-blocks of (min * sums16) * dx);     t += sum * dx for eight sub-blocks;  y += t * d
//! d of a block                                                                    t += sum * dx for eight sub-blocks;  y += t * d
//! d of a sub-block t = low * dx + high * dx [- zero * sums];  y += t * d;   y += m * sums
//! d of 16 columns  t = low * dx;  y += t * d;  t = high * dx;  y += t * d
//! ```

mod floats;
mod small;

use ixc_ir::format::packed::STRIP;
use ixc_ir::format::{Format, Minimum, Quants};
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId, VarId};

use super::super::Vectors;
use super::SUB;
use super::activations::RowBlock;
use super::ahead;
use super::panel::{self, Dots, Item, Source};
use super::strip::{self, Part};
use crate::generator::buffer_offset::BufferOffset;
use crate::linear;

/// Maximum number of sums of a block: rows times parts.
const SUMS: usize = 8;
/// Maximum number of sums of a block of floats, which needs no registers for integer sums.
const FLOAT_SUMS: usize = 12;
/// Maximum number of float sums that stay in registers in addition to integer sums.
const MAX_FLOAT_SUMS: usize = 2;
/// Maximum number of integer sums that stay in registers in addition to sums of 16-bit words.
const MAX_INTEGER_SUMS: usize = 4;

/// Returns the number of rows of activations of a block. It is a divisor of `size`.
pub fn rows(format: Format, vectors: Vectors, size: u32) -> u32 {
    // With two scales for 32 columns, sums of pairs are moved out of 16-bit words most often. Half
    // the number of rows then leaves registers for both word sums and integer sums.
    let kinds = |codec: &Quants| codec.scale_group_len().map_or(1, |columns| SUB as usize / columns);
    let sums = format.quants().map_or(FLOAT_SUMS, |codec| SUMS / kinds(codec));
    let most = (sums / Part::all(vectors).len()) as u32;
    (1..=most).rev().find(|rows| size.is_multiple_of(*rows)).unwrap_or(1)
}

/// Returns the number of bytes of the slots of a block: float sums, and integer sums of partial
/// sub-blocks.
pub fn slot_bytes(lanes: u16) -> i64 {
    2 * SUMS as i64 * 4 * i64::from(lanes)
}

/// Micro-kernel for some rows of activations and a stretch of a strip. Its sums are in the order of
/// parts, then of rows.
pub struct Micro {
    pub vectors: Vectors,
    /// First block of the stretch in the strip or the panel.
    pub source: Source,
    pub x: BufferId,
    pub x_format: Format,
    /// Offset of the stretch in each row of `x`.
    pub rows: Vec<Affine>,
    /// Offset of the strip's results in `to`, for each row.
    pub results: Vec<Affine>,
    pub to: BufferId,
    /// Memory of the slots, of [`slot_bytes`] bytes. It is used for more than [`MAX_FLOAT_SUMS`]
    /// sums. `None` if all sums stay in registers.
    pub slots: Option<BufferOffset>,
}

/// A sub-block of the weight, and the same columns of all rows of activations.
struct Step {
    weights: Source,
    sub: VarId,
    rows: Vec<RowBlock>,
}

impl Micro {
    /// Adds the products of `columns` columns to the results.
    pub fn multiply(&self, b: &mut KernelBuilder, columns: i64) {
        match self.source.format.quants() {
            None => self.columns(b, columns),
            Some(_) if !strip::by_sub_blocks(self.source.format) => self.small(b, columns),
            Some(_) => {
                let blocks = columns / self.source.format.block_len() as i64;
                b.for_each("b", blocks, |b, i| self.super_block(b, i));
            }
        }
    }

    fn codec(&self) -> &'static Quants {
        linear::quants(self.source.format)
    }

    fn parts(&self) -> Vec<Part> {
        Part::all(self.vectors)
    }

    /// Returns sets of parts of the strip; the parts of a set are computed together. Formats with
    /// high bits or grid indices need more registers, so their sets are smaller.
    fn sets(&self) -> Vec<Vec<Part>> {
        let high = self.codec().high.is_some() || self.codec().grid().is_some();
        match high && !self.source.panel {
            true => self.parts().into_iter().map(|part| vec![part]).collect(),
            false => vec![self.parts()],
        }
    }

    /// Returns the slots: locations of float sums, then of integer sums. Returns `None` if all sums
    /// stay in registers.
    fn slots(&self) -> Option<Vec<BufferOffset>> {
        let sums = self.rows.len() * self.parts().len();
        let BufferOffset { buffer, at } = self.slots.filter(|_| sums > MAX_FLOAT_SUMS)?;
        let slot = |i: i64| BufferOffset { buffer, at: at + i * 4 * i64::from(self.vectors.lanes) };
        Some((0..2 * sums as i64).map(slot).collect())
    }

    fn result(&self, row: usize, part: Part) -> Affine {
        self.results[row].clone() + part.at(4)
    }

    /// Adds `values` times `item` of the weight to the results.
    fn add(
        &self,
        b: &mut KernelBuilder,
        weights: &Source,
        item: Item,
        values: &mut dyn FnMut(&mut KernelBuilder, usize) -> ValueId,
    ) {
        for (p, part) in self.parts().into_iter().enumerate() {
            let scale = weights.item(b, item, 0, part);
            for r in 0..self.rows.len() {
                let value = values(b, p * self.rows.len() + r);
                let old = b.load(part.floats(), self.to, self.result(r, part));
                let sum = b.fma(value, scale, old);
                b.store(self.to, self.result(r, part), sum);
            }
        }
    }

    /// Prefetches the data a page after the sub-block, if strips are read directly from memory.
    fn prefetch(&self, b: &mut KernelBuilder, step: &Step) {
        if !self.source.panel {
            let format = self.source.format;
            let bytes = (format.block_bytes() * STRIP) as i64 * SUB / format.block_len() as i64;
            ahead::prefetch(b, self.source.buffer, &(step.weights.offset.clone() + step.sub * bytes), bytes);
        }
    }

    /// Multiplies a block of 256 columns.
    fn super_block(&self, b: &mut KernelBuilder, i: VarId) {
        let weights = self.source.block(i);
        let x_bytes = self.x_format.block_bytes() as i64;
        let rows = |sub| -> Vec<RowBlock> {
            let block =
                |at: &Affine| RowBlock { buffer: self.x, format: self.x_format, at: at.clone() + i * x_bytes, sub };
            self.rows.iter().map(block).collect()
        };
        let minimums = self.minimums(b, &weights, &rows(None));
        let slots = self.slots();
        let zero = b.splat_f32(self.vectors.lanes, 0.0);
        let count = self.rows.len() * self.parts().len();
        let mut sums = vec![zero; count];
        // Minimums are added first, for any number of rows. They then need no registers during the
        // sums, and a row's result does not depend on the other rows.
        if let Some(minimums) = &minimums {
            self.add(b, &weights, Item::Dmin, &mut |_, i| minimums[i]);
        }
        if let Some(slots) = &slots {
            for slot in &slots[..count] {
                b.store(slot.buffer, slot.at, zero);
            }
            sums.clear();
        }
        let sums = b.for_carry("s", self.source.format.block_len() as i64 / SUB, &sums, |b, s, sums| {
            let step = Step { weights: weights.clone(), sub: s, rows: rows(Some(s)) };
            self.prefetch(b, &step);
            let mut next = vec![zero; sums.len()];
            let mut first = 0;
            for parts in self.sets() {
                let terms = self.terms(b, &step, &parts);
                for (r, row) in step.rows.iter().enumerate() {
                    let dx = row.splat(b, parts[0].floats(), "d", 4, 0);
                    for p in 0..parts.len() {
                        let (term, at) = (terms[p * self.rows.len() + r], (first + p) * self.rows.len() + r);
                        match &slots {
                            Some(slots) => {
                                let BufferOffset { buffer, at } = slots[at];
                                let old = b.load(parts[p].floats(), buffer, at);
                                let sum = b.fma(term, dx, old);
                                b.store(buffer, at, sum);
                            }
                            None => next[at] = b.fma(term, dx, sums[at]),
                        }
                    }
                }
                first += parts.len();
            }
            next
        });
        let lanes = self.vectors.lanes;
        self.add(b, &weights, Item::D, &mut |b, i| match &slots {
            Some(slots) => b.load(Type::f32(lanes), slots[i].buffer, slots[i].at),
            None => sums[i],
        });
    }

    /// Returns the weight's minimums times the activations' sums. The result must still be
    /// multiplied by `dmin`, the scale of the minimums.
    fn minimums(&self, b: &mut KernelBuilder, weights: &Source, rows: &[RowBlock]) -> Option<Vec<ValueId>> {
        if self.codec().minimum != Minimum::Scaled {
            return None;
        }
        let parts = self.parts();
        let mut sums: Vec<Option<ValueId>> = vec![None; parts.len() * rows.len()];
        if self.codec().scale_group_len() != Some(SUB as usize) {
            return Some(self.two_minimums(b, weights, rows));
        }
        for s in 0..self.source.format.block_len() as i64 / SUB {
            let minimums: Vec<ValueId> = parts.iter().map(|part| weights.item(b, Item::Minimum, s, *part)).collect();
            for (r, row) in rows.iter().enumerate() {
                let x = row.splat(b, parts[0].floats(), "sums", 4, 4 * s);
                for (p, minimum) in minimums.iter().enumerate() {
                    let sum = &mut sums[p * rows.len() + r];
                    *sum = Some(match *sum {
                        Some(sum) => b.fma(*minimum, x, sum),
                        None => b.mul(*minimum, x),
                    });
                }
            }
        }
        Some(sums.into_iter().flatten().collect())
    }

    /// Returns the same as [`Micro::minimums`], for formats in which each half of a sub-block has a
    /// minimum.
    fn two_minimums(&self, b: &mut KernelBuilder, weights: &Source, rows: &[RowBlock]) -> Vec<ValueId> {
        let parts = self.parts();
        let zero = b.splat_f32(self.vectors.lanes, 0.0);
        let init = vec![zero; parts.len() * rows.len()];
        b.for_carry("m", self.source.format.block_len() as i64 / SUB, &init, |b, s, sums| {
            let mut next = Vec::new();
            for (part, sums) in parts.iter().zip(self.by_part(sums)) {
                let minimums = weights.item(b, Item::Minimums, s, *part);
                for (row, sum) in rows.iter().zip(sums) {
                    let row = RowBlock { sub: Some(s), at: row.at.clone(), ..*row };
                    let term = row.minimums(b, minimums);
                    let dx = row.splat(b, part.floats(), "d", 4, 0);
                    next.push(b.fma(term, dx, *sum));
                }
            }
            next
        })
    }

    /// Returns a sub-block's sums of products, multiplied by its integer scales, as floats.
    fn terms(&self, b: &mut KernelBuilder, step: &Step, parts: &[Part]) -> Vec<ValueId> {
        let high: Vec<Vec<ValueId>> = parts.iter().map(|part| step.weights.high(b, step.sub, *part)).collect();
        // A sub-block has one or two units, which are columns with a common scale. Sums in 16-bit
        // words are divided further if they could overflow within a unit.
        let codec = self.codec();
        let units = SUB / codec.scale_group_len().map_or(SUB, |columns| columns as i64);
        let pairs = 4 / units;
        let run = (codec.pairs_in_a_word() / 2).clamp(1, pairs as usize);
        if panel::by_groups(self.source.format, self.source.dots) {
            let mut sums: Vec<Option<ValueId>> = vec![None; parts.len() * self.rows.len()];
            for unit in 0..units {
                let at = step.sub * units + unit;
                let scales = |b: &mut KernelBuilder, part: Part| step.weights.item(b, Item::Scale, at.clone(), part);
                self.by_groups(
                    b,
                    step,
                    unit * pairs..(unit + 1) * pairs,
                    &pair_with_high(parts, &high),
                    &scales,
                    &mut sums,
                );
            }
            return self.float_sums(b, step, parts, sums.into_iter().flatten().collect());
        }
        if self.source.dots == Dots::Dot2 {
            let slots = self.slots().filter(|slots| slots.len() / 2 > MAX_INTEGER_SUMS);
            let mut sums = vec![None; parts.len() * self.rows.len()];
            let mut scales = Vec::new();
            for first in (0..4).step_by(run) {
                if let (Some(slots), true) = (&slots, first > 0) {
                    for (sum, slot) in sums.iter_mut().zip(&slots[slots.len() / 2..]) {
                        if let Some(sum) = sum.take() {
                            b.store(slot.buffer, slot.at, sum);
                        }
                    }
                }
                let words = self.words(b, step, first..first + run as i64, parts, &high);
                if first % pairs == 0 {
                    let at = step.sub * units + first / pairs;
                    scales = parts.iter().map(|part| step.weights.item(b, Item::Scale, at.clone(), *part)).collect();
                }
                for (i, (words, sum)) in words.iter().zip(&mut sums).enumerate() {
                    let part = i / self.rows.len();
                    let mut scaled = b.op(Op::Dot2S16, parts[part].dwords(), &[*words, scales[part]]);
                    if let (Some(slots), true) = (&slots, first > 0) {
                        let BufferOffset { buffer, at } = slots[slots.len() / 2 + i];
                        let before = b.load(parts[part].dwords(), buffer, at);
                        scaled = b.iadd(scaled, before);
                    }
                    accumulate(b, sum, scaled);
                }
            }
            return self.float_sums(b, step, parts, sums.into_iter().flatten().collect());
        }
        let mut terms = vec![None; parts.len() * self.rows.len()];
        for unit in 0..units {
            // The initial value is computed again for each part, because a product overwrites its
            // sum.
            let starts = parts.iter().flat_map(|part| step.rows.iter().map(move |row| (row, *part)));
            let mut sums: Vec<ValueId> = starts.map(|(row, part)| self.start(b, row, unit, units, part)).collect();
            self.groups(b, step, unit * pairs..(unit + 1) * pairs, parts, &high, |b, i, quants, x| {
                sums[i] = b.dot4_u8s8(sums[i], quants, x);
            });
            for (part, (sums, terms)) in parts.iter().zip(self.by_part(&sums).zip(self.by_part_mut(&mut terms))) {
                let scaled = codec.scale_group_len().is_some();
                let scale = scaled.then(|| step.weights.item(b, Item::Scale, step.sub * units + unit, *part));
                for (sum, term) in sums.iter().zip(terms) {
                    let sum = b.op(Op::ToF32, part.floats(), &[*sum]);
                    *term = Some(match (*term, scale) {
                        (Some(term), Some(scale)) => b.fma(sum, scale, term),
                        (Some(term), None) => b.add(sum, term),
                        (None, Some(scale)) => b.mul(sum, scale),
                        (None, None) => sum,
                    });
                }
            }
        }
        terms.into_iter().flatten().collect()
    }

    fn by_part<'v, T>(&self, values: &'v [T]) -> std::slice::ChunksExact<'v, T> {
        values.chunks_exact(self.rows.len())
    }

    fn by_part_mut<'v, T>(&self, values: &'v mut [T]) -> std::slice::ChunksExactMut<'v, T> {
        values.chunks_exact_mut(self.rows.len())
    }

    /// Converts sums of products of pairs to floats, after subtracting the contribution of the zero
    /// point.
    fn float_sums(&self, b: &mut KernelBuilder, step: &Step, parts: &[Part], mut sums: Vec<ValueId>) -> Vec<ValueId> {
        if self.codec().zero() > 0 && !panel::has_magnitudes(self.source.format, self.source.dots) {
            self.correct(b, step, parts, &mut sums);
        }
        sums.into_iter().map(|sum| b.op(Op::ToF32, parts[0].floats(), &[sum])).collect()
    }

    /// Subtracts the contribution of the zero point from sums of products of pairs.
    fn correct(&self, b: &mut KernelBuilder, step: &Step, parts: &[Part], sums: &mut [ValueId]) {
        for (part, sums) in parts.iter().zip(self.by_part_mut(sums)) {
            let scales = step.weights.item(b, Item::Correction, step.sub, *part);
            for (row, sum) in step.rows.iter().zip(sums) {
                let x = row.splat(b, part.dwords(), "sums16", 4, 0);
                let x = b.bitcast(part.words(), x);
                let offset = b.op(Op::Dot2S16, part.dwords(), &[scales, x]);
                *sum = b.same(Op::ISub, &[*sum, offset]);
            }
        }
    }

    /// Returns the initial value of the sums of `dot4_u8s8`: the negated contribution of the zero
    /// point, or 0.
    fn start(&self, b: &mut KernelBuilder, row: &RowBlock, unit: i64, units: i64, part: Part) -> ValueId {
        match self.codec().zero() {
            0 => b.splat_int(part.dwords(), 0),
            zero => zero_point(b, row, unit, units, zero, part.lanes),
        }
    }

    /// Returns the sums of products of some pairs of groups, in 16-bit words.
    fn words(
        &self,
        b: &mut KernelBuilder,
        step: &Step,
        pairs: std::ops::Range<i64>,
        parts: &[Part],
        high: &[Vec<ValueId>],
    ) -> Vec<ValueId> {
        let mut words = vec![None; parts.len() * self.rows.len()];
        self.groups(b, step, pairs, parts, high, |b, i, quants, x| {
            let products = b.op(Op::Dot2U8S8, parts[0].words(), &[quants, x]);
            accumulate(b, &mut words[i], products);
        });
        words.into_iter().flatten().collect()
    }

    /// Calls `product` for each group of each pair, for all parts and all rows. `product` gets the
    /// index of the sum, the codes of the weight and the activations.
    fn groups(
        &self,
        b: &mut KernelBuilder,
        step: &Step,
        pairs: std::ops::Range<i64>,
        parts: &[Part],
        high: &[Vec<ValueId>],
        mut product: impl FnMut(&mut KernelBuilder, usize, ValueId, ValueId),
    ) {
        for pair in pairs {
            let quants: Vec<[ValueId; 2]> =
                parts.iter().zip(high).map(|(part, high)| step.weights.pair(b, step.sub, pair, *part, high)).collect();
            for g in 0..2 {
                for (r, row) in step.rows.iter().enumerate() {
                    let x = row.group(b, self.vectors.lanes, 2 * pair + g);
                    for (p, quants) in quants.iter().enumerate() {
                        product(b, p * self.rows.len() + r, quants[g as usize], x);
                    }
                }
            }
        }
    }

    /// Adds products of pairs to sums, each multiplied by the scale of its part, in 16-bit words. A
    /// word sums the products of only one group. `parts` has the vectors of high bits of each part.
    fn by_groups(
        &self,
        b: &mut KernelBuilder,
        step: &Step,
        pairs: std::ops::Range<i64>,
        parts: &[(Part, &[ValueId])],
        scales: &dyn Fn(&mut KernelBuilder, Part) -> ValueId,
        sums: &mut [Option<ValueId>],
    ) {
        let magnitudes = panel::has_magnitudes(self.source.format, self.source.dots);
        for ((part, high), sums) in parts.iter().zip(self.by_part_mut(sums)) {
            let scales = scales(b, *part);
            for pair in pairs.clone() {
                for (group, quants) in (2 * pair..).zip(step.weights.pair(b, step.sub, pair, *part, high)) {
                    let sizes = magnitudes.then(|| step.weights.magnitudes(b, step.sub, group, *part, quants));
                    for (row, sum) in step.rows.iter().zip(sums.iter_mut()) {
                        let x = row.group(b, self.vectors.lanes, group);
                        let (bytes, x) = match sizes {
                            Some(sizes) => (sizes, b.same(Op::Sign, &[x, quants])),
                            None => (quants, x),
                        };
                        let words = b.op(Op::Dot2U8S8, part.words(), &[bytes, x]);
                        let products = b.op(Op::Dot2S16, part.dwords(), &[words, scales]);
                        accumulate(b, sum, products);
                    }
                }
            }
        }
    }
}

/// Returns each part with its vectors of high bits.
fn pair_with_high<'v>(parts: &[Part], high: &'v [Vec<ValueId>]) -> Vec<(Part, &'v [ValueId])> {
    parts.iter().zip(high).map(|(part, high)| (*part, high.as_slice())).collect()
}

/// Adds a value to a sum. If the sum has no value yet, it becomes the value.
fn accumulate(b: &mut KernelBuilder, sum: &mut Option<ValueId>, value: ValueId) {
    *sum = Some(match *sum {
        Some(old) => b.iadd(old, value),
        None => value,
    });
}

/// Returns the initial value of the sum for one unit of a sub-block's columns: minus `zero` times
/// the sum of their activations. This corrects codes that are stored with `zero` added. `unit` is
/// the index of one of `units` units.
pub fn zero_point(b: &mut KernelBuilder, row: &RowBlock, unit: i64, units: i64, zero: u8, lanes: u16) -> ValueId {
    let part = Part { lanes, index: 0, permutes: false };
    // The words are the negated zero point for the unit's sums of 16 columns, and 0 for other sums.
    let minus = -i16::from(zero);
    let pair = [0, 1].map(|half| if units == 1 || half == unit { minus } else { 0 });
    let pair: Vec<u8> = pair.iter().flat_map(|word| word.to_le_bytes()).collect();
    let pair = b.bytes(part.words(), pair.repeat(usize::from(lanes)));
    let sums = row.splat(b, part.dwords(), "sums16", 4, 0);
    let sums = b.bitcast(part.words(), sums);
    b.op(Op::Dot2S16, part.dwords(), &[sums, pair])
}
