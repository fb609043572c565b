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
//! Example: the projection of 512 tokens on 2048 outputs by a `q4_k` weight is one task. The grid
//! has 2048 / 32 columns and chunks of up to 96 rows. Its kernel takes `x` (row stride = a row of
//! `a8_super`), `w` (column stride = 32 rows of `q4_k`) and `y`.
//!
//! Invariant: a plan names kernels' buffers only by [`Source`]. The runtime checks every item's
//! slices against the kernel's declared sizes, so a wrong plan is an error and never a stray
//! access.
//!
//! Invariant: index buffers take their values from [`Input`]s alone, which the runtime has checked.
//! The places that an index op chose in a state are no exception. The runtime copies them into
//! contiguous memory ([`Source::Chosen`]), and kernels read them without indices.

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

/// Positions in a block of the KV cache, the unit of attention. The cache's capacity is a multiple
/// of it.
pub const ATTENTION_BLOCK: u32 = 32;
/// Positions that the key cache interleaves. In f16, keys are stored `[position / 16][d][position %
/// 16]`, so a vector lane is a position and a score needs no horizontal sum. Values are stored
/// `[position][dv]`. [`crate::cache`] describes the layout of other formats.
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
    /// Division for threads that share a token. With more or smaller parts, combining them would
    /// cost more than it saves.
    pub const THREADS: Division = Division { parts: 16, blocks: 8 };

    /// Returns the number of parts for `blocks` blocks, and the number of blocks in each part but
    /// the last.
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
    /// Number computed from each row's position.
    Row(RowInput),
    /// Row of an n-gram table for each row's token and the tokens before it.
    Ngram(Ngram),
    /// Row of each requested output.
    OutputRows,
    /// Token row of each routed row, in order of experts.
    RoutedToken(BucketId),
    /// Routed row of each token's slot: `[T][top_k]`.
    RoutedSlot(BucketId),
}

impl Input {
    /// Returns the routing whose rows the input lists.
    pub fn bucket(self) -> Option<BucketId> {
        match self {
            Input::RoutedToken(bucket) | Input::RoutedSlot(bucket) => Some(bucket),
            Input::Tokens | Input::Row(_) | Input::Ngram(_) | Input::OutputRows => None,
        }
    }
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
        /// Position in the state's fields.
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
        /// Position in the state's fields.
        field: u32,
        /// Buffer with one bit for each place, in rows of tokens, written by the index op.
        marks: BufferId,
        /// Number of places that the index op chose.
        choice: PositionChoice,
    },
    /// The thread's scratch memory.
    Scratch,
    /// A checked input.
    Input(Input),
}

impl From<RowInput> for Source {
    fn from(input: RowInput) -> Source {
        Source::Input(Input::Row(input))
    }
}

impl Source {
    /// Returns the number that the source has for each row, if it is computed from the row's
    /// position.
    pub fn row_input(self) -> Option<RowInput> {
        match self {
            Source::Input(Input::Row(input)) => Some(input),
            _ => None,
        }
    }

    /// Returns the arena buffer that the source reads: the buffer itself, or the bits that choose
    /// places.
    pub fn arena(self) -> Option<BufferId> {
        match self {
            Source::Arena(buffer) | Source::Chosen { marks: buffer, .. } => Some(buffer),
            Source::Weight(_) | Source::Rope(_) | Source::State { .. } | Source::Scratch | Source::Input(_) => None,
        }
    }
}

/// Experts whose matrices are loaded together, as *blocks*. A block has the matrices of one expert
/// from all of these weights.
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
    /// Tensors that are computed from parts of those files.
    pub derived: Vec<Derivation>,
    /// Weights.
    pub weights: Vec<PlanWeight>,
    /// Bytes of the weights after the plan in the plan's file, or 0.
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
    /// Hidden states of all tokens that the step returns in addition to the logits: the input of a
    /// draft layer.
    pub gives: Option<HiddenRows>,
    /// Ranges of steps that run separately and together make up all steps. Empty if all steps run
    /// as one.
    pub expert_layers: Vec<ExpertLayer>,
    /// Part of the model that the plan computes. `None` if it computes the whole model.
    pub ranks: Option<Ranks>,
    /// Tokenizer and chat template, as the frontend encodes them.
    #[serde(with = "hex")]
    pub tokenizer: Vec<u8>,
}

impl<K> Plan<K> {
    /// Returns the number of bytes of all experts' blocks in the plan's own file. Returns `None` if
    /// the weights of some group are not in blocks.
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
            ranks: self.ranks,
            tokenizer: self.tokenizer,
        })
    }
}
