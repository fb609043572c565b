//! Command line: parses arguments, runs one command, and turns an error into one message and an
//! exit status.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// The allocator of the program. The library sets none: programs that embed it choose their own.
#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: ixc_cli::ExitIfExhausted = ixc_cli::ExitIfExhausted;

#[cfg(not(feature = "mpi"))]
fn main() -> ExitCode {
    ixc_cli::run()
}

#[cfg(feature = "mpi")]
fn main() -> ExitCode {
    let connect: ixc_cli::Connect = |report| Ok(ixc_mpi::connect(report)?);
    ixc_cli::run_connected(Some(connect))
}
