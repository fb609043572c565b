//! What can be wrong with a file of tuned choices ([`crate::tuned`]).

use std::path::PathBuf;

use ixc_failure::{Class, Remedy};

/// Why tuned choices cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TunedError {
    /// It is none.
    #[error("{}: is no file of tuned choices: {problem}; `ixc kernel tune` writes one", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// It is damaged, or was edited.
    #[error("{}: its rows have CRC-32 {found}, and it says {expected}: the file is damaged; `ixc kernel tune` writes another", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Of its rows.
        found: String,
        /// What it says.
        expected: String,
    },
    /// It was made for something else.
    #[error("{}: was tuned for {key} {found}, and this is {wanted}: what was measured there holds there", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs first.
        key: &'static str,
        /// What it has.
        found: String,
        /// What is asked for.
        wanted: String,
    },
    /// A row that says nothing that a kernel can be.
    #[error("{}: row {row} is {found:?}; expected {expected}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// Which, from 1.
        row: usize,
        /// What it says.
        found: String,
        /// What would be right.
        expected: &'static str,
    },
    /// Nothing reads what is faster for another target than this machine's own unless it is told.
    #[error(
        "the user's folder keeps what is faster for this machine's own target, and {target} is another: its choices need a file of their own"
    )]
    NoPlace {
        /// The target.
        target: &'static str,
    },
    /// There is no folder for it.
    #[error("there is no folder for what was tuned: neither XDG_CACHE_HOME nor HOME is set")]
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
