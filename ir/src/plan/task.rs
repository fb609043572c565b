//! Steps of a plan, and their tasks.

use serde::{Deserialize, Serialize};

use super::dim::DimExpr;
use super::{ATTENTION_BLOCK, ArenaBuffer, BucketId, BufferId, Division, Exchange, KernelId, RowCount, Source};

/// Address of one of a kernel's buffers for an item, in bytes:
///
/// ```text
/// source + offset + row * row_stride + column * column_stride + expert * expert_stride
/// ```
///
/// If columns are divided into [`Bands`], the product of band and stride is added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arg {
    /// Memory that the buffer lies in.
    pub source: Source,
    /// Constant byte offset.
    pub offset: u64,
    /// Bytes from one row to the next. It multiplies the number of the item's first row on the
    /// axis.
    pub row_stride: u64,
    /// Bytes from one column to the next.
    pub column_stride: u64,
    /// Bytes from one expert to the next.
    pub expert_stride: u64,
}

/// The rows of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RowAxis {
    /// Tokens of this step.
    Tokens,
    /// Requested outputs.
    Outputs,
    /// Routed rows; chunks never cross experts, and experts without rows have no items.
    Routed(BucketId),
}

/// A kernel for a range of row counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// Maximum row count (of the axis, or of the expert) for this variant. Variants are in
    /// ascending order, and the last has `u32::MAX`.
    pub up_to_rows: u32,
    /// Maximum rows of an item.
    pub row_chunk: u32,
    /// Number of the variant's kernel.
    pub kernel: KernelId,
    /// Dims of the kernel.
    pub dims: Vec<DimExpr>,
    /// Division of items into parts of the context, if any.
    pub split: Option<Split>,
    /// Division of columns into bands, for grids with too few columns.
    pub bands: Option<Bands>,
}

/// Division of each column into several items, its *bands*. Columns are wide for two reasons:
/// repeated reads hit a cache, and each thread reads a long range of memory. With few rows and many
/// threads, wide columns have a cost: if one thread has one column more than the others, all of
/// them wait. In this case, bands are the items. The number of threads decides between columns and
/// bands, and the results do not depend on it. Tasks, their arguments and other variants do not
/// change.
///
/// A band is a slice of a column, or a part of a block if columns consist of whole blocks. In the
/// second case the kernel takes the number of its band as a dim
/// ([`DimInput::Band`](super::DimInput::Band)).
///
/// ```text
/// gate and up, 5632 rows     22 columns of 256 rows, the size of a block of a8_super: 22 items
///                            in 8 bands: 176 items; weights 32 rows apart, the result 0 bytes
///                            apart, and the number of the band is a dim
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bands {
    /// Bands of a column, at least 2.
    pub count: u32,
    /// Kernel of a band. Its buffers are those of the task.
    pub kernel: KernelId,
    /// Dims of that kernel.
    pub dims: Vec<DimExpr>,
    /// Bytes from one band to the next, for each of the task's arguments. 0 if all bands of a
    /// column share the memory.
    pub strides: Vec<u64>,
}

impl Variant {
    /// Returns the kernel of a column, then the kernel of a band.
    pub fn kernels(&self) -> impl Iterator<Item = KernelId> + '_ {
        [self.kernel].into_iter().chain(self.bands.iter().map(|bands| bands.kernel))
    }
}

/// Output of the parts of an item, which the combining kernel takes as input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Leaves {
    /// Each part writes a whole result.
    Result,
    /// Each part writes a 32-bit word for each place in its blocks.
    Words,
}

impl Leaves {
    /// Bytes of the words of one block of places.
    pub const WORDS_OF_BLOCK: u64 = ATTENTION_BLOCK as u64 * 4;
}

/// Division of items by the positions before their row. Each part is an item of its own, with one
/// row. Its kernel writes runtime memory instead of one of the task's arguments. The thread that
/// finishes the last part of a row and column combines all parts, in the order of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// Index of the task's argument that `combine` writes.
    pub argument: u32,
    /// Division of the places that a row sees.
    pub division: Division,
    /// Number of positions that share an entry of the state, at least 1.
    pub every: u32,
    /// Output of a part.
    pub leaves: Leaves,
    /// Kernel that combines the parts into the result, such as `attention_combine`. Its buffers are
    /// the contiguous parts, the argument `argument`, and scratch. Its dim is the number of parts,
    /// or of blocks.
    pub combine: KernelId,
    /// Kernel that combines one slice of the parts into the same slice of the result, with the bits
    /// of `combine`. Only plans for grids of processing elements have it. It has the buffers and
    /// dims of `combine`, in smaller sizes. Engines only check the number of its dims and its
    /// access to each buffer.
    pub alone: Option<KernelId>,
}

