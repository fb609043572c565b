//! The command line: parses arguments, runs one command, and turns what went wrong into one message and an exit status.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod cli;
#[cfg(unix)]
mod signals;

use std::io::Write;
use std::process::ExitCode;

use ixc::grammar::{COMPILE_ARGUMENT, serve_compile_request};
use ixc::text::template::{RENDER_ARGUMENT, serve_render_request};

/// The allocator of the program. The library sets none: programs that embed it choose their own.
#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: cli::OrEnd = cli::OrEnd;

fn main() -> ExitCode {
    // Before anything is set up: a helper does one piece of work and nothing else.
    match std::env::args_os().nth(1) {
        Some(argument) if argument == RENDER_ARGUMENT => return serve_render_request(),
        Some(argument) if argument == COMPILE_ARGUMENT => return serve_compile_request(),
        _ => {}
    }
    // Help, versions and wrong usage end here.
    let cli::Cli { command, log } = cli::parse(std::env::args_os().collect()).unwrap_or_else(|error| cli::exit(&error));
    cli::install_interrupt();
    #[cfg(unix)]
    signals::install();
    let mut out = cli::standard_output();
    let result = log.install().and_then(|()| command.run(&mut *out));
    cli::end_text();
    let result = result.and_then(|()| Ok(out.flush()?));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let (status, message) = cli::failure(&error);
            // Nothing is left to tell of a standard error that is closed.
            let _ = out.flush();
            if let Some(message) = message {
                cli::complain(&message);
            }
            ExitCode::from(status)
        }
    }
}
