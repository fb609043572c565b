//! A step of an engine: the tokens that it adds to sequences, and the errors of a step.

use ixc_failure::Class;
use ixc_ir::plan::MAX_OUTPUTS;

use crate::execute::ExecuteError;

/// The reason why a step did not run or has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The step has no addition, or an addition without tokens.
    #[error("a step needs at least one token")]
    NoTokens,
    /// The step has more tokens than the plan allows.
    #[error("the step has {found} tokens; the plan takes at most {max} (split longer prompts into several steps)")]
    TooManyTokens {
        /// Number of tokens of the step.
        found: usize,
        /// Maximum number of tokens of a step.
        max: u32,
    },
    /// A token id is outside the vocabulary.
    #[error("token {index} is {id}; ids of this model are below {vocabulary}")]
    Token {
        /// Index of the token in its addition.
        index: usize,
        /// The token's id.
        id: u32,
        /// Size of the vocabulary.
        vocabulary: u32,
    },
    /// An addition requests outputs of rows that it does not have, or too many outputs.
    #[error("output {index} is requested for row {row}; the step has {rows} tokens and at most {MAX_OUTPUTS} outputs")]
    Output {
        /// Index among the addition's requested outputs.
        index: usize,
        /// The requested row.
        row: u32,
        /// Number of tokens of the addition.
        rows: usize,
    },
    /// The sequence has no room for the tokens.
    #[error("the context is full: the sequence has {position} tokens, and {tokens} more do not fit into {context}")]
    ContextFull {
        /// Number of tokens in the sequence.
        position: u32,
        /// Number of tokens to be added.
        tokens: usize,
        /// Maximum number of tokens of a sequence.
        context: u32,
    },
    /// An addition continues a text, but the model has non-causal attention and needs each text in
    /// one step.
    #[error(
        "found {tokens} tokens after the first {position} of a text; this model takes a whole text in one step, at most {max} tokens"
    )]
    Part {
        /// Number of tokens in the sequence.
        position: u32,
        /// Number of tokens to be added.
        tokens: usize,
        /// Maximum number of tokens of a step.
        max: u32,
    },
    /// The sequence does not exist.
    #[error("there is no sequence {id}")]
    NoSequence {
        /// Id of the sequence.
        id: SequenceId,
    },
    /// A step has additions to the same sequence that are not consecutive.
    #[error("sequence {id} appears twice in one step, with another sequence between")]
    SequenceTwice {
        /// Id of the sequence.
        id: SequenceId,
    },
    /// A sequence would become a copy of itself.
    #[error("sequence {id} cannot become a copy of itself")]
    CopyOfItself {
        /// Id of the sequence.
        id: SequenceId,
    },
    /// The step has more additions (tokens for one sequence) than the engine was loaded for.
    #[error(
        "the step appends tokens in {found} parts; the engine was loaded for at most {max} (one for each sequence)"
    )]
    TooManyAdditions {
        /// Number of additions of the step.
        found: usize,
        /// Maximum number of additions of a step.
        max: u32,
    },
    /// The engine already has its maximum number of sequences.
    #[error("all {max} sequences that the engine was loaded for exist already")]
    TooManySequences {
        /// Maximum number of sequences.
        max: u32,
    },
    /// The system refuses memory for another sequence.
    #[error("cannot map {bytes} bytes for {what}: {kind}")]
    Memory {
        /// The purpose of the memory.
        what: &'static str,
        /// Number of requested bytes.
        bytes: u64,
        /// Kind of the system's error.
        kind: std::io::ErrorKind,
    },
    /// Probabilities are requested, but the plan computes no logits.
    #[error("the output of the plan is hidden states, which have no probabilities")]
    NoLogits,
    /// The number of elements of hidden states does not match the number of tokens.
    #[error("found {found} numbers of hidden states for {rows} tokens; the plan takes {expected} for each token")]
    Hidden {
        /// Number of elements passed by the caller.
        found: usize,
        /// Number of tokens of the step.
        rows: usize,
        /// Number of elements expected for each token.
        expected: u32,
    },
    /// The length of a slice differs from the size of the vocabulary.
    #[error("found {found} logits or probabilities; the vocabulary has {expected} tokens")]
    Vocabulary {
        /// Length of the slice.
        found: usize,
        /// Size of the vocabulary.
        expected: u32,
    },
    /// The computation failed: experts cannot be read, the plan is wrong, or the runtime has a bug.
    #[error("{lead}{0}", lead = lead(.0))]
    Execute(#[from] ExecuteError),
}

impl StepError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            StepError::Execute(error) => error.class(),
            StepError::NoTokens
            | StepError::TooManyTokens { .. }
            | StepError::Token { .. }
            | StepError::Output { .. }
            | StepError::ContextFull { .. }
            | StepError::Part { .. }
            | StepError::NoSequence { .. }
            | StepError::SequenceTwice { .. }
            | StepError::CopyOfItself { .. }
            | StepError::TooManyAdditions { .. }
            | StepError::TooManySequences { .. }
            | StepError::Memory { .. }
            | StepError::NoLogits
            | StepError::Hidden { .. }
            | StepError::Vocabulary { .. } => Class::Data,
        }
    }
}

/// Returns a prefix for the error's message. It depends on whether the plan or a drive is the
/// cause.
fn lead(error: &ExecuteError) -> &'static str {
    match error {
        ExecuteError::Changed(_)
        | ExecuteError::Stream(_)
        | ExecuteError::Block(_)
        | ExecuteError::Transport(_)
        | ExecuteError::NoRanks
        | ExecuteError::Deadline { .. } => "",
        ExecuteError::Item(_) | ExecuteError::Expert(_) | ExecuteError::Panic { .. } => "the plan failed: ",
    }
}

/// A source of the softmax function, which converts logits to probabilities. Samplers need only
/// this function of an engine.
pub trait Softmax {
    /// Writes `e^(logits * inverse_temperature)`, divided by the sum of these values, to
    /// `probabilities`. Both slices have the vocabulary's length.
    ///
    /// # Errors
    /// Fails if a slice has another length, or if the plan's softmax kernel fails.
    fn probabilities(
        &self,
        logits: &[f32],
        inverse_temperature: f32,
        probabilities: &mut [f32],
    ) -> Result<(), StepError>;
}

/// The number of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub(crate) u32);

/// The id of the first sequence, which every engine has.
pub const FIRST: SequenceId = SequenceId(0);

impl std::fmt::Display for SequenceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Tokens that a step adds to one sequence. Several additions to the same sequence must be
/// consecutive. The results of each addition have the same bits as in a step with only this
/// addition. Recurrent states are an exception: they process the tokens of all additions together
/// ([`Engine::cuts_steps`](super::Engine::cuts_steps)).
#[derive(Clone, Copy, Debug)]
pub struct Addition<'t> {
    /// Id of the sequence.
    pub sequence: SequenceId,
    /// Ids of the added tokens; there is at least one.
    pub tokens: &'t [u32],
    /// Indices into `tokens` of the rows whose outputs are requested.
    pub outputs: &'t [u32],
}
