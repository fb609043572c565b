//! Errors of forecasts for several ranks.

use ixc_failure::Class;
use ixc_files::ReadError;
use ixc_ir::graph::ranks::RanksError;

/// Reason why there is no forecast for several ranks.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The text is neither a built-in name of machines nor a path of a file.
    #[error(
        "there is no description of machines called `{name}`; expected one of {names}, or a path that ends in .toml"
    )]
    UnknownMachines {
        /// The requested name or path.
        name: String,
        /// Names of the known machines.
        names: String,
    },
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The text is not a description of machines.
    #[error("machines {name}: {message}")]
    Toml {
        /// Name or path of the description.
        name: String,
        /// The problem, and its location.
        message: String,
    },
    /// A number is out of range.
    #[error("machines {name}: {field} is {found}; it must be {expected}")]
    Value {
        /// Name of the machines.
        name: String,
        /// Name of the field.
        field: &'static str,
        /// Value of the invalid field.
        found: f64,
        /// The valid values.
        expected: &'static str,
    },
    /// The list of assumed fields names a field that does not exist.
    #[error("machines {name}: `assumed` lists `{field}`, which is not a numeric field")]
    AssumedField {
        /// Name of the machines.
        name: String,
        /// The listed field.
        field: String,
    },
    /// The machines have too few sockets.
    #[error(
        "{ranks} ranks need {ranks} sockets; {name} has {machines} machines, each with this number of sockets: {sockets}"
    )]
    TooManyRanks {
        /// Number of ranks.
        ranks: u32,
        /// Name of the machines.
        name: String,
        /// Number of machines.
        machines: u32,
        /// Number of sockets of one machine.
        sockets: u32,
    },
    /// There are no ranks.
    #[error("the number of ranks is 0; expected at least 1")]
    NoRanks,
    /// The graphs of the ranks do not match.
    #[error(transparent)]
    Ranks(#[from] RanksError),
    /// The weights of a rank, without experts, do not fit in the memory of a socket.
    #[error(
        "rank {rank} has {needed} bytes of weights without its experts; a socket has only {memory} bytes of memory; use more ranks"
    )]
    NoMemory {
        /// Number of the rank.
        rank: u32,
        /// Bytes of weights that must be in memory.
        needed: u64,
        /// Bytes of a socket's memory.
        memory: u64,
    },
    /// The experts of a rank do not fit in memory, and there is no drive from which to read them.
    #[error(
        "rank {rank} has {needed} bytes of weights; a socket has only {memory} bytes of memory, and {name} describes no drive for experts; use more ranks, or describe the drive"
    )]
    NoDrive {
        /// Number of the rank.
        rank: u32,
        /// Bytes of all weights.
        needed: u64,
        /// Bytes of a socket's memory.
        memory: u64,
        /// Name of the machines.
        name: String,
    },
}

impl ClusterError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            ClusterError::Read(error) => error.class(),
            ClusterError::Ranks(error) => error.class(),
            ClusterError::UnknownMachines { .. } | ClusterError::TooManyRanks { .. } | ClusterError::NoRanks => {
                Class::Usage
            }
            ClusterError::Toml { .. }
            | ClusterError::Value { .. }
            | ClusterError::AssumedField { .. }
            | ClusterError::NoMemory { .. }
            | ClusterError::NoDrive { .. } => Class::Data,
        }
    }
}
