//! The plan: everything that the runtime needs to run a model, except the weights' bytes, and no machine code. (A plan file may
//! have packed weights behind the plan.)
//!
//! A plan is a list of [`Step`]s. A step is one work list, shared by all threads, with a barrier after it, or small enough that with few rows
//! one thread does it at the barrier before. A work list comes
//! from [`Task`]s: a task runs one kernel for every item of its grid (columns times chunks of rows), and says where each of
//! the kernel's buffers lies for an item. `passes::schedule` makes a `Plan<KernelSpec>`; `ixc-kernels` replaces each spec by
//! kernel IR; the runtime verifies that and generates code when the plan is loaded.
//!
//! Example: the projection of 512 tokens on 2048 outputs by a `q4_k` weight is one task with 2048 / 32 columns and chunks of
//! up to 96 rows; its kernel takes `x` (row stride = a row of `a8_super`), `w` (column stride = 32 rows of `q4_k`) and `y`.
//!
//! Invariant: a plan names kernels' buffers only by [`Source`]; the runtime checks every item's slices against the
//! kernel's declared sizes, so that a wrong plan is an error and never a stray access.
//! Invariant: index buffers are fed from [`Input`]s alone, whose values the runtime has checked. What an index chose of a state is no index of a
//! kernel's, either: the runtime puts the chosen places one behind the other ([`Source::Chosen`]), and kernels read them as if there were no others.

mod choice;
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

/// Positions in a block of the KV cache that attention works on at a time; cache capacity is a multiple of it.
pub const ATTENTION_BLOCK: u32 = 32;
/// Positions that lie together in the key cache: keys are stored `[position / 16][d][position % 16]`, so that a vector lane is
/// a position and a score needs no horizontal sum. Values are stored `[position][dv]`. That is of f16; blocks lie as [`crate::cache`] says.
pub const KEY_LANES: u32 = 16;

/// How the positions before a token are divided into parts that are attended each on its own. It depends on the context alone and not on
/// threads, so that results do not either.
///
/// With parts enough for the whole context, each begins and ends at the same positions for every token: part `p` has blocks
/// `p * blocks .. (p + 1) * blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Division {
    /// Parts at most, at least 1.
    pub parts: u32,
    /// Blocks of [`ATTENTION_BLOCK`] positions of a part at least, at least 1.
    pub blocks: u32,
}

impl Division {
    /// For threads that share a token: as many as are worth combining.
    pub const THREADS: Division = Division { parts: 16, blocks: 8 };

    /// In how many parts so many blocks are attended, and the blocks of each but the last.
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

/// Row counts that are known when a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum RowCount {
    /// Tokens in this step.
    Tokens,
    /// Rows whose logits are wanted.
    Outputs,
    /// Tokens times experts per token.
    Routed {
        /// Experts per token.
        top_k: u32,
    },
}

/// Most rows of a step whose logits are wanted, however many tokens it has: a row of logits is as long as the vocabulary, and mostly one is
/// wanted. Of hidden states all may be ([`Output::most`]).
pub const MAX_OUTPUTS: u32 = 512;

impl RowCount {
    /// Rows of a step of so many tokens and wanted outputs at most.
    pub fn most(self, tokens: u32, outputs: u32) -> u64 {
        match self {
            RowCount::Tokens => tokens.into(),
            RowCount::Outputs => tokens.min(outputs).into(),
            RowCount::Routed { top_k } => u64::from(tokens) * u64::from(top_k),
        }
    }
}

/// What a step gives of the rows that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Logits `[L, vocabulary]`.
    Logits {
        /// The sampler's softmax over one row.
        softmax: KernelId,
    },
    /// Hidden states `[L, width]` behind the last norm, of which embeddings are made: a model without its output matrix.
    Hidden {
        /// Elements of a row.
        width: u32,
        /// How the rows of a text become one, where the model says it.
        pooling: Option<Pooling>,
        /// Whether vectors have length 1; otherwise they keep the length of what was pooled.
        unit: bool,
    },
    /// Nothing: it is no step of a model. Each of [`Plan::expert_layers`] is run on its own, on rows that come with their experts and weights.
    Experts {
        /// Elements of a row.
        width: u32,
    },
}

