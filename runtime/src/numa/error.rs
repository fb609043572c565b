//! Errors of machine descriptions, of placement on NUMA nodes, and of measuring the speed of nodes.

use std::collections::TryReserveError;
use std::io;

use ixc_failure::{Class, Remedy};
use ixc_files::ReadError;
use ixc_ir::units::Bytes;

/// The reason why a machine description is invalid, why threads or memory cannot be placed on
/// nodes, or why the speed of nodes cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum NumaError {
    /// The file with the description cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The description is not TOML, or has unknown fields.
    #[error("{name}: {message}")]
    Toml {
        /// Name of the description, such as its path.
        name: String,
        /// Error of the parser.
        message: String,
    },
    /// A value of the description is invalid.
    #[error("{name}: {field} is {found}; it must be {expected}")]
    Value {
        /// Name of the description, such as its path.
        name: String,
        /// Name of the field.
        field: String,
        /// Value of the field.
        found: String,
        /// Valid values.
        expected: &'static str,
    },
    /// No node has both memory and processors that this process may use.
    #[error("no NUMA node has both memory and processors for this process")]
    NoProcessors,
    /// Placement was requested for 0 ranks.
    #[error("found 0 ranks to place; expected at least 1")]
    NoRanks,
    /// The model cannot be divided among nodes, because its plan has only one rank.
    #[error("the plan is for one rank; expected a rank for each of {nodes} NUMA nodes")]
    OneRank {
        /// Number of usable nodes.
        nodes: usize,
    },
    /// Weights cannot be mirrored, because each rank of a divided model has other weights.
    #[error("the plan is for {ranks} ranks; copies of weights on each NUMA node need a plan for one rank")]
    MirrorRanks {
        /// Number of ranks of the plan.
        ranks: u32,
    },
    /// Weights cannot be mirrored while experts are streamed or in mapped files.
    #[error("experts are not in memory; copies of weights on each NUMA node need all weights in memory")]
    MirrorStreamed,
    /// The available memory is too small: the caches could hold what it allows to read.
    #[error("{} of memory are available; measuring the speed of NUMA nodes needs {}", Bytes(*available), Bytes(*needed))]
    LittleMemory {
        /// Number of available bytes.
        available: u64,
        /// Number of needed bytes.
        needed: u64,
    },
    /// The system refused to allocate memory.
    #[error("no memory to measure the speed of NUMA nodes: {0}")]
    NoMemory(#[from] TryReserveError),
    /// The system could not start a thread.
    #[error("cannot start a thread for each processor of a NUMA node: {source}")]
    Thread {
        /// The system's error.
        source: io::Error,
    },
}

impl NumaError {
    /// Returns the class of the failure.
    pub fn class(&self) -> Class {
        match self {
            NumaError::Read(error) => error.class(),
            NumaError::Toml { .. } | NumaError::Value { .. } => Class::Data,
            NumaError::NoProcessors => Class::Unavailable,
            NumaError::LittleMemory { .. } | NumaError::NoMemory(_) | NumaError::Thread { .. } => Class::Failed,
            NumaError::NoRanks
            | NumaError::OneRank { .. }
            | NumaError::MirrorRanks { .. }
            | NumaError::MirrorStreamed => Class::Usage,
        }
    }

    /// Returns the change by the user that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            NumaError::OneRank { .. } => Some(Remedy::CompileRanks),
            _ => None,
        }
    }
}
