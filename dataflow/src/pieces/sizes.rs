//! How large the pieces of a plan in pieces are.

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_ir::plan::Division;
use ixc_kernels::candidates::whole_strips;

/// Bytes of a query head's scores, and of what is known of them.
const HEAD_BYTES: u64 = 256;

/// Into pieces of what size a plan is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    /// Of weights that every token meets.
    pub dense: WeightTile,
    /// Of experts' weights.
    pub experts: WeightTile,
    /// Elements of a row that an elementwise op takes at most; what works on blocks takes at least one.
    pub elements: u32,
    /// Elements that SwiGLU's `silu` and `mul` take at most, of which one takes many cycles; experts', of which there are many, take
    /// [`Partition::elements`].
    pub silu: u32,
    /// Elements of a piece of a norm; a row of no more is normed whole. What works on blocks takes at least one.
    pub norm: u32,
    /// Positions of a part of attention, a multiple of 32.
    pub positions: u32,
    /// Positions of the KV cache: there are parts for so many.
    pub context: u32,
    /// Bytes at most of what query heads that are attended together receive, work with and make; a single head is never cut.
    pub heads_bytes: u64,
}

/// The largest tile of a weight that one task multiplies with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightTile {
    /// Bytes at most; a block of 16 rows of a packed weight, or of one row of another, is never cut.
    pub bytes: u64,
    /// Weight rows at most, at least 16 in packed ones.
    pub rows: u32,
    /// Elements of a dot product at most.
    pub dot: u32,
    /// Bytes of a weight row that a dot product reads at most: what it takes grows with them, whatever the format.
    pub row: u32,
    /// Where the pieces of a dot product are added.
    pub reduction: Reduction,
}

/// Where the pieces of a dot product are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// In the product of the next piece, which waits for the one before: fewest tasks.
    Chained,
    /// By tasks of their own: products wait for nothing but their activations, so that a single row takes the time of one piece.
    Separate,
}

impl Partition {
    /// How positions are divided.
    pub fn division(&self) -> Division {
        let blocks = (self.positions / ixc_ir::plan::ATTENTION_BLOCK).max(1);
        let all = self.context.div_ceil(ixc_ir::plan::ATTENTION_BLOCK);
        Division { parts: all.div_ceil(blocks).max(1), blocks }
    }

    /// How many of `group` query heads are attended together: they share the conversion of keys and values.
    pub(super) fn heads(&self, group: u64, (key_len, value_len): (u64, u64)) -> u64 {
        // The query, the part, and both while they are worked on; scores of a block.
        let head = key_len.saturating_add(value_len).saturating_mul(8).saturating_add(HEAD_BYTES);
        let fits = |heads: &u64| group.is_multiple_of(*heads) && head.saturating_mul(*heads) <= self.heads_bytes;
        // Heads are as many as a model has: few.
        (1..=group.min(1024)).rev().find(fits).unwrap_or(1)
    }
}

impl WeightTile {
    /// Weight rows and elements of a dot product of each piece of a matrix of `n` rows of `k` columns.
    ///
    /// ```
    /// use ixc_ir::format::Format;
    /// use ixc_dataflow::pieces::{Reduction, WeightTile};
    ///
    /// let tile = WeightTile { bytes: 20_000, rows: 32, dot: 1024, row: 4096, reduction: Reduction::Chained };
    /// assert_eq!(tile.of(Format::Q4KR16, 512, 1024), (32, 1024));
    /// assert_eq!(tile.of(Format::Q4KR16, 512, 4096), (16, 1024));
    /// assert_eq!(tile.of(Format::F32, 8, 256), (3, 256));
    /// assert_eq!(tile.of(Format::F32, 8, 8192), (1, 293));
    /// let tile = WeightTile { row: 432, ..tile };
    /// assert_eq!(tile.of(Format::Q4KR16, 512, 4096), (16, 768));
    /// assert_eq!(tile.of(Format::Q6KR16, 512, 4096), (16, 512));
    /// ```
    pub fn of(&self, format: Format, n: u64, k: u64) -> (u64, u64) {
        // Dot products are cut where blocks of weights and of activations both end.
        let block = format.block_len().max(format.activation().block_len()) as u64;
        // What lies as in the file is packed beside itself, a strip at a time.
        let (strip, beside) = if format.rows() > 1 { (STRIP as u64, 0) } else { (1, STRIP as u64) };
        let (blocks, block_bytes) = (k.div_ceil(block).max(1), format.row_bytes(block).unwrap_or(0).max(1));
        let most = (u64::from(self.dot) / block).min(u64::from(self.row) / block_bytes);
        let fits = self.bytes / block_bytes.saturating_mul(strip + beside);
        let each = most.min(fits).max(1);
        if each < blocks {
            // As even as can be.
            let each = blocks.div_ceil(blocks.div_ceil(each));
            return (strip, each.saturating_mul(block).min(k));
        }
        let row = block_bytes.saturating_mul(blocks);
        let rows = (self.bytes / row).saturating_sub(beside).min(self.rows.into()).min(n);
        (whole_strips((rows / strip).max(1).saturating_mul(strip)), k)
    }
}
