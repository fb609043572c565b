//! The outermost error, which wraps those of all crates.
//!
//! Messages state the fault and the expectation in the words of the library. [`Error::class`]
//! returns the kind of failure, and [`Error::remedy`] the change that may help; wrapped errors
//! answer for themselves. The command line makes an exit status of the class, and names options for
//! the remedy.

pub mod batch;
pub mod kernels;
pub mod record;

pub use ixc_compile::error::{replacement, tuned};
pub use ixc_failure::{Class, Remedy};
pub use ixc_generate::error::draft;

use std::io;
use std::path::{Path, PathBuf};

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
use ixc_model_files::checkpoint::CheckpointError;
use ixc_model_files::gguf::{GgufError, VocabularyError};
use ixc_passes::error::PassError;
use ixc_quantise::QuantiseError;
use ixc_runtime::engine::StepError;
use ixc_runtime::expert_layers::LayerError;
use ixc_runtime::file::FileError;
use ixc_runtime::load::LoadError;
use ixc_runtime::sample::{SampleError, SettingsError};
use ixc_text::template::TemplateError;
use ixc_text::tokenizer::TokenizerError;

use batch::BatchError;
use draft::{DraftError, OwnLayerError};
use kernels::{BundleError, KernelError};
use record::RecordError;

/// Why a model cannot be compiled or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model cannot be opened or compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A model cannot be loaded or run.
    #[error(transparent)]
    Generate(#[from] GenerationError),
    /// A model cannot be quantised.
    #[error(transparent)]
    Quantise(#[from] Box<QuantiseError>),
    /// The record of an evaluation cannot be gone on with.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A prediction needs a drive's rate, and there is none.
    #[error("{}: how fast its drive is cannot be measured with this file; only experts in a file can be streamed", path.display())]
    NoDrive {
        /// The file.
        path: PathBuf,
    },
    /// A plan that holds its weights itself, for what needs the model file.
    #[error("{}: holds all weights itself; this needs the model file that it was made from too", path.display())]
    NoModelFile {
        /// The plan.
        path: PathBuf,
    },
    /// Nothing of a model can be on the drive.
    #[error("{}: has no experts that could be left on the drive; it runs with all of it in memory", path.display())]
    NoExperts {
        /// The model.
        path: PathBuf,
    },
    /// A text that is too short to be scored.
    #[error("the text has {tokens} tokens; a piece of {context} is the least that is scored")]
    ShortText {
        /// Its tokens.
        tokens: usize,
        /// Tokens of a piece.
        context: usize,
    },
    /// Two models whose predictions are of different words.
    #[error("the two models have {} and {} tokens in their vocabularies; only predictions of the same tokens can be compared", vocabularies[0], vocabularies[1])]
    OtherVocabulary {
        /// Sizes of both vocabularies.
        vocabularies: [usize; 2],
    },
    /// A model whose predictions cannot be scored.
    #[error("piece {piece}, position {position}: a logit is no number")]
    LogitsNotFinite {
        /// Which piece of the text.
        piece: usize,
        /// Which of its positions.
        position: usize,
    },
    /// A kernel on its own cannot be shown, run or compared.
    #[error(transparent)]
    Kernel(#[from] Box<KernelError>),
    /// A file that is no trace.
    #[error("{}: no trace: {source}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// The answers of a batch cannot be gone on with.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A folder for two things.
    #[error("{} cannot have both what prompts begin with and saved sequences; another folder is needed for one of them", path.display())]
    SameFolder {
        /// The folder.
        path: PathBuf,
    },
}

from_inner!(
    Error, CompileError: ArchError, Box<CheckError>, Box<CodegenError>, Box<SimulateError>, CheckpointError, CodegenError, CutError, GenerateError, GgufError, GridFileError,
    InterpretError, OutputError, PassError, PlaceError, ProfileError, ReadError, ReplacementError, SelectError, TokenizerError, TunedError,
    VocabularyError, WeightError, DescriptorError
);
from_inner!(
    Error, GenerationError: DraftError, ExpertUseError, FileError, GrammarError, LayerError, LoadError, OwnLayerError, SampleError, SettingsError, StepError, TemplateError
);

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
    /// A [`CompileError::Io`] for `path`.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| CompileError::io(path, action)(source).into()
    }

    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            Error::Compile(error) => error.class(),
            Error::Generate(error) => error.class(),
            Error::Quantise(error) => error.class(),
            Error::Record(error) => error.class(),
            Error::Kernel(error) => error.class(),
            Error::Batch(error) => error.class(),
            Error::NoModelFile { .. } => Class::Usage,
            Error::NoDrive { .. }
            | Error::NoExperts { .. }
            | Error::ShortText { .. }
            | Error::OtherVocabulary { .. }
            | Error::LogitsNotFinite { .. }
            | Error::Trace { .. }
            | Error::SameFolder { .. } => Class::Data,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Error::Compile(error) => error.remedy(),
            Error::Generate(error) => error.remedy(),
            Error::Quantise(error) => error.remedy(),
            Error::Record(error) => error.remedy(),
            Error::Kernel(error) => error.remedy(),
            Error::Batch(error) => error.remedy(),
            Error::NoModelFile { .. } => Some(Remedy::FindModelFile),
            Error::ShortText { .. } => Some(Remedy::ShorterPieces),
            Error::Trace { .. } => Some(Remedy::RecordTrace),
            _ => None,
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

    /// Returns whether the reader of standard output went away.
    pub fn is_closed_standard_output(&self) -> bool {
        match self {
            Error::Compile(error) => error.is_closed_standard_output(),
            Error::Generate(error) => error.is_closed_standard_output(),
            _ => false,
        }
    }
}
