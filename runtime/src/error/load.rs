//! Errors of loading a plan.

use std::io;
use std::path::PathBuf;

use ixc_codegen::module::CodegenError;
use ixc_emulator::Fault;
use ixc_failure::{Class, Remedy};
use ixc_files::io_class;
use ixc_ir::kernel::verify::VerifyError;
use ixc_ir::units::Bytes;
use ixc_targets::{TARGETS, Target};

use crate::error::ranks::RanksError;
use crate::numa::error::NumaError;
use crate::pool::{MAX_THREADS, PoolError};
use crate::program::PlanError;
use crate::storage::blocks::BlockError;
use crate::storage::lock::LockError;
use crate::storage::memory::MemoryError;
use crate::streaming::StreamError;

/// The reason why a plan cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The plan's tables are inconsistent.
    #[error("the plan is malformed: {0}")]
    Plan(#[from] PlanError),
    /// Weights cannot be locked in memory.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The plan has only expert layers, but a whole model is requested.
    #[error("the plan has only expert layers without a model; expected the steps of a whole model")]
    NoSteps,
    /// Threads or memory cannot be placed on NUMA nodes as requested.
    #[error(transparent)]
    Numa(#[from] NumaError),
    /// The ranks of the plan cannot run together.
    #[error(transparent)]
    Ranks(#[from] RanksError),
    /// Another plan cannot run in a loaded engine, because the engine streams experts, or because
    /// the plan's weights, states, files or rows differ.
    #[error("{}", if *streamed { "streamed experts belong to the plan that loaded them; another plan cannot use them" } else { "the plan has other weights, states, files or rows than the loaded plan" })]
    OtherPlan {
        /// Whether the reason is that the engine streams experts.
        streamed: bool,
    },
    /// The plan is that of a whole model, but separate expert layers are requested.
    #[error("the plan has the steps of a whole model; expected only expert layers without a model")]
    NoLayers,
    /// The kernel verifier refuses a kernel of the plan.
    #[error("the plan is malformed: kernel {kernel:?}: {source}")]
    Kernel {
        /// Name of the kernel.
        kernel: String,
        /// The verifier's error.
        source: Box<VerifyError>,
    },
    /// This build does not know the plan's target.
    #[error("the plan is for target {found:?}; this build has {}", target_names())]
    Target {
        /// The target's name.
        found: String,
    },
    /// Code cannot be generated or run on this machine.
    #[error(transparent)]
    Codegen(Box<CodegenError>),
    /// The emulator does not know the target.
    #[error("the emulator cannot run code for target {}; it runs only x86-64 code", target.name())]
    NotEmulated {
        /// Name of the target.
        target: Target,
    },
    /// The emulator refuses generated code, which is a bug.
    #[error("kernel {kernel}: {source}; this is a bug")]
    Fault {
        /// Name of the kernel.
        kernel: String,
        /// The emulator's error.
        source: Box<Fault>,
    },
    /// A model file cannot be opened or read.
    #[error("model file {}: {source}", path.display())]
    ModelFile {
        /// Model file that cannot be opened or read.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A model file exists neither at the plan's path nor next to the plan.
    #[error(
        "model file {}: No such file, and there is no file {} next to the plan",
        path.display(), path.file_name().unwrap_or_default().display()
    )]
    NoModelFile {
        /// Path of the model file in the plan.
        path: PathBuf,
    },
    /// The caller passed another number of model files than the plan has.
    #[error("the number of model files is {found}; the plan was made from {expected}{}", if *expected == 0 { ": it holds all weights itself" } else { "" })]
    FileCount {
        /// Number of files passed by the caller.
        found: usize,
        /// Number of model files in the plan.
        expected: usize,
    },
    /// A model file is not the one that the plan was made from.
    #[error(
        "model file {}: {what} is {found}, but the plan was made from a file with {expected}; use that file, or compile the model again",
        path.display()
    )]
    OtherModel {
        /// Path of the model file.
        path: PathBuf,
        /// Name of the property that differs.
        what: &'static str,
        /// Value of the property in the file.
        found: u64,
        /// Value of the property when the plan was made.
        expected: u64,
    },
    /// A plan names a file that is not a model file.
    #[error("model file {}: it does not begin like GGUF or safetensors", path.display())]
    NotAModel {
        /// Path of that file.
        path: PathBuf,
    },
    /// The plan's checksum covers too little of the model file's header, so the plan does not
    /// identify the file.
    #[error(
        "model file {}: the plan's checksum covers {found} bytes of the header; expected at least {expected}",
        path.display()
    )]
    PartOfHeader {
        /// Path of the model file.
        path: PathBuf,
        /// Number of header bytes that the checksum covers.
        found: u64,
        /// Number of header bytes that it must cover at least.
        expected: u64,
    },
    /// The requested context length is 0 or too large.
    #[error("the context is {found} tokens; expected 1 to {max} for this model")]
    Context {
        /// The requested context length, in tokens.
        found: u64,
        /// Maximum context length, in tokens.
        max: u32,
    },
    /// The requested number of threads is 0 or too large.
    #[error("the number of threads is {found}; expected 1 to {MAX_THREADS}")]
    Threads {
        /// The requested number of threads.
        found: usize,
    },
    /// The system refuses memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The checksum of a weight in the plan file differs from the stored one.
    #[error(
        "{}: weight {name:?} has checksum {found:08x}, expected {expected:08x}: the file is damaged, compile the model again",
        path.display()
    )]
    DamagedWeight {
        /// Path of the plan file.
        path: PathBuf,
        /// Name of the weight.
        name: String,
        /// The checksum computed from its bytes.
        found: u32,
        /// The checksum stored in the file.
        expected: u32,
    },
    /// A block of experts in the plan file is damaged.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The plan was loaded without its plan file, which contains weights.
    #[error("the plan has weights in its own file, but it was not loaded from that file")]
    NoWeights,
    /// The memory budget is smaller than the minimum for streamed experts.
    #[error(
        "the memory budget of {} is too small: the model needs {} MiB without experts, and {} MiB with the fewest experts",
        Bytes(*budget), mib(*fixed), mib(*needed)
    )]
    Budget {
        /// The requested budget, in bytes.
        budget: u64,
        /// Bytes that the model always needs, without experts.
        fixed: u64,
        /// The smallest budget that works, in bytes.
        needed: u64,
    },
    /// The memory budget is too small, and the plan has no experts that could be streamed.
    #[error(
        "the memory budget of {} is too small: the plan keeps all weights in memory and needs {} MiB; raise the budget, or compile a model with experts with a smaller one, so that experts are streamed",
        Bytes(*budget), mib(*needed)
    )]
    Larger {
        /// The requested budget, in bytes.
        budget: u64,
        /// Bytes that the plan needs.
        needed: u64,
    },
    /// Experts cannot stay in mapped files, because loading must pack them.
    #[error(
        "experts cannot be read from the mapped file: {weight} is packed when the plan is loaded; compile the model without packing, or with packed weights in the plan's own file"
    )]
    PackedExperts {
        /// The first weight that is packed at load time.
        weight: String,
    },
    /// Experts cannot be streamed, because they are converted when they are read: no file has them
    /// in a format of the kernels.
    #[error(
        "experts cannot be streamed from the model's own files: {weight} is converted when it is read (FP8, MXFP4, or rows in another order); stream them from a plan with packed experts"
    )]
    ConvertedExperts {
        /// The first weight that is converted.
        weight: String,
    },
    /// The counts of chosen experts, used to pin experts, belong to another model.
    #[error("the record of used experts is from another model: {0}")]
    OtherExperts(#[from] OtherExperts),
    /// Experts cannot be streamed.
    #[error(transparent)]
    Stream(Box<StreamError>),
    /// Packing weights failed.
    #[error("weights could not be packed: {source}")]
    Pack {
        /// Error of the thread pool.
        source: PoolError,
    },
    /// The system could not start a thread.
    #[error("cannot start a thread: {source}")]
    Thread {
        /// The system's error.
        source: io::Error,
    },
}

