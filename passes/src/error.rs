//! Errors of passes.

use ixc_failure::Class;
use ixc_ir::format::Format;
use ixc_ir::graph::Group;
use ixc_ir::graph::interpret::SourceError;
use ixc_ir::graph::rewrite::RewriteError;
use ixc_ir::graph::types::TypeError;
use ixc_ir::graph::verify::VerifyError;
use ixc_ir::units::count_text;
use ixc_kernels::attention::Refusal;
use ixc_kernels::generator::signature::BindError;
use ixc_kernels::tiling::TilingError;

use crate::options::OptionError;

/// Reason why a pipeline failed.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// No pass has this name.
    #[error("there is no pass {name:?}; the passes are {}", known.join(", "))]
    Unknown {
        /// The unknown name.
        name: String,
        /// Names of all passes.
        known: Vec<&'static str>,
    },
    /// The input of the pass does not verify.
    #[error("the module does not verify: {0}")]
    Input(#[source] Box<VerifyError>),
    /// The output of the pass does not verify: a bug in the pass.
    #[error("after pass {pass} the module does not verify: {error}")]
    Output {
        /// Name of the pass.
        pass: &'static str,
        /// The failed check.
        #[source]
        error: Box<VerifyError>,
    },
    /// The pass takes another kind of IR.
    #[error("pass {pass} expected {expected}, but found {found}")]
    Kind {
        /// Name of the pass.
        pass: &'static str,
        /// Kind of IR that the pass takes.
        expected: &'static str,
        /// Kind of IR that the pass got.
        found: &'static str,
    },
    /// The last pass returned another kind of IR than the caller expects.
    #[error("the last pass returned {found}; expected {expected}")]
    Left {
        /// Kind of IR that the caller expects.
        expected: &'static str,
        /// Kind of IR that the pass left.
        found: &'static str,
    },
    /// A pass needs properties of the model that its graph does not contain.
    #[error("pass {pass} needs a model: its weight files and its tokenizer")]
    NoModel {
        /// Name of the pass.
        pass: &'static str,
    },
    /// An option that no pass has, or an invalid value of an option.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// A graph that cannot be divided among ranks.
    #[error(transparent)]
    Shard(Box<ShardError>),
    /// A rewrite whose result is not a valid function.
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
    /// A weight's products cannot be divided into items as requested.
    #[error(transparent)]
    Tile(#[from] TileError),
    /// A plan is impossible.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Heads of keys or values whose width is not a multiple of the format's block length.
    #[error(
        "the {field} of @{state} have heads of {width} elements, which are not a multiple of the {format} block of {} elements; f16 works for any width",
        format.block_len()
    )]
    Head {
        /// Name of the state.
        state: String,
        /// Word for the field: keys or values.
        field: &'static str,
        /// Number of elements of a head.
        width: u64,
        /// Format of the field.
        format: Format,
    },
    /// A request to defer experts of a model without experts.
    #[error("cannot defer {} of a token: the model has no experts", count_text((*deferred).into(), "expert"))]
    NoExperts {
        /// Number of experts to defer.
        deferred: u32,
    },
    /// A token would have no expert in its own layer.
    #[error("cannot defer {} of a token: a token uses {top_k}, so at most {} can be deferred", count_text((*deferred).into(), "expert"), top_k.saturating_sub(1))]
    Deferred {
        /// Number of experts to defer.
        deferred: u32,
        /// Number of experts of each token.
        top_k: u64,
    },
    /// A value is used before an op defines it.
    #[error("function @{function}: value {value} is used before it is defined")]
    Undefined {
        /// Name of the function.
        function: String,
        /// Number of the value.
        value: u32,
    },
}

impl From<ShardError> for PassError {
    fn from(error: ShardError) -> PassError {
        PassError::Shard(Box::new(error))
    }
}

impl PassError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            PassError::Option(error) => error.class(),
            PassError::Tile(error) => error.class(),
            PassError::Shard(error) => error.class(),
            PassError::Schedule(error) => error.class(),
            PassError::Unknown { .. }
            | PassError::NoModel { .. }
            | PassError::Head { .. }
            | PassError::NoExperts { .. }
            | PassError::Deferred { .. } => Class::Usage,
            PassError::Input(_)
            | PassError::Output { .. }
            | PassError::Kind { .. }
            | PassError::Left { .. }
            | PassError::Rewrite(_)
            | PassError::Undefined { .. } => Class::Data,
        }
    }
}

