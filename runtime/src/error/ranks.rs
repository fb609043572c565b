//! Errors of starting several ranks.

use ixc_failure::Class;
use ixc_transport::TransportError;

/// The reason why ranks cannot run together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RanksError {
    /// The number of running ranks, or of plans in the file, differs from the plan's number of
    /// ranks.
    #[error("found {found} ranks; the plan is for {expected} ranks")]
    Count {
        /// Number of running ranks, or of plans in the file.
        found: u64,
        /// Number of ranks in the plan.
        expected: u64,
    },
    /// One process would run too many ranks.
    #[error("found {found} ranks for one process, which runs at most {max}; start a process for each rank")]
    TooManyHere {
        /// Number of ranks.
        found: usize,
        /// Maximum number of ranks of a process.
        max: usize,
    },
    /// The plans in the file are not in the order of their ranks.
    #[error("the file has the plan of rank {found}; expected the plan of rank {expected}")]
    Order {
        /// Rank of the plan at this position.
        found: u32,
        /// Rank of the plan that must be at this position.
        expected: u32,
    },
    /// An exchange of one rank cannot happen, because another rank that must take part in it has no
    /// matching exchange.
    #[error("exchange {number} of rank {rank} does not match those of the other ranks")]
    Exchange {
        /// Number of the rank.
        rank: u32,
        /// Index of the exchange among those of the rank.
        number: usize,
    },
    /// A rank has another version, plan or options than rank 0.
    #[error("rank {rank} has another {what} than rank 0; start all ranks with the same program, plan and options")]
    Differs {
        /// Number of the rank.
        rank: u32,
        /// Name of the property that differs.
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
