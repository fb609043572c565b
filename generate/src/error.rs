//! Errors of loading and running a plan. They wrap errors of `ixc-compile` and the runtime.

pub mod draft;

pub use ixc_failure::{Class, Remedy};

use std::io;
use std::path::{Path, PathBuf};

use ixc_architectures::ArchError;
use ixc_codegen::module::CodegenError;
use ixc_codegen::profile::ProfileError;
use ixc_compile::Error as CompileError;
use ixc_compile::error::larger;
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
use ixc_grammar::GrammarError;
use ixc_ir::graph::expert_layers::CutError;
use ixc_ir::graph::interpret::InterpretError;
use ixc_ir::units::Bytes;
use ixc_kernels::GenerateError;
use ixc_model_files::checkpoint::CheckpointError;
use ixc_model_files::gguf::{GgufError, VocabularyError};
use ixc_passes::error::PassError;
use ixc_runtime::engine::StepError;
use ixc_runtime::expert_layers::LayerError;
use ixc_runtime::file::FileError;
use ixc_runtime::load::LoadError;
use ixc_runtime::sample::{SampleError, SettingsError};
use ixc_runtime::saved::SavedError;
use ixc_runtime::streaming::StreamError;
use ixc_text::template::TemplateError;
use ixc_text::tokenizer::TokenizerError;

use crate::expert_use::ExpertUseError;
use draft::{DraftError, OwnLayerError};

/// Error of loading or running a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model cannot be opened or compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A plan file cannot be read or written.
    #[error(transparent)]
    PlanFile(#[from] FileError),
    /// A plan cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// This machine cannot run the plan's code.
    #[error("{source}")]
    NeedsCpu {
        /// The missing features.
        source: Box<CodegenError>,
    },
    /// An option of compilation is set, but the model is already a plan.
    #[error("a plan already fixes {what}; choose it when the model is compiled")]
    PlanSays {
        /// Setting that the plan fixes.
        what: &'static str,
    },
    /// A model file is given in addition to a model that is not a plan.
    #[error("{}: is a model file; only a plan takes a separate model file", path.display())]
    NotPlan {
        /// Path of the model.
        path: PathBuf,
    },
    /// The target of the plan differs from the requested one.
    #[error("the plan is for target {plan}, not for {wanted}; compile the model for {wanted}")]
    OtherTarget {
        /// The plan's target.
        plan: String,
        /// The requested target.
        wanted: &'static str,
    },
    /// The plan computes another output than the requested one.
    #[error("this plan returns {}; compile the model for {}", if *embeddings { "logits and no hidden states" } else { "hidden states and no logits" }, if *embeddings { "embeddings" } else { "text" })]
    OtherOutput {
        /// Whether the request is for embeddings, which need hidden states.
        embeddings: bool,
    },
    /// Early routers are requested to predict experts, but the plan has none.
    #[error(
        "the plan has no early routers, which this prediction of experts needs: compile the model with early routers, or choose another prediction"
    )]
    NoEarlyRouters,
    /// The options keep experts in mapped files, but the plan has no expert groups.
    #[error(
        "this plan has no requests of experts, which mapped experts require; compile the model for a smaller memory budget"
    )]
    NoGroups,
    /// The model has no supported tokenizer, but text is given.
    #[error("the text cannot be tokenized: {reason}")]
    NoTokenizer {
        /// Reason, as text.
        reason: String,
    },
    /// A step cannot be run.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A text has more tokens than a step, but the model must read a text in one step.
    #[error(
        "the text has {tokens} tokens; this model reads a text in one step, and a step has at most {most} tokens: compile the model with longer steps"
    )]
    TextBeyondStep {
        /// Number of tokens.
        tokens: usize,
        /// Max number of tokens.
        most: usize,
    },
    /// A prompt has more bytes than the context could hold if each token were the longest one.
    #[error(
        "the prompt has {bytes} bytes; the context of {context} tokens holds at most {}, since its longest token has {longest}; {}",
        context.saturating_mul(*longest),
        larger(*context, *model)
    )]
    Prompt {
        /// Length in bytes.
        bytes: usize,
        /// Tokens of the context.
        context: usize,
        /// Bytes of the longest token.
        longest: usize,
        /// Context length that the model was trained with.
        model: usize,
    },
    /// The chat template failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The model has no chat template, but a conversation is requested.
    #[error("the model has no chat template (tokenizer.chat_template)")]
    NoTemplate,
    /// The chat template does not print tools, and for its format, tools cannot be described as
    /// text.
    #[error(
        "the chat template prints no tools, and the prompt cannot describe this model's format of calls; use a template that prints tools"
    )]
    ToolsLeftOut,
    /// The sampler's settings are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The sampler failed.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A grammar is malformed, costs too much, or cannot be followed.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// Too many tokens contain or begin one of DRY's sequence breakers.
    #[error("the sequence breakers up to {text:?} match more than {most} tokens; give fewer or longer breakers")]
    Breakers {
        /// The sequence breaker at which the limit was exceeded.
        text: String,
        /// Max number of tokens.
        most: usize,
    },
    /// A saved sequence cannot be written or restored.
    #[error("{}: {source}", path.display())]
    Saved {
        /// File of the saved sequence.
        path: PathBuf,
        /// The reason.
        source: Box<SavedError>,
    },
    /// The slot does not exist or is busy.
    #[error("slot {number} is busy or does not exist; slots are 0 to {}", slots.saturating_sub(1))]
    NoSlot {
        /// Number of the slot.
        number: usize,
        /// Number of slots.
        slots: usize,
    },
    /// The model does not support drafts, because its states cannot be truncated.
    #[error("this model does not support speculation: its recurrent states cannot be restored after a rejected draft")]
    NoSpeculation,
    /// The draft model does not match the model.
    #[error("the draft model does not fit the model: {0}")]
    Draft(#[from] DraftError),
    /// The draft layer does not match the model.
    #[error("the draft layer does not fit the model: {0}")]
    OwnLayer(#[from] OwnLayerError),
    /// A file of expert counts is invalid.
    #[error(transparent)]
    ExpertUse(#[from] ExpertUseError),
    /// Invalid rows for experts, or experts that cannot be read.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// A step panicked, so its requests have no results.
    #[error("the engine failed in this step; the server's log has the details")]
    StepPanicked,
    /// The thread that runs experts has ended.
    #[error("the thread that runs experts has ended; load the plan again")]
    NoMoe,
    /// A drive cannot be measured.
    #[error(transparent)]
    Drive {
        /// The reason.
        source: Box<StreamError>,
    },
    /// The largest file is too small to measure the drive.
    #[error(
        "{}: the largest file in this folder has {}; expected a file of at least {} on the drive that is measured",
        path.display(), Bytes(*bytes), Bytes(*needed)
    )]
    SmallDrive {
        /// The file or folder.
        path: PathBuf,
        /// Bytes of the largest file.
        bytes: u64,
        /// Min bytes of a file.
        needed: u64,
    },
}

