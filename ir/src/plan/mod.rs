//! The plan: all data that the runtime needs to run a model, except the bytes of weights and
//! machine code. A plan file may contain packed weights after the plan.
//!
//! A plan is a list of [`Step`]s. A step is one work list that all threads share, followed by a
//! barrier. If a step has few rows and little work, a single thread runs it at the barrier before
//! it ([`Step::Run`]).
//!
//! A work list consists of the items of [`Task`]s. A task runs one kernel for every item of its
//! grid: columns times chunks of rows. It also gives the address of each of the kernel's buffers
//! for each item. `passes::schedule` makes a `Plan<KernelSpec>`. `ixc-kernels` replaces each spec
//! by kernel IR. When the plan is loaded, the runtime verifies the IR and generates code.
//!
//! Example: the projection of 512 tokens to 2048 outputs by a `q4_k` weight is one task. The grid
//! has 2048 / 32 columns and chunks of up to 96 rows. Its kernel has the buffers `x` (row stride: a
//! row of `a8_super`), `w` (column stride: 32 rows of `q4_k`) and `y`.
//!
//! Invariant: a plan refers to memory only by [`Source`]s. The runtime checks every item's slices
//! against the sizes that the kernel declares. A wrong plan is therefore an error, and never an
//! access outside of a buffer.
//!
//! Invariant: the values of index buffers are [`Input`]s, which the runtime has checked. The places
//! that an index op chose in a state are not an exception. The runtime copies their data into
//! contiguous memory ([`Source::Chosen`]), which kernels read without indices.

mod choice;
pub mod decode;
pub mod dim;
mod hex;
mod output;
pub mod print;
mod ranks;
mod rope;
mod row_input;
mod state;
mod task;
mod weight;

use serde::{Deserialize, Serialize};

use crate::derived::Derivation;

pub use choice::{CHOSEN_BLOCK, ChoiceUnit, PositionChoice};
pub use dim::{DimError, DimExpr, DimInput};
pub use output::{ExpertLayer, HiddenRows, NO_EXPERT, Output, Pooling};
pub use ranks::{Exchange, Halves, MAX_RANKS, RankDivision, Ranks, adds_in_pieces};
pub use rope::{LongFrequencies, RopeTable, Temperature};
pub use row_input::{RowBase, RowInput, RowInputError, RowPosition};
pub use state::{State, StateField};
pub use task::{Arg, Bands, Leaves, RowAxis, Split, Step, Task, Variant};
pub use weight::{PlanWeight, WeightFile};

/// First bytes of a plan file.
pub const FILE_MAGIC: [u8; 8] = *b"IXCPLAN\n";

/// Number of positions in a block of the KV cache. Attention divides its work into such blocks, and
/// the cache's capacity is a multiple of it.
pub const ATTENTION_BLOCK: u32 = 32;
/// Number of positions that the key cache interleaves. In f16, keys are stored as
/// `[position / 16][d][position % 16]`, so that each vector lane is a position and scores need no
/// horizontal sum. Values are stored as `[position][dv]`. [`crate::cache`] describes the layout of
/// quantised formats.
pub const KEY_LANES: u32 = 16;

/// A rule that divides the positions before a token into parts, which attention processes
/// separately. The division depends only on the context, and not on the number of threads. Results
/// therefore do not depend on that number either.
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
    /// Division for several threads that work on one token. With more parts, or smaller ones, the
    /// combination of their results would cost more time than they save.
    pub const THREADS: Division = Division { parts: 16, blocks: 8 };

    /// Returns the number of parts for `blocks` blocks, and the number of blocks in each part
    /// except the last.
    ///
    /// ```
    /// use ixc_ir::plan::Division;
    ///
    /// assert_eq!(Division::THREADS.divide(7), (1, 8));
    /// assert_eq!(Division::THREADS.divide(256), (16, 16));
    /// assert_eq!(Division::THREADS.divide(257), (16, 17));
    /// ```
    pub fn divide(self, blocks: u32) -> (u32, u32) {
        let each = blocks.div_ceil(self.parts.max(1)).max(self.blocks).max(1);
        (blocks.div_ceil(each).max(1), each)
    }
}

/// Index of an arena buffer in [`Plan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BufferId(pub u32);

