//! Errors of serving. They wrap errors of `ixc-generate`.

pub mod batch;

use std::io;
use std::path::{Path, PathBuf};

use ixc_compile::Error as CompileError;
use ixc_failure::{Class, Remedy, from_inner};
use ixc_generate::Error as GenerationError;
use ixc_sandbox::SandboxError;
use ixc_text::template::TemplateError;

use crate::supervisor::SupervisorError;
use batch::BatchError;

/// Error of serving a model or running a batch.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model cannot be loaded or run.
    #[error(transparent)]
    Generate(#[from] Box<GenerationError>),
    /// A batch cannot be run or continued.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The service manager's socket cannot be used, or its messages cannot be sent.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// The process cannot be limited.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The prompt cache and saved sequences have the same folder.
    #[error("{}: one folder cannot hold both the prompt cache and saved sequences; give another folder for one of them", path.display())]
    SameFolder {
        /// Path of the folder.
        path: PathBuf,
    },
}

from_inner!(Error, Box<GenerationError>: GenerationError);
from_inner!(Error, GenerationError: CompileError, TemplateError);

impl Error {
    /// Returns a function that makes a [`CompileError::Io`] for `path`.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| CompileError::io(path, action)(source).into()
    }

    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            Error::Generate(error) => error.class(),
            Error::Batch(error) => error.class(),
            Error::Supervisor(error) => error.class(),
            Error::Sandbox(error) => error.class(),
            Error::SameFolder { .. } => Class::Data,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Error::Generate(error) => error.remedy(),
            Error::Batch(error) => error.remedy(),
            _ => None,
        }
    }

    /// Returns the path of a file that does not exist.
    pub fn missing_file(&self) -> Option<&Path> {
        match self {
            Error::Generate(error) => error.missing_file(),
            _ => None,
        }
    }

    /// Returns whether the reader of standard output has closed it.
    pub fn is_closed_standard_output(&self) -> bool {
        matches!(self, Error::Generate(error) if error.is_closed_standard_output())
    }
}