/// Reason why a plan is impossible.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    /// A function that does not compute a layer's experts.
    #[error(
        "function @{name}: {problem}; expected @experts.N(x: f32[T, n], ids: i32[T, k], p: f32[T, k]) -> (f32[T, n])"
    )]
    Layer {
        /// Name of the function.
        name: String,
        /// Description of the problem.
        problem: String,
    },
    /// The module has no suitable function `@step`.
    #[error(
        "cannot make a plan: {problem}; expected @step(ids: i32[T], pos: i32[T], rows: i32[L]) -> (f32[L, vocabulary]), which may also take or return hidden: f32[T, n]"
    )]
    Step {
        /// The requirement that is not met.
        problem: String,
    },
    /// No kernel supports the op.
    #[error("{op}: no kernel supports this: {problem}")]
    Unsupported {
        /// The op's mnemonic.
        op: &'static str,
        /// The unsupported property, and the supported ones.
        problem: String,
    },
    /// No candidate accepts an op's request.
    #[error("{op}: no kernel supports this: {}", join_refusals(refusals))]
    NoKernel {
        /// The op's mnemonic.
        op: &'static str,
        /// Each candidate with the reason against it.
        refusals: Vec<Refusal>,
    },
    /// The schedule gives a kernel other arguments than the kernel takes.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A weight of a product has no tiling.
    #[error("weight @{name} has no tiling; run the pass `tile` first")]
    NotTiled {
        /// Name of the weight.
        name: String,
    },
    /// The `tile` attribute of a weight does not fit the weight's products.
    #[error("weight @{name}: tile = {tile:?}: {error}")]
    Tiling {
        /// Name of the weight.
        name: String,
        /// The attribute's value.
        tile: String,
        /// Reason why it does not fit.
        error: TilingError,
    },
    /// Tasks read from text that `lower` does not write.
    #[error("the tasks have {problem}")]
    Draft {
        /// Description of the problem with the tasks.
        problem: String,
    },
    /// A number of the plan is too large.
    #[error("too large for a plan: {what} = {value}; expected at most {limit}")]
    TooLarge {
        /// Name of the number.
        what: String,
        /// Value of the number, as text because it may exceed 64 bits.
        value: String,
        /// Max value that the number may have.
        limit: u64,
    },
    /// The module's text gives no location in a file for a weight.
    #[error("weight @{name} has no location in a file; expected {{file = N, offset = N}}")]
    NoPlace {
        /// Name of the weight.
        name: String,
    },
    /// A weight extends beyond its file.
    #[error("weight @{name} has {bytes} bytes at {offset} of file {file}, which has only {available} bytes")]
    Place {
        /// Name of the weight.
        name: String,
        /// Number of the file.
        file: u32,
        /// Byte offset of the weight in the file.
        offset: u64,
        /// Length of the weight in bytes.
        bytes: u64,
        /// Bytes of the file; 0 if the file does not exist.
        available: u64,
    },
    /// A weight that the plan itself needs could not be read.
    #[error("weight @{name} cannot be read: {error}")]
    Weight {
        /// Name of the weight.
        name: String,
        /// Reason why it cannot be read.
        error: SourceError,
    },
}

/// Joins refusals into one text for a message.
fn join_refusals(refusals: &[Refusal]) -> String {
    refusals.iter().map(Refusal::to_string).collect::<Vec<_>>().join("; ")
}

impl ScheduleError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            ScheduleError::Layer { .. }
            | ScheduleError::Step { .. }
            | ScheduleError::Unsupported { .. }
            | ScheduleError::NoKernel { .. }
            | ScheduleError::Bind(_)
            | ScheduleError::NotTiled { .. }
            | ScheduleError::Tiling { .. }
            | ScheduleError::Draft { .. }
            | ScheduleError::TooLarge { .. }
            | ScheduleError::NoPlace { .. }
            | ScheduleError::Place { .. }
            | ScheduleError::Weight { .. } => Class::Data,
        }
    }
}

/// Reason why a weight cannot have a tiling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TileError {
    /// A pattern that no weight matches.
    #[error("no weight of a product matches {pattern:?}; the weights are {known}")]
    NoWeight {
        /// Pattern without a match.
        pattern: String,
        /// Some of the existing weight names.
        known: String,
    },
    /// A tuned choice that is not among the weight's candidates.
    #[error(
        "{choice:?} is not a candidate of @{name}, whose tiling is {own}: tune the weight again, or remove it from the file of tuned choices"
    )]
    Tuned {
        /// Name of the weight.
        name: String,
        /// Tuned choice, as text.
        choice: String,
        /// Tiling chosen from the cache sizes.
        own: String,
    },
    /// A requested tiling that is not among the weight's candidates.
    #[error("weight @{name} cannot have the tiling {asked}; its candidates are {candidates}")]
    NoCandidate {
        /// Name of the weight.
        name: String,
        /// The requested tiling, as text.
        asked: String,
        /// The candidates of the weight.
        candidates: String,
    },
}

impl TileError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            TileError::NoWeight { .. } | TileError::Tuned { .. } | TileError::NoCandidate { .. } => Class::Usage,
        }
    }
}

/// Reason why a graph cannot be divided among ranks.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// A rank that is not below the number of ranks, or too many ranks.
    #[error(
        "shard.rank is {rank} of {ranks} ranks; expected a rank below the ranks, which are at most {}",
        Group::MAX_RANKS
    )]
    Rank {
        /// Number of the rank.
        rank: u32,
        /// Number of ranks.
        ranks: u32,
    },
    /// A function without any op that the division can cut.
    #[error("function @{function} cannot be divided among ranks by {}: {problem}", by)]
    Function {
        /// Name of the function.
        function: String,
        /// Name of the division.
        by: &'static str,
        /// The problem, and the expectation.
        problem: String,
    },
    /// An op that the division cannot cut.
    #[error("function @{function} cannot be divided among ranks by {}: {op} of {operand}: {problem}", by)]
    Op {
        /// Name of the function.
        function: String,
        /// Name of the division.
        by: &'static str,
        /// Mnemonic of the op.
        op: &'static str,
        /// Weight or value of the op, as a name.
        operand: String,
        /// The problem, and the expectation.
        problem: String,
    },
    /// An op of the rank's graph whose type rule rejects its operands.
    #[error("function @{function} cannot be divided among ranks: {error}")]
    Type {
        /// Name of the function.
        function: String,
        /// Error of the type rule.
        #[source]
        error: TypeError,
    },
}

impl ShardError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            ShardError::Rank { .. } | ShardError::Function { .. } | ShardError::Op { .. } => Class::Usage,
            ShardError::Type { .. } => Class::Data,
        }
    }
}