/// Index of a kernel in [`Plan::kernels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KernelId(pub u32);

/// A routing of tokens to experts: the routed rows of one `route` op, sorted by expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BucketId(pub u32);

/// Number of rows, which is known when a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum RowCount {
    /// Tokens in this step.
    Tokens,
    /// Output rows of the step: those whose logits are requested.
    Outputs,
    /// Routed rows: one for each token and each of its experts.
    Routed {
        /// Number of experts per token.
        top_k: u32,
    },
}

/// Maximum number of rows of a step whose logits can be requested. A row of logits is as long as
/// the vocabulary, and most steps need only one row. Steps that return hidden states have no such
/// limit ([`Output::most`]).
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

/// A buffer of the arena, with `row_bytes` bytes for each row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaBuffer {
    /// Name, shown in dumps.
    pub name: String,
    /// Number of bytes of a row.
    pub row_bytes: u64,
    /// Number of rows.
    pub rows: RowCount,
    /// Byte offset in the arena. Offsets are computed for [`Plan::max_tokens`]. Buffers may overlap
    /// if their lifetimes are disjoint.
    pub offset: u64,
}

/// A model file from which the plan was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourceFile {
    /// Path of the file: absolute, or relative to the plan's folder.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32 of the file's header: all bytes before the tensor data.
    pub header_crc: u32,
    /// Length of the header in bytes.
    pub header_bytes: u64,
}

/// Row lookup by the last few tokens of a sequence together ([`crate::ngram`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ngram {
    /// Index in [`Plan::states`] of the state with the ids before the step.
    pub state: u32,
    /// Hash from token ids to a row of the table.
    pub hash: crate::ngram::Hash,
}

/// Data for each row that the runtime computes and checks, and passes to kernels as a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Input {
    /// Token id of each row, below the vocabulary size.
    Tokens,
    /// Number that is computed from each row's position.
    Row(RowInput),
    /// Row of an n-gram table, for each row's token and the tokens before it.
    Ngram(Ngram),
    /// Row index of each requested output.
    OutputRows,
    /// Row index of the token of each routed row, in the order of experts.
    RoutedToken(BucketId),
    /// Routed row of each slot of each token: `[T][top_k]`.
    RoutedSlot(BucketId),
}

impl Input {
    /// Returns the routing that the input belongs to, or `None`.
    pub fn bucket(self) -> Option<BucketId> {
        match self {
            Input::RoutedToken(bucket) | Input::RoutedSlot(bucket) => Some(bucket),
            Input::Tokens | Input::Row(_) | Input::Ngram(_) | Input::OutputRows => None,
        }
    }
}

/// Memory in which a kernel's buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Source {
    /// A buffer of the arena.
    Arena(BufferId),
    /// A weight, an index into [`Plan::weights`].
    Weight(u32),
    /// A rotary table, an index into [`Plan::ropes`].
    Rope(u32),
    /// A field of a state. If the field has positions, the buffer is the item's column, from the
    /// first position of the item's part of the context on. If the field has a single column that
    /// is only read, every item gets that column. If the field has no positions, the buffer is the
    /// whole field.
    State {
        /// Index in [`Plan::states`].
        state: u32,
        /// Index in the state's fields.
        field: u32,
    },
    /// Places of a state's field that an index op chose for the item's row. Their data are
    /// contiguous and in ascending order, from the first place of the item's part on. If all
    /// visible places are chosen, the buffer is the field itself. The column stride of the argument
    /// is the distance between the bits of two columns, or 0 if all columns share their bits. The
    /// argument has no other stride.
    Chosen {
        /// Index in [`Plan::states`].
        state: u32,
        /// Index in the state's fields.
        field: u32,
        /// Buffer that the index op writes. It has one row of bits for each token, with one bit for
        /// each place.
        marks: BufferId,
        /// Number of places that the index op chose.
        choice: PositionChoice,
    },
    /// Scratch memory of the thread.
    Scratch,
    /// Data that the runtime computes and checks.
    Input(Input),
}

impl From<RowInput> for Source {
    fn from(input: RowInput) -> Source {
        Source::Input(Input::Row(input))
    }
}

