//! Many rows: eight weight rows are unpacked to a panel, a stretch of the dot product at a time, and the panel is multiplied with
//! all rows of activations, six at a time.
//!
//! The inner step of a 4-bit format is, for each of six rows, a broadcast of four activations, `dot2_u8s8` and an add of words; sums
//! stay in words for 32 elements (15 * 127 * 2 * 8 = 30480 < 32768), then `dot2_s16` applies the scale. Six rows take 6 word
//! accumulators, 6 float accumulators, the weights and a broadcast: 14 of 16 registers. 5-bit quants fit four additions
//! (31 * 127 * 2 * 4 = 31496), 6-bit ones two (63 * 127 * 2 * 2 = 32004).

use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId};

use super::panel::{self, Layout, PANEL_ROWS, Strip};
use super::{Destination, LANES, Product, Rows, quantise};

/// Elements of the dot product that a panel covers: with 8 rows it stays in the first-level cache.
const STRETCH: u32 = 2048;
/// The same for float formats, whose panels take four bytes an element.
const FLOAT_STRETCH: u32 = 512;
const VECTOR: i64 = 32;
const DWORDS: Type = Type::i32(LANES);
const WORDS: Type = Type::i16(2 * LANES);
const QUANTS: Type = Type::i8(4 * LANES);

/// Blocks of a stretch: the largest divisor of the number of blocks that stays within the limit.
fn stretch_blocks(format: Format, k: u32) -> i64 {
    let (unit, limit) =
        if format.is_quantised() { (format.block_len() as u32, STRETCH) } else { (LANES.into(), FLOAT_STRETCH) };
    let blocks = k / unit;
    (1..=limit / unit).rev().find(|n| blocks.is_multiple_of(*n)).map_or(1, i64::from)
}

fn block_panel_bytes(format: Format) -> i64 {
    if format.is_quantised() { panel::layout(format).bytes } else { i64::from(LANES) * VECTOR }
}

/// Bytes of scratch that a panel takes.
pub fn panel_bytes(format: Format, k: u32) -> i64 {
    stretch_blocks(format, k) * block_panel_bytes(format)
}

pub fn multiply(b: &mut KernelBuilder, product: &Product, panel: (BufferId, i64), rows: &Rows, to: &Destination) {
    let Product { format, k, tile, x, x_format, w, .. } = *product;
    let row_bytes = |f: Format| quantise::row_bytes("", f, k).unwrap_or(0);
    let (w_row, x_row) = (row_bytes(format), row_bytes(x_format));
    let blocks = stretch_blocks(format, k);
    // A "block" of a float format is as many elements as there are lanes.
    let (unit, w_block, x_block) = if format.is_quantised() {
        (format.block_len() as i64, format.block_bytes() as i64, x_format.block_bytes() as i64)
    } else {
        (i64::from(LANES), i64::from(LANES) * format.block_bytes() as i64, i64::from(LANES) * 4)
    };
    let (panel, panel_at) = panel;
    let panel_block = block_panel_bytes(format);
    b.for_each("strip", i64::from(tile) / PANEL_ROWS, |b, strip| {
        b.for_each("stretch", i64::from(k) / (blocks * unit), |b, stretch| {
            b.for_each("b", blocks, |b, i| {
                let offset = strip * (PANEL_ROWS * w_row) + stretch * (blocks * w_block) + i * w_block;
                let from = Strip { buffer: w, offset, row_bytes: w_row, format };
                let at = i * panel_block + panel_at;
                if format.is_quantised() {
                    panel::unpack_block(b, &from, panel, &at);
                } else {
                    panel::unpack_floats(b, &from, panel, &at);
                }
            });
            rows.for_each(b, |b, row, count| {
                let x = x_rows(x, row.clone() * x_row + stretch * (blocks * x_block), x_row, count);
                let y: Vec<Affine> = (0..i64::from(count))
                    .map(|r| (row.clone() + r) * to.row_bytes + strip * (PANEL_ROWS * 4) + to.offset)
                    .collect();
                if format.is_quantised() {
                    b.for_each("b", blocks, |b, i| {
                        let micro = Micro {
                            format,
                            layout: panel::layout(format),
                            panel,
                            at: i * panel_block + panel_at,
                            x: x.iter().map(|(buffer, at)| (*buffer, at.clone() + i * x_block)).collect(),
                        };
                        let sums = micro.block(b);
                        for (at, sum) in y.iter().zip(sums) {
                            let old = b.load(Type::f32(LANES), to.buffer, at.clone());
                            let new = sum.into_iter().fold(old, |y, (value, scale)| b.fma(value, scale, y));
                            b.store(to.buffer, at.clone(), new);
                        }
                    });
                } else {
                    float_rows(b, panel, panel_at, blocks, &x, &y, to.buffer);
                }
            });
        });
    });
}

/// Adds integers to a sum that may be empty.
fn accumulate(b: &mut KernelBuilder, sum: &mut Option<ValueId>, value: ValueId) {
    *sum = Some(match *sum {
        Some(old) => b.iadd(old, value),
        None => value,
    });
}

