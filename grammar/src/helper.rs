//! Program of the helper process ([`crate::isolate`]), which compiles one grammar within limits.

use std::io;
use std::process::ExitCode;

use ixc_text::helper::{self, Limits};

use crate::compile::STACK_BYTES;
use crate::error::COMPILE_SECONDS;
use crate::isolate::Request;
use crate::{GrammarError, Vocabulary};

/// Max memory of the helper, in addition to its stack.
const MEMORY_BYTES: u64 = 1 << 30;
/// Niceness of the helper process.
const NICENESS: i32 = 5;

/// Runs the helper's whole program. When [`crate::COMPILE_ARGUMENT`] is the first argument, a
/// program must call this before other set-up.
pub fn serve_compile_request() -> ExitCode {
    let parse = |request: &[u8]| -> io::Result<(Request, Limits)> {
        let limits = Limits {
            stack_bytes: STACK_BYTES as u64,
            memory_bytes: MEMORY_BYTES,
            cpu_seconds: COMPILE_SECONDS,
            niceness: NICENESS,
        };
        Ok((serde_json::from_slice(request)?, limits))
    };
    helper::serve(parse, |request| serde_json::to_vec(&compile(request)).unwrap_or_default())
}

/// Compiles a grammar and computes its first mask, on a thread with a sufficiently large stack.
fn compile(Request { source, special }: Request) -> Result<(), GrammarError> {
    let failed = |message: String| GrammarError::HelperFailed { message };
    let compile = move || -> Result<(), GrammarError> {
        let mut matcher = Vocabulary::of_bytes(special)?.matcher_here(&source)?;
        // The computation of the first mask shows whether the grammar matches any text.
        let _ = matcher.token_mask();
        Ok(())
    };
    let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
    let thread = thread.spawn(compile).map_err(|error| failed(error.to_string()))?;
    thread.join().map_err(|_| failed("the compiler panicked on this grammar".into()))?
}
