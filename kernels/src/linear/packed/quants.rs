//! Sums over quantised strips, a sub-block of 32 columns at a time.
//!
//! A sub-block's products are summed in integers, exactly. Then, with `d` and `scale` of the weight (lanes) and `dx` of the activations
//! (one number in all lanes), in this order:
//!
//! ```text
//! q4_k, q5_k   t = sum * (d * scale);                          y += t * dx;  y += -(dmin * min) * sums
//! q6_k         t = low * (d * scale0) + high * (d * scale1);   y += t * dx          low, high begin at -32 * sums16
//! q8_0, q4_0   t = low * dx0 + high * dx1 - offset * sum;      y += t * d           offset: 128, 8
//! ```
//!
//! `low` and `high` are the sums of 16 columns each. What is in parentheses is computed once for all rows.

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_ir::kernel::{KernelBuilder, Op, Type, ValueId, VarId};

use super::Block;
use super::activations::{RowBlock, SUB};
use super::micro::q6_k_offset;
use super::strip::StripBlock;

/// Sums of 16 elements of a block of `a8_super`.
const SUMS16: u16 = 16;
/// Bytes of -32 times these, as dwords.
const OFFSETS: i64 = 4 * SUMS16 as i64;

/// Bytes of scratch that a product with groups of so many rows takes. `q6_k` puts what its sums begin with there, once for a block:
/// then a sum begins with a load, which is free, instead of a product, which is not.
pub fn scratch_bytes(format: Format, rows: u32) -> Option<i64> {
    (format == Format::Q6KR16).then(|| i64::from(rows) * OFFSETS)
}

/// See [`Block::sums`].
pub fn sums(block: &Block, b: &mut KernelBuilder) -> Vec<ValueId> {
    let lanes = block.lanes;
    let zero = b.splat_f32(lanes, 0.0);
    let init = vec![zero; block.strips.len() * block.rows.len()];
    let format = block.format;
    let len = format.block_len() as i64;
    let bytes = STRIP as i64 * format.block_bytes() as i64;
    let (x_len, x_bytes) = (block.x_format.block_len() as i64, block.x_format.block_bytes() as i64);
    b.for_carry("b", i64::from(block.k) / len, &init, |b, i, sums| {
        let strips: Vec<Strip> = block
            .strips
            .iter()
            .map(|(at, part)| {
                let block = StripBlock { format, buffer: block.w, offset: at.clone() + i * bytes, part: *part };
                let scale = |b: &mut KernelBuilder, name: &str| block.halves(b, name, 0);
                match format {
                    Format::Q4KR16 | Format::Q5KR16 => {
                        let (d, dmin) = (scale(b, "d"), scale(b, "dmin"));
                        let minus = b.splat_f32(lanes, -1.0);
                        Strip { d: Some(d), dmin: Some(b.mul(dmin, minus)), block }
                    }
                    Format::Q6KR16 => Strip { d: Some(scale(b, "d")), dmin: None, block },
                    // A scale for each sub-block.
                    _ => Strip { d: None, dmin: None, block },
                }
            })
            .collect();
        if let Some((scratch, at)) = block.offsets() {
            for (r, row) in block.rows.iter().enumerate() {
                let sums = row.clone() + i * x_bytes + block.x_format.field("sums16") as i64;
                let sums = b.load(Type::i16(SUMS16), block.x, sums);
                let sums = b.op(Op::ExtendS, Type::i32(SUMS16), &[sums]);
                let (sums, zero) = (b.shift(Op::Shl, sums, 5), b.splat_int(Type::i32(SUMS16), 0));
                let offsets = b.same(Op::ISub, &[zero, sums]);
                b.store(scratch, at + r as i64 * OFFSETS, offsets);
            }
        }
        b.for_carry("s", len / SUB, sums, |b, s, sums| {
            let rows = block.rows.iter().map(|at| {
                let at = at.clone() + i * (len / x_len * x_bytes);
                let (at, sub) = if x_len == len { (at, Some(s)) } else { (at + s * x_bytes, None) };
                RowBlock { buffer: block.x, format: block.x_format, at, sub }
            });
            let step = Step { block, rows: rows.collect(), sub: s };
            strips
                .iter()
                .zip(sums.chunks_exact(block.rows.len()))
                .flat_map(|(strip, sums)| step.strip(b, strip, sums))
                .collect()
        })
    })
}

/// A block of a strip, with the scales that hold for all of it.
struct Strip {
    block: StripBlock,
    d: Option<ValueId>,
    dmin: Option<ValueId>,
}

/// One sub-block of all rows.
struct Step<'a> {
    block: &'a Block,
    rows: Vec<RowBlock>,
    sub: VarId,
}