fn x_rows(x: BufferId, first: Affine, row_bytes: i64, count: u32) -> Vec<(BufferId, Affine)> {
    (0..i64::from(count)).map(|r| (x, first.clone() + r * row_bytes)).collect()
}

fn float_rows(
    b: &mut KernelBuilder,
    panel: BufferId,
    panel_at: i64,
    blocks: i64,
    x: &[(BufferId, Affine)],
    y: &[Affine],
    to: BufferId,
) {
    let init: Vec<ValueId> = y.iter().map(|at| b.load(Type::f32(LANES), to, at.clone())).collect();
    let sums = b.for_carry("b", blocks, &init, |b, i, acc| {
        let mut acc = acc.to_vec();
        for j in 0..i64::from(LANES) {
            let w = b.load(Type::f32(LANES), panel, (i * i64::from(LANES) + j) * VECTOR + panel_at);
            for (acc, (buffer, at)) in acc.iter_mut().zip(x) {
                let x = b.load_splat(Type::f32(LANES), *buffer, at.clone() + (i * i64::from(LANES) + j) * 4);
                *acc = b.fma(w, x, *acc);
            }
        }
        acc
    });
    for (at, sum) in y.iter().zip(sums) {
        b.store(to, at.clone(), sum);
    }
}

/// What a block adds to a row's results: the sum of `value * scale`, eight weight rows to a vector.
type BlockSum = Vec<(ValueId, ValueId)>;

/// One block of a panel times the same block of some rows of activations.
struct Micro {
    format: Format,
    layout: Layout,
    panel: BufferId,
    at: Affine,
    x: Vec<(BufferId, Affine)>,
}

impl Micro {
    fn block(&self, b: &mut KernelBuilder) -> Vec<BlockSum> {
        let (sums, minimums) = match self.format {
            Format::Q4K => (self.k_quants(b, 32, 8), Some(self.minimums(b))),
            Format::Q5K => (self.k_quants(b, 32, 4), Some(self.minimums(b))),
            Format::Q6K => (self.k_quants(b, 16, 2), None),
            Format::Q4_0 => (self.q4_0(b), None),
            Format::Q8_0 => (self.q8_0(b), None),
            _ => unreachable!("{} has no quants", self.format),
        };
        let d = b.load(Type::f32(LANES), self.panel, self.at.clone() + self.layout.d);
        let mut results: Vec<BlockSum> = sums.into_iter().map(|sum| vec![(sum, d)]).collect();
        if let Some(minimums) = minimums {
            let dmin = b.load(Type::f32(LANES), self.panel, self.at.clone() + self.layout.dmin);
            for (result, minimum) in results.iter_mut().zip(minimums) {
                result.push((minimum, dmin));
            }
        }
        results
    }

    /// A scalar of row `r` at byte `at` of its block, in all lanes.
    fn x(&self, b: &mut KernelBuilder, r: usize, ty: Type, at: i64) -> ValueId {
        let (buffer, offset) = &self.x[r];
        b.load_splat(ty, *buffer, offset.clone() + at)
    }

    /// Sums of K quants in the activations' scales: sub-blocks of `sub` elements with an integer scale each; words are added
    /// `additions` times at most.
    fn k_quants(&self, b: &mut KernelBuilder, sub: i64, additions: i64) -> Vec<ValueId> {
        let zero = b.splat_f32(LANES, 0.0);
        let init = vec![zero; self.x.len()];
        let at = |offset: i64| self.at.clone() + offset;
        // A loop over 32 elements keeps the code of a kernel within the micro-op cache.
        b.for_carry("s", 8, &init, |b, s, acc| {
            let run = additions.min(sub / 4);
            let mut sums: Vec<Option<ValueId>> = vec![None; self.x.len()];
            for first in (0..8).step_by(run as usize) {
                let mut words: Vec<Option<ValueId>> = vec![None; self.x.len()];
                for j in first..first + run {
                    let w = b.load(QUANTS, self.panel, at(self.layout.quants) + s * (8 * VECTOR) + j * VECTOR);
                    for (r, word) in words.iter_mut().enumerate() {
                        let (buffer, offset) = &self.x[r];
                        let x = b.load_splat(DWORDS, *buffer, offset.clone() + s * 32 + 4 * j);
                        let x = b.bitcast(QUANTS, x);
                        let pairs = b.op(Op::Dot2U8S8, WORDS, &[w, x]);
                        accumulate(b, word, pairs);
                    }
                }
                let scale = at(self.layout.scales) + s * (32 / sub * VECTOR) + first * 4 / sub * VECTOR;
                let scale = b.load(WORDS, self.panel, scale);
                for (sum, words) in sums.iter_mut().zip(words.into_iter().flatten()) {
                    let scaled = b.op(Op::Dot2S16, DWORDS, &[words, scale]);
                    accumulate(b, sum, scaled);
                }
            }
            if self.format == Format::Q6K {
                // Quants are stored plus 32.
                let pairs = b.load(WORDS, self.panel, at(self.layout.corrections) + s * VECTOR);
                for (sum, (buffer, offset)) in sums.iter_mut().zip(&self.x) {
                    let x = offset.clone() + s * 4 + Format::A8Super.field("sums16") as i64;
                    let x = b.load_splat(DWORDS, *buffer, x);
                    let x = b.bitcast(WORDS, x);
                    let correction = b.op(Op::Dot2S16, DWORDS, &[pairs, x]);
                    accumulate(b, sum, correction);
                }
            }
            let mut next = Vec::new();
            for ((acc, sum), (buffer, offset)) in acc.iter().zip(sums.into_iter().flatten()).zip(&self.x) {
                let sum = b.op(Op::ToF32, Type::f32(LANES), &[sum]);
                let dx = offset.clone() + s * 4 + Format::A8Super.field("d") as i64;
                let dx = b.load_splat(Type::f32(LANES), *buffer, dx);
                next.push(b.fma(sum, dx, *acc));
            }
            next
        })
    }

