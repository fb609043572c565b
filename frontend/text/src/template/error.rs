//! What can go wrong between a template and its text.

use std::fmt;

use ixc_failure::Class;
use serde::{Deserialize, Serialize};

/// A bound on rendering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// Bytes of source.
    Source,
    /// Instructions.
    Steps,
    /// Bytes of output.
    Output,
    /// Bytes of memory.
    Memory,
    /// Bytes of native stack.
    Stack,
    /// Seconds of processor time.
    Time,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Source => "bytes of source",
            Limit::Steps => "steps",
            Limit::Output => "bytes of output",
            Limit::Memory => "bytes of memory",
            Limit::Stack => "bytes of stack",
            Limit::Time => "seconds of processor time",
        })
    }
}

/// Why a template gave no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum TemplateError {
    /// It needs more than it may have.
    #[error("the chat template needs more than {allowed} {limit}")]
    Limit {
        /// Of what.
        limit: Limit,
        /// How much it may have.
        allowed: u64,
    },
    /// It is no valid template, or does what cannot be done.
    #[error("the chat template{}: {reason}", .line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Invalid {
        /// Where in the template.
        line: Option<usize>,
        /// What is wrong.
        reason: String,
    },
    /// It refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    Raised {
        /// Its words.
        message: String,
    },
    /// The last message cannot be gone on with.
    #[error("an answer cannot go on with the last message: {reason}")]
    NotContinued {
        /// Why.
        reason: String,
    },
    /// A tool, arguments or a variable are no JSON.
    #[error("what the chat template is given is no JSON: {reason}")]
    Json {
        /// What is wrong, and where.
        reason: String,
    },
    /// Rendering could not be started.
    #[error("cannot render the chat template: {reason}")]
    Start {
        /// What the system said.
        reason: String,
    },
    /// Rendering ended without an answer.
    #[error("cannot render the chat template: {reason}")]
    Failed {
        /// What happened.
        reason: String,
    },
}

impl TemplateError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            // The system refused to start the renderer.
            TemplateError::Start { .. } => Class::Io,
            TemplateError::Limit { .. }
            | TemplateError::Invalid { .. }
            | TemplateError::Raised { .. }
            | TemplateError::NotContinued { .. }
            | TemplateError::Json { .. }
            | TemplateError::Failed { .. } => Class::Data,
        }
    }
}