/// One kernel over a grid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Computation, for dumps and statistics: the graph op's mnemonic and weight, such as
    /// `linear blk.0.attn_output`.
    pub label: String,
    /// Rows of the grid.
    pub rows: RowAxis,
    /// Columns of the grid.
    pub columns: u32,
    /// Kernels by row count.
    pub variants: Vec<Variant>,
    /// The kernels' buffers, in the order of their IR, the same for all variants. A kernel with
    /// fewer buffers takes the first ones.
    pub args: Vec<Arg>,
}

impl Task {
    /// Returns whether the task computes each token from its own rows of the plan's `buffers`, and
    /// uses no state. Its tokens can then be computed in parts.
    pub fn reads_own_rows(&self, buffers: &[ArenaBuffer]) -> bool {
        let is_own = |arg: &Arg| match arg.source {
            Source::Arena(buffer) => {
                let buffer = buffers.get(buffer.0 as usize);
                buffer.is_some_and(|buffer| buffer.rows == RowCount::Tokens && buffer.row_bytes == arg.row_stride)
            }
            Source::Weight(_) | Source::Rope(_) | Source::Scratch | Source::Input(_) => true,
            Source::State { .. } | Source::Chosen { .. } => false,
        };
        self.rows == RowAxis::Tokens
            && self.variants.iter().all(|variant| variant.split.is_none())
            && self.args.iter().all(is_own)
    }
}

/// A step of a plan. A barrier follows it, unless one thread runs it alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// One work list from these tasks, which do not depend on each other.
    Run {
        /// The tasks.
        tasks: Vec<Task>,
        /// Maximum number of rows (tokens, or requested outputs if all tasks have those as rows)
        /// for which one thread runs the whole step. Another barrier would then cost more than the
        /// step. The last thread that reaches the barrier before the step runs the step, and any
        /// such steps that follow, before it releases the other threads. With more rows, all
        /// threads share the step. 0 means that a step with rows is always shared.
        alone: u32,
    },
    /// Sorts the rows of a routing by expert. Fills the inputs of `bucket` from `top_k` ids of each
    /// token. Checks that each id is an expert, or [`NO_EXPERT`](super::NO_EXPERT) where `nobody`
    /// allows it.
    Bucket {
        /// The routing.
        bucket: BucketId,
        /// Buffer with the ids of `route`. A row of the buffer holds the ids of one token.
        ids: BufferId,
        /// Index of the first id in a row that belongs to this routing.
        first: u32,
        /// Experts per token.
        top_k: u32,
        /// Number of experts.
        experts: u32,
        /// Whether a slot may be [`NO_EXPERT`](super::NO_EXPERT). Such a slot has no routed row and
        /// weight 0. Slots of expert layers that run separately may always be empty.
        nobody: bool,
    },
    /// Requests the blocks of all experts of a routing. A [`Step::Release`] of the group follows
    /// before any other request. Tasks that read the group's weights come between the two, over the
    /// rows of that routing. After the release, another routing may request the group again. If all
    /// experts are in memory, this step, [`Step::Predict`] and [`Step::Release`] do nothing.
    Request {
        /// Position in [`Plan::expert_groups`](super::Plan::expert_groups).
        group: u32,
        /// Routing, already sorted.
        bucket: BucketId,
    },
    /// Predicts the blocks that a later request of the group will need.
    Predict {
        /// Position in [`Plan::expert_groups`](super::Plan::expert_groups).
        group: u32,
        /// Buffer with the ids. A row of the buffer holds the ids of one token. Ids that are not
        /// experts are skipped.
        ids: BufferId,
        /// Index of the first predicted id in a row, the likeliest.
        first: u32,
        /// Number of predicted experts for each token.
        count: u32,
    },
    /// Ends a [`Step::Request`]: the expert cache may evict the group's blocks.
    Release {
        /// Position in [`Plan::expert_groups`](super::Plan::expert_groups).
        group: u32,
    },
    /// Exchanges rows with other ranks. One thread does it, at the barrier before the next step.
    Exchange(Exchange),
}
