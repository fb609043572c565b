//! Errors of starting several ranks.

use ixc_failure::Class;
use ixc_transport::TransportError;

/// The reason why ranks cannot run together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RanksError {
    /// The number of ranks differs from the plan's.
    #[error("found {found} ranks; the plan is for {expected}")]
    Count {
        /// Number of ranks that run, or plans that the file has.
        found: u64,
        /// Number of ranks of the plan.
        expected: u64,
    },
    /// One process would run too many ranks.
    #[error("found {found} ranks for one process, which runs at most {max}; start a process for each rank")]
    TooManyHere {
        /// Number of ranks.
        found: usize,
        /// Max ranks of a process.
        max: usize,
    },
    /// A plan of the file is not that of its rank.
    #[error("the file has a plan of rank {found} in place of rank {expected}")]
    Order {
        /// Rank of the plan.
        found: u32,
        /// Rank that this position of the file requires.
        expected: u32,
    },
    /// The exchanges of two ranks do not match.
    #[error("exchange {number} of rank {rank} does not match those of the other ranks")]
    Exchange {
        /// Number of the rank.
        rank: u32,
        /// Number of the exchange.
        number: usize,
    },
    /// A rank has another program, plan or options.
    #[error("rank {rank} has another {what} than rank 0; start all ranks with the same program, plan and options")]
    Differs {
        /// Number of the rank.
        rank: u32,
        /// The property that differs.
        what: &'static str,
    },
    /// The connection to another rank failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
}

impl RanksError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            RanksError::Count { .. } | RanksError::TooManyHere { .. } | RanksError::Differs { .. } => Class::Usage,
            RanksError::Order { .. } | RanksError::Exchange { .. } => Class::Data,
            RanksError::Transport(error) => error.class(),
        }
    }
}
