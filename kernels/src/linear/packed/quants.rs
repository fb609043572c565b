//! Sums of products with quantised strips, in sub-blocks of 32 columns.
//!
//! The products of a sub-block are summed in integers, which is exact. The results are computed
//! from `d` and `scale` of the weight (one number in each lane) and `dx` of the activations (the
//! same number in all lanes), in this order:
//!
//! ```text
//! integer scales   t = low * (d * scale) [+ high * (d * scale)];      y += t * dx;  y += -(dmin * min) * sums
//! and 2 minimums   t = low * (d * scale) + high * (d * scale) - (min * sums16) * dmin;           y += t * dx
//! d of a block     t = low * d;                                       y += t * dx
//! d of a sub-block t = low * dx + high * dx [- zero * sums];          y += t * d;  y += m * sums
//! d of 16 columns  t = low * dx;  y += t * d;  t = high * dx;         y += t * d
//! ```
//!
//! `low` and `high` are the sums of the first and the second 16 columns. There is only one sum if
//! the weight and the activations each have one scale for 32 columns. If activations have one scale
//! for 32 columns, or weights one for 16, the initial value of the sums contains the zero point:
//! `-zero * sums16`. Terms in parentheses are computed once for all rows.

use ixc_ir::format::packed::STRIP;
use ixc_ir::format::{Format, Minimum, Quants, Values};
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId, VarId};

use super::activations::{GROUP, RowBlock};
use super::micro::zero_point;
use super::panel::times;
use super::strip::{self, StripBlock, VECTOR};
use super::{Block, SUB};
use crate::generator::buffer_offset::BufferOffset;
use crate::linear;

/// Number of sums of 16 elements that a block of `a8_super` has.
const SUMS16: u16 = 16;
/// Distance in bytes between the initial values of two rows: the negated products of the zero point
/// and these sums, as dwords.
const OFFSETS: i64 = 4 * SUMS16 as i64;

/// Whether the initial values of sums over 16 columns are in scratch memory, where they are stored
/// once for each block. A sum then begins with a load instead of a product, so it needs no
/// arithmetic.
pub fn begins_in_scratch(format: Format) -> bool {
    format.quants().is_some_and(|codec| codec.scale_group_len() == Some(16) && codec.zero() > 0)
}

/// Returns the number of bytes of scratch memory for the initial values of the sums of `rows` rows,
/// or `None` if they are not stored.
pub fn scratch_bytes(format: Format, rows: u32) -> Option<i64> {
    begins_in_scratch(format).then(|| i64::from(rows) * OFFSETS)
}

/// An unpacked strip in scratch memory. For each sub-block, it has the bytes of its eight groups,
/// then each of its scales times `d`, all in whole vectors.
#[derive(Clone)]
pub struct UnpackedStrip {
    pub buffer: BufferId,
    pub at: Affine,
}

impl UnpackedStrip {
    /// Returns the number of bytes of an unpacked strip of `columns` columns.
    pub fn bytes(format: Format, columns: i64) -> i64 {
        columns / SUB * Self::sub_block(format)
    }

    fn sub_block(format: Format) -> i64 {
        Self::scale_at(scales(linear::quants(format)))
    }

    /// Returns the offset of the scale at index `unit` in an unpacked sub-block.
    fn scale_at(unit: i64) -> i64 {
        (SUB / GROUP + unit) * VECTOR
    }

    /// Returns the unpacked strip from block `i` on.
    fn block(&self, format: Format, i: impl Into<Affine>) -> UnpackedStrip {
        let at = self.at.clone() + i.into() * Self::bytes(format, format.block_len() as i64);
        UnpackedStrip { buffer: self.buffer, at }
    }

    /// Returns the offset of sub-block `sub` of the first block.
    fn sub(&self, format: Format, sub: VarId) -> Affine {
        self.at.clone() + sub * Self::sub_block(format)
    }

    /// Unpacks `columns` columns of a strip. The lanes of its part must hold a whole strip.
    pub fn fill(&self, b: &mut KernelBuilder, strip: &StripBlock, columns: i64) {
        let format = strip.format;
        let (len, bytes) = (format.block_len() as i64, STRIP as i64 * format.block_bytes() as i64);
        let span = |b: &mut KernelBuilder, i: Affine, subs: i64| {
            let to = self.block(format, i.clone());
            let strip = StripBlock { offset: strip.offset.clone() + i * bytes, ..strip.clone() };
            b.for_each("s", subs, |b, s| {
                let at = to.sub(format, s);
                let high = strip.high(b, s);
                for pair in 0..4 {
                    for (group, quants) in (2 * pair..).zip(strip.pair(b, s, pair, &high)) {
                        b.store(to.buffer, at.clone() + group * VECTOR, quants);
                    }
                }
                let units = scales(strip.codec());
                for unit in 0..units {
                    let scale = scale_times_d(b, &strip, None, s * units + unit);
                    b.store(to.buffer, at.clone() + Self::scale_at(unit), scale);
                }
            });
        };
        if columns / len > 0 {
            b.for_each("b", columns / len, |b, i| span(b, i.into(), len / SUB));
        }
        if columns % len > 0 {
            span(b, (columns / len).into(), columns % len / SUB);
        }
    }
}

