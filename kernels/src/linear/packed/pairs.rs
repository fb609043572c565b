//! Sums of products of packed bf16 weights and activations rounded to bf16
//! ([`Format::pair_activation`](ixc_ir::format::Format::pair_activation)). Each instruction adds
//! two products to each lane.
//!
//! ```text
//! row of x:   .. x0 x1 x2 x3 ..            two neighbours, in every dword of a vector by the load itself
//! strip:      .. [column 0: rows 0..16][column 1: rows 0..16] ..      one load; interleaved: [row 0: c0 c1][row 1: c0 c1] ..
//! dot2_bf16:  16 lanes += w1 * x1, then w0 * x0
//! ```
//!
//! Columns are summed in stretches (ranges of columns), with one chain for even pairs and one for
//! odd pairs. The sums of a stretch are added to the result. One row and many rows use the same
//! additions in the same order, so every candidate and every number of rows gives the same bits.
//! With several rows, a stretch of two strips stays in L1 while all rows are multiplied by it.
//!
//! A block is four rows by two strips, with 16 sums that are computed at once. A product takes six
//! cycles, and two can start in each cycle (Zen 5). Six loads and two exchanges of words serve
//! eight products. With one row and one strip, two sums are enough to keep up with memory: 64 bytes
//! in three cycles.

use ixc_ir::format::packed::STRIP;
use ixc_ir::format::{Codec, Format};
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId};

use super::strip::Part;
use super::{Packed, ahead};
use crate::generator::buffer_offset::BufferOffset;
use crate::linear::{MatmulStrategy, Rows};

/// Number of columns of a stretch, which is 16 KiB of a strip.
pub const STRETCH: i64 = 512;
/// Number of strips that are multiplied with several rows together, if a vector holds a column of a
/// whole strip.
pub const STRIPS_TOGETHER: i64 = 2;
/// Number of rows of a block, both for `gemv` and for `gemm`.
pub const ROWS: u32 = 4;
/// Number of chains that a sum is divided into.
const CHAINS: i64 = 2;
/// Number of columns of a pair.
const PAIR: i64 = 2;
/// Number of bytes of a column of a strip.
const COLUMN: i64 = 2 * STRIP as i64;

/// Whether products with activations of this format are products of bf16 pairs.
pub fn takes(x: Format) -> bool {
    *x.codec() == Codec::Bf16 { parts: 1 }
}