impl Output {
    /// Most rows that may be wanted of a step of so many tokens: [`MAX_OUTPUTS`] of logits, and all of what is no longer than the stream.
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
    /// Where they are.
    pub buffer: BufferId,
    /// Elements of a row.
    pub width: u32,
}

/// The id of an expert that is not computed here: a place in a row's ids that is somebody else's, or nobody's.
pub const NOBODY: i32 = -1;

/// The routed experts of one layer, which are run on their own: [`Output::Experts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLayer {
    /// The layer's number in the model.
    pub layer: u32,
    /// Its first step.
    pub first: u32,
    /// How many it has.
    pub steps: u32,
    /// What comes in: f32 `[T, n]`.
    pub rows: BufferId,
    /// Their experts: i32 `[T, used]`, [`NOBODY`] where one is not computed here.
    pub ids: BufferId,
    /// The experts' weights: f32 `[T, used]`.
    pub weights: BufferId,
    /// What comes out: f32 `[T, n]`, the sums over each row's experts.
    pub result: BufferId,
}

/// How the hidden states of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first token's.
    First,
    /// The last token's.
    Last,
}

impl Pooling {
    /// All of them, with the names that llama.cpp has for them.
    pub const ALL: [(&'static str, Pooling); 3] =
        [("mean", Pooling::Mean), ("cls", Pooling::First), ("last", Pooling::Last)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Pooling::ALL.iter().find(|(_, pooling)| *pooling == self).map_or("", |(name, _)| name)
    }
}

impl std::str::FromStr for Pooling {
    type Err = String;

    fn from_str(text: &str) -> Result<Pooling, String> {
        let found = Pooling::ALL.iter().find(|(name, _)| *name == text).map(|(_, pooling)| *pooling);
        let names = || Pooling::ALL.map(|(name, _)| name).join(", ");
        found.ok_or_else(|| format!("{text:?} is no pooling; right would be one of {}", names()))
    }
}

/// A buffer of the arena: `row_bytes` for each row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaBuffer {
    /// Name, for dumps.
    pub name: String,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// How many rows.
    pub rows: RowCount,
    /// Byte offset in the arena, sized for [`Plan::max_tokens`]; buffers whose lives do not meet may overlap.
    pub offset: u64,
}

/// Where a weight's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightFile {
    /// In one of [`Plan::files`].
    Source(u32),
    /// Behind the plan, in its own file; the offset counts from the first byte of the weights there.
    Plan,
    /// There, too, in blocks of a group of experts: the offset is that of the first expert's matrix, and each expert's lies `stride`
    /// bytes behind the one before.
    Blocks {
        /// Bytes from a block to the next.
        stride: u64,
    },
    /// One of [`Plan::derived`], whose bytes are made when they are read.
    Derived(u32),
}

/// A weight as kernels read it. Where [`PlanWeight::stored`] is [`PlanWeight::format`] they read it in place; otherwise it is
/// packed when they are needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanWeight {
    /// Tensor name.
    pub name: String,
    /// Format that kernels read.
    pub format: Format,
    /// Format in the file: the same, or what [`PlanWeight::format`] is packed from.
    pub stored: Format,
    /// Shape, outermost first.
    pub shape: Vec<u64>,
    /// Which file.
    pub file: WeightFile,
    /// Byte offset in the file.
    pub offset: u64,
    /// Length in the file, in bytes; what lies between its matrices in blocks is not counted.
    pub bytes: u64,
}

impl PlanWeight {
    /// Bytes of the file from its first to its last; `None` where they do not fit, or it lies in blocks and has no experts.
    pub fn span(&self) -> Option<u64> {
        let WeightFile::Blocks { stride } = self.file else { return Some(self.bytes) };
        let experts = *self.shape.first()?;
        let gaps = experts.checked_sub(1)?.checked_mul(stride)?;
        gaps.checked_add(self.bytes.checked_div(experts)?)
    }

    /// Whether loading has to pack it.
    pub fn is_packed_at_load(&self) -> bool {
        self.format != self.stored
    }

