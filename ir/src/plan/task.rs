//! Steps of a plan, and the tasks of a step.

use serde::{Deserialize, Serialize};

use super::dim::DimExpr;
use super::{ATTENTION_BLOCK, ArenaBuffer, BucketId, BufferId, Division, Exchange, KernelId, RowCount, Source};

/// Address in bytes of one of a kernel's buffers, for an item of a task:
///
/// ```text
/// source + offset + row * row_stride + column * column_stride + expert * expert_stride
/// ```
///
/// If columns are divided into [`Bands`], the number of the band times its stride is added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arg {
    /// Memory in which the buffer lies.
    pub source: Source,
    /// Constant byte offset.
    pub offset: u64,
    /// Distance in bytes from one row to the next. It is multiplied by the number of the item's
    /// first row.
    pub row_stride: u64,
    /// Distance in bytes from one column to the next.
    pub column_stride: u64,
    /// Distance in bytes from one expert to the next.
    pub expert_stride: u64,
}

/// Kind of the rows of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RowAxis {
    /// Tokens of the step.
    Tokens,
    /// Requested output rows of the step.
    Outputs,
    /// Routed rows. A chunk of rows never has rows of several experts, and experts without rows
    /// have no items.
    Routed(BucketId),
}

/// A kernel of a task, with the row counts that it is used for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// Maximum row count for this variant: of the whole axis, or of one expert for routed rows.
    /// Variants are in ascending order, and the last one has `u32::MAX`.
    pub up_to_rows: u32,
    /// Maximum number of rows of an item.
    pub row_chunk: u32,
    /// Kernel of this variant.
    pub kernel: KernelId,
    /// Values of the kernel's dims for each item.
    pub dims: Vec<DimExpr>,
    /// Division of items into parts of the context, or `None`.
    pub split: Option<Split>,
    /// Division of columns into bands, for grids with few columns. `None` without a division.
    pub bands: Option<Bands>,
}

/// Division of each column into several items, its *bands*. Columns are wide for two reasons:
/// repeated reads hit a cache, and each thread reads a long range of memory. With few rows and many
/// threads, wide columns have a cost: if one thread has a column more than the others, all of them
/// wait for it. The bands are then the items. The runtime chooses between columns and bands by the
/// number of threads, and the results do not depend on this choice. Bands change neither the task's
/// arguments nor its other variants.
///
/// A band is a slice of a column's rows of the weight. If a column consists of whole blocks of the
/// result's format, a band is a part of a block. The kernel then gets the number of its band as a
/// dim ([`DimInput::Band`](super::DimInput::Band)).
///
/// ```text
/// gate and up, 5632 rows     22 columns of 256 rows, the size of a block of a8_super: 22 items
///                            in 8 bands: 176 items; weights 32 rows apart, the result 0 bytes
///                            apart, and the number of the band is a dim
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bands {
    /// Number of bands of a column, at least 2.
    pub count: u32,
    /// Kernel that computes a band. It has the same buffers as the task.
    pub kernel: KernelId,
    /// Values of that kernel's dims for each band.
    pub dims: Vec<DimExpr>,
    /// Distance in bytes from one band to the next, for each argument of the task. 0 if all bands
    /// of a column use the same memory.
    pub strides: Vec<u64>,
}

impl Variant {
    /// Returns the variant's kernel for a column, followed by its kernel for a band if it has one.
    pub fn kernels(&self) -> impl Iterator<Item = KernelId> + '_ {
        [self.kernel].into_iter().chain(self.bands.iter().map(|bands| bands.kernel))
    }
}

/// Kind of data that each part of an item writes. The combining kernel reads these data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Leaves {
    /// Each part writes a whole result.
    Result,
    /// Each part writes a 32-bit word for each place that it covers.
    Words,
}

impl Leaves {
    /// Number of bytes of the words for one block of places.
    pub const WORDS_OF_BLOCK: u64 = ATTENTION_BLOCK as u64 * 4;
}

