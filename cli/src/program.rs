//! The program: parses arguments, runs one command, and ends with a message and an exit status.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use ixc_grammar::{COMPILE_ARGUMENT, serve_compile_request};
use ixc_text::launcher::{self, HelperJob, LAUNCH_ARGUMENT};
use ixc_text::template::{RENDER_ARGUMENT, serve_render_request};

use super::ranks::{self, Connect};
use super::settings::arguments::ParseError;
#[cfg(unix)]
use super::signals;
use super::{Cli, Usage, exit, failure, interrupt, invocation, parse, terminal};

/// Jobs of helper processes.
const HELPER_JOBS: [HelperJob; 2] = [
    HelperJob { argument: RENDER_ARGUMENT, main: serve_render_request },
    HelperJob { argument: COMPILE_ARGUMENT, main: serve_compile_request },
];

/// Runs a command in a process of another program, such as a Python interpreter. Takes the
/// arguments, beginning with the program's name. `helper` is a program that calls this function
/// with its own arguments. Without it, commands that render templates fail.
pub fn run_with(arguments: Vec<OsString>, helper: Option<PathBuf>) -> ExitCode {
    invocation::set(arguments, helper);
    run()
}

/// Runs the command of this process's arguments. Returns its exit status.
pub fn run() -> ExitCode {
    run_connected(None)
}

/// Runs the command of this process's arguments, on several ranks if several processes were started
/// together. Returns its exit status.
pub fn run_connected(connect: Option<Connect>) -> ExitCode {
    // Helper processes are handled before any setup: they do one task and exit.
    match invocation::arguments().get(1) {
        Some(argument) if argument == RENDER_ARGUMENT => return serve_render_request(),
        Some(argument) if argument == COMPILE_ARGUMENT => return serve_compile_request(),
        Some(argument) if argument == LAUNCH_ARGUMENT => return launcher::serve(&HELPER_JOBS),
        _ => {}
    }
    // Help, version texts and usage errors end the program here.
    let Cli { command, log } = match parse(invocation::arguments()) {
        Ok(cli) => cli,
        Err(ParseError::CommandLine(error)) if ranks::is_repetition() => {
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX));
        }
        Err(ParseError::CommandLine(error)) => exit(&error),
        Err(ParseError::Settings(error)) => return print_failure(&error),
    };
    interrupt::install();
    #[cfg(unix)]
    signals::install();
    let mut out = terminal::standard_output();
    let result = log.install().and_then(|()| ranks::join(&command, connect)).and_then(|()| command.run(&mut *out));
    terminal::end_text();
    let result = result.and_then(|()| Ok(out.flush()?)).and_then(|()| ranks::leave());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // An error is ignored, because it was already reported or the reader has closed
            // standard output.
            let _ = out.flush();
            print_failure(&error)
        }
    }
}

/// Prints the message of a failure. Returns its exit status.
fn print_failure(error: &anyhow::Error) -> ExitCode {
    let (status, message) = failure::failure(error);
    match message.filter(|_| !(error.is::<Usage>() && ranks::is_repetition())) {
        Some(message) => ranks::end(message),
        None => ranks::end_silently("the run was interrupted"),
    }
    ExitCode::from(status)
}
