//! A step of an engine: the tokens that it adds to sequences, and the reasons why it does not run.

use ixc_failure::Class;
use ixc_ir::plan::MAX_OUTPUTS;

use crate::execute::ExecuteError;

/// The reason why a step did not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The step has no tokens.
    #[error("a step needs at least one token")]
    NoTokens,
    /// The step has more tokens than the plan allows.
    #[error("the step has {found} tokens; the plan takes at most {max} (split longer prompts into several steps)")]
    TooManyTokens {
        /// Number of tokens.
        found: usize,
        /// Max tokens of a step.
        max: u32,
    },
    /// A token id is outside the vocabulary.
    #[error("token {index} is {id}; ids of this model are below {vocabulary}")]
    Token {
        /// Position in the tokens.
        index: usize,
        /// The token's id.
        id: u32,
        /// Size of the vocabulary.
        vocabulary: u32,
    },
    /// Outputs are requested for rows that the step does not have.
    #[error("output {index} is requested for row {row}; the step has {rows} tokens and at most {MAX_OUTPUTS} outputs")]
    Output {
        /// Position in the requested outputs.
        index: usize,
        /// The requested row.
        row: u32,
        /// Tokens of the step.
        rows: usize,
    },
    /// The context has no room for the tokens.
    #[error("the context is full: the sequence has {position} tokens, and {tokens} more do not fit into {context}")]
    ContextFull {
        /// Tokens in the sequence.
        position: u32,
        /// Tokens to be added.
        tokens: usize,
        /// Max tokens of a sequence.
        context: u32,
    },
    /// Only a part of a text was passed to a model with non-causal attention, which needs whole
    /// texts.
    #[error(
        "found {tokens} tokens after the first {position} of a text; this model takes a whole text in one step, at most {max} tokens"
    )]
    Part {
        /// Tokens in the sequence.
        position: u32,
        /// Tokens to be added.
        tokens: usize,
        /// Max tokens of a step.
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
    /// The step appends tokens to more sequences than the engine was loaded for.
    #[error(
        "the step appends tokens in {found} parts; the engine was loaded for at most {max} (one for each sequence)"
    )]
    TooManyAdditions {
        /// Number of parts: tokens to append to one sequence.
        found: usize,
        /// Max number of parts in a step.
        max: u32,
    },
    /// The engine has its max number of sequences.
    #[error("all {max} sequences that the engine was loaded for exist already")]
    TooManySequences {
        /// Max number of sequences.
        max: u32,
    },
    /// The system refuses memory for another sequence.
    #[error("cannot map {bytes} bytes for {what}: {kind}")]
    Memory {
        /// The purpose of the memory.
        what: &'static str,
        /// Bytes requested.
        bytes: u64,
        /// The kind of the system's error.
        kind: std::io::ErrorKind,
    },
    /// Probabilities are requested of a plan without logits.
    #[error("the output of the plan is hidden states, which have no probabilities")]
    NoLogits,
    /// The hidden states do not match the tokens.
    #[error("found {found} numbers of hidden states for {rows} tokens; the plan takes {expected} for each token")]
    Hidden {
        /// Number of elements passed by the caller.
        found: usize,
        /// Tokens of the step.
        rows: usize,
        /// Elements expected for each token.
        expected: u32,
    },
    /// A slice has another length than the vocabulary.
    #[error("found {found} logits or probabilities; the vocabulary has {expected} tokens")]
    Vocabulary {
        /// Length of the slice.
        found: usize,
        /// Size of the vocabulary.
        expected: u32,
    },
    /// A pass failed: experts cannot be read, the plan is wrong, or the runtime has a bug.
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

/// Returns the prefix of the error text of a pass. It depends on whether the plan or a drive is the
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

/// A function from logits to probabilities. Samplers need only this function of an engine.
pub trait Softmax {
    /// Writes `e^(logits * inverse_temperature)`, divided by its sum, to `probabilities`. All have
    /// the vocabulary's length.
    ///
    /// # Errors
    /// Fails if a length differs, or if the plan's kernel fails.
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

/// The sequence that every engine has.
pub const FIRST: SequenceId = SequenceId(0);

impl std::fmt::Display for SequenceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Tokens that a step adds to a sequence. Several additions to one sequence must be consecutive.
/// The results of each are bit-identical to a step with only this addition. Recurrent states are
/// the exception: they process the tokens of all additions together
/// ([`Engine::cuts_steps`](super::Engine::cuts_steps)).
#[derive(Clone, Copy, Debug)]
pub struct Addition<'t> {
    /// Id of the sequence.
    pub sequence: SequenceId,
    /// The tokens, at least one.
    pub tokens: &'t [u32],
    /// The rows (positions in `tokens`) whose logits are requested.
    pub outputs: &'t [u32],
}