    /// The panel's minimums times the activations' sums.
    fn minimums(&self, b: &mut KernelBuilder) -> Vec<ValueId> {
        let mut acc: Vec<Option<ValueId>> = vec![None; self.x.len()];
        for i in 0..8 {
            let m = b.load(Type::f32(LANES), self.panel, self.at.clone() + self.layout.corrections + i * VECTOR);
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = self.x(b, r, Type::f32(LANES), Format::A8Super.field("sums") as i64 + 4 * i);
                *acc = Some(match *acc {
                    Some(sum) => b.fma(m, x, sum),
                    None => b.mul(m, x),
                });
            }
        }
        acc.into_iter().flatten().collect()
    }

    /// Sums of 32-element blocks in the activations' scales, one for each 16 elements; `sum` gives the integer sum of row `r` over
    /// steps `steps`, from nothing.
    fn halves(
        &self,
        b: &mut KernelBuilder,
        sum: impl Fn(&mut KernelBuilder, std::ops::Range<i64>) -> Vec<ValueId>,
    ) -> Vec<ValueId> {
        let mut acc: Vec<Option<ValueId>> = vec![None; self.x.len()];
        for half in 0..2 {
            for (r, sum) in sum(b, 4 * half..4 * half + 4).into_iter().enumerate() {
                let sum = b.op(Op::ToF32, Type::f32(LANES), &[sum]);
                let dx = self.x(b, r, Type::f32(LANES), Format::A8Small.field("d") as i64 + 4 * half);
                acc[r] = Some(match acc[r] {
                    Some(old) => b.fma(sum, dx, old),
                    None => b.mul(sum, dx),
                });
            }
        }
        acc.into_iter().flatten().collect()
    }

    fn q4_0(&self, b: &mut KernelBuilder) -> Vec<ValueId> {
        let ones = b.splat_int(WORDS, 1);
        let sums = self.halves(b, |b, steps| {
            let mut words: Vec<Option<ValueId>> = vec![None; self.x.len()];
            for j in steps {
                let w = b.load(QUANTS, self.panel, self.at.clone() + self.layout.quants + j * VECTOR);
                for (r, word) in words.iter_mut().enumerate() {
                    let x = self.x(b, r, DWORDS, 4 * j);
                    let x = b.bitcast(QUANTS, x);
                    let pairs = b.op(Op::Dot2U8S8, WORDS, &[w, x]);
                    accumulate(b, word, pairs);
                }
            }
            words.into_iter().flatten().map(|words| b.op(Op::Dot2S16, DWORDS, &[words, ones])).collect()
        });
        // Quants are stored plus 8.
        let minus = b.splat_f32(LANES, -8.0);
        sums.into_iter()
            .enumerate()
            .map(|(r, sum)| {
                let x = self.x(b, r, Type::f32(LANES), Format::A8Small.field("sum") as i64);
                b.fma(minus, x, sum)
            })
            .collect()
    }

    fn q8_0(&self, b: &mut KernelBuilder) -> Vec<ValueId> {
        let ones = b.splat_int(WORDS, 1);
        self.halves(b, |b, steps| {
            let mut acc: Vec<Option<ValueId>> = vec![None; self.x.len()];
            for j in steps {
                let at = self.at.clone() + j * VECTOR;
                let w = b.load(QUANTS, self.panel, at.clone() + self.layout.quants);
                let magnitude = b.load(QUANTS, self.panel, at + self.layout.magnitudes);
                for (r, acc) in acc.iter_mut().enumerate() {
                    let x = self.x(b, r, DWORDS, 4 * j);
                    let x = b.bitcast(QUANTS, x);
                    // |w| <= 128, |x| <= 127: two products stay below 2^15, four would not.
                    let x = b.same(Op::Sign, &[x, w]);
                    let pairs = b.op(Op::Dot2U8S8, WORDS, &[magnitude, x]);
                    let sum = b.op(Op::Dot2S16, DWORDS, &[pairs, ones]);
                    accumulate(b, acc, sum);
                }
            }
            acc.into_iter().flatten().collect()
        })
    }
}
