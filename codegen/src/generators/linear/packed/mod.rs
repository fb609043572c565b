//! Products with packed weights: a lane is a weight row, so that there are no horizontal sums and nothing is transposed.
//!
//! ```text
//! row of x:  .. b0 b1 b2 b3 ..        four neighbouring quants, in every dword of a vector by the load itself
//! strip:     .. [row 0: q0 q1 q2 q3][row 1: q0 q1 q2 q3] .. [row 15: ..]
//! dot4_u8s8: 16 lanes += 4 products each
//! ```
//!
//! Rows of activations come in groups ([`Shape::row_groups`](ixc_ir::plan::spec::Shape::row_groups)), and a strip is read once for a
//! group. Quants are unpacked on the fly: for 32 columns of `q4_k` that is 12 operations beside eight rows' 64 products, 8
//! conversions and 24 scalings, and they run on the units that the products leave free; a panel of bytes in scratch would save
//! them, but double what is loaded. A single row is for decoding, where weights come from memory: it goes through one strip after the
//! other, strictly forwards, which is what hardware prefetches best (Zen 4, one core: 28 of 29 GB/s; two strips at a time 19; software
//! prefetching makes neither faster). Two integer sums for each sub-block are chains enough.
//!
//! What bounds a kernel on Zen 4 is that products, multiplications and multiply-adds share two 256-bit units: 64 + 24 operations
//! take 88 cycles, so that `q4_k` can have 8/11 of the peak of products and has 95 % of that.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`strip`] | reading a strip's blocks: quants, scales, minimums |
//! | [`quants`] | sums over quantised blocks |
//! | [`floats`] | sums over `f16` and `bf16` |

mod floats;
mod quants;
mod strip;

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Type, ValueId};

pub use quants::scratch_bytes;

use super::{Destination, Product, Rows, quantise};

/// Lanes: rows of a strip.
const LANES: u16 = STRIP as u16;
/// Bytes of the strip's results for one row of activations.
const RESULT: i64 = 4 * STRIP as i64;
const SINGLES: Type = Type::f32(LANES);

/// Some strips and some rows of activations, of which each strip is multiplied with each row.
struct Block {
    format: Format,
    k: u32,
    w: BufferId,
    strips: Vec<Affine>,
    x: BufferId,
    x_format: Format,
    rows: Vec<Affine>,
    /// See [`quants::scratch_bytes`].
    scratch: Option<(BufferId, i64)>,
}

impl Block {
    fn offsets(&self) -> Option<(BufferId, i64)> {
        self.scratch.filter(|_| self.format == Format::Q6KR16)
    }

    /// The products of all strips and rows: rows of the first strip, then of the second.
    fn sums(&self, b: &mut KernelBuilder) -> Vec<ValueId> {
        if self.format.is_quantised() { quants::sums(self, b) } else { floats::sums(self, b) }
    }
}

/// Adds the product to what is at the destination.
pub fn multiply(b: &mut KernelBuilder, product: &Product, rows: &Rows, to: &Destination) {
    let Product { format, k, tile, x, x_format, w, scratch } = *product;
    let row_bytes = |f: Format| quantise::row_bytes("", f, k).unwrap_or(0);
    let (strip_bytes, x_row) = (STRIP as i64 * row_bytes(format), row_bytes(x_format));
    let strips = i64::from(tile) / STRIP as i64;
    rows.for_sizes(b, |b, first, groups, count| {
        // Pairs of strips for groups of rows of floats, where that halves the loads of activations; then a strip that is left.
        // A single row is read from memory, where a second stream costs a third of the bandwidth.
        let together = if count > 1 && !format.is_quantised() { strips.min(2) } else { 1 };
        for (from, number, together) in
            [(0, strips / together, together), (strips / together * together, strips % together, 1)]
        {
            if number == 0 {
                continue;
            }
            b.for_each("strip", number, |b, strip| {
                let strip = strip * together + from;
                b.for_each("group", groups, |b, group| {
                    let row = first.clone() + group * i64::from(count);
                    let rows: Vec<Affine> = (0..i64::from(count)).map(|r| row.clone() + r).collect();
                    let strips: Vec<Affine> = (0..together).map(|s| strip.clone() + s).collect();
                    let block = Block {
                        format,
                        k,
                        w,
                        strips: strips.iter().map(|strip| strip.clone() * strip_bytes).collect(),
                        x,
                        x_format,
                        rows: rows.iter().map(|row| row.clone() * x_row).collect(),
                        scratch,
                    };
                    let mut sums = block.sums(b).into_iter();
                    for strip in &strips {
                        for (row, sum) in rows.iter().zip(&mut sums) {
                            let at = row.clone() * to.row_bytes + strip.clone() * RESULT + to.offset;
                            let old = b.load(SINGLES, to.buffer, at.clone());
                            let sum = b.add(old, sum);
                            b.store(to.buffer, at, sum);
                        }
                    }
                });
            });
        }
    });
}
