//! The plan: everything that the runtime needs to run a model, except the weights' bytes and
//! machine code. A plan file may hold packed weights after the plan.
//!
//! A plan is a list of [`Step`]s. A step is one work list that all threads share, with a barrier
//! after it. With few rows, a small step is run by one thread alone, at the barrier before it
//! ([`Step::Run`]).
//!
//! A work list comes from [`Task`]s. A task runs one kernel for every item of its grid: columns
//! times chunks of rows. It also gives the memory of each of the kernel's buffers for an item.
//! `passes::schedule` makes a `Plan<KernelSpec>`. `ixc-kernels` replaces each spec by kernel IR.
//! When the plan is loaded, the runtime verifies the IR and generates code.
//!
//! Example: the projection of 512 tokens on 2048 outputs by a `q4_k` weight is one task. It has
//! 2048 / 32 columns and chunks of up to 96 rows. Its kernel takes `x` (row stride = a row of
//! `a8_super`), `w` (column stride = 32 rows of `q4_k`) and `y`.
//!
//! Invariant: a plan names kernels' buffers only by [`Source`]. The runtime checks every item's
//! slices against the kernel's declared sizes, so a wrong plan is an error and never a stray
//! access.
//!
//! Invariant: index buffers take their values from [`Input`]s alone, which the runtime has checked.
//! The places that an index op chose in a state are no exception: the runtime copies them into
//! contiguous memory ([`Source::Chosen`]), and kernels read them without indices.

mod choice;
pub mod decode;
pub mod dim;
mod hex;
pub mod print;
mod rope;
mod state;

use serde::{Deserialize, Serialize};

use crate::derived::Derived;
use crate::format::Format;

pub use choice::{CHOSEN_BLOCK, Choice, Chosen};
pub use dim::{DimError, DimExpr, DimInput};
pub use rope::{LongFrequencies, RopeStyle, RopeTable, Temperature};
pub use state::{State, StateField};

/// First bytes of a plan file.
pub const FILE_MAGIC: [u8; 8] = *b"IXCPLAN\n";

/// Positions in a block of the KV cache, the unit of attention. The cache's capacity is a multiple
/// of it.
pub const ATTENTION_BLOCK: u32 = 32;
/// Positions that lie together in the key cache. In f16, keys are stored
/// `[position / 16][d][position % 16]`, so a vector lane is a position and a score needs no
/// horizontal sum. Values are stored `[position][dv]`. [`crate::cache`] describes the layout of
/// other formats.
pub const KEY_LANES: u32 = 16;

/// A rule that divides the positions before a token into parts, which attention processes
/// separately. The division depends on the context alone. It does not depend on the number of
/// threads, so results do not either.
///
/// With enough parts for the whole context, each part begins and ends at the same positions for
/// every token: part `p` has blocks `p * blocks .. (p + 1) * blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Division {
    /// Maximum number of parts, at least 1.
    pub parts: u32,
    /// Minimum number of blocks of a part, at least 1. A block has [`ATTENTION_BLOCK`] positions.
    pub blocks: u32,
}

impl Division {
    /// Division for threads that share a token: as many parts as are worth combining.
    pub const THREADS: Division = Division { parts: 16, blocks: 8 };

    /// Returns the number of parts for `blocks` blocks, and the number of blocks in each part but
    /// the last.
    ///
    /// ```
    /// use ixc_ir::plan::Division;
    ///
    /// assert_eq!(Division::THREADS.of(7), (1, 8));
    /// assert_eq!(Division::THREADS.of(256), (16, 16));
    /// assert_eq!(Division::THREADS.of(257), (16, 17));
    /// ```
    pub fn of(self, blocks: u32) -> (u32, u32) {
        let each = blocks.div_ceil(self.parts.max(1)).max(self.blocks).max(1);
        (blocks.div_ceil(each).max(1), each)
    }
}

/// An arena buffer of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BufferId(pub u32);

/// A kernel of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KernelId(pub u32);

/// A routing of tokens to experts: the rows of one `route`, sorted by expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BucketId(pub u32);

/// Row counts of a step, known when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum RowCount {
    /// Tokens in this step.
    Tokens,
    /// Output rows: rows whose logits are requested.
    Outputs,
    /// Tokens times experts per token.
    Routed {
        /// Experts per token.
        top_k: u32,
    },
}

/// Maximum number of rows of a step whose logits can be requested. A row of logits is as long as
/// the vocabulary, and most steps need one row. Hidden states have no such limit
/// ([`Output::most`]).
pub const MAX_OUTPUTS: u32 = 512;

