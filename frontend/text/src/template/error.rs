//! Errors of rendering a template.

use std::fmt;

use ixc_failure::Class;
use serde::{Deserialize, Serialize};

/// Limited resource of rendering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// Bytes of the template's source.
    Source,
    /// Instructions of the template engine.
    Steps,
    /// Bytes of output.
    Output,
    /// Bytes of memory.
    Memory,
    /// Bytes of native stack.
    Stack,
    /// Processor time in seconds.
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

/// Reason why a template produced no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum TemplateError {
    /// Rendering exceeds a limit.
    #[error("the chat template needs more than {allowed} {limit}")]
    Limit {
        /// Resource whose limit is exceeded.
        limit: Limit,
        /// Value of the limit.
        allowed: u64,
    },
    /// The template is invalid, or an operation in it failed.
    #[error("the chat template{}: {reason}", .line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Invalid {
        /// Line of the template, if known.
        line: Option<usize>,
        /// Reason why the template is invalid.
        reason: String,
    },
    /// The template refused the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    Raised {
        /// Message of the template.
        message: String,
    },
    /// The answer cannot continue the conversation's last message.
    #[error("the answer cannot continue the last message: {reason}")]
    NotContinued {
        /// Reason why it cannot be continued.
        reason: String,
    },
    /// A tool, the arguments of a call or a variable is not valid JSON.
    #[error("the input of the chat template is not JSON: {reason}")]
    Json {
        /// Fault and its position.
        reason: String,
    },
    /// Rendering could not be started.
    #[error("cannot render the chat template: {reason}")]
    Start {
        /// Error of the system.
        reason: String,
    },
    /// The rendering process ended without an answer.
    #[error("cannot render the chat template: {reason}")]
    Failed {
        /// Cause of the failure.
        reason: String,
    },
}

impl TemplateError {
    /// Returns the class of the error, which determines the exit code.
    pub fn class(&self) -> Class {
        match self {
            // The system refused to start the rendering process.
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
