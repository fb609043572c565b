//! The command line: parses arguments, runs one command, and turns what went wrong into one message and an exit status.

mod cli;
#[cfg(unix)]
mod sigbus;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use ixc::frontend::template::{RENDER_ARGUMENT, serve_render_request};

fn main() -> ExitCode {
    // Before anything is set up: a child that renders a chat template, and nothing else.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == RENDER_ARGUMENT) {
        return serve_render_request();
    }
    let log = tracing_subscriber::EnvFilter::try_from_env("IXC_LOG").unwrap_or_else(|_| "warn".into());
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt().with_env_filter(log).with_writer(io::stderr).with_ansi(colours).without_time();
    // Where standard error is closed, telling so there would panic.
    log.log_internal_errors(false).init();
    let command = cli::Cli::parse().command;
    #[cfg(unix)]
    sigbus::install();
    let mut out = io::BufWriter::new(io::stdout().lock());
    let result = command.run(&mut out).and_then(|()| Ok(out.flush()?));
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