impl RowCount {
    /// Returns the maximum row count for a step with up to `tokens` tokens and `outputs` requested
    /// outputs.
    pub fn most(self, tokens: u32, outputs: u32) -> u64 {
        match self {
            RowCount::Tokens => tokens.into(),
            RowCount::Outputs => tokens.min(outputs).into(),
            RowCount::Routed { top_k } => u64::from(tokens) * u64::from(top_k),
        }
    }
}

/// Result of a step for the requested rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Logits `[L, vocabulary]`.
    Logits {
        /// The sampler's softmax over one row.
        softmax: KernelId,
    },
    /// Hidden states `[L, width]` after the last norm, for embeddings: the model has no output
    /// matrix.
    Hidden {
        /// Elements of a row.
        width: u32,
        /// Method that combines the rows of a text into one vector, if the model names one.
        pooling: Option<Pooling>,
        /// Whether vectors are scaled to length 1. Otherwise they keep their length after pooling.
        unit: bool,
    },
    /// Routed experts only, which is not a step of a whole model. The runtime runs each of
    /// [`Plan::expert_layers`] separately, on rows that come with their experts and weights.
    Experts {
        /// Elements of a row.
        width: u32,
    },
}

impl Output {
    /// Returns the maximum number of output rows of a step with `tokens` tokens: [`MAX_OUTPUTS`]
    /// for logits, all rows for hidden states.
    pub fn most(&self, tokens: u32) -> u32 {
        match self {
            Output::Logits { .. } => tokens.min(MAX_OUTPUTS),
            Output::Hidden { .. } | Output::Experts { .. } => tokens,
        }
    }
}

/// Hidden states with a row for each token of a step: f32 `[T, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenRows {
    /// Arena buffer with the rows.
    pub buffer: BufferId,
    /// Elements of a row.
    pub width: u32,
}

/// Id of an empty slot in a row's expert ids: the expert runs on another machine, or the slot has
/// none.
pub const NOBODY: i32 = -1;

/// The routed experts of one layer, run separately: [`Output::Experts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLayer {
    /// The layer's number in the model.
    pub layer: u32,
    /// Index of the layer's first step in [`Plan::steps`].
    pub first: u32,
    /// Number of the layer's steps.
    pub steps: u32,
    /// Input rows: f32 `[T, n]`.
    pub rows: BufferId,
    /// Expert ids of the rows: i32 `[T, used]`, [`NOBODY`] in slots that are not computed here.
    pub ids: BufferId,
    /// The experts' weights: f32 `[T, used]`.
    pub weights: BufferId,
    /// Result: f32 `[T, n]`, the weighted sums over each row's experts.
    pub result: BufferId,
}

/// Method that combines the hidden states of a text into one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pooling {
    /// Mean of all rows.
    Mean,
    /// Row of the first token.
    First,
    /// Row of the last token.
    Last,
}

impl Pooling {
    /// All methods, with llama.cpp's names for them.
    pub const ALL: [(&'static str, Pooling); 3] =
        [("mean", Pooling::Mean), ("cls", Pooling::First), ("last", Pooling::Last)];

    /// Returns the method's name.
    pub fn name(self) -> &'static str {
        Pooling::ALL.iter().find(|(_, pooling)| *pooling == self).map_or("", |(name, _)| name)
    }
}

impl std::str::FromStr for Pooling {
    type Err = String;

    fn from_str(text: &str) -> Result<Pooling, String> {
        let found = Pooling::ALL.iter().find(|(name, _)| *name == text).map(|(_, pooling)| *pooling);
        let names = || Pooling::ALL.map(|(name, _)| name).join(", ");
        found.ok_or_else(|| format!("{text:?} is not a pooling method; expected one of {}", names()))
    }
}

/// A buffer of the arena: `row_bytes` for each row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaBuffer {
    /// Name, shown in dumps.
    pub name: String,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Number of rows.
    pub rows: RowCount,
    /// Byte offset in the arena, sized for [`Plan::max_tokens`]. Buffers whose lifetimes are
    /// disjoint may overlap.
    pub offset: u64,
}

/// Location of a weight's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightFile {
    /// In one of [`Plan::files`].
    Source(u32),
    /// In the plan's own file, after the plan. The offset counts from the first byte of the weights
    /// there.
    Plan,
    /// In the plan's own file, in blocks of a group of experts. The offset is that of the first
    /// expert's matrix; the matrix of expert `e` lies `e * stride` bytes later.
    Blocks {
        /// Bytes from one block to the next.
        stride: u64,
    },
    /// One of [`Plan::derived`], computed when it is read.
    Derived(u32),
}