    /// Its length in a format; `None` where the shape is no whole blocks (and strips, in packed formats) of it, or too large.
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
    /// Path, absolute, or relative to the plan.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32 of the header: everything before the tensor data.
    pub header_crc: u32,
    /// Length of the header in bytes.
    pub header_bytes: u64,
}

/// Rows of a table that tokens name together, with those before them ([`crate::ngram`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ngram {
    /// The state that has the ids before a step, by position in [`Plan::states`].
    pub state: u32,
    /// How ids name a row.
    pub hash: crate::ngram::Hash,
}

/// Values that the runtime provides and has checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Input {
    /// Token id of each row, below the vocabulary.
    Tokens,
    /// Position of each row, as data (i32).
    Positions,
    /// Position of the last row that this step has of each row's sequence, as data (i32): up to there a row sees where attention is not causal.
    Ends,
    /// Position of each row and so many more, as data (i32), also beyond the row's text.
    Ahead(u32),
    /// Position / [`KEY_LANES`] of each row.
    PositionBlock,
    /// Position % [`KEY_LANES`] of each row.
    PositionLane,
    /// Place of each row's position among so many, 0 for the first.
    Phase(u32),
    /// How many times so many positions are whole at each row, its own included, as data (i32).
    Whole(u32),
    /// How many places are chosen for each row, as data (i32).
    Chosen(Choice),
    /// The number of the last of those, as data (i32).
    LastChosen(Choice),
    /// Row of a table that each row's token and those before it name together.
    Ngram(Ngram),
    /// Row of each wanted output.
    OutputRows,
    /// Token row of each routed row, in order of experts.
    RoutedToken(BucketId),
    /// Routed row of each token's slot: `[T][top_k]`.
    RoutedSlot(BucketId),
}

/// Where a kernel's buffer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Source {
    /// The arena.
    Arena(BufferId),
    /// A weight, by position in [`Plan::weights`].
    Weight(u32),
    /// A rotary table.
    Rope(u32),
    /// A field of a state. Of one with positions it is the item's column, from the first position of the item's part on, or where the field has one column and
    /// is only read, that one; else all of it.
    State {
        /// Position in [`Plan::states`].
        state: u32,
        /// Position in its fields.
        field: u32,
    },
    /// Of such a field the places that an index chose for the item's row, in their order and one behind the other, from the first place of the item's
    /// part on. Where they are all that the row could see, it is the field itself. An argument's column stride is from the bits of a column to the
    /// next one's, 0 where they are all columns'; it has no other.
    Chosen {
        /// Position in [`Plan::states`].
        state: u32,
        /// Position in its fields.
        field: u32,
        /// Where the index left a bit for each place, rows of tokens.
        marks: BufferId,
        /// How many of them it chose.
        choice: Choice,
    },
    /// The thread's scratch memory.
    Scratch,
    /// A checked input.
    Input(Input),
}

impl Source {
    /// The arena buffer that it is, or that says which places of a state it is.
    pub fn arena(self) -> Option<BufferId> {
        match self {
            Source::Arena(buffer) | Source::Chosen { marks: buffer, .. } => Some(buffer),
            Source::Weight(_) | Source::Rope(_) | Source::State { .. } | Source::Scratch | Source::Input(_) => None,
        }
    }
}

/// Where one of a kernel's buffers lies for an item: `source + offset + row * row_stride + column * column_stride +
/// expert * expert_stride`, in bytes, and where columns are in [`Bands`] `band * stride` behind that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arg {
    /// The memory.
    pub source: Source,
    /// Constant byte offset.
    pub offset: u64,
    /// Bytes from a row to the next; the row is the item's first, counted over the whole axis.
    pub row_stride: u64,
    /// Bytes from a column to the next.
    pub column_stride: u64,
    /// Bytes from an expert to the next.
    pub expert_stride: u64,
}

/// The rows of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RowAxis {
    /// Tokens of this step.
    Tokens,
    /// Wanted outputs.
    Outputs,
    /// Routed rows; chunks never cross experts, and experts without rows have no items.
    Routed(BucketId),
}