/// Division of items into parts by the positions before their row. Each part is an item of its own,
/// with one row. Its kernel writes memory of the runtime instead of one of the task's arguments.
/// The thread that finishes the last part of a row and column combines all their parts, in the
/// order of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// Index of the task's argument that the kernel `combine` writes.
    pub argument: u32,
    /// Division of the places that a row sees.
    pub division: Division,
    /// Number of positions that share an entry of the state, at least 1.
    pub every: u32,
    /// Kind of data that a part writes.
    pub leaves: Leaves,
    /// Kernel that combines the parts into the result, such as `attention_combine`. Its buffers are
    /// the contiguous data of the parts, the argument `argument`, and scratch memory. Its dim is
    /// the number of parts or of blocks.
    pub combine: KernelId,
    /// Kernel that combines one slice of the parts into the same slice of the result, with the same
    /// bits as `combine`. Only plans for grids of processing elements have it. It has the buffers
    /// and dims of `combine`, in smaller sizes. Engines only check the number of its dims and its
    /// access to each buffer.
    pub alone: Option<KernelId>,
}

/// One kernel that runs for all items of a grid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Name of the computation, for dumps and statistics: the graph op's mnemonic and its weight,
    /// such as `linear blk.0.attn_output`.
    pub label: String,
    /// Kind of the rows of the grid.
    pub rows: RowAxis,
    /// Number of columns of the grid.
    pub columns: u32,
    /// Kernels for different row counts, in ascending order.
    pub variants: Vec<Variant>,
    /// Addresses of the kernel's buffers, in the order of its IR. All variants share them. A kernel
    /// with fewer buffers uses the first ones.
    pub args: Vec<Arg>,
}

impl Task {
    /// Whether the task computes each token only from the same row of the plan's `buffers`, and
    /// uses no state. Such a task can compute some of a step's tokens before the others.
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
    /// One work list of the items of these tasks, which do not depend on each other.
    Run {
        /// Tasks of the step.
        tasks: Vec<Task>,
        /// Maximum number of rows for which a single thread runs the whole step. Rows are tokens,
        /// or requested outputs if all tasks have those as rows. With so few rows, a barrier would
        /// cost more time than the step. The last thread that reaches the barrier before the step
        /// runs it, with any similar steps after it. Then it releases the other threads. With more
        /// rows, all threads share the step. 0 means that all threads always share it.
        alone: u32,
    },
    /// Sorts the rows of a routing by expert. Fills the inputs of `bucket` from the `top_k` ids of
    /// each token. Checks that each id is an expert, or [`NO_EXPERT`](super::NO_EXPERT) if `nobody`
    /// is true.
    Bucket {
        /// Routing whose inputs are filled.
        bucket: BucketId,
        /// Buffer with expert ids. Each row has the ids of one token.
        ids: BufferId,
        /// Index of the first id in a row that belongs to this routing.
        first: u32,
        /// Number of experts per token.
        top_k: u32,
        /// Number of experts.
        experts: u32,
        /// Whether a slot may be [`NO_EXPERT`](super::NO_EXPERT). Such a slot has no routed row,
        /// and its weight is 0. In expert layers that run separately, slots may always be empty.
        nobody: bool,
    },
    /// Requests the blocks of all experts of a routing. A [`Step::Release`] of the group must
    /// follow before another request. The tasks that read the group's weights are between the
    /// request and the release, over the rows of that routing. After the release, another routing
    /// may request the group. If all experts are in memory, this step, [`Step::Predict`] and
    /// [`Step::Release`] do nothing.
    Request {
        /// Index in [`Plan::expert_groups`](super::Plan::expert_groups).
        group: u32,
        /// Routing of the rows, already sorted by expert.
        bucket: BucketId,
    },
    /// Predicts the blocks that a later request for the group will need, so that loading can begin.
    Predict {
        /// Index in [`Plan::expert_groups`](super::Plan::expert_groups).
        group: u32,
        /// Buffer with predicted ids. Each row has the ids for one token. Ids that are not experts
        /// are skipped.
        ids: BufferId,
        /// Index of the first predicted id in a row, the most likely one.
        first: u32,
        /// Number of predicted experts for each token.
        count: u32,
    },
    /// Ends a [`Step::Request`]. The expert cache may then evict the group's blocks.
    Release {
        /// Index in [`Plan::expert_groups`](super::Plan::expert_groups).
        group: u32,
    },
    /// Exchanges rows with other ranks. A single thread does this, at the barrier before the next
    /// step.
    Exchange(Exchange),
}
