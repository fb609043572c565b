//! Why a pass was given up.

use ixc_emulator::Fault;
use ixc_failure::Class;
use ixc_ir::kernel::interpret::InterpretError;
use ixc_ir::plan::DimError;

use crate::blocks::BlockError;
use crate::bucket::BadExpert;
use crate::identity::ChangedFile;
use crate::pool::PoolError;
use crate::stream::StreamError;

/// Why a pass was given up. What it wrote is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecuteError {
    /// An item that may not run.
    #[error(transparent)]
    Item(Box<ItemError>),
    /// A router that names an expert that is not there.
    #[error(transparent)]
    Expert(#[from] BadExpert),
    /// A model file that was written to.
    #[error(transparent)]
    Changed(#[from] ChangedFile),
    /// An expert that cannot be read.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// An expert that was read and is not what was written.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// A bug.
    #[error("a thread panicked: {message}; this is a bug")]
    Panic {
        /// What it said.
        message: String,
    },
}

impl ExecuteError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            ExecuteError::Changed(error) => error.class(),
            ExecuteError::Stream(error) => error.class(),
            ExecuteError::Item(_) | ExecuteError::Expert(_) | ExecuteError::Block(_) | ExecuteError::Panic { .. } => {
                Class::Data
            }
        }
    }
}

/// An item that may not run, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task {task:?}, kernel {kernel}: {problem}")]
pub struct ItemError {
    /// The task's label.
    pub task: String,
    /// The kernel.
    pub kernel: String,
    /// What is wrong.
    #[source]
    pub problem: Problem,
}

/// What is wrong with an item.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A slice outside its memory.
    #[error(
        "buffer %{buffer} takes {bytes} bytes at {offset} of {available} (row {row}, column {column}, band {band}, expert {expert})"
    )]
    Slice {
        /// The kernel's buffer.
        buffer: String,
        /// Where the slice begins.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// Length of the memory.
        available: u64,
        /// The item's first row.
        row: u64,
        /// The item's column.
        column: u32,
        /// Its band there.
        band: u32,
        /// The item's expert.
        expert: u32,
    },
    /// A size that does not fit 64 bits.
    #[error("the size or limit of buffer %{buffer} is none for dims {dims:?}")]
    Size {
        /// The kernel's buffer.
        buffer: String,
        /// The dims.
        dims: Vec<i64>,
    },
    /// A dim outside its range.
    #[error("dim %{dim} is {found}, must be in {lo}..={hi}")]
    Dim {
        /// The dim.
        dim: String,
        /// Its value.
        found: i64,
        /// Smallest.
        lo: i64,
        /// Largest.
        hi: i64,
    },
    /// A dim without a value.
    #[error(transparent)]
    NoDim(#[from] DimError),
    /// A kernel that takes smaller indices than the runtime provides.
    #[error("buffer %{buffer} takes indices below {below}, the input's are below {found}")]
    Index {
        /// The kernel's buffer.
        buffer: String,
        /// Its limit.
        below: u64,
        /// The input's.
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