impl Step<'_> {
    /// A float of row `r`'s sub-block, in all lanes.
    fn splat(&self, b: &mut KernelBuilder, r: usize, field: &str, bytes: i64, i: i64) -> ValueId {
        self.rows[r].splat(b, Type::f32(self.block.lanes), field, bytes, i)
    }

    /// The new sums of all rows for one strip.
    fn strip(&self, b: &mut KernelBuilder, strip: &Strip, sums: &[ValueId]) -> Vec<ValueId> {
        match (self.block.format, strip.d, strip.dmin) {
            (Format::Q4KR16 | Format::Q5KR16, Some(d), Some(dmin)) => {
                self.with_minimums(b, &strip.block, d, dmin, sums)
            }
            (Format::Q6KR16, Some(d), _) => self.q6_k(b, &strip.block, d, sums),
            _ => self.small(b, &strip.block, sums),
        }
    }

    /// Adds the products of pairs of groups to `chains`: of even groups to the first chain of a row, of odd ones to its last.
    fn dots(
        &self,
        b: &mut KernelBuilder,
        strip: &StripBlock,
        high: &[ValueId],
        pairs: std::ops::Range<i64>,
        chains: &mut [Vec<ValueId>],
    ) {
        for pair in pairs {
            for (group, quants) in (2 * pair..).zip(strip.pair(b, self.sub, pair, high)) {
                for (r, chains) in chains.iter_mut().enumerate() {
                    let x = self.rows[r].group(b, self.block.lanes, group);
                    let chain = group as usize % 2 * (chains.len() - 1);
                    chains[chain] = b.dot4_u8s8(chains[chain], quants, x);
                }
            }
        }
    }

    /// No sums yet: two chains for few rows, so that there are enough of them.
    fn chains(&self, b: &mut KernelBuilder) -> Vec<Vec<ValueId>> {
        let zero = b.splat_int(Type::i32(self.block.lanes), 0);
        let each = if self.rows.len() == 1 { 2 } else { 1 };
        vec![vec![zero; each]; self.rows.len()]
    }

    fn with_minimums(
        &self,
        b: &mut KernelBuilder,
        strip: &StripBlock,
        d: ValueId,
        dmin: ValueId,
        sums: &[ValueId],
    ) -> Vec<ValueId> {
        let mut chains = self.chains(b);
        let high = strip.high(b, self.sub);
        self.dots(b, strip, &high, 0..4, &mut chains);
        let scale = strip.scaled(b, "scales", self.sub, d);
        let minimum = strip.scaled(b, "mins", self.sub, dmin);
        let next = chains.iter().zip(sums).enumerate().map(|(r, (chains, sum))| {
            let scaled = scaled(b, chains, scale);
            let dx = self.splat(b, r, "d", 4, 0);
            let sum = b.fma(scaled, dx, *sum);
            let x = self.splat(b, r, "sums", 4, 0);
            b.fma(minimum, x, sum)
        });
        next.collect()
    }

    fn q6_k(&self, b: &mut KernelBuilder, strip: &StripBlock, d: ValueId, sums: &[ValueId]) -> Vec<ValueId> {
        let high = strip.high(b, self.sub);
        let mut halves = Vec::new();
        for half in 0..2 {
            let mut chains: Vec<Vec<ValueId>> =
                (0..self.rows.len()).map(|r| vec![self.q6_k_offset(b, r, half)]).collect();
            self.dots(b, strip, &high, 2 * half..2 * half + 2, &mut chains);
            halves.push((chains, strip.scaled(b, "scales", self.sub * 2 + half, d)));
        }
        let next = sums.iter().enumerate().map(|(r, sum)| {
            let mut t = None;
            for (chains, scale) in &halves {
                let part = convert(b, &chains[r]);
                t = Some(match t {
                    Some(t) => b.fma(part, *scale, t),
                    None => b.mul(part, *scale),
                });
            }
            let dx = self.splat(b, r, "d", 4, 0);
            t.map_or(*sum, |t| b.fma(t, dx, *sum))
        });
        next.collect()
    }

    /// What the sum of 16 columns begins with, as quants are stored plus 32.
    fn q6_k_offset(&self, b: &mut KernelBuilder, r: usize, half: i64) -> ValueId {
        if let Some((scratch, at)) = self.block.offsets() {
            let dwords = Type::i32(self.block.lanes);
            return b.load_splat(dwords, scratch, self.sub * 8 + (at + r as i64 * OFFSETS + 4 * half));
        }
        q6_k_offset(b, &self.rows[r], half, self.block.lanes)
    }

    /// `q8_0` and `q4_0`.
    fn small(&self, b: &mut KernelBuilder, strip: &StripBlock, sums: &[ValueId]) -> Vec<ValueId> {
        let offset = if strip.format == Format::Q8_0R16 { -128.0 } else { -8.0 };
        let mut parts: Vec<Option<ValueId>> = vec![None; self.rows.len()];
        for half in 0..2 {
            let zero = b.splat_int(Type::i32(self.block.lanes), 0);
            let mut chains = vec![vec![zero]; self.rows.len()];
            self.dots(b, strip, &[], 2 * half..2 * half + 2, &mut chains);
            for (r, (chains, t)) in chains.iter().zip(&mut parts).enumerate() {
                let part = convert(b, chains);
                let dx = self.splat(b, r, "d", 8, 4 * half);
                *t = Some(match *t {
                    Some(t) => b.fma(part, dx, t),
                    None => b.mul(part, dx),
                });
            }
        }
        let d = strip.halves(b, "d", self.sub);
        let offset = b.splat_f32(self.block.lanes, offset);
        let next = parts.into_iter().flatten().zip(sums).enumerate().map(|(r, (t, sum))| {
            let x = self.splat(b, r, "sum", 4, 0);
            let t = b.fma(offset, x, t);
            b.fma(t, d, *sum)
        });
        next.collect()
    }
}

/// The sum of chains, as floats.
fn convert(b: &mut KernelBuilder, chains: &[ValueId]) -> ValueId {
    let sum = chains[1..].iter().fold(chains[0], |sum, chain| b.iadd(sum, *chain));
    let floats = Type::f32(b.ty(sum).lanes);
    b.op(Op::ToF32, floats, &[sum])
}

fn scaled(b: &mut KernelBuilder, chains: &[ValueId], scale: ValueId) -> ValueId {
    let sum = convert(b, chains);
    b.mul(sum, scale)
}
