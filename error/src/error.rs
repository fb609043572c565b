//! The outermost error. It wraps the errors of all crates.
//!
//! Messages state the fault and the expectation in the words of the library. [`Error::class`]
//! returns the kind of failure, and [`Error::remedy`] the change that may help. Both delegate to
//! the wrapped error. The command line maps the class to an exit status, and the remedy to options.

pub use ixc_compile::error::{replacement, tuned};
pub use ixc_failure::{Class, Remedy};
pub use ixc_generate::error::draft;
pub use ixc_measure::error::record;
#[cfg(feature = "serve")]
pub use ixc_serve::error::batch;
pub use ixc_workbench::error::kernels;

use std::io;
use std::path::Path;

use ixc_architectures::ArchError;
use ixc_codegen::module::CodegenError;
use ixc_codegen::profile::ProfileError;
use ixc_compile::Error as CompileError;
use ixc_compile::error::replacement::ReplacementError;
use ixc_compile::error::tuned::TunedError;
use ixc_compile::select::SelectError;
use ixc_compile::simulate::WeightError;
use ixc_dataflow::check::CheckError;
use ixc_dataflow::grids::GridFileError;
use ixc_dataflow::place::PlaceError;
use ixc_dataflow::read::ReadError as DescriptorError;
use ixc_dataflow::simulate::SimulateError;
use ixc_failure::from_inner;
use ixc_files::{OutputError, ReadError};
use ixc_generate::Error as GenerationError;
use ixc_generate::expert_use::ExpertUseError;
use ixc_grammar::GrammarError;
use ixc_ir::graph::expert_layers::CutError;
use ixc_ir::graph::interpret::InterpretError;
use ixc_kernels::GenerateError;
use ixc_measure::Error as MeasureError;
use ixc_model_files::checkpoint::CheckpointError;
use ixc_model_files::gguf::{GgufError, VocabularyError};
use ixc_passes::error::PassError;
use ixc_quantise::QuantiseError;
use ixc_runtime::engine::StepError;
use ixc_runtime::expert_layers::LayerError;
use ixc_runtime::file::FileError;
use ixc_runtime::load::LoadError;
use ixc_runtime::sample::{SampleError, SettingsError};
#[cfg(feature = "serve")]
use ixc_serve::Error as ServeError;
use ixc_text::template::TemplateError;
use ixc_text::tokenizer::TokenizerError;
use ixc_workbench::Error as WorkbenchError;

use draft::{DraftError, OwnLayerError};
use kernels::{BundleError, KernelError};
use record::RecordError;

/// Error of any crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model cannot be opened or compiled, or a file cannot be read or written.
    #[error(transparent)]
    Compile(#[from] Box<CompileError>),
    /// A model cannot be loaded or run.
    #[error(transparent)]
    Generate(#[from] Box<GenerationError>),
    /// A model cannot be quantised.
    #[error(transparent)]
    Quantise(#[from] Box<QuantiseError>),
    /// A model cannot be measured.
    #[error(transparent)]
    Measure(#[from] Box<MeasureError>),
    /// A single kernel or a report failed.
    #[error(transparent)]
    Workbench(#[from] Box<WorkbenchError>),
    /// A model cannot be served.
    #[cfg(feature = "serve")]
    #[error(transparent)]
    Serve(#[from] Box<ServeError>),
}

// Boxed: an error of each crate is large, and results are returned by value.
from_inner!(Error, Box<CompileError>: CompileError);
from_inner!(Error, Box<GenerationError>: GenerationError);
from_inner!(Error, Box<MeasureError>: MeasureError);
from_inner!(Error, Box<WorkbenchError>: WorkbenchError);
#[cfg(feature = "serve")]
from_inner!(Error, Box<ServeError>: ServeError);
from_inner!(
    Error, CompileError: ArchError, Box<CheckError>, Box<CodegenError>, Box<SimulateError>, CheckpointError, CodegenError, CutError, GenerateError, GgufError, GridFileError,
    InterpretError, OutputError, PassError, PlaceError, ProfileError, ReadError, ReplacementError, SelectError, TokenizerError, TunedError,
    VocabularyError, WeightError, DescriptorError
);
from_inner!(
    Error, GenerationError: DraftError, ExpertUseError, FileError, GrammarError, LayerError, LoadError, OwnLayerError, SampleError, SettingsError, StepError, TemplateError
);
from_inner!(Error, MeasureError: RecordError);
from_inner!(Error, WorkbenchError: BundleError, KernelError);

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
            Error::Quantise(error) => error.class(),
            Error::Measure(error) => error.class(),
            Error::Workbench(error) => error.class(),
            #[cfg(feature = "serve")]
            Error::Serve(error) => error.class(),
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Error::Compile(error) => error.remedy(),
            Error::Generate(error) => error.remedy(),
            Error::Quantise(error) => error.remedy(),
            Error::Measure(error) => error.remedy(),
            Error::Workbench(error) => error.remedy(),
            #[cfg(feature = "serve")]
            Error::Serve(error) => error.remedy(),
        }
    }

    /// Returns the path of a file that does not exist.
    pub fn missing_file(&self) -> Option<&Path> {
        match self {
            Error::Compile(error) => error.missing_file(),
            Error::Generate(error) => error.missing_file(),
            Error::Measure(error) => error.missing_file(),
            Error::Workbench(error) => error.missing_file(),
            #[cfg(feature = "serve")]
            Error::Serve(error) => error.missing_file(),
            Error::Quantise(_) => None,
        }
    }

    /// Returns whether the error is only that the reader of standard output has closed it.
    pub fn is_closed_standard_output(&self) -> bool {
        match self {
            Error::Compile(error) => error.is_closed_standard_output(),
            Error::Generate(error) => error.is_closed_standard_output(),
            Error::Measure(error) => error.is_closed_standard_output(),
            Error::Workbench(error) => error.is_closed_standard_output(),
            #[cfg(feature = "serve")]
            Error::Serve(error) => error.is_closed_standard_output(),
            Error::Quantise(_) => false,
        }
    }
}