/// A weight as kernels read it. If [`PlanWeight::stored`] equals [`PlanWeight::format`], kernels
/// read it in place. Otherwise the runtime packs it on first use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanWeight {
    /// Tensor name.
    pub name: String,
    /// Format that kernels read.
    pub format: Format,
    /// Format in the file: [`PlanWeight::format`], or the format that it is packed from.
    pub stored: Format,
    /// Shape, outermost first.
    pub shape: Vec<u64>,
    /// File that holds it.
    pub file: WeightFile,
    /// Byte offset in the file.
    pub offset: u64,
    /// Length in the file, in bytes. For weights in blocks, the bytes between its matrices do not
    /// count.
    pub bytes: u64,
}

impl PlanWeight {
    /// Returns the distance in the file from the weight's first byte to its end. Returns `None` on
    /// overflow, or if a weight in blocks has no experts.
    pub fn span(&self) -> Option<u64> {
        let WeightFile::Blocks { stride } = self.file else { return Some(self.bytes) };
        let experts = *self.shape.first()?;
        let gaps = experts.checked_sub(1)?.checked_mul(stride)?;
        gaps.checked_add(self.bytes.checked_div(experts)?)
    }

    /// Whether its bytes must be packed before kernels read them.
    pub fn is_packed_at_load(&self) -> bool {
        self.format != self.stored
    }

    /// Returns the weight's length in `format`. Returns `None` if the length overflows, or if the
    /// shape does not divide into whole blocks (and, for packed formats, whole strips).
    pub fn bytes_in(&self, format: Format) -> Option<u64> {
        let (&last, lead) = self.shape.split_last()?;
        if format.rows() > 1 && !lead.last()?.is_multiple_of(format.rows() as u64) {
            return None;
        }
        lead.iter().try_fold(format.row_bytes(last)?, |bytes, &n| bytes.checked_mul(n))
    }
}

/// A model file that a plan was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourceFile {
    /// Path: absolute, or relative to the plan.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32 of the header: everything before the tensor data.
    pub header_crc: u32,
    /// Length of the header in bytes.
    pub header_bytes: u64,
}

/// Row lookup by the last tokens of a sequence together ([`crate::ngram`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ngram {
    /// State with the ids before the step, by position in [`Plan::states`].
    pub state: u32,
    /// Hash from ids to a row.
    pub hash: crate::ngram::Hash,
}

/// Row data that the runtime computes and checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Input {
    /// Token id of each row, below the vocabulary.
    Tokens,
    /// Position of each row, as data (i32).
    Positions,
    /// Position of the last row of each row's sequence in this step, as data (i32). A row of
    /// non-causal attention sees all positions up to it.
    Ends,
    /// Position of each row plus this number, as data (i32). The sum may be beyond the end of the
    /// row's text.
    Ahead(u32),
    /// Position / [`KEY_LANES`] of each row.
    PositionBlock,
    /// Position % [`KEY_LANES`] of each row.
    PositionLane,
    /// Position of each row modulo this number.
    Phase(u32),
    /// Number of complete groups of this many positions up to each row's own position, which
    /// counts, as data (i32).
    Whole(u32),
    /// Number of places chosen for each row, as data (i32).
    Chosen(Choice),
    /// Number of the last chosen place of each row, as data (i32).
    LastChosen(Choice),
    /// Row of an n-gram table for each row's token and the tokens before it.
    Ngram(Ngram),
    /// Row of each requested output.
    OutputRows,
    /// Token row of each routed row, in order of experts.
    RoutedToken(BucketId),
    /// Routed row of each token's slot: `[T][top_k]`.
    RoutedSlot(BucketId),
}