/// Returns the number of scales of a sub-block: its integer scales, or 1 if `d` is the only scale.
fn scales(codec: &Quants) -> i64 {
    SUB / codec.scale_group_len().map_or(SUB, |columns| columns as i64)
}

/// Returns the scale at index `at` of a block times `d`. The caller may have loaded `d` already.
fn scale_times_d(b: &mut KernelBuilder, strip: &StripBlock, d: Option<ValueId>, at: Affine) -> ValueId {
    let scale = strip.codec().scale_group_len().map(|_| strip.scale(b, at));
    let d = d.unwrap_or_else(|| strip.numbers(b, "d", 0));
    scale.map_or(d, |scale| b.mul(scale, d))
}

/// Whether a block's `d` stays in a register. If the format has two scales for 32 columns and a
/// codebook, no register is free for `d`.
fn holds_d(codec: &Quants) -> bool {
    match codec.values {
        Values::Codebook(_) => codec.scale_group_len() != Some(16),
        Values::Linear { .. } | Values::Signed => true,
    }
}

/// See [`Block::sums`].
pub fn sums(block: &Block, b: &mut KernelBuilder) -> Vec<ValueId> {
    let lanes = block.lanes;
    let zero = b.splat_f32(lanes, 0.0);
    let init = vec![zero; block.strips.len() * block.rows.len()];
    let (format, codec) = (block.format, linear::quants(block.format));
    let len = format.block_len() as i64;
    let bytes = STRIP as i64 * format.block_bytes() as i64;
    let (x_len, x_bytes) = (block.x_format.block_len() as i64, block.x_format.block_bytes() as i64);
    let span = |b: &mut KernelBuilder, i: Affine, subs: i64, sums: &[ValueId]| {
        let strips: Vec<Strip> = block
            .strips
            .iter()
            .map(|(at, part)| {
                let unpacked = block.unpacked.as_ref().map(|unpacked| unpacked.block(format, i.clone()));
                let block = StripBlock { format, buffer: block.w, offset: at.clone() + i.clone() * bytes, part: *part };
                let scale = |b: &mut KernelBuilder, name: &str| block.numbers(b, name, 0);
                // Formats that do not keep `d` in a register read it with each sub-block.
                let d = (unpacked.is_none() && strip::by_sub_blocks(format) && holds_d(codec)).then(|| scale(b, "d"));
                let dmin = (codec.minimum == Minimum::Scaled).then(|| {
                    let dmin = scale(b, "dmin");
                    let minus = b.splat_f32(lanes, -1.0);
                    b.mul(dmin, minus)
                });
                Strip { d, dmin, block, unpacked }
            })
            .collect();
        if let Some(BufferOffset { buffer: scratch, at }) = block.offsets() {
            for (r, row) in block.rows.iter().enumerate() {
                let sums = row.clone() + i.clone() * x_bytes + block.x_format.field("sums16") as i64;
                let sums = b.load(Type::i16(SUMS16), block.x, sums);
                let sums = b.op(Op::ExtendS, Type::i32(SUMS16), &[sums]);
                let (sums, zero) = (times(b, sums, codec.zero()), b.splat_int(Type::i32(SUMS16), 0));
                let offsets = b.same(Op::ISub, &[zero, sums]);
                b.store(scratch, at + r as i64 * OFFSETS, offsets);
            }
        }
        b.for_carry("s", subs, sums, |b, s, sums| {
            let rows = block.rows.iter().map(|at| {
                let at = at.clone() + i.clone() * (len / x_len * x_bytes);
                let (at, sub) = if x_len == len { (at, Some(s)) } else { (at + s * x_bytes, None) };
                RowBlock { buffer: block.x, format: block.x_format, at, sub }
            });
            block.prefetch(b, &(i.clone() * bytes + s * (bytes * SUB / len)), bytes * SUB / len);
            let step = Step { block, codec, rows: rows.collect(), sub: s };
            strips
                .iter()
                .zip(sums.chunks_exact(block.rows.len()))
                .flat_map(|(strip, sums)| step.strip(b, strip, sums))
                .collect()
        })
    };
    let k = i64::from(block.k);
    let mut sums = init;
    if k / len > 0 {
        sums = b.for_carry("b", k / len, &sums, |b, i, sums| span(b, i.into(), len / SUB, sums));
    }
    // The last block may have fewer sub-blocks.
    if k % len > 0 {
        sums = span(b, (k / len).into(), k % len / SUB, &sums);
    }
    sums
}

