//! Errors of kernels that replace others ([`crate::replacements`]).

use std::fmt;
use std::path::{Path, PathBuf};

use ixc_failure::{Class, Remedy};
use ixc_ir::kernel::interpret::InterpretError;
use ixc_kernels::catalogue::compare::Difference;
use ixc_kernels::catalogue::inputs::InputError;
use ixc_kernels::generator::reference::Mismatch;
use ixc_targets::TARGETS;

use crate::excerpt::Excerpt;

/// Error of replacing kernels of a plan.
#[derive(Debug, thiserror::Error)]
pub enum ReplacementError {
    /// An invalid kernel file, or a kernel whose signature differs from the original's.
    #[error("{0}")]
    Parse(Excerpt),
    /// Two files for the same kernel.
    #[error("file {} replaces the same kernel as {}; give only one of these two files", path.display(), other.display())]
    Twice {
        /// Path of one of the files for the kernel.
        path: PathBuf,
        /// Path of the other file for the kernel.
        other: PathBuf,
    },
    /// A file with a kernel that the plan does not have.
    #[error("{}: the plan has no kernel \"{name}\" to replace; its kernels are {}", path.display(), some(names))]
    Unused {
        /// File of the kernel.
        path: PathBuf,
        /// Name of the kernel.
        name: String,
        /// Names of the plan's kernels.
        names: Vec<String>,
    },
    /// A folder without kernels.
    #[error("{}: the folder has no file of kernel IR; expected files called NAME.ix", path.display())]
    NoFiles {
        /// Path of the folder.
        path: PathBuf,
    },
    /// A folder with too many kernel files.
    #[error("{}: the folder has {found} files of kernel IR; expected at most {max}", path.display())]
    TooManyFiles {
        /// Path of the folder.
        path: PathBuf,
        /// Number of files.
        found: usize,
        /// Max number of files.
        max: usize,
    },
    /// The plan is for a target that this build does not know.
    #[error("the plan is for target {found:?}; this build has {}", target_names())]
    Target {
        /// The target's name.
        found: String,
    },
    /// Inputs with the requested dims cannot be made.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The interpreter stopped.
    #[error("the interpreter stopped: {0}")]
    Interpret(#[from] InterpretError),
    /// The results of an edited kernel violate its spec.
    #[error(
        "{}kernel {kernel} computes wrong results: with random inputs{}, {departure}",
        of_file(path.as_deref()), of_dims(dims)
    )]
    Departs {
        /// File of the edited kernel, if it replaces a kernel of a model.
        path: Option<PathBuf>,
        /// Name of the edited kernel.
        kernel: String,
        /// Dims of the kernel with their values, as text.
        dims: Vec<String>,
        /// Position and size of the difference between the results.
        departure: Box<Departure>,
    },
}

impl ReplacementError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            ReplacementError::Departs { .. } => Class::Failed,
            ReplacementError::Parse(_)
            | ReplacementError::Twice { .. }
            | ReplacementError::Unused { .. }
            | ReplacementError::NoFiles { .. }
            | ReplacementError::TooManyFiles { .. }
            | ReplacementError::Target { .. } => Class::Data,
            ReplacementError::Input(error) => error.class(),
            ReplacementError::Interpret(error) => error.class(),
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            ReplacementError::Departs { path: Some(_), .. } => Some(Remedy::CompareKernel),
            ReplacementError::NoFiles { .. } => Some(Remedy::WriteKernels),
            _ => None,
        }
    }
}

/// Difference between the results of a kernel and of its spec.
#[derive(Clone, Debug, PartialEq)]
pub struct Departure {
    /// The first element of the results that differs from the unedited kernel's.
    pub difference: Difference,
    /// Element of the results outside the error bounds of the spec's formula; `None` if the spec is
    /// unknown.
    pub mismatch: Option<Mismatch>,
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Departure { difference, mismatch } = self;
        match mismatch {
            Some(mismatch) => write!(f, "by the formula of its spec, {mismatch} ({difference})"),
            None => write!(f, "{difference}; without a spec, no difference is allowed"),
        }
    }
}

fn of_file(path: Option<&Path>) -> String {
    path.map_or(String::new(), |path| format!("{}: ", path.display()))
}

fn of_dims(dims: &[String]) -> String {
    if dims.is_empty() { String::new() } else { format!(" ({})", dims.join(", ")) }
}

fn target_names() -> String {
    TARGETS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ")
}

/// Max number of names that an error lists.
const SOME: usize = 30;

/// Returns the first names of a list, and the number of names left out.
pub fn some(names: &[String]) -> String {
    match names.len().checked_sub(SOME) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..SOME].join(", ")),
    }
}
