//! Errors of single kernels and of reports. They wrap errors of `ixc-compile` and `ixc-generate`.

pub mod kernels;

use std::io;
use std::path::{Path, PathBuf};

use ixc_codegen::module::CodegenError;
use ixc_compile::Error as CompileError;
use ixc_compile::error::replacement::ReplacementError;
use ixc_compile::select::SelectError;
use ixc_failure::{Class, Remedy, from_inner};
use ixc_files::{OutputError, ReadError};
use ixc_generate::Error as GenerationError;
use ixc_kernels::GenerateError;
use ixc_passes::error::PassError;
use ixc_runtime::engine::StepError;
use ixc_runtime::file::FileError;
use ixc_runtime::load::LoadError;

use kernels::{BundleError, KernelError};

/// Error of a single kernel or a report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model cannot be opened or compiled, or a file cannot be read.
    #[error(transparent)]
    Compile(#[from] Box<CompileError>),
    /// A model cannot be loaded or run.
    #[error(transparent)]
    Generate(#[from] Box<GenerationError>),
    /// A single kernel cannot be shown, run or compared.
    #[error(transparent)]
    Kernel(#[from] Box<KernelError>),
    /// The file is not a trace.
    #[error("{}: is not a trace: {source}", path.display())]
    Trace {
        /// File that was expected to be a trace.
        path: PathBuf,
        /// The problem, with its position.
        source: serde_json::Error,
    },
}

from_inner!(Error, Box<CompileError>: CompileError);
from_inner!(Error, Box<GenerationError>: GenerationError);
from_inner!(
    Error, CompileError: CodegenError, GenerateError, OutputError, PassError, ReadError, ReplacementError, SelectError
);
from_inner!(Error, GenerationError: FileError, LoadError, StepError);

impl From<KernelError> for Error {
    fn from(error: KernelError) -> Error {
        Box::new(error).into()
    }
}

impl From<BundleError> for Error {
    fn from(error: BundleError) -> Error {
        KernelError::from(error).into()
    }
}

impl Error {
    /// Returns a function that makes a [`CompileError::Io`] for `path`.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| CompileError::io(path, action)(source).into()
    }

    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            Error::Compile(error) => error.class(),
            Error::Generate(error) => error.class(),
            Error::Kernel(error) => error.class(),
            Error::Trace { .. } => Class::Data,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Error::Compile(error) => error.remedy(),
            Error::Generate(error) => error.remedy(),
            Error::Kernel(error) => error.remedy(),
            Error::Trace { .. } => Some(Remedy::RecordTrace),
        }
    }

    /// Returns the path of a file that does not exist.
    pub fn missing_file(&self) -> Option<&Path> {
        match self {
            Error::Compile(error) => error.missing_file(),
            Error::Generate(error) => error.missing_file(),
            _ => None,
        }
    }

    /// Returns whether the reader of standard output has closed it.
    pub fn is_closed_standard_output(&self) -> bool {
        match self {
            Error::Compile(error) => error.is_closed_standard_output(),
            Error::Generate(error) => error.is_closed_standard_output(),
            _ => false,
        }
    }
}
