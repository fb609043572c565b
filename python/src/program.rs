//! The program `ixc` in the interpreter's process.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use pyo3::prelude::*;

/// Runs a command of the program. Takes the arguments, beginning with the program's name, and the
/// script that runs this function. Returns the exit status.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, arguments: Vec<OsString>, script: Option<PathBuf>) -> u8 {
    let code = py.detach(|| ixc_cli::run_with(arguments, script));
    (0..=u8::MAX).find(|status| ExitCode::from(*status) == code).unwrap_or(1)
}
