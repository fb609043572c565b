//! What can go wrong with a kernel on its own, and with a folder that holds one.

use std::path::PathBuf;

use ixc_codegen::cost::memory::LevelsError;
use ixc_codegen::thunk::ConventionError;
use ixc_emulator::Fault;
use ixc_failure::{Class, Remedy};
use ixc_ir::kernel::interpret::InterpretError;
use ixc_ir::kernel::verify::VerifyError;
use ixc_kernels::SpecError;
use ixc_kernels::catalogue::inputs::InputError;

use ixc_compile::error::replacement::{ReplacementError, some};

/// What can go wrong with a kernel on its own.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A kernel that is no model's was asked for by an op or a layer.
    #[error("\"{name}\" is in no op or layer; kernels of a model are: MODEL, or MODEL:NAME")]
    InNoModel {
        /// What was asked for.
        name: String,
    },
    /// No row, file or spec.
    #[error(
        "no kernel is called \"{name}\"{}; `ixc kernel list` shows the built-in ones, and a spec such as \
         \"quantise n=256 out=a8_super\", a file of kernel IR or MODEL:NAME does as well",
        nearest(near)
    )]
    Unknown {
        /// What was asked for.
        name: String,
        /// Names that it may have been meant to be.
        near: Vec<&'static str>,
    },
    /// Text that is no spec.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// No row with these words.
    #[error("no built-in kernel has \"{filter}\" in its name or spec; there are {}", names.join(", "))]
    NoRow {
        /// The words.
        filter: String,
        /// Names of all rows.
        names: Vec<&'static str>,
    },
    /// A model without such a kernel.
    #[error("{model} has no kernel whose name contains \"{name}\"; it has {}", some(names))]
    NotInModel {
        /// The model.
        model: String,
        /// What was asked for.
        name: String,
        /// Its kernels.
        names: Vec<String>,
    },
    /// A model with several such kernels.
    #[error("{} could be several kernels of {model}: {}", if name.is_empty() { "what is chosen".to_owned() } else { format!("\"{name}\"") }, some(names))]
    Several {
        /// The model.
        model: String,
        /// What was asked for.
        name: String,
        /// Those that it could be.
        names: Vec<String>,
    },
    /// Two kernels that are to be compared.
    #[error("kernels that are called otherwise cannot be compared:{}", otherwise(names, found))]
    CalledOtherwise {
        /// The kernels.
        names: [String; 2],
        /// Dims and buffers of each that the other has not.
        found: [Vec<String>; 2],
    },
    /// A kernel that is to be compared with the one of its spec.
    #[error(
        "nothing says what {name} was made from: name another kernel to compare it with, or put the line \"; spec: ...\" before it"
    )]
    NoSpec {
        /// The kernel.
        name: String,
    },
    /// A kernel that nothing can be tuned of.
    #[error("{spec} cannot be tuned: {why}")]
    NotTuned {
        /// The kernel.
        spec: String,
        /// Why not.
        why: String,
    },
    /// Something that was not tried.
    #[error("{what:?} is no candidate; those are {}", candidates.join(", "))]
    NoCandidate {
        /// What was asked for.
        what: String,
        /// What there is.
        candidates: Vec<String>,
    },
    /// A kernel that is to be made small and does not fail.
    #[error("{kernel} does not fail: it compiles, runs and leaves what the interpreter does")]
    FailsNot {
        /// The kernel.
        kernel: String,
    },
    /// A kernel, of a plan or of an odd spec, that breaks a rule of the IR.
    #[error("kernel {kernel}: {source}")]
    Verify {
        /// The kernel.
        kernel: String,
        /// What and where.
        source: VerifyError,
    },
    /// No inputs with these dims.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A kernel without a spec, whose dims rows do not give.
    #[error("rows do not say what the dims of {kernel} are; they are, in this order, {}", dims.join(", "))]
    NeedsDims {
        /// The kernel.
        kernel: String,
        /// Names of its dims.
        dims: Vec<String>,
    },
    /// More rows than a kernel takes in a call.
    #[error("{kernel} takes at most {most} rows in a call, not {found}")]
    TooManyRows {
        /// The kernel.
        kernel: String,
        /// How many were asked for.
        found: u32,
        /// How many it takes.
        most: u32,
    },
    /// The interpreter stopped.
    #[error("the interpreter stopped: {0}")]
    Interpret(#[from] InterpretError),
    /// What a target has not.
    #[error("{what} needs x86-64 code of our own lowering; the code of target {target} is cranelift's")]
    NotOurs {
        /// What needs it.
        what: &'static str,
        /// The target.
        target: &'static str,
    },
    /// This machine cannot run the target's code.
    #[error("target {target} can't run here: this machine lacks {missing}")]
    Missing {
        /// The target.
        target: &'static str,
        /// What is missing.
        missing: String,
    },
    /// A target without a cost model.
    #[error("no cost model for {target}; there are models for {}", models.join(", "))]
    NoModel {
        /// The target.
        target: &'static str,
        /// Those that there are.
        models: Vec<&'static str>,
    },
    /// No cost of the whole kernel, or of its memory.
    #[error(transparent)]
    Levels(#[from] LevelsError),
    /// The emulator stopped code that we made: a bug of the lowering, or of the emulator.
    #[error("{kernel}: the emulator stopped it: {fault}")]
    Fault {
        /// The kernel.
        kernel: String,
        /// Where and why.
        fault: Fault,
    },
    /// An edited kernel.
    #[error(transparent)]
    Replacement(#[from] ReplacementError),
    /// A folder that cannot be replayed.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// Two kernels whose results are compared.
    #[error("results of {} and {} differ", names[0], names[1])]
    Unequal {
        /// The kernels.
        names: [String; 2],
    },
    /// A result that is not the interpreter's.
    #[error("{kernel} on {engine} differs from the interpreter: {difference}")]
    Differs {
        /// The kernel.
        kernel: String,
        /// What ran it.
        engine: &'static str,
        /// Where.
        difference: String,
    },
}

impl KernelError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            KernelError::NoRow { .. } | KernelError::InNoModel { .. } | KernelError::NoCandidate { .. } => Class::Usage,
            KernelError::Missing { .. } => Class::Unavailable,
            KernelError::Differs { .. } | KernelError::Unequal { .. } => Class::Failed,
            KernelError::Unknown { .. }
            | KernelError::NotInModel { .. }
            | KernelError::Several { .. }
            | KernelError::CalledOtherwise { .. }
            | KernelError::NoSpec { .. }
            | KernelError::NotTuned { .. }
            | KernelError::FailsNot { .. }
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
            KernelError::NeedsDims { .. } => Some(Remedy::KernelSizes),
            KernelError::Missing { .. } => Some(Remedy::EmulateKernel),
            KernelError::NoSpec { .. } => Some(Remedy::WriteSpecs),
            KernelError::FailsNot { .. } => Some(Remedy::FailingCommand),
            KernelError::Replacement(error) => error.remedy(),
            KernelError::Bundle(error) => error.remedy(),
            _ => None,
        }
    }
}

