//! Errors of opening and compiling a model. They wrap the errors of lower crates.
//!
//! Messages state the problem and what was expected, in the terms of the library. [`Error::class`]
//! returns the kind of failure. [`Error::remedy`] returns a change that may help. Both delegate to
//! the wrapped error.

pub mod replacement;
pub mod tuned;

pub use ixc_failure::{Class, Remedy};

use std::io;
use std::path::{Path, PathBuf};

use ixc_architectures::ArchError;
use ixc_codegen::module::CodegenError;
use ixc_codegen::profile::ProfileError;
use ixc_dataflow::check::CheckError;
use ixc_dataflow::grids::GridFileError;
use ixc_dataflow::place::PlaceError;
use ixc_dataflow::read::ReadError as DescriptorError;
use ixc_dataflow::simulate::SimulateError;
use ixc_files::{OutputError, ReadError, io_class};
use ixc_ir::graph::expert_layers::CutError;
use ixc_ir::graph::interpret::InterpretError;
use ixc_ir::plan::decode::DecodeError;
use ixc_kernels::GenerateError;
use ixc_model_files::checkpoint::CheckpointError;
use ixc_model_files::gguf::{GgufError, VocabularyError};
use ixc_passes::error::PassError;
use ixc_passes::manager::StopError;
use ixc_text::tokenizer::TokenizerError;

use crate::cluster_error::ClusterError;
use crate::excerpt::Excerpt;
use crate::select::SelectError;
use crate::simulate::WeightError;
use replacement::ReplacementError;
use tuned::TunedError;