/// Memory that a kernel's buffer lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Source {
    /// The arena.
    Arena(BufferId),
    /// A weight, by position in [`Plan::weights`].
    Weight(u32),
    /// A rotary table.
    Rope(u32),
    /// A field of a state. For a field with positions, it is the item's column, from the first
    /// position of the item's part on. A field with one column that is only read gives that column
    /// to every item. A field without positions is passed whole.
    State {
        /// Position in [`Plan::states`].
        state: u32,
        /// Position in its fields.
        field: u32,
    },
    /// The places of a state's field that an index op chose for the item's row. They are contiguous
    /// and in ascending order, from the first place of the item's part on. If every visible place
    /// is chosen, it is the field itself. The column stride of the argument is the distance between
    /// the bits of two columns, or 0 if all columns share their bits. The argument has no other
    /// stride.
    Chosen {
        /// Position in [`Plan::states`].
        state: u32,
        /// Position in its fields.
        field: u32,
        /// Buffer with one bit for each place, in rows of tokens, written by the index op.
        marks: BufferId,
        /// Number of places that it chose.
        choice: Choice,
    },
    /// The thread's scratch memory.
    Scratch,
    /// A checked input.
    Input(Input),
}

impl Source {
    /// Returns the arena buffer that the source reads: the buffer itself, or the bits that choose
    /// places.
    pub fn arena(self) -> Option<BufferId> {
        match self {
            Source::Arena(buffer) | Source::Chosen { marks: buffer, .. } => Some(buffer),
            Source::Weight(_) | Source::Rope(_) | Source::State { .. } | Source::Scratch | Source::Input(_) => None,
        }
    }
}

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
    /// Bytes from one row to the next. The row is the item's first row, counted over the whole
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
    /// The kernel.
    pub kernel: KernelId,
    /// Dims of the kernel.
    pub dims: Vec<DimExpr>,
    /// Division of items into parts of the context, if any.
    pub split: Option<Split>,
    /// Division of columns into bands, for cases with too few columns.
    pub bands: Option<Bands>,
}

/// Division of each column into several items, its *bands*. A column is wide, for two reasons: data
/// that is read again stays in a cache, and few threads read long stretches of memory. With few
/// rows and many threads, a wide column has a cost: one thread with a column more than the others
/// makes all of them wait. Then bands are the items. The number of threads decides between columns
/// and bands, and the results do not depend on it. Tasks, their arguments and other variants stay
/// as they are.
///
/// A band is a slice of a column, or part of a block if columns consist of whole blocks. In the
/// second case the kernel takes the number of its band as a dim ([`DimInput::Band`]).
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
    /// Returns its kernels: that of a column, and that of a band.
    pub fn kernels(&self) -> impl Iterator<Item = KernelId> + '_ {
        [self.kernel].into_iter().chain(self.bands.iter().map(|bands| bands.kernel))
    }
}

/// Output of the parts of an item, which the combining kernel reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Leaves {
    /// Each part writes a whole result.
    Result,
    /// Each part writes a 32-bit word for each place of its blocks. Together the words cover all
    /// places.
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
    /// The task's argument that `combine` writes.
    pub argument: u32,
    /// Division of the places that a row sees.
    pub division: Division,
    /// Number of positions that share a place, at least 1.
    pub every: u32,
    /// Output of a part.
    pub leaves: Leaves,
    /// Kernel that combines the parts into the result, such as `attention_combine`. Its buffers are
    /// the contiguous parts, that argument and scratch. Its dim is the number of parts, or of
    /// blocks.
    pub combine: KernelId,
    /// In plans for grids of processing elements: a kernel that combines one slice of the parts
    /// into the same slice of the result, with the bits of `combine`. It has the buffers and dims
    /// of `combine`, in smaller sizes. Engines only check the number of its dims and its access to
    /// each buffer.
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

/// A step of a plan. A barrier follows it, unless one thread runs it alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// One work list from these tasks, which do not depend on each other.
    Run {
        /// The tasks.
        tasks: Vec<Task>,
        /// Maximum number of rows (tokens, or requested outputs if all tasks are over those) for
        /// which one thread runs the whole step. Another barrier would then cost more than the
        /// step. The last thread that reaches the barrier before the step runs it there, and any
        /// such steps that follow, before it releases the others. With more rows, all threads share
        /// the step. 0 means that a step with rows is always shared.
        alone: u32,
    },
    /// Sorts the rows of a routing by expert. Fills the inputs of `bucket` from `top_k` ids of each
    /// token. Checks that each id is an expert, or [`NOBODY`] where `nobody` allows it.
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
        /// Whether a slot may be [`NOBODY`]. Such a slot has no routed row and weight 0. Slots of
        /// expert layers that run separately may always be empty.
        nobody: bool,
    },
    /// Requests the blocks of all experts that a routing names, all at once. A [`Step::Release`] of
    /// the group follows before any other request. Tasks that read the group's weights come between
    /// the two, over the rows of that routing. After the release, another routing may request the
    /// group again. If all experts are in memory, this step does nothing, nor do the next two.
    Request {
        /// Position in [`Plan::expert_groups`].
        group: u32,
        /// Routing, already sorted.
        bucket: BucketId,
    },
    /// Predicts the blocks that a later request of the group will need.
    Predict {
        /// Position in [`Plan::expert_groups`].
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
        /// Position in [`Plan::expert_groups`].
        group: u32,
    },
}

