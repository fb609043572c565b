//! Errors of files of tuned choices ([`crate::tuned`]).

use std::path::PathBuf;

use ixc_failure::{Class, Remedy};

/// Error of reading, using or storing tuned choices.
#[derive(Debug, thiserror::Error)]
pub enum TunedError {
    /// The file is not a file of tuned choices.
    #[error("{}: is not a file of tuned choices: {problem}; `ixc kernel tune` writes one", path.display())]
    Malformed {
        /// File that was expected to have tuned choices.
        path: PathBuf,
        /// Description of the fault.
        problem: String,
    },
    /// The file is damaged, or was edited.
    #[error("{}: its rows have CRC-32 {found}, expected {expected}: the file is damaged; `ixc kernel tune` writes a new one", path.display())]
    Checksum {
        /// Damaged file of tuned choices.
        path: PathBuf,
        /// CRC-32 of the rows.
        found: String,
        /// CRC-32 that the file states.
        expected: String,
    },
    /// The file was written for other conditions, such as another target.
    #[error("{}: was tuned for {key} {found}; expected {expected}; `ixc kernel tune` writes a new file", path.display())]
    Other {
        /// File of tuned choices for other conditions.
        path: PathBuf,
        /// First key whose value differs.
        key: &'static str,
        /// Value in the file.
        found: String,
        /// Value that the compilation needs.
        expected: String,
    },
    /// An invalid row.
    #[error("{}: row {row} is {found:?}; expected {expected}", path.display())]
    Row {
        /// File of tuned choices with the row.
        path: PathBuf,
        /// Number of the row, from 1.
        row: usize,
        /// Text of the row.
        found: String,
        /// Description of a valid row.
        expected: &'static str,
    },
    /// The user's folder has choices only for this machine's target. Choices for another target
    /// need a named file.
    #[error(
        "the user's folder of tuned choices is only for the target of this machine; name a file for choices for target {target}"
    )]
    NoPlace {
        /// Target of the choices.
        target: &'static str,
    },
    /// The environment names no folder for tuned choices.
    #[error(
        "there is no folder for tuned choices: neither XDG_CACHE_HOME nor HOME is set; set one of these variables, or name a file"
    )]
    NoFolder,
}

impl TunedError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            TunedError::Malformed { .. } | TunedError::Checksum { .. } | TunedError::Row { .. } => Class::Data,
            TunedError::Other { .. } | TunedError::NoPlace { .. } | TunedError::NoFolder => Class::Usage,
        }
    }

    /// Returns the change that may help.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            TunedError::NoPlace { .. } => Some(Remedy::TunedFile),
            TunedError::NoFolder => Some(Remedy::TunedPlace),
            _ => None,
        }
    }
}
