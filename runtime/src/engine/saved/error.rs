//! Why a saved state is not taken.

use std::io;

use ixc_failure::Class;
use ixc_files::io_class;

use super::VERSION;
use crate::engine::SequenceId;

/// Why a state cannot be saved, or what was saved not be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// The system refused.
    #[error("cannot read or write the state: {source}")]
    Io {
        /// Why.
        source: io::Error,
    },
    /// Not a saved state.
    #[error("is no saved state: starts with {found:02x?}, a saved state starts with {expected:02x?}")]
    Magic {
        /// The first bytes.
        found: [u8; 8],
        /// What they must be.
        expected: [u8; 8],
    },
    /// Not a saved state, and what else it is is not told.
    #[error("is no saved state")]
    NoState,
    /// Another version.
    #[error("is a saved state of version {found}, this build reads version {VERSION}; save it again")]
    Version {
        /// The version found.
        found: u32,
    },
    /// Another length than its header says.
    #[error("has {found} bytes, its header says {expected}: the file is damaged or was cut short")]
    Length {
        /// Bytes found.
        found: u64,
        /// Bytes that there should be.
        expected: u64,
    },
    /// A part of it is damaged.
    #[error("has checksum {found:08x} in {part} where {expected:08x} is written: the file is damaged")]
    Checksum {
        /// Which part.
        part: String,
        /// Of its bytes.
        found: u32,
        /// Behind its bytes.
        expected: u32,
    },
    /// It was saved by another plan.
    #[error(
        "was saved by another plan ({found}); this one ({expected}) has other states or other kernels, so that it would not go on as it did"
    )]
    OtherPlan {
        /// The plan's that saved it.
        found: String,
        /// This plan's.
        expected: String,
    },
    /// It was saved with another model's weights.
    #[error(
        "was saved with other weights ({found}) than these ({expected}): another model, or a plan with weights of its own where this has a model file's"
    )]
    OtherModel {
        /// Of the weights that it was saved with.
        found: String,
        /// Of these.
        expected: String,
    },
    /// It is a part of a sequence where a whole one is needed, or the other way round.
    #[error("has positions from {found} on, where those from {expected} on are needed")]
    From {
        /// The first that it has.
        found: u32,
        /// The first that is needed.
        expected: u32,
    },
    /// More positions than there is room for.
    #[error("has {found} positions, and the context {context}")]
    Positions {
        /// How many.
        found: u32,
        /// Positions of the context.
        context: u32,
    },
    /// A number in its header that makes no sense.
    #[error("says {what} {found}, must be {expected}")]
    Number {
        /// Of what.
        what: String,
        /// The number.
        found: u64,
        /// What it must be.
        expected: String,
    },
    /// A token that the model does not have.
    #[error("token {index} is {id}; ids of this model are below {vocabulary}")]
    Token {
        /// Which.
        index: usize,
        /// Its id.
        id: u32,
        /// The vocabulary.
        vocabulary: u32,
    },
    /// A position that its states cannot get to.
    #[error("cannot be gone on with at position {position}: of {state} the last positions before it are not there")]
    NotHeld {
        /// The position.
        position: u32,
        /// Which state.
        state: String,
    },
    /// There is no such sequence.
    #[error("there is no sequence {id}")]
    NoSequence {
        /// Its number.
        id: SequenceId,
    },
    /// Another number of tokens than the states are behind.
    #[error(
        "{found} tokens were given for a sequence that holds {held}; as many at least are needed, and at most {most}"
    )]
    Tokens {
        /// Given.
        found: usize,
        /// In the sequence.
        held: u32,
        /// The most that can be given.
        most: u32,
    },
}

impl SavedError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            SavedError::Io { source } => io_class(source),
            SavedError::Magic { .. }
            | SavedError::NoState
            | SavedError::Version { .. }
            | SavedError::Length { .. }
            | SavedError::Checksum { .. }
            | SavedError::OtherPlan { .. }
            | SavedError::OtherModel { .. }
            | SavedError::From { .. }
            | SavedError::Positions { .. }
            | SavedError::Number { .. }
            | SavedError::Token { .. }
            | SavedError::NotHeld { .. }
            | SavedError::NoSequence { .. }
            | SavedError::Tokens { .. } => Class::Data,
        }
    }
}

impl From<io::Error> for SavedError {
    fn from(source: io::Error) -> SavedError {
        SavedError::Io { source }
    }
}
