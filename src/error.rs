//! What can go wrong between a model file and its logits: one enum at the edge, and the exit status of each.
//!
//! | status | means |
//! | --- | --- |
//! | 0 | done |
//! | 1 | failed for another reason, such as a bug |
//! | 2 | the command line is wrong, or an output is an input or a file of another kind |
//! | 65 | a model, plan, IR text or request is malformed, or asks for what is not supported (`EX_DATAERR`) |
//! | 66 | a file is missing or may not be read (`EX_NOINPUT`) |
//! | 69 | this CPU lacks a feature that the target needs, or the system forbids generated code (`EX_UNAVAILABLE`) |
//! | 74 | reading or writing failed (`EX_IOERR`) |
//! | 130 | ended by Ctrl-C |

use std::io;
use std::path::{Path, PathBuf};

use ixc_codegen::module::CodegenError;
use ixc_dataflow::check::CheckError;
use ixc_dataflow::grids::GridFileError;
use ixc_dataflow::place::PlaceError;
use ixc_dataflow::read::ReadError as DescriptorError;
use ixc_dataflow::simulate::SimulateError;
use ixc_files::{OutputError, ReadError, is_not_regular};
use ixc_frontend::arch::ArchError;
use ixc_frontend::gguf::GgufError;
use ixc_frontend::template::{self, TemplateError};
use ixc_frontend::tokenizer::TokenizerError;
use ixc_ir::graph::interpret::InterpretError;
use ixc_ir::units::Bytes;
use ixc_kernels::GenerateError;
use ixc_passes::manager::PassError;
use ixc_passes::schedule::ScheduleError;
use ixc_runtime::engine::StepError;
use ixc_runtime::execute::ExecuteError;
use ixc_runtime::file::FileError;
use ixc_runtime::file::decode::DecodeError;
use ixc_runtime::load::LoadError;
use ixc_runtime::sample::{SampleError, SettingsError};
use ixc_runtime::stream::StreamError;

use crate::kernels::KernelError;
use crate::kernels::bundle::BundleError;
use crate::simulate::WeightError;

/// Exit status of other failures.
pub const FAILED: u8 = 1;
/// Exit status for a wrong command line.
pub const USAGE: u8 = 2;
/// Exit status for malformed input.
pub const DATA: u8 = 65;
/// Exit status for a missing file.
pub const NO_INPUT: u8 = 66;
/// Exit status where the CPU lacks a feature.
pub const UNAVAILABLE: u8 = 69;
/// Exit status where reading or writing failed.
pub const IO: u8 = 74;
/// Exit status after Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// What no process has: a plan that asks for it is wrong, whatever machine it is loaded on. (Addresses of x86-64 have 47 bits for it.)
const ADDRESS_SPACE: u64 = 1 << 47;

/// Why a model cannot be compiled or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model file is missing or malformed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
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
    #[error("a plan says itself which experts are deferred; give --defer to `ixc compile`, or run the model file")]
    PlanDefers,
    /// No plan can be made of the graph.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// No kernel can be made of a step.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// No code can be made of a kernel, or not run.
    #[error(transparent)]
    Codegen(#[from] Box<CodegenError>),
    /// This machine cannot run the code that a plan is for.
    #[error("{source}; --emulate runs it in the emulator, slowly")]
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
    /// The plan is for another target than was asked for.
    #[error("the plan is for target {plan}, not for {wanted}; compile the model again")]
    OtherTarget {
        /// The plan's.
        plan: String,
        /// What was asked for.
        wanted: &'static str,
    },
    /// Experts are to be predicted by early routers, and the plan has none.
    #[error(
        "no layer's experts are predicted in this plan, so that --prefetch router has nothing to go by; compile it with --prefetch router, or choose previous, frequency or auto"
    )]
    NoEarlyRouters,
    /// Experts are to stay where they are mapped, and the plan does not say when they are needed.
    #[error(
        "this plan does not say when experts are needed, so that --experts map has nothing to tell the page cache; leave it out, or compile a model that has experts with --memory"
    )]
    NoGroups,
    /// A model file of a plan, for what is no plan.
    #[error("{}: is a model itself; --model names the model file of a plan", path.display())]
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
    #[error(
        "the model has no chat template (tokenizer.chat_template); --chat-template names one ({}) or a file with one, and -p without --chat needs none",
        template::known::names().join(", ")
    )]
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
    #[error("{}: holds all weights itself; this needs the model file that it was made from too: --model FILE", path.display())]
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

