//! Program of helpers that render templates and compile grammars.
//!
//! The runner's own program does this work if its first argument is that of a helper. libFuzzer's
//! programs name the runner in a variable.

use std::path::PathBuf;
use std::process::ExitCode;

use ixc_grammar::{COMPILE_ARGUMENT, serve_compile_request};
use ixc_text::template::{RENDER_ARGUMENT, serve_render_request};

/// Environment variable with the path of the runner.
pub const VARIABLE: &str = "IXC_FUZZ_HELPER";

/// Does the work of a helper, if the arguments request it.
pub fn serve(first_argument: Option<&str>) -> Option<ExitCode> {
    match first_argument {
        Some(argument) if argument == RENDER_ARGUMENT => Some(serve_render_request()),
        Some(argument) if argument == COMPILE_ARGUMENT => Some(serve_compile_request()),
        _ => None,
    }
}

/// Returns the program.
///
/// # Panics
/// If this process has no program, or libFuzzer's program has no [`VARIABLE`].
pub fn program() -> PathBuf {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    named.unwrap_or_else(|| std::env::current_exe().expect("a running program has a path"))
}
