//! Errors of limiting a process.

use std::io;

use ixc_failure::Class;

/// Reason why a process could not be limited.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A file or folder of a rule cannot be opened.
    #[error("sandbox: {source}")]
    Path {
        /// The file and the system's error.
        source: landlock::PathFdError,
    },
    /// The kernel refused Landlock rules.
    #[error("sandbox: the kernel refused rules for files: {source}")]
    Files {
        /// The refused rule.
        source: landlock::RulesetError,
    },
    /// The kernel refused a filter of system calls.
    #[error("sandbox: the kernel refused a filter of system calls: {source}")]
    Filter {
        /// The reason.
        source: seccompiler::Error,
    },
    /// The kernel refused to reduce the rights of this process.
    #[error("sandbox: the kernel refused to {action}: {source}")]
    Process {
        /// The attempted action.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel lacks features that were required.
    #[error("sandbox: this system lacks {missing}")]
    Missing {
        /// Missing features.
        missing: String,
    },
}

impl SandboxError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            SandboxError::Path { .. } => Class::Io,
            SandboxError::Files { .. }
            | SandboxError::Filter { .. }
            | SandboxError::Process { .. }
            | SandboxError::Missing { .. } => Class::Failed,
        }
    }
}

impl From<landlock::RulesetError> for SandboxError {
    fn from(source: landlock::RulesetError) -> SandboxError {
        SandboxError::Files { source }
    }
}

impl From<seccompiler::Error> for SandboxError {
    fn from(source: seccompiler::Error) -> SandboxError {
        SandboxError::Filter { source }
    }
}

impl From<seccompiler::BackendError> for SandboxError {
    fn from(source: seccompiler::BackendError) -> SandboxError {
        SandboxError::Filter { source: source.into() }
    }
}
