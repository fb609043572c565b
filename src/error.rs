//! Errors between a model file and its logits: one enum at the edge, which wraps the errors of all
//! crates.
//!
//! Messages state the fault and the expectation in the words of the library. [`Error::class`]
//! returns the kind of failure, and [`Error::remedy`] the change that may help; wrapped errors
//! answer for themselves. The command line makes an exit status of the class, and names options for
//! the remedy.

pub mod batch;
pub mod draft;
pub mod kernels;
pub mod record;
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
use ixc_grammar::GrammarError;
use ixc_ir::graph::expert_layers::CutError;
use ixc_ir::graph::interpret::InterpretError;
use ixc_ir::plan::decode::DecodeError;
use ixc_ir::units::Bytes;
use ixc_kernels::GenerateError;
use ixc_model_files::checkpoint::CheckpointError;
use ixc_model_files::gguf::{GgufError, VocabularyError};
use ixc_passes::error::PassError;
use ixc_passes::manager::StopError;
use ixc_runtime::engine::StepError;
use ixc_runtime::expert_layers::LayerError;
use ixc_runtime::file::FileError;
use ixc_runtime::load::LoadError;
use ixc_runtime::sample::{SampleError, SettingsError};
use ixc_runtime::saved::SavedError;
use ixc_runtime::stream::StreamError;
use ixc_text::template::TemplateError;
use ixc_text::tokenizer::TokenizerError;

use crate::excerpt::Excerpt;
use crate::expert_use::ExpertUseError;
use crate::quantise::QuantiseError;
use crate::select::SelectError;
use crate::simulate::WeightError;
use batch::BatchError;
use draft::{DraftError, OwnLayerError};
use kernels::{BundleError, KernelError};
use record::RecordError;
use tuned::TunedError;

