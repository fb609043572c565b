//! Errors that occur while a process limits itself.

use std::io;

use ixc_failure::Class;

/// The reason why the process could not be limited.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A file or folder of a rule cannot be opened.
    #[error("cannot enter the sandbox: a rule for files cannot open its file or folder: {source}")]
    Path {
        /// The file and the system's error.
        source: landlock::PathFdError,
    },
    /// The kernel refused a Landlock rule.
    #[error("cannot enter the sandbox: the kernel refused the rules for files: {source}")]
    Files {
        /// The refusal of the rule.
        source: landlock::RulesetError,
    },
    /// The kernel refused a filter of system calls.
    #[error("cannot enter the sandbox: the kernel refused a filter of system calls: {source}")]
    Filter {
        /// The reason for the refusal.
        source: seccompiler::Error,
    },
    /// The kernel refused to remove rights of this process.
    #[error("cannot enter the sandbox: the kernel refused to {action}: {source}")]
    Process {
        /// The action that was attempted.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel lacks required features.
    #[error("cannot enter the sandbox: this system lacks {missing}")]
    Missing {
        /// The missing features.
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
