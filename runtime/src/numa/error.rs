//! Errors of descriptions of machines, of places on NUMA nodes, and of measuring their speed.

use std::collections::TryReserveError;
use std::io;

use ixc_failure::{Class, Remedy};
use ixc_files::ReadError;
use ixc_ir::units::Bytes;

/// The reason why a description is refused, why threads and memory get no place, or why the speed
/// of nodes is not measured.
#[derive(Debug, thiserror::Error)]
pub enum NumaError {
    /// The description cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The description is not TOML, or has unknown fields.
    #[error("{name}: {message}")]
    Toml {
        /// Name of the description.
        name: String,
        /// Error of the parser.
        message: String,
    },
    /// A value of the description is invalid.
    #[error("{name}: {field} is {found}; it must be {expected}")]
    Value {
        /// Name of the description.
        name: String,
        /// Name of the field.
        field: String,
        /// Value of the field.
        found: String,
        /// Valid values.
        expected: &'static str,
    },
    /// No node has processors that this process may use.
    #[error("no NUMA node has both memory and processors for this process")]
    NoProcessors,
    /// No ranks are to be placed.
    #[error("found 0 ranks to place; expected at least 1")]
    NoRanks,
    /// A plan of one rank cannot be divided among nodes.
    #[error("the plan is for one rank; expected a rank for each of {nodes} NUMA nodes")]
    OneRank {
        /// Number of nodes.
        nodes: usize,
    },
    /// Each rank of a divided model has other weights.
    #[error("the plan is for {ranks} ranks; copies of weights on each NUMA node need a plan for one rank")]
    MirrorRanks {
        /// Number of ranks.
        ranks: u32,
    },
    /// Experts that are streamed or in mapped files are not copied.
    #[error("experts are not in memory; copies of weights on each NUMA node need all weights in memory")]
    MirrorStreamed,
    /// Less memory is available than caches may have.
    #[error("{} of memory are available; measuring the speed of NUMA nodes needs {}", Bytes(*available), Bytes(*needed))]
    LittleMemory {
        /// Available bytes.
        available: u64,
        /// Needed bytes.
        needed: u64,
    },
    /// The system refuses memory.
    #[error("no memory to measure the speed of NUMA nodes: {0}")]
    NoMemory(#[from] TryReserveError),
    /// The system starts no thread.
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

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            NumaError::OneRank { .. } => Some(Remedy::CompileRanks),
            _ => None,
        }
    }
}
