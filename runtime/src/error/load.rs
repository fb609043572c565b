//! Why a plan can't be loaded.

use std::io;
use std::path::PathBuf;

use ixc_codegen::module::CodegenError;
use ixc_emulator::Fault;
use ixc_failure::{Class, Remedy};
use ixc_files::io_class;
use ixc_ir::kernel::verify::VerifyError;
use ixc_ir::units::Bytes;
use ixc_targets::{TARGETS, Target};

use crate::blocks::BlockError;
use crate::lock::LockError;
use crate::memory::MemoryError;
use crate::pool::{MAX_THREADS, PoolError};
use crate::program::PlanError;
use crate::stream::StreamError;

/// Why a plan can't be run.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The plan is wrong.
    #[error("the plan is malformed: {0}")]
    Plan(#[from] PlanError),
    /// Weights that cannot be locked in memory.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A plan of layers where a model's steps are to be run.
    #[error("the plan has layers of experts, each run on its own, and no steps of a model")]
    NoSteps,
    /// A plan that is to be run with another's weights.
    #[error("{}", if *streamed { "experts that are streamed belong to their plan: no other one runs with them" } else { "the plan has other weights, states, files or rows than the one that was loaded" })]
    OtherPlan {
        /// Whether that is since experts are streamed.
        streamed: bool,
    },
    /// A plan of a model's steps where layers are to be run.
    #[error("the plan has a model's steps, and no layers of experts that are run on their own")]
    NoLayers,
    /// A kernel of the plan is wrong.
    #[error("the plan is malformed: kernel {kernel:?}: {source}")]
    Kernel {
        /// The kernel's name.
        kernel: String,
        /// What is wrong.
        source: Box<VerifyError>,
    },
    /// The plan is for a target that this build does not know.
    #[error("the plan is for target {found:?}; this build has {}", target_names())]
    Target {
        /// The target's name.
        found: String,
    },
    /// Code can't be generated or run here.
    #[error(transparent)]
    Codegen(Box<CodegenError>),
    /// A target that the emulator does not know.
    #[error("target {} runs on every machine; the emulator runs only code for x86-64 targets", target.name())]
    NotEmulated {
        /// The target.
        target: Target,
    },
    /// Generated code that the emulator does not take: a bug.
    #[error("kernel {kernel}: {source}; this is a bug")]
    Fault {
        /// The kernel's name.
        kernel: String,
        /// What and where.
        source: Box<Fault>,
    },
    /// A model file can't be opened or read.
    #[error("model file {}: {source}", path.display())]
    ModelFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A model file is not there.
    #[error(
        "model file {}: No such file, nor one called {} beside the plan",
        path.display(), path.file_name().unwrap_or_default().display()
    )]
    NoModelFile {
        /// Where the plan says that it is.
        path: PathBuf,
    },
    /// Another number of model files than the plan was made from.
    #[error("{found} model file(s) given for a plan that was made from {expected}{}", if *expected == 0 { ": it holds all weights itself" } else { "" })]
    FileCount {
        /// Given.
        found: usize,
        /// The plan's.
        expected: usize,
    },
    /// A model file is not the one that the plan was made from.
    #[error(
        "model file {}: {what} is {found}, the plan was made from a file where it is {expected}; this needs the file that the plan was made from, or the model to be compiled again",
        path.display()
    )]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// What is different.
        what: &'static str,
        /// What it is.
        found: u64,
        /// What it was.
        expected: u64,
    },
    /// The context asked for.
    #[error("a context of {found} is not possible; this model takes 1 to {most}")]
    Context {
        /// Asked for.
        found: u32,
        /// Largest.
        most: u32,
    },
    /// The number of threads asked for.
    #[error("{found} threads are not possible; 1 to {MAX_THREADS} are")]
    Threads {
        /// Asked for.
        found: usize,
    },
    /// The system gives no memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A weight in the plan's own file has another checksum than when it was written.
    #[error(
        "{}: weight {name:?} has checksum {found:08x} where {expected:08x} was written: the file is damaged, compile the model again",
        path.display()
    )]
    DamagedWeight {
        /// The plan's file.
        path: PathBuf,
        /// The weight.
        name: String,
        /// Of its bytes.
        found: u32,
        /// As written.
        expected: u32,
    },
    /// A block of experts in the plan's own file is not what was written.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The plan has weights in its own file, which is not at hand.
    #[error("the plan has weights in its own file, and was not loaded from it")]
    NoWeights,
    /// The memory asked for is too little for what has to be in it.
    #[error(
        "a memory budget of {} is too small: {} MiB are needed besides experts, and {} MiB with the least of them",
        Bytes(*budget), mib(*fixed), mib(*needed)
    )]
    Budget {
        /// Asked for.
        budget: u64,
        /// What is in memory all the time.
        fixed: u64,
        /// The least that works.
        needed: u64,
    },
    /// The memory asked for is too little, and nothing in the plan can be read when it is needed.
    #[error(
        "a memory budget of {} is too small: this takes {} MiB, and keeps all of it in memory; what can stay on the drive are experts of a model in a file, in a plan that was compiled with this budget or a smaller one",
        Bytes(*budget), mib(*needed)
    )]
    Larger {
        /// Asked for.
        budget: u64,
        /// What it takes.
        needed: u64,
    },
    /// Experts are to stay in mapped files, and the plan packs them when it is loaded.
    #[error(
        "experts cannot be read where they are mapped: {weight} is packed when the plan is loaded; compile it without packing, or with packed weights in the plan's own file"
    )]
    PackedExperts {
        /// The first weight that is.
        weight: String,
    },
    /// Experts are to be streamed, and lie in no file as they are packed.
    #[error(
        "experts cannot be streamed from the model's own files: {weight} is converted as it is read (FP8, MXFP4, or rows in another order); stream them from a plan that has them packed"
    )]
    ConvertedExperts {
        /// The first weight that is.
        weight: String,
    },
    /// Counts of how experts are used that are of another model.
    #[error("which experts are used is known of another model: {0}")]
    OtherExperts(#[from] OtherExperts),
    /// Experts can't be streamed.
    #[error(transparent)]
    Stream(Box<StreamError>),
    /// A bug, or the memory of the weights failed.
    #[error("weights could not be packed: {source}")]
    Pack {
        /// What happened.
        source: PoolError,
    },
    /// The system gives no thread.
    #[error("cannot start a thread: {source}")]
    Thread {
        /// Why.
        source: io::Error,
    },
}

