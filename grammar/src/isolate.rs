//! A first compilation in a helper, a process of its own ([`ixc_frontend::helper`]): what overflows
//! its stack, takes memory without end, or never ends, is refused before this process compiles it.
//!
//! The helper has the vocabulary's special tokens, which grammars can name, and single bytes for
//! all others. So it compiles in milliseconds what takes no more, and what it takes beside the
//! vocabulary is what this process will take.
//!
//! Invariant: a grammar that ends its compiler ends the helper, and a request, and nothing else.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use ixc_frontend::helper::{self, Death, Limits};
use serde::{Deserialize, Serialize};

use crate::compile::STACK_BYTES;
use crate::error::COMPILE_SECONDS;
use crate::vocabulary::SpecialTokens;
use crate::{GrammarError, Source, Vocabulary};

/// The argument that makes a program call [`serve_compile_request`].
pub const COMPILE_ARGUMENT: &str = "__compile-grammar";

/// Memory of a compiler beside its stack.
const MEMORY_BYTES: u64 = 1 << 30;
/// Longest error of a grammar.
const ANSWER_BYTES: u64 = 1 << 20;
/// How much the helper gives way to the engine and others.
const NICENESS: i32 = 5;
/// Grammars that are known to compile, so that they need not be compiled twice.
const KNOWN: usize = 256;

/// What the helper is asked.
#[derive(Serialize, Deserialize)]
struct Request {
    source: Source,
    special: SpecialTokens,
}

/// The program that compiles grammars first.
#[derive(Debug)]
pub(crate) struct Helper {
    program: PathBuf,
    hasher: RandomState,
    /// Those that it has compiled lately, the last at the end.
    known: Mutex<VecDeque<u64>>,
}

impl Helper {
    pub fn new(program: PathBuf) -> Helper {
        Helper { program, hasher: RandomState::new(), known: Mutex::default() }
    }

    /// Compiles a grammar in the helper, unless it was lately.
    ///
    /// # Errors
    /// When it cannot be compiled, or would cost more than it may.
    pub fn check(
        &self,
        source: &Source,
        special: &SpecialTokens,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), GrammarError> {
        let failed = |message: String| GrammarError::Compile { message };
        let request = Request { source: source.clone(), special: special.clone() };
        let request = serde_json::to_vec(&request).map_err(|error| failed(error.to_string()))?;
        let hash = self.hasher.hash_one(&request);
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known().contains(&hash) {
            return Ok(());
        }
        let answer = helper::ask(&self.program, COMPILE_ARGUMENT, &request, ANSWER_BYTES, is_wanted);
        let answer = answer.map_err(|death| match death {
            Death::Memory => GrammarError::CompileLimit { what: "memory".into() },
            Death::Stack => GrammarError::CompileLimit { what: "stack".into() },
            Death::Time => GrammarError::CompileTime,
            Death::Unwanted => GrammarError::Unwanted,
            Death::Start { reason } | Death::Failed { reason } => failed(reason),
        })?;
        let result: Result<(), GrammarError> =
            serde_json::from_slice(&answer).map_err(|error| failed(error.to_string()))?;
        result?;
        let mut known = known();
        known.push_back(hash);
        if known.len() > KNOWN {
            known.pop_front();
        }
        Ok(())
    }
}

/// The helper's whole program. Call it before anything else is set up, when [`COMPILE_ARGUMENT`] is
/// the first argument.
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

/// Compiles a grammar and makes its first mask, on a thread with the stack that this may take.
fn compile(Request { source, special }: Request) -> Result<(), GrammarError> {
    let failed = |message: String| GrammarError::Compile { message };
    let compile = move || -> Result<(), GrammarError> {
        let mut matcher = Vocabulary::of_bytes(special)?.matcher_here(&source)?;
        // What has no text at all is seen when it is followed.
        let _ = matcher.allowed();
        Ok(())
    };
    let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
    let thread = thread.spawn(compile).map_err(|error| failed(error.to_string()))?;
    thread.join().map_err(|_| failed("its compiler panicked".into()))?
}