impl Source {
    /// Returns the number that a kernel gets for each row, if it is computed from the row's
    /// position. Otherwise returns `None`.
    pub fn row_input(self) -> Option<RowInput> {
        match self {
            Source::Input(Input::Row(input)) => Some(input),
            _ => None,
        }
    }

    /// Returns the arena buffer that the source depends on: the buffer itself, or the bits that
    /// choose places.
    pub fn arena(self) -> Option<BufferId> {
        match self {
            Source::Arena(buffer) | Source::Chosen { marks: buffer, .. } => Some(buffer),
            Source::Weight(_) | Source::Rope(_) | Source::State { .. } | Source::Scratch | Source::Input(_) => None,
        }
    }
}

/// Experts whose matrices are loaded together, as *blocks*. A block has one expert's matrices of
/// all weights of the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroup {
    /// Number of experts, which is the outermost dimension of each weight.
    pub experts: u32,
    /// Weights, as indices into [`Plan::weights`], in the order of their matrices in a block. Each
    /// weight is in only one group.
    pub weights: Vec<u32>,
}

/// A plan, with kernels as specs (`K = KernelSpec`) or as IR (`K = Kernel`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan<K> {
    /// Name of the architecture, shown to users.
    pub architecture: String,
    /// Name of the target that the kernels were generated for.
    pub target: String,
    /// Maximum number of tokens of a step. Longer prompts take several steps.
    pub max_tokens: u32,
    /// Context length that the model was trained for.
    pub context_length: u32,
    /// Size of the vocabulary: the number of different tokens.
    pub vocabulary: u32,
    /// Model files that contain the weights.
    pub files: Vec<SourceFile>,
    /// Tensors that are computed from data of those files.
    pub derived: Vec<Derivation>,
    /// Weights.
    pub weights: Vec<PlanWeight>,
    /// Number of bytes of the weights that the plan's own file has after the plan, or 0.
    pub own_weight_bytes: u64,
    /// Groups of experts that may be loaded on demand. Empty if all experts stay in memory.
    pub expert_groups: Vec<ExpertGroup>,
    /// Rotary tables.
    pub ropes: Vec<RopeTable>,
    /// States, which last from step to step.
    pub states: Vec<State>,
    /// Number of routings. The index of each [`BucketId`] is below it.
    pub buckets: u32,
    /// Arena buffers.
    pub buffers: Vec<ArenaBuffer>,
    /// Number of bytes of the arena for [`Plan::max_tokens`] tokens.
    pub arena_bytes: u64,
    /// Kernels that the tasks run.
    pub kernels: Vec<K>,
    /// Steps, in the order of execution.
    pub steps: Vec<Step>,
    /// Buffer with the result of a step: f32 `[L, n]`, with one row for each requested output.
    pub logits: BufferId,
    /// Kind of the step's result.
    pub output: Output,
    /// Hidden states that a step takes in addition to its tokens, for the plan of a draft layer.
    pub takes: Option<HiddenRows>,
    /// Hidden states of all tokens that the step returns in addition to the logits: the input of a
    /// draft layer.
    pub gives: Option<HiddenRows>,
    /// Ranges of steps that run separately, one for each layer with experts. Together they are all
    /// steps of the plan. Empty if all steps run as one.
    pub expert_layers: Vec<ExpertLayer>,
    /// Part of the model that this plan computes, if several ranks share the model. `None` for the
    /// whole model.
    pub ranks: Option<Ranks>,
    /// Tokenizer and chat template, in the frontend's encoding.
    #[serde(with = "hex")]
    pub tokenizer: Vec<u8>,
}

impl<K> Plan<K> {
    /// Returns the number of bytes of the blocks of all experts in the plan's own file. Returns
    /// `None` if the weights of some group are not stored in blocks.
    pub fn block_bytes(&self) -> Option<u64> {
        self.expert_groups.iter().try_fold(0u64, |sum, group| {
            match self.weights.get(*group.weights.first()? as usize)?.file {
                WeightFile::Blocks { stride } => sum.checked_add(stride.checked_mul(group.experts.into())?),
                _ => None,
            }
        })
    }

    /// Returns the plan with each kernel converted by `f`.
    ///
    /// # Errors
    /// Returns the first error of `f`.
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
            ranks: self.ranks,
            tokenizer: self.tokenizer,
        })
    }
}