impl LoadError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            LoadError::Lock(error) => error.class(),
            LoadError::Ranks(error) => error.class(),
            LoadError::Numa(error) => error.class(),
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
            | LoadError::NotAModel { .. }
            | LoadError::PartOfHeader { .. }
            | LoadError::DamagedWeight { .. }
            | LoadError::Block(_)
            | LoadError::NoWeights
            | LoadError::PackedExperts { .. }
            | LoadError::ConvertedExperts { .. }
            | LoadError::OtherExperts(_) => Class::Data,
        }
    }

    /// Returns the change by the user that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            LoadError::Lock(_) => Some(Remedy::LockLess),
            LoadError::Numa(error) => error.remedy(),
            LoadError::NoSteps => Some(Remedy::CompileSteps),
            LoadError::NoLayers => Some(Remedy::CompileLayers),
            LoadError::NoModelFile { .. } => Some(Remedy::FindModelFile),
            LoadError::OtherModel { .. } | LoadError::NotAModel { .. } => Some(Remedy::OtherModelFile),
            LoadError::PackedExperts { .. } => Some(Remedy::StoreExperts),
            _ => None,
        }
    }
}

/// The first difference between the expert layers of a plan and those of counts of chosen experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OtherExperts {
    /// The number of layers differs.
    #[error("the record has {found} layers with experts; expected {expected}")]
    Layers {
        /// Number of layers in the counts.
        found: usize,
        /// Number of layers in the plan.
        expected: usize,
    },
    /// The number of experts of a layer differs.
    #[error("expert layer {layer} of the record has {found} experts; expected {expected}")]
    Experts {
        /// Index of the layer among the layers with experts.
        layer: usize,
        /// Number of experts in the counts.
        found: usize,
        /// Number of experts in the plan.
        expected: usize,
    },
}

/// Converts bytes to whole MiB, rounded up.
fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

fn target_names() -> String {
    TARGETS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ")
}
