//! What can go wrong with a kernel on its own, and with a folder that holds one.

use std::fmt;
use std::path::{Path, PathBuf};

use ixc_codegen::cost::memory::LevelsError;
use ixc_codegen::thunk::ConventionError;
use ixc_emulator::Fault;
use ixc_failure::{Class, Remedy};
use ixc_ir::kernel::interpret::InterpretError;
use ixc_ir::kernel::verify::VerifyError;
use ixc_kernels::SpecError;
use ixc_kernels::catalogue::compare::Difference;
use ixc_kernels::catalogue::inputs::InputError;
use ixc_kernels::reference::Mismatch;

use crate::excerpt::Excerpt;

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
    /// A file that holds no kernel, or one that is called otherwise than the one whose place it takes, or of whose spec it is.
    #[error("{0}")]
    Parse(Excerpt),
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
    /// Two files of one kernel.
    #[error("{} is of the same kernel as {}: one of them at most can take its place", path.display(), other.display())]
    Twice {
        /// A file.
        path: PathBuf,
        /// The other.
        other: PathBuf,
    },
    /// A kernel that takes no kernel's place.
    #[error("{}: the plan has no kernel \"{name}\"; it has {}", path.display(), some(names))]
    Unused {
        /// Its file.
        path: PathBuf,
        /// Its name.
        name: String,
        /// Those of the plan.
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
    /// A folder without kernels.
    #[error("{}: there is no file of kernel IR, NAME.ix", path.display())]
    NoFiles {
        /// The folder.
        path: PathBuf,
    },
    /// A folder with too many.
    #[error("{}: {found} files of kernel IR; at most {most} are read", path.display())]
    TooManyFiles {
        /// The folder.
        path: PathBuf,
        /// How many.
        found: usize,
        /// Most.
        most: usize,
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
    /// A folder that cannot be replayed.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// Results of an edited kernel that are not what its spec asks for.
    #[error(
        "{}kernel {kernel} does not compute what it was made for: with random inputs{}, {departure}",
        of_file(path.as_deref()), of_dims(dims)
    )]
    Departs {
        /// The file of a kernel that replaces another.
        path: Option<PathBuf>,
        /// The kernel.
        kernel: String,
        /// Dims with their values.
        dims: Vec<String>,
        /// Place and size of the difference.
        departure: Box<Departure>,
    },
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
            KernelError::Differs { .. } | KernelError::Departs { .. } | KernelError::Unequal { .. } => Class::Failed,
            KernelError::Unknown { .. }
            | KernelError::Parse(_)
            | KernelError::NotInModel { .. }
            | KernelError::Several { .. }
            | KernelError::Twice { .. }
            | KernelError::Unused { .. }
            | KernelError::NoFiles { .. }
            | KernelError::CalledOtherwise { .. }
            | KernelError::NoSpec { .. }
            | KernelError::NotTuned { .. }
            | KernelError::FailsNot { .. }
            | KernelError::TooManyFiles { .. }
            | KernelError::Verify { .. }
            | KernelError::NeedsDims { .. }
            | KernelError::TooManyRows { .. }
            | KernelError::NotOurs { .. }
            | KernelError::NoModel { .. } => Class::Data,
            KernelError::Spec(error) => error.class(),
            KernelError::Input(error) => error.class(),
            KernelError::Interpret(error) => error.class(),
            KernelError::Levels(error) => error.class(),
            KernelError::Bundle(error) => error.class(),
            KernelError::Fault { fault, .. } => fault.class(),
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            KernelError::NeedsDims { .. } => Some(Remedy::KernelSizes),
            KernelError::Missing { .. } => Some(Remedy::EmulateKernel),
            KernelError::Departs { path: Some(_), .. } => Some(Remedy::CompareKernel),
            KernelError::NoSpec { .. } => Some(Remedy::WriteSpecs),
            KernelError::FailsNot { .. } => Some(Remedy::FailingCommand),
            KernelError::NoFiles { .. } => Some(Remedy::WriteKernels),
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

/// Results that are not what a spec asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Departure {
    /// The first element that differs from the unedited kernel's.
    pub difference: Difference,
    /// The element outside the bounds of the formula; none where no spec is known.
    pub mismatch: Option<Mismatch>,
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Departure { difference, mismatch } = self;
        match mismatch {
            Some(mismatch) => write!(f, "by the formula of its spec, {mismatch} ({difference})"),
            None => write!(f, "{difference}, and no spec says how far results may be apart"),
        }
    }
}

fn of_file(path: Option<&Path>) -> String {
    path.map_or(String::new(), |path| format!("{}: ", path.display()))
}

fn of_dims(dims: &[String]) -> String {
    if dims.is_empty() { String::new() } else { format!(" ({})", dims.join(", ")) }
}

fn nearest(near: &[&'static str]) -> String {
    if near.is_empty() { String::new() } else { format!(" (near to it: {})", near.join(", ")) }
}

/// Most names that an error lists.
const SOME: usize = 30;

fn some(names: &[String]) -> String {
    match names.len().checked_sub(SOME) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..SOME].join(", ")),
    }
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