impl LoadError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            LoadError::Lock(error) => error.class(),
            LoadError::Codegen(error) => error.class(),
            LoadError::Memory(error) => error.class(),
            LoadError::Stream(error) => error.class(),
            LoadError::Fault { source, .. } => source.class(),
            LoadError::ModelFile { source, .. } => io_class(source),
            LoadError::NotEmulated { .. }
            | LoadError::FileCount { .. }
            | LoadError::Context { .. }
            | LoadError::Threads { .. }
            | LoadError::Budget { .. }
            | LoadError::Larger { .. } => Class::Usage,
            LoadError::NoModelFile { .. } => Class::NoInput,
            LoadError::Pack { .. } | LoadError::Thread { .. } => Class::Failed,
            LoadError::Plan(_)
            | LoadError::NoSteps
            | LoadError::OtherPlan { .. }
            | LoadError::NoLayers
            | LoadError::Kernel { .. }
            | LoadError::Target { .. }
            | LoadError::OtherModel { .. }
            | LoadError::DamagedWeight { .. }
            | LoadError::Block(_)
            | LoadError::NoWeights
            | LoadError::PackedExperts { .. }
            | LoadError::ConvertedExperts { .. }
            | LoadError::OtherExperts(_) => Class::Data,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            LoadError::Lock(_) => Some(Remedy::LockLess),
            LoadError::NoSteps => Some(Remedy::CompileSteps),
            LoadError::NoLayers => Some(Remedy::CompileLayers),
            LoadError::NoModelFile { .. } => Some(Remedy::FindModelFile),
            LoadError::OtherModel { .. } => Some(Remedy::OtherModelFile),
            LoadError::PackedExperts { .. } => Some(Remedy::StoreExperts),
            _ => None,
        }
    }
}

/// How layers with experts differ from those of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OtherExperts {
    /// There are more or fewer.
    #[error("{found} layers have experts there, and {expected} here")]
    Layers {
        /// There.
        found: usize,
        /// In the plan.
        expected: usize,
    },
    /// One has more or fewer experts.
    #[error("layer {layer} of those with experts has {found} there, and {expected} here")]
    Experts {
        /// Which layer, of those with experts.
        layer: usize,
        /// Its experts there.
        found: usize,
        /// In the plan.
        expected: usize,
    },
}

/// Bytes as whole MiB, rounded up.
fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

fn target_names() -> String {
    TARGETS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ")
}
