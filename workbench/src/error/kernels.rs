//! Errors of single kernels, and of folders that hold one to replay.

use std::path::PathBuf;

use ixc_codegen::thunk::ConventionError;
use ixc_cost::memory::LevelsError;
use ixc_emulator::Fault;
use ixc_failure::{Class, Remedy};
use ixc_ir::kernel::interpret::InterpretError;
use ixc_ir::kernel::verify::VerifyError;
use ixc_kernels::SpecError;
use ixc_kernels::catalogue::inputs::InputError;

use ixc_compile::error::replacement::{ReplacementError, some};

/// Error of showing, running, comparing or tuning a single kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A filter by op or layer was given for a kernel that belongs to no model.
    #[error(
        "\"{name}\" is not a model, so an op or layer cannot select from it; expected the kernels of a model: MODEL or MODEL:NAME"
    )]
    InNoModel {
        /// The requested name.
        name: String,
    },
    /// The name matches no built-in kernel, file or spec.
    #[error(
        "no kernel is called \"{name}\"{}; `ixc kernel list` shows the built-in ones; a spec such as \
         \"quantise n=256 out=a8_super\", a file of kernel IR or MODEL:NAME also works",
        nearest(near)
    )]
    Unknown {
        /// The requested name.
        name: String,
        /// Similar names.
        near: Vec<&'static str>,
    },
    /// An invalid spec.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// No built-in kernel matches the filter.
    #[error("no built-in kernel has \"{filter}\" in its name or spec; `ixc kernel list` shows all")]
    NoRow {
        /// Filter without a match.
        filter: String,
    },
    /// The name is a model, not a kernel of it.
    #[error(
        "{model} names no kernel; a model's kernels are MODEL:NAME (`ixc help kernel list` shows how to list them)"
    )]
    WholeModel {
        /// Name or path of the model.
        model: String,
    },
    /// The model has no kernel with this name.
    #[error("{model} has no kernel whose name contains \"{name}\"; it has {}", some(names))]
    NotInModel {
        /// Name or path of the model.
        model: String,
        /// The requested name.
        name: String,
        /// Names of the model's kernels.
        names: Vec<String>,
    },
    /// The name matches several kernels of the model.
    #[error("{} matches several kernels of {model}: {}", if name.is_empty() { "the selection".to_owned() } else { format!("\"{name}\"") }, some(names))]
    Several {
        /// Name or path of the model.
        model: String,
        /// The requested name.
        name: String,
        /// Names of the matching kernels.
        names: Vec<String>,
    },
    /// Two kernels with different dims or buffers cannot be compared.
    #[error("kernels with different signatures cannot be compared:{}", otherwise(names, unmatched))]
    DifferentSignatures {
        /// Names of both kernels.
        names: [String; 2],
        /// Dims and buffers of each kernel that the other kernel lacks.
        unmatched: [Vec<String>; 2],
    },
    /// The kernel has no spec, so there is no generated kernel to compare it with.
    #[error("{name} has no spec: name another kernel to compare it with, or put the line \"; spec: ...\" before it")]
    NoSpec {
        /// Name of the kernel.
        name: String,
    },
    /// A kernel that cannot be tuned.
    #[error("{spec} cannot be tuned: {why}")]
    NotTuned {
        /// Spec of the kernel, or architecture of its model.
        spec: String,
        /// Reason, as text.
        why: String,
    },
    /// The requested candidate was not tried.
    #[error("{what:?} is not a candidate; expected one of {}", candidates.join(", "))]
    NoCandidate {
        /// The requested candidate.
        what: String,
        /// All candidates.
        candidates: Vec<String>,
    },
    /// The kernel to reduce does not fail.
    #[error("{kernel} has no failure to reduce: it compiles, runs and gives the interpreter's results")]
    NoFailure {
        /// Name of the kernel that does not fail.
        kernel: String,
    },
    /// A kernel of a plan or of an unusual spec breaks a rule of the IR.
    #[error("kernel {kernel}: {source}")]
    Verify {
        /// Name of the invalid kernel.
        kernel: String,
        /// The broken rule and its position.
        source: VerifyError,
    },
    /// Inputs with the requested dims cannot be made.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Dims of a kernel without a spec do not follow from the number of rows.
    #[error("the dims of {kernel} cannot be computed from a number of rows; state the dims in this order: {}", dims.join(", "))]
    NeedsDims {
        /// Name of the kernel without a spec.
        kernel: String,
        /// Names of the kernel's dims.
        dims: Vec<String>,
    },
    /// More rows than the kernel takes in a call.
    #[error("{kernel} takes at most {max} rows in a call; {found} were requested")]
    TooManyRows {
        /// Name of the kernel.
        kernel: String,
        /// Requested number of rows.
        found: u32,
        /// Max number of rows.
        max: u32,
    },
    /// The interpreter stopped.
    #[error("the interpreter stopped: {0}")]
    Interpret(#[from] InterpretError),
    /// The operation is not available for this target.
    #[error("{what} needs x86-64 code from ixc's own code generator; cranelift generates the code of target {target}")]
    NotOurs {
        /// Operation, as text.
        what: &'static str,
        /// Name of the target.
        target: &'static str,
    },
    /// This machine cannot run the target's code.
    #[error("target {target} cannot run here: this machine lacks {missing}")]
    Missing {
        /// Name of the target.
        target: &'static str,
        /// The missing features.
        missing: String,
    },
    /// A target without a cost model.
    #[error("no cost model for {target}; there are models for {}", models.join(", "))]
    NoModel {
        /// Name of the target.
        target: &'static str,
        /// Targets that have cost models.
        models: Vec<&'static str>,
    },
    /// The cost of the whole kernel, or of its memory accesses, cannot be computed.
    #[error(transparent)]
    Levels(#[from] LevelsError),
    /// The emulator stopped generated code: a bug of the lowering, or of the emulator.
    #[error("kernel {kernel}: the emulator stopped the code: {fault}")]
    Fault {
        /// Name of the stopped kernel.
        kernel: String,
        /// Position and reason.
        fault: Fault,
    },
    /// An edited kernel cannot replace the original.
    #[error(transparent)]
    Replacement(#[from] ReplacementError),
    /// A folder that cannot be replayed.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The results of two kernels differ.
    #[error("results of {} and {} differ", names[0], names[1])]
    Unequal {
        /// Names of the two kernels.
        names: [String; 2],
    },
    /// A result differs from the interpreter's.
    #[error("{kernel} on {engine} differs from the interpreter: {difference}")]
    Differs {
        /// Name of the kernel with the wrong result.
        kernel: String,
        /// Name of the engine that ran the kernel.
        engine: &'static str,
        /// Position and size of the difference.
        difference: String,
    },
}

impl KernelError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            KernelError::NoRow { .. }
            | KernelError::WholeModel { .. }
            | KernelError::InNoModel { .. }
            | KernelError::NoCandidate { .. } => Class::Usage,
            KernelError::Missing { .. } => Class::Unavailable,
            KernelError::Differs { .. } | KernelError::Unequal { .. } => Class::Failed,
            KernelError::Unknown { .. }
            | KernelError::NotInModel { .. }
            | KernelError::Several { .. }
            | KernelError::DifferentSignatures { .. }
            | KernelError::NoSpec { .. }
            | KernelError::NotTuned { .. }
            | KernelError::NoFailure { .. }
            | KernelError::Verify { .. }
            | KernelError::NeedsDims { .. }
            | KernelError::TooManyRows { .. }
            | KernelError::NotOurs { .. }
            | KernelError::NoModel { .. } => Class::Data,
            KernelError::Spec(error) => error.class(),
            KernelError::Input(error) => error.class(),
            KernelError::Interpret(error) => error.class(),
            KernelError::Levels(error) => error.class(),
            KernelError::Replacement(error) => error.class(),
            KernelError::Bundle(error) => error.class(),
            KernelError::Fault { fault, .. } => fault.class(),
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            KernelError::Several { .. } => Some(Remedy::SelectKernel),
            KernelError::NeedsDims { .. } => Some(Remedy::KernelSizes),
            KernelError::Missing { .. } => Some(Remedy::EmulateKernel),
            KernelError::NoSpec { .. } => Some(Remedy::WriteSpecs),
            KernelError::NoFailure { .. } => Some(Remedy::FailingCommand),
            KernelError::Replacement(error) => error.remedy(),
            KernelError::Bundle(error) => error.remedy(),
            _ => None,
        }
    }
}