impl Packed<'_> {
    /// Adds the products of all rows and all strips to the destination.
    pub(super) fn by_pairs(&self, b: &mut KernelBuilder, rows: &Rows) {
        let mut first = Affine::constant(0);
        for (groups, size) in &rows.groups {
            let count = ROWS.min(*size);
            let blocks = *groups * i64::from(size / count);
            let together = if count == 1 || self.parts().len() > 1 { 1 } else { self.strips.min(STRIPS_TOGETHER) };
            let whole = self.strips / together;
            for (from, number, together) in [(0, whole, together), (whole * together, self.strips % together, 1)] {
                if number > 0 {
                    b.for_each("strip", number, |b, strip| {
                        let strips = (0..together).map(|s| strip * together + (from + s)).collect::<Vec<_>>();
                        self.stretches(b, &strips, &first, &blocks, count);
                    });
                }
            }
            first = first + *groups * i64::from(*size);
        }
    }

    fn parts(&self) -> Vec<Part> {
        Part::all(self.product.vectors)
    }

    /// Multiplies strips by `blocks` blocks of `count` rows, one stretch after another.
    fn stretches(&self, b: &mut KernelBuilder, strips: &[Affine], first: &Affine, blocks: &Affine, count: u32) {
        let k = i64::from(self.product.k);
        let stretch = |b: &mut KernelBuilder, from: Affine, columns: i64| {
            b.for_each("block", blocks.clone(), |b, block| {
                let row = first.clone() + block * i64::from(count);
                let rows: Vec<Affine> = (0..i64::from(count)).map(|r| row.clone() + r).collect();
                for part in self.parts() {
                    self.block(b, strips, part, &rows, &from, columns);
                }
            });
        };
        if k / STRETCH > 0 {
            b.for_each("stretch", k / STRETCH, |b, i| stretch(b, i * STRETCH, STRETCH));
        }
        if k % STRETCH > 0 {
            stretch(b, Affine::constant(k - k % STRETCH), k % STRETCH);
        }
    }

    /// Adds the products of `columns` columns, from column `from` on, to the results.
    fn block(
        &self,
        b: &mut KernelBuilder,
        strips: &[Affine],
        part: Part,
        rows: &[Affine],
        from: &Affine,
        columns: i64,
    ) {
        let BufferOffset { buffer: w, at: w_at } = self.product.w;
        let x_format = self.product.x_format;
        // Blocks of bf16 activations have no other fields, so the pairs of a row are contiguous.
        let x_at = from.clone() * 2 + x_format.field("high") as i64;
        let zero = b.splat_f32(part.lanes, 0.0);
        let sums = vec![zero; CHAINS as usize * strips.len() * rows.len()];
        let sums = b.for_carry("c", columns / (PAIR * CHAINS), &sums, |b, i, sums| {
            let mut sums = sums.to_vec();
            // The parts of a strip share cache lines, so only the first part prefetches.
            let streams = self.product.strategy == MatmulStrategy::Gemv && part.index == 0;
            for strip in strips.iter().filter(|_| streams) {
                let at = strip.clone() * self.strip_bytes + (from.clone() + i * (PAIR * CHAINS)) * COLUMN + w_at;
                ahead::prefetch(b, w, &at, PAIR * CHAINS * COLUMN);
            }
            for (chain, sums) in (0..).zip(sums.chunks_exact_mut(strips.len() * rows.len())) {
                let column = i * (PAIR * CHAINS) + chain * PAIR;
                let weights: Vec<ValueId> = strips
                    .iter()
                    .map(|strip| {
                        let at = strip.clone() * self.strip_bytes + (from.clone() + column.clone()) * COLUMN + w_at;
                        weights(b, w, at, part)
                    })
                    .collect();
                for (r, row) in rows.iter().enumerate() {
                    let at = row.clone() * self.x_row + x_at.clone() + column.clone() * 2;
                    let x = b.load_splat(Type::i32(part.lanes), self.product.x, at);
                    let x = b.bitcast(Type::bf16(2 * part.lanes), x);
                    for (strip, w) in weights.iter().enumerate() {
                        let sum = &mut sums[strip * rows.len() + r];
                        *sum = b.dot2_bf16(*sum, *w, x);
                    }
                }
            }
            sums
        });
        let (even, odd) = sums.split_at(sums.len() / 2);
        for (s, strip) in strips.iter().enumerate() {
            for (r, row) in rows.iter().enumerate() {
                let i = s * rows.len() + r;
                let sum = b.add(even[i], odd[i]);
                let at = self.result(row, strip) + part.at(4);
                let old = b.load(part.floats(), self.to.buffer, at.clone());
                let sum = b.add(old, sum);
                b.store(self.to.buffer, at, sum);
            }
        }
    }
}

/// Loads two columns of the rows of one part of a strip. The two columns of a row are adjacent
/// words.
fn weights(b: &mut KernelBuilder, w: BufferId, at: Affine, part: Part) -> ValueId {
    let both = Type::bf16(2 * part.lanes);
    let columns = match usize::from(part.lanes) == STRIP {
        true => b.load(both, w, at),
        false => {
            let [even, odd] = [0, COLUMN].map(|next| b.load(Type::bf16(part.lanes), w, at.clone() + part.at(2) + next));
            b.op(Op::Concat, both, &[even, odd])
        }
    };
    b.interleave(columns)
}
