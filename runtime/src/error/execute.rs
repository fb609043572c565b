//! Errors of a pass.

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

/// The reason why a pass was abandoned. Its results must not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecuteError {
    /// A work item failed its check.
    #[error(transparent)]
    Item(Box<ItemError>),
    /// A router chose an expert that does not exist.
    #[error(transparent)]
    Expert(#[from] BadExpert),
    /// A model file changed.
    #[error(transparent)]
    Changed(#[from] ChangedFile),
    /// An expert cannot be read.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// An expert's block is damaged.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// An exchange with other ranks failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The plan is the part of a rank, and there is no connection to the others.
    #[error("the plan is the part of a rank, and there is no connection to the other ranks")]
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

/// The reason why a work item must not run, with its task and kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task {task:?}, kernel {kernel}: {problem}")]
pub struct ItemError {
    /// The task's label.
    pub task: String,
    /// Name of the item's kernel.
    pub kernel: String,
    /// The problem.
    #[source]
    pub problem: Problem,
}

/// A problem with a work item.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A slice lies outside its memory.
    #[error(
        "buffer %{buffer} needs {bytes} bytes at offset {offset}, but only {available} exist (row {row}, column {column}, band {band}, expert {expert})"
    )]
    Slice {
        /// The kernel's buffer.
        buffer: String,
        /// Offset of the slice.
        offset: u64,
        /// Length of the slice.
        bytes: u64,
        /// Length of the memory.
        available: u64,
        /// The item's first row.
        row: u64,
        /// The item's column.
        column: u32,
        /// The item's band in the column.
        band: u32,
        /// The item's expert.
        expert: u32,
    },
    /// A buffer size or index limit does not fit 64 bits.
    #[error("the size or limit of buffer %{buffer} has no value for dims {dims:?}")]
    Size {
        /// The kernel's buffer.
        buffer: String,
        /// Dims of the kernel.
        dims: Vec<i64>,
    },
    /// A dim is outside its range.
    #[error("dim %{dim} is {found}, must be in {lo}..={hi}")]
    Dim {
        /// Name of the dim.
        dim: String,
        /// The value found.
        found: i64,
        /// Min value.
        lo: i64,
        /// Max value.
        hi: i64,
    },
    /// A dim has no value.
    #[error(transparent)]
    NoDim(#[from] DimError),
    /// An index input can have values that exceed the kernel's limit.
    #[error("buffer %{buffer} takes indices below {below}, but the input has indices below {found}")]
    Index {
        /// The kernel's buffer.
        buffer: String,
        /// Upper bound of indices in the kernel.
        below: u64,
        /// Upper bound of the values in the input.
        found: u64,
    },
    /// The interpreter refused the kernel.
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
