//! Helper program that renders templates and compiles grammars in a separate process.
//!
//! The runner is its own helper: it does this work if its first argument is that of a helper.
//! Programs of libFuzzer find the runner through an environment variable.

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

/// Returns the path of the helper program.
///
/// # Panics
/// If the path of this process is unknown, or libFuzzer's program has no [`VARIABLE`].
pub fn program() -> PathBuf {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    named.unwrap_or_else(|| std::env::current_exe().expect("a running program has a path"))
}
