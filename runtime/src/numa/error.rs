//! Errors of descriptions of machines, and of places on NUMA nodes.

use ixc_failure::{Class, Remedy};
use ixc_files::ReadError;

/// The reason why a description is refused, or why threads and memory get no place.
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
        /// The field.
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
}

impl NumaError {
    /// Returns the class of the failure.
    pub fn class(&self) -> Class {
        match self {
            NumaError::Read(error) => error.class(),
            NumaError::Toml { .. } | NumaError::Value { .. } => Class::Data,
            NumaError::NoProcessors => Class::Unavailable,
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