/// Error of opening or compiling a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model file is missing or malformed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The model folder is missing or malformed.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// The file is valid, but no supported model can be built from it.
    #[error(transparent)]
    Arch(#[from] ArchError),
    /// The tokenizer is malformed, or cannot take the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The tokenizer in a plan cannot be read.
    #[error("the plan's tokenizer is malformed: {source}; compile the model again")]
    PlanTokenizer {
        /// Reason why the tokenizer cannot be read.
        source: DecodeError,
    },
    /// The graph interpreter failed.
    #[error(transparent)]
    Interpret(#[from] InterpretError),
    /// A pass found an invalid graph.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The requested last pass is not after the pass to continue from.
    #[error(
        "compilation starts after pass {start}, but the last pass {last} does not come after it; name a later pass"
    )]
    BehindPass {
        /// The pass after which compiling continues.
        start: &'static str,
        /// The requested last pass.
        last: &'static str,
    },
    /// A file does not name the pass to continue from.
    #[error("{}: {source}", path.display())]
    Stop {
        /// File to continue from.
        path: PathBuf,
        /// The problem of this file.
        source: Box<StopError>,
    },
    /// An invalid graph in the file to continue from. The excerpt shows the line of the error.
    #[error("{0}")]
    StopText(Box<Excerpt>),
    /// A pattern or a list of layers selects no part of the model.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// The routed experts of the model cannot be run without the rest of it.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// No kernel can be generated for a step.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// A kernel cannot be compiled to code, or the code cannot run here.
    #[error(transparent)]
    Codegen(#[from] Box<CodegenError>),
    /// A profile of the generated code could not be enabled or written.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Tuned choices cannot be used.
    #[error(transparent)]
    Tuned(#[from] TunedError),
    /// Edited kernels cannot replace kernels of the plan.
    #[error(transparent)]
    Replacement(#[from] Box<ReplacementError>),
    /// A model that does not fit on a grid of processing elements.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A missing grid, or an invalid grid file.
    #[error(transparent)]
    Grid(#[from] GridFileError),
    /// No speed can be predicted for several ranks.
    #[error(transparent)]
    Cluster(Box<ClusterError>),
    /// An invalid descriptor file.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    /// A descriptor that no machine can run.
    #[error(transparent)]
    Check(#[from] Box<CheckError>),
    /// A simulation stopped before its end.
    #[error(transparent)]
    Simulate(#[from] Box<SimulateError>),
    /// A descriptor's weights are not in the model's file.
    #[error(transparent)]
    DescriptorWeight(#[from] WeightError),
    /// The file is a plan, but a model file is needed.
    #[error("{}: is a plan; expected the model file from which the plan was compiled", path.display())]
    IsPlan {
        /// Path of the plan.
        path: PathBuf,
    },
    /// The path of the model file is not UTF-8, so a plan cannot name it.
    #[error("{}: the path is not UTF-8; a plan can only hold paths in UTF-8; rename the file or its folder", path.display())]
    PathNotUtf8 {
        /// Path of the model file.
        path: PathBuf,
    },
    /// A token id outside the vocabulary.
    #[error("token {position} is {id}; ids of this model go from 0 to {}", vocabulary.saturating_sub(1))]
    Token {
        /// Index of the token, from 0.
        position: usize,
        /// Id of the token.
        id: u64,
        /// Size of the vocabulary.
        vocabulary: u64,
    },
    /// No tokens to compute.
    #[error("the input has no tokens; expected at least one")]
    NoTokens,
    /// More tokens than the context holds.
    #[error("{tokens} tokens do not fit into the context of {context}; {}", larger(*context, *model))]
    Context {
        /// Number of tokens.
        tokens: usize,
        /// Max number of tokens of the context.
        context: usize,
        /// Context length of the model's training.
        model: usize,
    },
    /// A text file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// An output cannot or must not be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A file that is not a model could not be read or written.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// File that could not be read or written.
        path: PathBuf,
        /// The action that failed, as text.
        action: &'static str,
        /// The system's error for this action.
        source: io::Error,
    },
}

/// Returns the part of a context error that states the context length for which the model was
/// trained.
pub fn larger(context: usize, model: usize) -> String {
    match model > context {
        true => format!("this model was trained for up to {model} tokens"),
        false => "this model was not trained for longer texts".into(),
    }
}

impl From<ReplacementError> for Error {
    fn from(error: ReplacementError) -> Error {
        Box::new(error).into()
    }
}

impl From<CodegenError> for Error {
    fn from(error: CodegenError) -> Error {
        Box::new(error).into()
    }
}

impl From<ClusterError> for Error {
    fn from(error: ClusterError) -> Error {
        Error::Cluster(Box::new(error))
    }
}

impl From<CheckpointError> for Error {
    fn from(error: CheckpointError) -> Error {
        match error {
            CheckpointError::Gguf(error) => Error::Gguf(error),
            other => Error::Checkpoint(Box::new(other)),
        }
    }
}

impl From<VocabularyError> for Error {
    fn from(error: VocabularyError) -> Error {
        match error {
            VocabularyError::Metadata(error) => Error::Gguf(error),
            VocabularyError::Tokenizer(error) => Error::Tokenizer(error),
        }
    }
}

impl Error {
    /// Returns a function that makes an [`Error::Io`] for `path`.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { path: path.to_owned(), action, source }
    }

    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            Error::Gguf(error) => error.class(),
            Error::Checkpoint(error) => error.class(),
            Error::Arch(error) => error.class(),
            Error::Tokenizer(error) => error.class(),
            Error::Interpret(error) => error.class(),
            Error::Pass(error) => error.class(),
            Error::Select(error) => error.class(),
            Error::Cut(error) => error.class(),
            Error::Generate(error) => error.class(),
            Error::Codegen(error) => error.class(),
            Error::Profile(error) => error.class(),
            Error::Tuned(error) => error.class(),
            Error::Replacement(error) => error.class(),
            Error::Place(error) => error.class(),
            Error::Grid(error) => error.class(),
            Error::Cluster(error) => error.class(),
            Error::Descriptor(error) => error.class(),
            Error::Check(error) => error.class(),
            Error::Simulate(error) => error.class(),
            Error::DescriptorWeight(error) => error.class(),
            Error::Read(error) => error.class(),
            Error::Output(error) => error.class(),
            Error::PlanTokenizer { source, .. } => source.class(),
            Error::Stop { source, .. } => source.class(),
            Error::Io { source, .. } => io_class(source),
            Error::BehindPass { .. } => Class::Usage,
            Error::StopText(_)
            | Error::IsPlan { .. }
            | Error::PathNotUtf8 { .. }
            | Error::Token { .. }
            | Error::NoTokens
            | Error::Context { .. } => Class::Data,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Error::Checkpoint(error) => error.remedy(),
            Error::Arch(error) => error.remedy(),
            Error::Tuned(error) => error.remedy(),
            Error::Replacement(error) => error.remedy(),
            Error::Output(error) => error.remedy(),
            Error::Context { context, model, .. } if model > context => Some(Remedy::LargerContext),
            _ => None,
        }
    }

    /// Returns the path of the missing file, if the error is about one.
    pub fn missing_file(&self) -> Option<&Path> {
        match self {
            Error::Gguf(error) => error.missing_file(),
            Error::Read(error) => error.missing_file(),
            Error::Io { path, source, .. } if source.kind() == io::ErrorKind::NotFound => Some(path),
            _ => None,
        }
    }

    /// Whether the error is that the reader of standard output has closed it.
    pub fn is_closed_standard_output(&self) -> bool {
        matches!(self, Error::Output(error) if error.is_closed_standard_output())
    }
}