/// A kernel for a range of row counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// Used for row counts (of the axis, or of the expert) up to this; variants are in ascending order, the last has `u32::MAX`.
    pub up_to_rows: u32,
    /// Most rows of an item.
    pub row_chunk: u32,
    /// The kernel.
    pub kernel: KernelId,
    /// Its dims.
    pub dims: Vec<DimExpr>,
    /// Whether items are divided in parts.
    pub split: Option<Split>,
    /// How columns can be divided where they are too few.
    pub bands: Option<Bands>,
}

/// Columns of which each can be several items. A column is wide, so that what is read again stays in a cache, and few threads read long
/// stretches of memory. With few rows and many threads it is so much memory to read that one thread with a column more than the others
/// keeps all of them waiting. Then its *bands* are items. Which it is depends on the number of threads, and the results do not; tasks, their
/// arguments and other variants stay as they are.
///
/// A band is a column's slice, or part of a block that columns are whole blocks of: a kernel that writes the latter takes the number of
/// its band as a dim ([`DimInput::Band`]).
///
/// ```text
/// gate and up, 5632 rows     22 columns of 256 rows, as many as a block of a8_super has: 22 items
///                            in 8 bands: 176 items; weights 32 rows apart, the result 0 bytes apart, and which band is a dim
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bands {
    /// Bands of a column, at least 2.
    pub count: u32,
    /// The kernel of a band: its buffers are those of the task.
    pub kernel: KernelId,
    /// Its dims.
    pub dims: Vec<DimExpr>,
    /// Bytes from a band to the next, for each of the task's arguments: 0 where all bands of a column have the same memory.
    pub strides: Vec<u64>,
}

impl Variant {
    /// Its kernels: that of a column, and that of a band.
    pub fn kernels(&self) -> impl Iterator<Item = KernelId> + '_ {
        [self.kernel].into_iter().chain(self.bands.iter().map(|bands| bands.kernel))
    }
}

/// What the parts of an item leave for the kernel that combines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Leaves {
    /// Each part as much as every other.
    Result,
    /// A word of 32 bits for each place of its blocks: together they are those of all places.
    Words,
}

impl Leaves {
    /// Bytes that a block of places leaves as words.
    pub const WORDS_OF_BLOCK: u64 = ATTENTION_BLOCK as u64 * 4;
}

/// Items that are divided by the positions before them: each part is an item of its own, of one row, whose kernel writes
/// memory of the runtime's in place of one of the task's arguments. Whoever finishes the last part of a row and column
/// combines them, in the order of the positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// The task's argument that `combine` writes.
    pub argument: u32,
    /// Division of the places that a row sees.
    pub division: Division,
    /// Positions that share a place, at least 1.
    pub every: u32,
    /// What a part leaves.
    pub leaves: Leaves,
    /// The kernel that combines the parts to the result, such as `attention_combine`. Its buffers are the parts, one behind the other, that argument and
    /// scratch; its dim is the number of parts, or of blocks.
    pub combine: KernelId,
    /// In plans for grids of processing elements: the kernel that combines one slice of the parts to that slice of the result, with the bits of
    /// `combine`. It has the buffers and dims of `combine`, in smaller sizes. Engines check the number of its dims and its access to each buffer,
    /// and have no other use for it.
    pub alone: Option<KernelId>,
}

/// One kernel over a grid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// What it computes, for dumps and statistics: the graph op's mnemonic and weight, such as `linear blk.0.attn_output`.
    pub label: String,
    /// Rows of the grid.
    pub rows: RowAxis,
    /// Columns of the grid.
    pub columns: u32,
    /// Kernels by row count.
    pub variants: Vec<Variant>,
    /// The kernels' buffers, in the order in which their IR has them; the same for all variants. A kernel of fewer buffers has the first ones.
    pub args: Vec<Arg>,
}

