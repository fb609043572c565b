//! Errors of a pass (the execution of a plan's stages in one step).

use std::time::Duration;

use ixc_emulator::Fault;
use ixc_failure::Class;
use ixc_files::changed::ChangedFile;
use ixc_ir::kernel::interpret::InterpretError;
use ixc_ir::plan::DimError;
use ixc_transport::TransportError;

use crate::expert_sort::BadExpert;
use crate::pool::PoolError;
use crate::storage::blocks::BlockError;
use crate::streaming::StreamError;

/// The reason why a pass failed. Its results must not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecuteError {
    /// A kernel call for a work item failed its check.
    #[error(transparent)]
    Item(Box<ItemError>),
    /// A router chose an expert that does not exist.
    #[error(transparent)]
    Expert(#[from] BadExpert),
    /// A model file changed while the engine uses it.
    #[error(transparent)]
    Changed(#[from] ChangedFile),
    /// An expert cannot be read from the drive.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A streamed block of an expert is damaged.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// An exchange with other ranks failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The plan is that of one rank of several, but there is no connection to the other ranks.
    #[error("the plan is the part of one rank, but there is no connection to the other ranks")]
    NoRanks,
    /// The step exceeded its time limit.
    #[error("the step exceeded its time limit of {} s", limit.as_secs_f64())]
    Deadline {
        /// Time limit of the step.
        limit: Duration,
    },
    /// A thread panicked, which is a bug.
    #[error("a thread panicked: {message}; this is a bug")]
    Panic {
        /// The panic's message.
        message: String,
    },
}

impl ExecuteError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            ExecuteError::Changed(error) => error.class(),
            ExecuteError::Stream(error) => error.class(),
            ExecuteError::Transport(error) => error.class(),
            ExecuteError::Item(_)
            | ExecuteError::Expert(_)
            | ExecuteError::Block(_)
            | ExecuteError::NoRanks
            | ExecuteError::Panic { .. } => Class::Data,
            ExecuteError::Deadline { .. } => Class::Failed,
        }
    }
}

/// The reason why a work item (one kernel call of a task) must not run, with its task and kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task {task:?}, kernel {kernel}: {problem}")]
pub struct ItemError {
    /// Label of the task in the plan.
    pub task: String,
    /// Name of the kernel.
    pub kernel: String,
    /// The problem with the item.
    #[source]
    pub problem: Problem,
}

/// A problem with a work item.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The bytes that a kernel needs lie outside the memory of its buffer.
    #[error(
        "buffer %{buffer} needs {bytes} bytes at offset {offset}, but only {available} exist (row {row}, column {column}, band {band}, expert {expert})"
    )]
    Slice {
        /// Name of the kernel's buffer.
        buffer: String,
        /// Offset of the needed bytes.
        offset: u64,
        /// Number of needed bytes.
        bytes: u64,
        /// Number of bytes of the memory.
        available: u64,
        /// The item's first row.
        row: u64,
        /// The item's column.
        column: u32,
        /// The item's band (a part of the column).
        band: u32,
        /// The item's expert.
        expert: u32,
    },
    /// A buffer's size, or an index limit, does not fit 64 bits.
    #[error("the size or limit of buffer %{buffer} has no value for dims {dims:?}")]
    Size {
        /// Name of the kernel's buffer.
        buffer: String,
        /// Dims (run-time sizes) of the kernel call.
        dims: Vec<i64>,
    },
    /// A dim (run-time size) of a kernel is outside its declared range.
    #[error("dim %{dim} is {found}, must be in {lo}..={hi}")]
    Dim {
        /// Name of the dim.
        dim: String,
        /// The value of the dim.
        found: i64,
        /// Minimum value of the dim.
        lo: i64,
        /// Maximum value of the dim.
        hi: i64,
    },
    /// A dim of a kernel cannot be computed.
    #[error(transparent)]
    NoDim(#[from] DimError),
    /// An index buffer may contain values that are not below the limit that the kernel declares.
    #[error("buffer %{buffer} takes indices below {below}, but the input has indices below {found}")]
    Index {
        /// Name of the kernel's buffer.
        buffer: String,
        /// Upper bound (exclusive) of the indices in the kernel.
        below: u64,
        /// Upper bound (exclusive) of the values in the runtime's input.
        found: u64,
    },
    /// The reference interpreter refused the kernel.
    #[error(transparent)]
    Interpret(InterpretError),
    /// The emulator stopped the kernel's code.
    #[error("emulated code: {0}")]
    Fault(Box<Fault>),
}

impl From<PoolError> for ExecuteError {
    fn from(error: PoolError) -> ExecuteError {
        let PoolError::Panicked { message, .. } = error;
        ExecuteError::Panic { message }
    }
}