/// Whether a context can be larger.
fn larger(context: usize, model: usize) -> String {
    match model > context {
        true => format!("--ctx makes it larger, this model was made for up to {model}"),
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

impl Error {
    /// An [`Error::Io`] for `path`.
    pub fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { path: path.to_owned(), action, source }
    }

    /// The exit status that the table above gives it.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Gguf(error) => error.class().exit_status(),
            Error::Arch(error) => error.class().exit_status(),
            Error::Settings(_) => USAGE,
            Error::Kernel(error) => error.exit_status(),
            Error::Codegen(error) | Error::Load(LoadError::Codegen(error)) | Error::NeedsCpu { source: error } => {
                codegen_status(error)
            }
            Error::Io { source, .. }
            | Error::PlanFile(FileError::Io { source, .. } | FileError::Space { source, .. })
            | Error::Load(LoadError::ModelFile { source, .. }) => io_status(source),
            Error::Load(LoadError::Memory(error)) if error.bytes >= ADDRESS_SPACE => DATA,
            Error::Load(
                LoadError::Memory(_) | LoadError::Thread { .. } | LoadError::Pack { .. } | LoadError::Fault { .. },
            ) => FAILED,
            Error::Load(LoadError::Stream(_)) | Error::Step(StepError::Execute(ExecuteError::Stream(_))) => FAILED,
            Error::Drive { .. } => IO,
            // The system refused it; what a template did to its renderer is the template's.
            Error::Template(TemplateError::Start { .. }) => IO,
            Error::Load(
                LoadError::NotEmulated { .. }
                | LoadError::Budget { .. }
                | LoadError::Larger { .. }
                | LoadError::Context { .. }
                | LoadError::Threads { .. }
                | LoadError::FileCount { .. },
            )
            | Error::NoModelFile { .. }
            | Error::NotPlan { .. } => USAGE,
            Error::Load(LoadError::NoModelFile { .. }) => NO_INPUT,
            Error::PlanFile(FileError::Source(error)) => match &**error {
                LoadError::ModelFile { source, .. } => io_status(source),
                LoadError::Memory(_) | LoadError::Thread { .. } | LoadError::Pack { .. } | LoadError::Stream(_) => {
                    FAILED
                }
                _ => DATA,
            },
            Error::Output(error) | Error::PlanFile(FileError::Output(error)) => output_status(error),
            Error::Load(_) | Error::PlanFile(_) | Error::Step(_) => DATA,
            Error::Pass(PassError::NoExperts { .. } | PassError::Deferred { .. } | PassError::Unknown { .. })
            | Error::PlanDefers => USAGE,
            Error::Grid(GridFileError::Unknown { .. }) => USAGE,
            Error::Read(error)
            | Error::Grid(GridFileError::Read(error))
            | Error::Descriptor(DescriptorError::Read(error)) => read_status(error),
            Error::Grid(_) | Error::Descriptor(_) | Error::Check(_) => DATA,
            Error::Simulate(_) | Error::DescriptorWeight(_) => DATA,
            Error::Pass(_)
            | Error::Schedule(_)
            | Error::Place(_)
            | Error::Generate(_)
            | Error::Sample(_)
            | Error::OtherTarget { .. }
            | Error::NoEarlyRouters
            | Error::NoGroups
            | Error::IsPlan { .. }
            | Error::NoTokenizer { .. }
            | Error::NoTemplate
            | Error::PathNotUtf8 { .. }
            | Error::PlanTokenizer { .. }
            | Error::Tokenizer(_)
            | Error::Template(_)
            | Error::Interpret(_)
            | Error::Token { .. }
            | Error::NoTokens
            | Error::SmallDrive { .. }
            | Error::NoDrive { .. }
            | Error::NoExperts { .. }
            | Error::Context { .. }
            | Error::Prompt { .. } => DATA,
        }
    }
}

fn codegen_status(error: &CodegenError) -> u8 {
    match error {
        CodegenError::MissingFeatures { .. } | CodegenError::ExecutableMemory { .. } => UNAVAILABLE,
        // IR that was read is verified before anything is compiled: what fails here is ours.
        _ => FAILED,
    }
}

fn read_status(error: &ReadError) -> u8 {
    match error {
        ReadError::Io { source, .. } => io_status(source),
        ReadError::TooLong { .. } | ReadError::NotText { .. } => DATA,
    }
}

fn output_status(error: &OutputError) -> u8 {
    match error {
        OutputError::Io { .. } | OutputError::NotRegular { .. } | OutputError::BrokenLink { .. } => IO,
        OutputError::IsInput { .. }
        | OutputError::Foreign { .. }
        | OutputError::FolderIsThere { .. }
        | OutputError::NoStream { .. }
        | OutputError::NoName { .. } => USAGE,
    }
}

fn io_status(error: &io::Error) -> u8 {
    match error.kind() {
        _ if is_not_regular(error) => NO_INPUT,
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => NO_INPUT,
        io::ErrorKind::InvalidData => DATA,
        _ => IO,
    }
}