/// A block of a strip that is being multiplied.
struct Strip {
    block: StripBlock,
    /// Unpacked block in scratch memory, or `None` if codes are unpacked on the fly.
    unpacked: Option<UnpackedStrip>,
    /// Scale `d` of the block, if it [stays in a register](holds_d).
    d: Option<ValueId>,
    dmin: Option<ValueId>,
}

/// A sub-block with the activations of all rows.
struct Step<'a> {
    block: &'a Block,
    codec: &'static Quants,
    rows: Vec<RowBlock>,
    sub: VarId,
}

impl Step<'_> {
    /// Loads a float of row `r`'s sub-block, and copies it to all lanes.
    fn splat(&self, b: &mut KernelBuilder, r: usize, field: &str, bytes: i64, i: i64) -> ValueId {
        self.rows[r].splat(b, Type::f32(self.block.lanes), field, bytes, i)
    }

    /// Returns the new sums of one strip with all rows.
    fn strip(&self, b: &mut KernelBuilder, strip: &Strip, sums: &[ValueId]) -> Vec<ValueId> {
        match strip::by_sub_blocks(self.block.format) {
            true => self.by_sub_blocks(b, strip, sums),
            false => self.by_halves(b, &strip.block, sums),
        }
    }

    /// Adds the products of pairs of groups to `chains`. Even groups are added to the first chain
    /// of a row, odd groups to its last chain.
    fn dots(
        &self,
        b: &mut KernelBuilder,
        quants: impl Fn(&mut KernelBuilder, i64) -> [ValueId; 2],
        pairs: std::ops::Range<i64>,
        chains: &mut [Vec<ValueId>],
    ) {
        for pair in pairs {
            for (group, quants) in (2 * pair..).zip(quants(b, pair)) {
                for (r, chains) in chains.iter_mut().enumerate() {
                    let x = self.rows[r].group(b, self.block.lanes, group);
                    let chain = group as usize % 2 * (chains.len() - 1);
                    chains[chain] = b.dot4_u8s8(chains[chain], quants, x);
                }
            }
        }
    }

    /// Computes one sum for the columns of each integer scale. Without integer scales, computes one
    /// sum for the sub-block.
    fn by_sub_blocks(&self, b: &mut KernelBuilder, strip: &Strip, sums: &[ValueId]) -> Vec<ValueId> {
        let units = scales(self.codec);
        let pairs = 4 / units;
        // With a single row there are few sums, so each is divided into two chains to hide latency.
        let each = if self.rows.len() == 1 && units == 1 { 2 } else { 1 };
        let unpacked =
            strip.unpacked.as_ref().map(|unpacked| (unpacked.buffer, unpacked.sub(self.block.format, self.sub)));
        let high = if unpacked.is_some() { Vec::new() } else { strip.block.high(b, self.sub) };
        let mut products = Vec::new();
        for unit in 0..units {
            let mut chains: Vec<Vec<ValueId>> =
                (0..self.rows.len()).map(|r| vec![self.start(b, r, unit, units); each]).collect();
            if each == 2 && self.codec.zero() > 0 {
                let zero = b.splat_int(Type::i32(self.block.lanes), 0);
                chains.iter_mut().for_each(|chains| chains[1] = zero);
            }
            let quants = |b: &mut KernelBuilder, pair: i64| match &unpacked {
                Some((buffer, at)) => [2 * pair, 2 * pair + 1]
                    .map(|group| b.load(strip.block.part.quants(), *buffer, at.clone() + group * VECTOR)),
                None => strip.block.pair(b, self.sub, pair, &high),
            };
            self.dots(b, quants, unit * pairs..(unit + 1) * pairs, &mut chains);
            let scale = match &unpacked {
                Some((buffer, at)) => {
                    b.load(strip.block.part.floats(), *buffer, at.clone() + UnpackedStrip::scale_at(unit))
                }
                None => scale_times_d(b, &strip.block, strip.d, self.sub * units + unit),
            };
            products.push((chains, scale));
        }
        let minimum = strip.dmin.filter(|_| units == 1).map(|dmin| {
            let minimum = strip.block.minimum(b, self.sub);
            b.mul(minimum, dmin)
        });
        let minimums = strip.dmin.filter(|_| units > 1).map(|dmin| (strip.block.minimum_words(b, self.sub), dmin));
        let next = sums.iter().enumerate().map(|(r, sum)| {
            let mut t = None;
            for (chains, scale) in &products {
                let part = convert(b, &chains[r]);
                t = Some(match t {
                    Some(t) => b.fma(part, *scale, t),
                    None => b.mul(part, *scale),
                });
            }
            if let (Some(of_sums), Some((minimums, dmin))) = (t, minimums) {
                let part = self.rows[r].minimums(b, minimums);
                t = Some(b.fma(part, dmin, of_sums));
            }
            let dx = self.splat(b, r, "d", 4, 0);
            let sum = t.map_or(*sum, |t| b.fma(t, dx, *sum));
            match minimum {
                Some(minimum) => {
                    let x = self.splat(b, r, "sums", 4, 0);
                    b.fma(minimum, x, sum)
                }
                None => sum,
            }
        });
        next.collect()
    }

    /// Returns the initial value of the sum over columns that share a scale: the correction for
    /// unsigned codes, or 0.
    fn start(&self, b: &mut KernelBuilder, r: usize, unit: i64, units: i64) -> ValueId {
        let dwords = Type::i32(self.block.lanes);
        match self.block.offsets() {
            Some(BufferOffset { buffer, at }) => {
                b.load_splat(dwords, buffer, self.sub * 8 + (at + r as i64 * OFFSETS + 4 * unit))
            }
            None if self.codec.zero() > 0 => {
                zero_point(b, &self.rows[r], unit, units, self.codec.zero(), self.block.lanes)
            }
            None => b.splat_int(dwords, 0),
        }
    }

    /// Adds the products of a sub-block to `sums`, for activations with one scale for each half of
    /// a sub-block (16 columns). The products of each half are summed before they are scaled.
    fn by_halves(&self, b: &mut KernelBuilder, strip: &StripBlock, sums: &[ValueId]) -> Vec<ValueId> {
        let mut parts: Vec<Option<ValueId>> = vec![None; self.rows.len()];
        let high = strip.high(b, self.sub);
        let (format, lanes) = (self.block.format, self.block.lanes);
        let in_integers = strip::begins_with_zero_point(format, self.block.x_format);
        let mut own = sums.to_vec();
        for half in 0..2 {
            let zero = b.splat_int(Type::i32(lanes), 0);
            let mut chains: Vec<Vec<ValueId>> = match in_integers {
                true => {
                    (self.rows.iter()).map(|row| vec![zero_point(b, row, half, 2, self.codec.zero(), lanes)]).collect()
                }
                false => vec![vec![zero]; self.rows.len()],
            };
            let quants = |b: &mut KernelBuilder, pair: i64| strip.pair(b, self.sub, pair, &high);
            self.dots(b, quants, 2 * half..2 * half + 2, &mut chains);
            let d = strip::by_halves_of_d(format).then(|| {
                let number = strip.number_of(self.sub, half);
                strip.numbers(b, "d", number)
            });
            for (r, (chains, t)) in chains.iter().zip(&mut parts).enumerate() {
                let part = convert(b, chains);
                let dx = self.splat(b, r, "d", 8, 4 * half);
                if let Some(d) = d {
                    let part = b.mul(part, dx);
                    own[r] = b.fma(part, d, own[r]);
                    continue;
                }
                *t = Some(match *t {
                    Some(t) => b.fma(part, dx, t),
                    None => b.mul(part, dx),
                });
            }
        }
        if strip::by_halves_of_d(format) {
            return own;
        }
        let number = strip.number_of(self.sub, 0);
        let d = strip.numbers(b, "d", number.clone());
        let zero = (self.codec.zero() > 0 && !in_integers)
            .then(|| b.splat_f32(self.block.lanes, -f32::from(self.codec.zero())));
        let m = (self.codec.minimum == Minimum::Half).then(|| strip.numbers(b, "m", number));
        let next = parts.into_iter().flatten().zip(sums).enumerate().map(|(r, (t, sum))| {
            let x = (zero.is_some() || m.is_some()).then(|| self.splat(b, r, "sums", 4, 0));
            let t = match (zero, x) {
                (Some(zero), Some(x)) => b.fma(zero, x, t),
                _ => t,
            };
            let sum = b.fma(t, d, *sum);
            match (m, x) {
                (Some(m), Some(x)) => b.fma(m, x, sum),
                _ => sum,
            }
        });
        next.collect()
    }
}

/// Adds the chains of a sum, and converts the result to floats.
fn convert(b: &mut KernelBuilder, chains: &[ValueId]) -> ValueId {
    let sum = chains[1..].iter().fold(chains[0], |sum, chain| b.iadd(sum, *chain));
    let floats = Type::f32(b.ty(sum).lanes);
    b.op(Op::ToF32, floats, &[sum])
}
