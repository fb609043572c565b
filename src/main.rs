//! The program `ixc`: see `cli/`.

use std::process::ExitCode;

/// The allocator of the program. The library sets none: programs that embed it choose their own.
#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: ixc_cli::OrEnd = ixc_cli::OrEnd;

fn main() -> ExitCode {
    ixc_cli::run()
}