fn otherwise(names: &[String; 2], unmatched: &[Vec<String>; 2]) -> String {
    let line = |(name, parts): (&String, &Vec<String>)| {
        let parts = if parts.is_empty() { "nothing else".to_owned() } else { parts.join(", ") };
        format!("\n  {name} has {parts}")
    };
    names.iter().zip(unmatched).map(line).collect()
}

fn nearest(near: &[&'static str]) -> String {
    if near.is_empty() { String::new() } else { format!(" (similar names: {})", near.join(", ")) }
}

/// Error of reading or replaying a folder.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The index is not JSON of the expected form.
    #[error("{}: {reason}", path.display())]
    Index {
        /// Path of the index.
        path: PathBuf,
        /// Position and reason.
        reason: String,
    },
    /// The index has another format or version.
    #[error("{}: format \"{format}\" version {version}; expected {reads}", path.display())]
    Version {
        /// Path of the index.
        path: PathBuf,
        /// Format of the index.
        format: String,
        /// Version of the index.
        version: u64,
        /// The format and version that this build reads.
        reads: String,
    },
    /// An invalid file name, which could lead out of the folder.
    #[error(
        "file name \"{name}\": names here are letters, digits, `_`, `-` and `.`, do not start with `.`, and have at most {max} characters"
    )]
    Name {
        /// Invalid file name.
        name: String,
        /// Max characters of a name.
        max: usize,
    },
    /// The folder exceeds a limit.
    #[error("the bundle has {found} {what}; expected at most {max}")]
    TooMuch {
        /// The counted items.
        what: &'static str,
        /// Number of items in the folder.
        found: u64,
        /// Max number of items.
        max: u64,
    },
    /// The path is a link, a folder or a device.
    #[error("{}: is not a regular file", path.display())]
    NotAFile {
        /// Path of the link, folder or device.
        path: PathBuf,
    },
    /// The length of a file differs from the index.
    #[error("{}: has {found} bytes; the index says {expected}", path.display())]
    Length {
        /// File with the wrong length.
        path: PathBuf,
        /// Length in bytes.
        found: u64,
        /// Length according to the index.
        expected: u64,
    },
    /// The checksum of a file differs from the index.
    #[error("{}: CRC-32 is {found}; the index says {expected}: the file is damaged", path.display())]
    Checksum {
        /// Damaged file.
        path: PathBuf,
        /// CRC-32 of the file.
        found: String,
        /// CRC-32 according to the index.
        expected: String,
    },
    /// An invalid value in the index.
    #[error("index: {what} is {found}; expected {expected}")]
    Value {
        /// Name of the value.
        what: String,
        /// Value in the index.
        found: String,
        /// Description of a valid value.
        expected: String,
    },
    /// This machine cannot run the code.
    #[error("the code cannot run here: this machine lacks {missing}")]
    Missing {
        /// The missing features.
        missing: String,
    },
    /// The emulator stopped the code.
    #[error("the emulator stopped the code: {0}")]
    Fault(#[from] Fault),
    /// The code ran on this machine and broke the calling convention.
    #[error(transparent)]
    Convention(#[from] ConventionError),
}

impl BundleError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            BundleError::Fault(error) => error.class(),
            BundleError::Convention(error) => error.class(),
            BundleError::Missing { .. } => Class::Unavailable,
            BundleError::Index { .. }
            | BundleError::Version { .. }
            | BundleError::Name { .. }
            | BundleError::TooMuch { .. }
            | BundleError::NotAFile { .. }
            | BundleError::Length { .. }
            | BundleError::Checksum { .. }
            | BundleError::Value { .. } => Class::Data,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            BundleError::Missing { .. } => Some(Remedy::EmulateReplay),
            _ => None,
        }
    }
}
