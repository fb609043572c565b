//! The command line: parses arguments, runs one command, and turns what went wrong into one message and an exit status.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod cli;
#[cfg(unix)]
mod sigbus;

use std::io::{self, Write};
use std::process::ExitCode;

use ixc::frontend::template::{RENDER_ARGUMENT, serve_render_request};

fn main() -> ExitCode {
    // Before anything is set up: a child that renders a chat template, and nothing else.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == RENDER_ARGUMENT) {
        return serve_render_request();
    }
    // Help, versions and wrong usage end here.
    let cli::Cli { command, log } = cli::parse(std::env::args_os().collect()).unwrap_or_else(|error| cli::exit(&error));
    cli::install_interrupt();
    #[cfg(unix)]
    sigbus::install();
    let mut out = cli::standard_output();
    let result = log.install().and_then(|()| command.run(&mut *out)).and_then(|()| Ok(out.flush()?));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let (status, message) = cli::failure(&error);
            // Nothing is left to tell of a standard error that is closed.
            let _ = out.flush();
            if let Some(message) = message {
                let _ = writeln!(io::stderr(), "{message}");
            }
            ExitCode::from(status)
        }
    }
}
