//! Sizes of the pieces into which a plan is cut.

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_ir::plan::Division;
use ixc_kernels::candidates::whole_strips;

/// Bytes that a task needs for each query head's scores and for the values derived from them.
const HEAD_BYTES: u64 = 256;

/// Max sizes of the pieces that a plan is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Partition {
    /// Max tile of a weight that every token uses.
    pub dense: WeightTile,
    /// Max tile of an expert's weight.
    pub experts: WeightTile,
    /// Max elements of a row in an elementwise op. Ops on blocks take at least one block.
    pub elements: u32,
    /// Max elements in a task of SwiGLU's `silu` and `mul`, where one element takes many cycles.
    /// Experts have many of these tasks and use [`Partition::elements`].
    pub silu: u32,
    /// Elements of a piece of a norm. A shorter row is one piece. Norms with block results take at
    /// least one block.
    pub norm: u32,
    /// Positions in a part of attention, a multiple of 32.
    pub positions: u32,
    /// Number of positions of the KV cache, from which the number of parts follows.
    pub context: u32,
    /// Max bytes of the inputs, working memory and results of the query heads that one task
    /// computes. A single head is never cut.
    pub heads_bytes: u64,
}

/// The largest tile of a weight that one task multiplies with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightTile {
    /// Max bytes of the tile. A block of 16 rows of a packed weight, or of one row of another
    /// weight, is never cut.
    pub bytes: u64,
    /// Max weight rows, at least 16 in packed weights.
    pub rows: u32,
    /// Max elements of a dot product.
    pub dot: u32,
    /// Max bytes of each weight row in the tile. In every format, the time of a dot product grows
    /// with these bytes.
    pub row: u32,
    /// Choice of the tasks that add the pieces of a dot product.
    pub reduction: Reduction,
}

/// Choice of the tasks that add the pieces of a dot product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The task of each piece adds the previous sum, so it waits for the previous task. This takes
    /// the fewest tasks.
    Chained,
    /// Separate tasks add the pieces. The tasks of pieces wait only for their activations, so a
    /// single row takes the time of one piece.
    Separate,
}

impl Partition {
    /// Returns the division of positions into parts.
    pub fn division(&self) -> Division {
        let blocks = (self.positions / ixc_ir::plan::ATTENTION_BLOCK).max(1);
        let all = self.context.div_ceil(ixc_ir::plan::ATTENTION_BLOCK);
        Division { parts: all.div_ceil(blocks).max(1), blocks }
    }

    /// Returns how many of `group` query heads one task computes. The heads of a task share the
    /// conversion of keys and values.
    pub(super) fn heads(&self, group: u64, key_len: u64, value_len: u64) -> u64 {
        // The query and the part, with a working copy of each, and the scores of a block.
        let head = key_len.saturating_add(value_len).saturating_mul(8).saturating_add(HEAD_BYTES);
        let fits = |heads: &u64| group.is_multiple_of(*heads) && head.saturating_mul(*heads) <= self.heads_bytes;
        // The limit is safe, because models have few heads.
        (1..=group.min(1024)).rev().find(fits).unwrap_or(1)
    }
}

impl WeightTile {
    /// Returns the size of each piece of a matrix with `n` rows and `k` columns: the number of
    /// weight rows, and of elements in a dot product.
    ///
    /// ```
    /// use ixc_ir::format::Format;
    /// use ixc_dataflow::pieces::{Reduction, WeightTile};
    ///
    /// let tile = WeightTile { bytes: 20_000, rows: 32, dot: 1024, row: 4096, reduction: Reduction::Chained };
    /// assert_eq!(tile.tile_size(Format::Q4KR16, 512, 1024), (32, 1024));
    /// assert_eq!(tile.tile_size(Format::Q4KR16, 512, 4096), (16, 1024));
    /// assert_eq!(tile.tile_size(Format::F32, 8, 256), (3, 256));
    /// assert_eq!(tile.tile_size(Format::F32, 8, 8192), (1, 293));
    /// let tile = WeightTile { row: 432, ..tile };
    /// assert_eq!(tile.tile_size(Format::Q4KR16, 512, 4096), (16, 768));
    /// assert_eq!(tile.tile_size(Format::Q6KR16, 512, 4096), (16, 512));
    /// ```
    pub fn tile_size(&self, format: Format, n: u64, k: u64) -> (u64, u64) {
        // Dot products are cut only at elements where blocks of both weights and activations end.
        let block = format.block_len().max(format.activation().block_len()) as u64;
        // Unpacked weights are packed into extra memory, one strip at a time.
        let (strip, beside) = if format.rows() > 1 { (STRIP as u64, 0) } else { (1, STRIP as u64) };
        let (blocks, block_bytes) = (k.div_ceil(block).max(1), format.row_bytes(block).unwrap_or(0).max(1));
        let most = (u64::from(self.dot) / block).min(u64::from(self.row) / block_bytes);
        let fits = self.bytes / block_bytes.saturating_mul(strip + beside);
        let each = most.min(fits).max(1);
        if each < blocks {
            // Makes the pieces as even as possible.
            let each = blocks.div_ceil(blocks.div_ceil(each));
            return (strip, each.saturating_mul(block).min(k));
        }
        let row = block_bytes.saturating_mul(blocks);
        let rows = (self.bytes / row).saturating_sub(beside).min(self.rows.into()).min(n);
        (whole_strips((rows / strip).max(1).saturating_mul(strip)), k)
    }
}
