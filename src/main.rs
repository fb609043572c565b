//! Command line: parses arguments, runs one command, and turns an error into one message and an
//! exit status.

use std::process::ExitCode;

/// The allocator of the program. The library sets none: programs that embed it choose their own.
#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: ixc_cli::ExitIfExhausted = ixc_cli::ExitIfExhausted;

fn main() -> ExitCode {
    ixc_cli::run()
}