/// Why a model cannot be compiled or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model file is missing or malformed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The model's folder.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// It does not fit on a grid of processing elements.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// There is no such grid, or its file is none.
    #[error(transparent)]
    Grid(#[from] GridFileError),
    /// A descriptor's file is none.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    /// A descriptor that no machine can run.
    #[error(transparent)]
    Check(#[from] Box<CheckError>),
    /// A simulation did not come to its end.
    #[error(transparent)]
    Simulate(#[from] Box<SimulateError>),
    /// A descriptor's weights are not in the model's file.
    #[error(transparent)]
    DescriptorWeight(#[from] WeightError),
    /// The file is sound but makes no model.
    #[error(transparent)]
    Arch(#[from] ArchError),
    /// The tokenizer is malformed, or cannot take the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template gave no prompt.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The interpreter refused.
    #[error(transparent)]
    Interpret(#[from] InterpretError),
    /// A pass found the graph wrong.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A plan is made already.
    #[error("a plan says itself {what}: that is chosen when it is compiled")]
    PlanSays {
        /// What was asked for.
        what: &'static str,
    },
    /// Text that says nowhere to go on from.
    #[error("{}: {source}", path.display())]
    Stop {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<StopError>,
    },
    /// The same, of a graph, with the line.
    #[error("{0}")]
    StopText(Box<Excerpt>),
    /// Nothing is left to do up to a pass.
    #[error("compiling goes on after {start}, and {last} is not behind that")]
    BehindPass {
        /// Where it goes on.
        start: &'static str,
        /// The pass.
        last: &'static str,
    },
    /// Nothing of a model is meant by a pattern or layers.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// No kernel can be made of a step.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// No code can be made of a kernel, or not run.
    #[error(transparent)]
    Codegen(#[from] Box<CodegenError>),
    /// This machine cannot run the code that a plan is for.
    #[error("{source}")]
    NeedsCpu {
        /// What is missing.
        source: Box<CodegenError>,
    },
    /// A plan cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A kernel on its own cannot be shown, run or compared.
    #[error(transparent)]
    Kernel(#[from] Box<KernelError>),
    /// A plan file cannot be read or written.
    #[error(transparent)]
    PlanFile(#[from] FileError),
    /// A step cannot be run.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The sampler's settings are impossible.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The sampler failed.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A grammar is malformed, costs too much, or cannot be followed.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// The plan is for another target than was asked for.
    #[error("the plan is for target {plan}, not for {wanted}; compile the model again")]
    OtherTarget {
        /// The plan's.
        plan: String,
        /// What was asked for.
        wanted: &'static str,
    },
    /// A plan gives something else than was asked for.
    #[error("this plan gives {}; compile the model for {}", if *embeddings { "logits and no hidden states" } else { "hidden states and no logits" }, if *embeddings { "embeddings" } else { "text" })]
    OtherOutput {
        /// Whether hidden states were asked for, for embeddings.
        embeddings: bool,
    },
    /// Experts are to be predicted by early routers, and the plan has none.
    #[error(
        "no layer's experts are predicted in this plan, so that reading ahead by early routers has nothing to go by: compile it with them, or choose another way"
    )]
    NoEarlyRouters,
    /// Experts are to stay where they are mapped, and the plan does not say when they are needed.
    #[error(
        "this plan does not say when experts are needed, so that the page cache cannot be told of experts in mapped files"
    )]
    NoGroups,
    /// A model file of a plan, for what is no plan.
    #[error("{}: is a model itself; only a plan has a model file besides", path.display())]
    NotPlan {
        /// The model.
        path: PathBuf,
    },
    /// A plan where only a model file will do.
    #[error("{}: is a plan; this needs the model file that it was made from", path.display())]
    IsPlan {
        /// The plan.
        path: PathBuf,
    },
    /// Text is needed where a model has no tokenizer that is supported.
    #[error("text cannot be turned into tokens: {reason}")]
    NoTokenizer {
        /// Why.
        reason: String,
    },
    /// A conversation with a model that has no chat template.
    #[error("the model has no chat template (tokenizer.chat_template)")]
    NoTemplate,
    /// A plan names its model file, and can name only UTF-8.
    #[error("{}: the path is no UTF-8, as a plan needs it", path.display())]
    PathNotUtf8 {
        /// The path.
        path: PathBuf,
    },
    /// The tokenizer in a plan cannot be read.
    #[error("the plan's tokenizer is malformed: {source}")]
    PlanTokenizer {
        /// Why.
        source: DecodeError,
    },
    /// A state that cannot be saved, or not be gone on with.
    #[error("{}: {source}", path.display())]
    Saved {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: Box<SavedError>,
    },
    /// A sequence that there is not, or that a request is computed in.
    #[error("there is no free slot {number}; slots go from 0 to {}", slots.saturating_sub(1))]
    NoSlot {
        /// Its number.
        number: usize,
        /// How many there are.
        slots: usize,
    },
    /// A folder for two things.
    #[error("{} cannot have both what prompts begin with and saved sequences; another folder is needed for one of them", path.display())]
    SameFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A text that no repetition is to go over, which too many tokens have in them or begin.
    #[error(
        "more than {most} tokens have or begin the texts that end repetitions, up to {text:?}; longer or fewer ones would have fewer"
    )]
    Breakers {
        /// The text at which they became too many.
        text: String,
        /// How many may be.
        most: usize,
    },
    /// A model whose routed experts cannot be run on their own.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// Rows that experts cannot be run on, or experts that cannot be read.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// Rows that were to be computed when the thread that computes them was gone.
    #[error("the thread that runs experts is gone")]
    NoMoe,
    /// A model whose states cannot be cut, of which tokens were to be guessed.
    #[error(
        "tokens of this model cannot be guessed: it has recurrent states, which a step changes for good, so that what was guessed wrong \
         could not be taken back"
    )]
    NoSpeculation,
    /// A model that cannot guess for another one.
    #[error("the draft model cannot guess for the model: {0}")]
    Draft(#[from] DraftError),
    /// A layer of a model that cannot guess for it.
    #[error("the layer cannot guess for the model: {0}")]
    OwnLayer(#[from] OwnLayerError),
    /// What says which experts are used cannot be read.
    #[error(transparent)]
    ExpertUse(#[from] ExpertUseError),
    /// A file that is no trace.
    #[error("{}: no trace: {source}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        source: serde_json::Error,
    },
    /// A text that cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// An output that cannot be written, or must not be.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A file other than a model could not be read or written.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A drive cannot be measured.
    #[error(transparent)]
    Drive {
        /// Why.
        source: Box<StreamError>,
    },
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
    /// There is no file that a drive can be measured with.
    #[error(
        "{}: the largest file here has {}; to measure a drive, give a file of {} or more that lies on it",
        path.display(), Bytes(*bytes), Bytes(*needed)
    )]
    SmallDrive {
        /// The file or folder.
        path: PathBuf,
        /// Bytes of the largest file.
        bytes: u64,
        /// The least that will do.
        needed: u64,
    },
    /// A token id that the model has no row for.
    #[error("token {position} is {id}; ids of this model go from 0 to {}", vocabulary.saturating_sub(1))]
    Token {
        /// Which of the tokens, from 0.
        position: usize,
        /// Its id.
        id: u64,
        /// Size of the vocabulary.
        vocabulary: u64,
    },
    /// Nothing to compute on.
    #[error("no tokens were given; at least one is needed")]
    NoTokens,
    /// A model cannot be quantised.
    #[error(transparent)]
    Quantise(#[from] Box<QuantiseError>),
    /// The record of an evaluation cannot be gone on with.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// There is no profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Tuned choices cannot be used.
    #[error(transparent)]
    Tuned(#[from] TunedError),
    /// The answers of a batch cannot be gone on with.
    #[error(transparent)]
    Batch(#[from] BatchError),
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
    /// More tokens than the model can see.
    #[error("{tokens} tokens do not fit into the context of {context}; {}", larger(*context, *model))]
    Context {
        /// How many there are.
        tokens: usize,
        /// How many fit.
        context: usize,
        /// How many the model was made for.
        model: usize,
    },
    /// A text of more tokens than a step has, of a model that reads texts whole.
    #[error(
        "a text of {tokens} tokens; this model reads texts whole, and a step has {most} tokens: compile it for longer ones"
    )]
    TextBeyondStep {
        /// How many there are.
        tokens: usize,
        /// How many fit.
        most: usize,
    },
    /// A prompt longer than the model can see, whatever tokens it is.
    #[error(
        "the prompt has {bytes} bytes; the context of {context} tokens holds at most {}, its longest token being one of {longest}; {}",
        context.saturating_mul(*longest),
        larger(*context, *model)
    )]
    Prompt {
        /// Its length.
        bytes: usize,
        /// Tokens of the context.
        context: usize,
        /// Bytes of the longest token.
        longest: usize,
        /// Tokens that the model was made for.
        model: usize,
    },
}