fn otherwise(names: &[String; 2], found: &[Vec<String>; 2]) -> String {
    let line = |(name, found): (&String, &Vec<String>)| {
        let found = if found.is_empty() { "nothing else".to_owned() } else { found.join(", ") };
        format!("\n  {name} has {found}")
    };
    names.iter().zip(found).map(line).collect()
}

fn nearest(near: &[&'static str]) -> String {
    if near.is_empty() { String::new() } else { format!(" (near to it: {})", near.join(", ")) }
}

/// Why a folder cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The index is no JSON of this form.
    #[error("{}: {reason}", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// The index is of another format.
    #[error("{}: format \"{format}\" version {version}; this reads {reads}", path.display())]
    Version {
        /// The index.
        path: PathBuf,
        /// Its format.
        format: String,
        /// Its version.
        version: u64,
        /// What is read.
        reads: String,
    },
    /// A file name that could leave the folder.
    #[error(
        "file name \"{name}\": names here are letters, digits, `_`, `-` and `.`, do not start with `.`, and have at most {most} characters"
    )]
    Name {
        /// The name.
        name: String,
        /// Most characters of one.
        most: usize,
    },
    /// More than this is meant for.
    #[error("{found} {what}; at most {most} are read")]
    TooMuch {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        found: u64,
        /// The limit.
        most: u64,
    },
    /// A link, a folder, a device.
    #[error("{}: is no regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file with another length than the index says.
    #[error("{}: has {found} bytes; the index says {expected}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// What it has.
        found: u64,
        /// What it should have.
        expected: u64,
    },
    /// A file with other bytes than it was written with.
    #[error("{}: CRC-32 is {found}; the index says {expected}: the file is damaged", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Of its bytes.
        found: String,
        /// What the index says.
        expected: String,
    },
    /// A value of the index that makes no sense.
    #[error("index: {what} is {found}; right would be {expected}")]
    Value {
        /// Which.
        what: String,
        /// Its value.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// This machine cannot run the code.
    #[error("the code can't run here: this machine lacks {missing}")]
    Missing {
        /// What is missing.
        missing: String,
    },
    /// The emulator stopped the code.
    #[error("the emulator stopped the code: {0}")]
    Fault(#[from] Fault),
    /// The code ran on this machine and left it otherwise than a function must.
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