/// Experts whose matrices are loaded together, as *blocks*. A block has one expert's matrix of each
/// of these weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroup {
    /// Number of experts, the outermost dimension of each weight.
    pub experts: u32,
    /// Weights, by position in [`Plan::weights`], in their order in a block. A weight is in one
    /// group only.
    pub weights: Vec<u32>,
}

/// A plan, with kernels as specs (`K = KernelSpec`) or as IR (`K = Kernel`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan<K> {
    /// Name of the architecture, shown to users.
    pub architecture: String,
    /// Target that the kernels were generated for.
    pub target: String,
    /// Maximum tokens of a step. Longer prompts take several steps.
    pub max_tokens: u32,
    /// Context length that the model was trained for.
    pub context_length: u32,
    /// Vocabulary size.
    pub vocabulary: u32,
    /// Model files.
    pub files: Vec<SourceFile>,
    /// Tensors that are made of parts of those files.
    pub derived: Vec<Derived>,
    /// Weights.
    pub weights: Vec<PlanWeight>,
    /// Bytes of the weights after the plan in its own file, 0 without any.
    pub own_weight_bytes: u64,
    /// Groups of experts that may be loaded on demand. Empty if all experts stay in memory.
    pub expert_groups: Vec<ExpertGroup>,
    /// Rotary tables.
    pub ropes: Vec<RopeTable>,
    /// States, which last from step to step.
    pub states: Vec<State>,
    /// Number of routings; each [`BucketId`] is below it.
    pub buckets: u32,
    /// Arena buffers.
    pub buffers: Vec<ArenaBuffer>,
    /// Bytes of the arena for [`Plan::max_tokens`].
    pub arena_bytes: u64,
    /// Kernels.
    pub kernels: Vec<K>,
    /// Steps.
    pub steps: Vec<Step>,
    /// Buffer with the result of a step: f32 `[L, n]`, one row for each requested output.
    pub logits: BufferId,
    /// Kind of the result.
    pub output: Output,
    /// Hidden states that the step takes with its tokens, in the plan of a draft layer.
    pub takes: Option<HiddenRows>,
    /// Hidden states of all tokens that the step gives in addition to the logits: the input of a
    /// draft layer.
    pub gives: Option<HiddenRows>,
    /// Ranges of steps that run separately and together make up all steps. Empty if all steps run
    /// as one.
    pub expert_layers: Vec<ExpertLayer>,
    /// Tokenizer and chat template, as the frontend encodes them.
    #[serde(with = "hex")]
    pub tokenizer: Vec<u8>,
}

impl<K> Plan<K> {
    /// Returns the bytes of all experts' blocks in the plan's own file. Returns `None` if the
    /// weights of some group are not in blocks.
    pub fn block_bytes(&self) -> Option<u64> {
        self.expert_groups.iter().try_fold(0u64, |sum, group| {
            match self.weights.get(*group.weights.first()? as usize)?.file {
                WeightFile::Blocks { stride } => sum.checked_add(stride.checked_mul(group.experts.into())?),
                _ => None,
            }
        })
    }

    /// Returns the plan with each kernel replaced by `f`.
    ///
    /// # Errors
    /// The first error of `f`.
    pub fn try_map_kernels<N, E>(self, f: impl FnMut(K) -> Result<N, E>) -> Result<Plan<N>, E> {
        Ok(Plan {
            kernels: self.kernels.into_iter().map(f).collect::<Result<_, E>>()?,
            architecture: self.architecture,
            target: self.target,
            max_tokens: self.max_tokens,
            context_length: self.context_length,
            vocabulary: self.vocabulary,
            files: self.files,
            derived: self.derived,
            weights: self.weights,
            own_weight_bytes: self.own_weight_bytes,
            expert_groups: self.expert_groups,
            ropes: self.ropes,
            states: self.states,
            buckets: self.buckets,
            buffers: self.buffers,
            arena_bytes: self.arena_bytes,
            steps: self.steps,
            logits: self.logits,
            output: self.output,
            takes: self.takes,
            gives: self.gives,
            expert_layers: self.expert_layers,
            tokenizer: self.tokenizer,
        })
    }
}