/// How much larger a context can be.
fn larger(context: usize, model: usize) -> String {
    match model > context {
        true => format!("this model was made for up to {model}"),
        false => "this model was made for no more".into(),
    }
}

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

impl From<CodegenError> for Error {
    fn from(error: CodegenError) -> Error {
        Box::new(error).into()
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
    /// An [`Error::Io`] for `path`.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { path: path.to_owned(), action, source }
    }

    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            Error::Gguf(error) => error.class(),
            Error::Checkpoint(error) => error.class(),
            Error::Place(error) => error.class(),
            Error::Grid(error) => error.class(),
            Error::Descriptor(error) => error.class(),
            Error::Check(error) => error.class(),
            Error::Simulate(error) => error.class(),
            Error::DescriptorWeight(error) => error.class(),
            Error::Arch(error) => error.class(),
            Error::Tokenizer(error) => error.class(),
            Error::Template(error) => error.class(),
            Error::Interpret(error) => error.class(),
            Error::Pass(error) => error.class(),
            Error::Stop { source, .. } => source.class(),
            Error::Select(error) => error.class(),
            Error::Generate(error) => error.class(),
            Error::Codegen(error) => error.class(),
            Error::NeedsCpu { source, .. } => source.class(),
            Error::Load(error) => error.class(),
            Error::Kernel(error) => error.class(),
            Error::PlanFile(error) => error.class(),
            Error::Step(error) => error.class(),
            Error::Settings(error) => error.class(),
            Error::Sample(error) => error.class(),
            Error::Grammar(error) => error.class(),
            Error::PlanTokenizer { source, .. } => source.class(),
            Error::Saved { source, .. } => source.class(),
            Error::Cut(error) => error.class(),
            Error::Layer(error) => error.class(),
            Error::Draft(error) => error.class(),
            Error::OwnLayer(error) => error.class(),
            Error::ExpertUse(error) => error.class(),
            Error::Read(error) => error.class(),
            Error::Output(error) => error.class(),
            Error::Quantise(error) => error.class(),
            Error::Record(error) => error.class(),
            Error::Profile(error) => error.class(),
            Error::Tuned(error) => error.class(),
            Error::Batch(error) => error.class(),
            Error::Io { source, .. } => io_class(source),
            // Reading the drive was the request.
            Error::Drive { .. } => Class::Io,
            Error::PlanSays { .. } | Error::BehindPass { .. } | Error::NotPlan { .. } | Error::NoModelFile { .. } => {
                Class::Usage
            }
            Error::NoMoe => Class::Failed,
            Error::StopText(_)
            | Error::OtherTarget { .. }
            | Error::OtherOutput { .. }
            | Error::NoEarlyRouters
            | Error::NoGroups
            | Error::IsPlan { .. }
            | Error::NoTokenizer { .. }
            | Error::NoTemplate
            | Error::PathNotUtf8 { .. }
            | Error::NoSlot { .. }
            | Error::SameFolder { .. }
            | Error::Breakers { .. }
            | Error::NoSpeculation
            | Error::Trace { .. }
            | Error::NoDrive { .. }
            | Error::NoExperts { .. }
            | Error::SmallDrive { .. }
            | Error::Token { .. }
            | Error::NoTokens
            | Error::ShortText { .. }
            | Error::OtherVocabulary { .. }
            | Error::LogitsNotFinite { .. }
            | Error::Context { .. }
            | Error::TextBeyondStep { .. }
            | Error::Prompt { .. } => Class::Data,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Error::Arch(error) => error.remedy(),
            Error::Batch(error) => error.remedy(),
            Error::Checkpoint(error) => error.remedy(),
            Error::Kernel(error) => error.remedy(),
            Error::Load(error) => error.remedy(),
            Error::Output(error) => error.remedy(),
            Error::PlanFile(error) => error.remedy(),
            Error::Quantise(error) => error.remedy(),
            Error::Record(error) => error.remedy(),
            Error::Tuned(error) => error.remedy(),
            Error::PlanSays { .. } => Some(Remedy::ChooseAtCompile),
            Error::NeedsCpu { .. } => Some(Remedy::Emulate),
            Error::OtherOutput { embeddings: true } => Some(Remedy::CompileEmbeddings),
            Error::OtherOutput { embeddings: false } => Some(Remedy::CompileText),
            Error::NoEarlyRouters => Some(Remedy::PredictExperts),
            Error::NoGroups => Some(Remedy::UnmapExperts),
            Error::NotPlan { .. } => Some(Remedy::NameModelFile),
            Error::NoTemplate => Some(Remedy::ChatTemplate),
            Error::NoModelFile { .. } => Some(Remedy::FindModelFile),
            Error::Context { context, model, .. } | Error::Prompt { context, model, .. } if model > context => {
                Some(Remedy::LargerContext)
            }
            Error::TextBeyondStep { .. } => Some(Remedy::LargerStep),
            Error::ShortText { .. } => Some(Remedy::ShorterPieces),
            Error::Trace { .. } => Some(Remedy::RecordTrace),
            _ => None,
        }
    }

    /// Returns the path of a file that does not exist.
    pub fn missing_file(&self) -> Option<&Path> {
        match self {
            Error::Gguf(error) => error.missing_file(),
            Error::Read(error) => error.missing_file(),
            Error::Io { path, source, .. } if source.kind() == io::ErrorKind::NotFound => Some(path),
            _ => None,
        }
    }
}