/// A step: a barrier follows it, unless one thread does it alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// One work list from these tasks, which do not depend on each other.
    Run {
        /// The tasks.
        tasks: Vec<Task>,
        /// Up to so many rows of a step (tokens, or wanted outputs where all tasks are over those) it is less work to do all of it than to meet
        /// once more: the thread that comes last to the barrier before does it there, alone, and what follows that is such a step too, before it
        /// lets the others go on. With more rows it is a step like any other. 0 for what is always shared (where there are rows).
        alone: u32,
    },
    /// Sorts the rows of a routing by expert: fills the inputs of `bucket` from `top_k` ids of each token, each checked to be an expert, or
    /// [`NOBODY`] where that may be.
    Bucket {
        /// The routing.
        bucket: BucketId,
        /// Where `route` left the ids: as many for each token as the buffer's rows hold.
        ids: BufferId,
        /// The first of them that belongs to this routing.
        first: u32,
        /// Experts per token.
        top_k: u32,
        /// Number of experts.
        experts: u32,
        /// Whether a slot may be [`NOBODY`]'s: it has no routed row, and weighs 0. Slots of layers that are run on their own always may.
        nobody: bool,
    },
    /// Asks for the blocks of the experts that a routing names, all at once. A [`Step::Release`] of the group follows before any other
    /// request; tasks that read the group's weights stand between the two, over the rows of that routing. A group may be requested
    /// again after that, by another routing. Does nothing where all experts are in memory, as the next two do.
    Request {
        /// Position in [`Plan::expert_groups`].
        group: u32,
        /// The routing, sorted before.
        bucket: BucketId,
    },
    /// Says which blocks a group's request will probably name.
    Predict {
        /// Position in [`Plan::expert_groups`].
        group: u32,
        /// Where the ids are: as many for each token as the buffer's rows hold. Those that are no experts are passed over.
        ids: BufferId,
        /// The first of them that is meant, the likeliest.
        first: u32,
        /// Experts for each token.
        count: u32,
    },
    /// Ends what [`Step::Request`] began: the group's blocks may be given up.
    Release {
        /// Position in [`Plan::expert_groups`].
        group: u32,
    },
}

/// Experts whose matrices are loaded together, as *blocks*: one expert's matrix of each of these weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroup {
    /// Number of experts, the outermost dimension of each weight.
    pub experts: u32,
    /// Weights, by position in [`Plan::weights`], in the order in which they lie in a block. Each is in one group.
    pub weights: Vec<u32>,
}

/// A plan, with kernels as specs (`K = KernelSpec`) or as IR (`K = Kernel`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan<K> {
    /// Architecture's name, for people.
    pub architecture: String,
    /// Target that the kernels were generated for.
    pub target: String,
    /// Most tokens of a step; longer prompts take several.
    pub max_tokens: u32,
    /// Context length that the model was made for.
    pub context_length: u32,
    /// Vocabulary.
    pub vocabulary: u32,
    /// Model files.
    pub files: Vec<SourceFile>,
    /// Tensors that are made of parts of those.
    pub derived: Vec<Derived>,
    /// Weights.
    pub weights: Vec<PlanWeight>,
    /// Bytes of the weights behind the plan in its own file, 0 where there are none.
    pub own_weight_bytes: u64,
    /// Experts that need not be in memory all at once; none where all of them are to be.
    pub expert_groups: Vec<ExpertGroup>,
    /// Rotary tables.
    pub ropes: Vec<RopeTable>,
    /// What lasts from step to step.
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
    /// Where what a step gives is: f32 `[L, n]`, a row for each that is wanted.
    pub logits: BufferId,
    /// What it is.
    pub output: Output,
    /// Hidden states that come in with the tokens, where a step takes some: of a layer that guesses.
    pub takes: Option<HiddenRows>,
    /// Hidden states that a step gives of all its tokens, beside logits of those that are wanted: what such a layer takes.
    pub gives: Option<HiddenRows>,
    /// Parts that are run on their own, one behind the other, of all steps; none where all steps are one.
    pub expert_layers: Vec<ExpertLayer>,
    /// Tokenizer and chat template, as the frontend encodes them.
    #[serde(with = "hex")]
    pub tokenizer: Vec<u8>,
}

impl<K> Plan<K> {
    /// Bytes that the blocks of all experts take in the plan's own file; nothing where those of some group are in no blocks.
    pub fn block_bytes(&self) -> Option<u64> {
        self.expert_groups.iter().try_fold(0u64, |sum, group| {
            match self.weights.get(*group.weights.first()? as usize)?.file {
                WeightFile::Blocks { stride } => sum.checked_add(stride.checked_mul(group.experts.into())?),
                _ => None,
            }
        })
    }

    /// The same plan with other kernels.
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