from_inner!(
    Error, CompileError: ArchError, Box<CheckError>, Box<CodegenError>, Box<SimulateError>, CheckpointError, CodegenError, CutError, GenerateError, GgufError, GridFileError,
    InterpretError, OutputError, PassError, PlaceError, ProfileError, ReadError, ReplacementError, SelectError, TokenizerError, TunedError,
    VocabularyError, WeightError, DescriptorError
);

impl Error {
    /// Returns a function that makes a [`CompileError::Io`] for `path`.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| CompileError::io(path, action)(source).into()
    }

    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            Error::Compile(error) => error.class(),
            Error::PlanFile(error) => error.class(),
            Error::Load(error) => error.class(),
            Error::Step(error) => error.class(),
            Error::Template(error) => error.class(),
            Error::Settings(error) => error.class(),
            Error::Sample(error) => error.class(),
            Error::Grammar(error) => error.class(),
            Error::Draft(error) => error.class(),
            Error::OwnLayer(error) => error.class(),
            Error::ExpertUse(error) => error.class(),
            Error::Layer(error) => error.class(),
            Error::NeedsCpu { source, .. } => source.class(),
            Error::Saved { source, .. } => source.class(),
            // The class is `Io`, because the user asked to measure the drive.
            Error::Drive { .. } => Class::Io,
            Error::PlanSays { .. } | Error::NotPlan { .. } => Class::Usage,
            Error::NoMoe | Error::StepPanicked => Class::Failed,
            Error::OtherTarget { .. }
            | Error::OtherOutput { .. }
            | Error::NoEarlyRouters
            | Error::NoGroups
            | Error::NoTokenizer { .. }
            | Error::TextBeyondStep { .. }
            | Error::Prompt { .. }
            | Error::NoTemplate
            | Error::ToolsLeftOut
            | Error::Breakers { .. }
            | Error::NoSlot { .. }
            | Error::NoSpeculation
            | Error::SmallDrive { .. } => Class::Data,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Error::Compile(error) => error.remedy(),
            Error::PlanFile(error) => error.remedy(),
            Error::Load(error) => error.remedy(),
            Error::NeedsCpu { .. } => Some(Remedy::Emulate),
            Error::PlanSays { .. } => Some(Remedy::ChooseAtCompile),
            Error::NotPlan { .. } => Some(Remedy::NameModelFile),
            Error::OtherOutput { embeddings: true } => Some(Remedy::CompileEmbeddings),
            Error::OtherOutput { embeddings: false } => Some(Remedy::CompileText),
            Error::NoEarlyRouters => Some(Remedy::PredictExperts),
            Error::NoGroups => Some(Remedy::UnmapExperts),
            Error::TextBeyondStep { .. } => Some(Remedy::LargerStep),
            Error::Prompt { context, model, .. } if model > context => Some(Remedy::LargerContext),
            Error::NoTemplate => Some(Remedy::ChatTemplate),
            _ => None,
        }
    }

    /// Returns the path of a file that does not exist.
    pub fn missing_file(&self) -> Option<&Path> {
        match self {
            Error::Compile(error) => error.missing_file(),
            _ => None,
        }
    }

    /// Returns whether the reader of standard output has closed it.
    pub fn is_closed_standard_output(&self) -> bool {
        matches!(self, Error::Compile(error) if error.is_closed_standard_output())
    }
}
