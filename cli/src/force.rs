//! Outputs of commands. They are opened before the work, are never inputs, and replace files of
//! other kinds only with `--force`.

use std::path::Path;

use ixc_files::{Guard, Kind, Output};

/// Option to replace existing files of other kinds.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Force {
    /// Overwrite an existing file, even if it is of another kind.
    #[arg(long)]
    force: bool,
}

impl Force {
    /// Returns whether `--force` was given.
    pub fn is_set(self) -> bool {
        self.force
    }

    /// Opens an output of a command with these input files; for some kinds, `-` is standard output.
    pub fn open(self, path: &Path, kind: &Kind, inputs: &[&Path]) -> Result<Output, ixc_error::Error> {
        Ok(Output::open(path, &Guard { kind: Some(kind), force: self.force, inputs })?)
    }
}

/// Registers further input files as soon as their names are known, so that none is overwritten.
pub fn reads<'p>(output: &mut Output, inputs: impl IntoIterator<Item = &'p Path>) -> Result<(), ixc_error::Error> {
    Ok(inputs.into_iter().try_for_each(|input| output.reads(input))?)
}
