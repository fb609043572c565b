//! Errors of saving and loading a sequence.

use std::io;

use ixc_failure::Class;
use ixc_files::changed::ChangedFile;
use ixc_files::io_class;
use ixc_transport::TransportError;

use super::VERSION;
use crate::engine::SequenceId;

/// The reason why a sequence cannot be saved, or a saved one not loaded.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// The system refused.
    #[error("cannot read or write the state: {source}")]
    Io {
        /// The system's error.
        source: io::Error,
    },
    /// A file of weights changed, so the model is not known any more.
    #[error(transparent)]
    Changed(#[from] ChangedFile),
    /// The file is not a saved state.
    #[error(
        "the file is not a saved state: it begins with \"{}\", expected \"{}\"",
        found.escape_ascii(), expected.escape_ascii()
    )]
    Magic {
        /// The first bytes.
        found: [u8; 8],
        /// The bytes expected.
        expected: [u8; 8],
    },
    /// The model is divided among ranks, so no rank has a whole page.
    #[error("pages of a sequence on several ranks cannot be saved or loaded; use a plan for one rank")]
    Divided,
    /// The state was saved on another number of ranks.
    #[error("the state was saved on {found} ranks; this plan is for {expected}, and cannot continue the state")]
    Ranks {
        /// The number of ranks that saved the state.
        found: u32,
        /// The number of ranks of the plan.
        expected: u32,
    },
    /// Another rank cannot save or load its part.
    #[error("rank {rank} cannot save or load its part: {reason}")]
    Rank {
        /// Number of the rank.
        rank: u32,
        /// The reason of the rank.
        reason: String,
    },
    /// Only rank 0 saves and loads sequences.
    #[error("rank {rank} cannot save or load a sequence; rank 0 does this for all ranks")]
    NotFirst {
        /// This rank.
        rank: u32,
    },
    /// The ranks cannot exchange messages.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The input is not a saved state. The error does not include its bytes.
    #[error("the file is not a saved state")]
    NoState,
    /// The state has another version.
    #[error("the file is a saved state of version {found}; this build reads version {VERSION}; save the state again")]
    Version {
        /// The version found.
        found: u32,
    },
    /// The file has another length than its header declares.
    #[error(
        "the saved state has {found} bytes, but its header states {expected}: the file is damaged or was cut short"
    )]
    Length {
        /// Bytes found.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// A part of the file is damaged.
    #[error("the saved state has checksum {found:08x} in {part}, expected {expected:08x}: the file is damaged")]
    Checksum {
        /// Name of the part.
        part: String,
        /// The checksum computed from its bytes.
        found: u32,
        /// The checksum stored after its bytes.
        expected: u32,
    },
    /// The state was saved by another plan.
    #[error(
        "the state was saved by another plan ({found}); this plan ({expected}) has other states or kernels and cannot continue the state"
    )]
    OtherPlan {
        /// Digest of the plan that saved the state.
        found: String,
        /// Digest of this plan.
        expected: String,
    },
    /// The state was saved with another model's weights.
    #[error(
        "the state was saved with other weights ({found}); this model has {expected}; use the model or plan that saved the state"
    )]
    OtherModel {
        /// Digest of the weights that it was saved with.
        found: String,
        /// Digest of these weights.
        expected: String,
    },
    /// The state begins at another position than the caller needs: a page instead of a whole
    /// sequence, or the reverse.
    #[error("the saved state has positions from {found} on; expected positions from {expected} on")]
    From {
        /// The state's first position.
        found: u32,
        /// The first position needed.
        expected: u32,
    },
    /// The state has more positions than the context.
    #[error("the saved state has {found} positions, but the context has only {context} (use a larger context)")]
    Positions {
        /// Number of positions.
        found: u32,
        /// Positions of the context.
        context: u32,
    },
    /// A number in the header is out of range.
    #[error("the saved state has {what} {found}, must be {expected}")]
    Number {
        /// Name of the number.
        what: String,
        /// Value of the number.
        found: u64,
        /// The values expected.
        expected: String,
    },
    /// A token is outside the model's vocabulary.
    #[error("token {index} is {id}; ids of this model are below {vocabulary}")]
    Token {
        /// Position in the tokens.
        index: usize,
        /// The token's id.
        id: u32,
        /// Size of the vocabulary.
        vocabulary: u32,
    },
    /// The sequence does not hold the states at this position.
    #[error(
        "the sequence cannot be continued at position {position}: the last positions of {state} before it are missing"
    )]
    NotHeld {
        /// Requested position.
        position: u32,
        /// Name of the state.
        state: String,
    },
    /// The sequence does not exist.
    #[error("there is no sequence {id}")]
    NoSequence {
        /// Id of the sequence.
        id: SequenceId,
    },
    /// The number of tokens does not match the states.
    #[error("found {found} tokens for a sequence with {held} positions; expected {held} to {max} tokens")]
    Tokens {
        /// Number of tokens passed by the caller.
        found: usize,
        /// Number of tokens in the sequence.
        held: u32,
        /// Max number of tokens.
        max: u32,
    },
}

impl SavedError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            SavedError::Io { source } => io_class(source),
            SavedError::Transport(error) => error.class(),
            SavedError::Changed(error) => error.class(),
            SavedError::Magic { .. }
            | SavedError::NoState
            | SavedError::Divided
            | SavedError::Ranks { .. }
            | SavedError::Rank { .. }
            | SavedError::NotFirst { .. }
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
