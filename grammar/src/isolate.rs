//! First compilation of a grammar in a helper process ([`ixc_text::helper`]). If the grammar
//! overflows the stack, needs too much memory or never ends, it is refused before this process
//! compiles it.
//!
//! The helper's vocabulary has the special tokens, which grammars can name, and single bytes
//! instead of all other tokens. An ordinary grammar therefore compiles in milliseconds. Apart from
//! the vocabulary, compilation costs as much in the helper as in this process.
//!
//! Invariant: if a grammar crashes its compiler, only the helper ends and only its request fails.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use ixc_text::helper::{self, Death};
use serde::{Deserialize, Serialize};

use crate::{GrammarError, GrammarSource};

/// The first argument of a program that must call [`crate::serve_compile_request`].
pub const COMPILE_ARGUMENT: &str = "__compile-grammar";

/// Max bytes of a grammar's error.
const ANSWER_BYTES: u64 = 1 << 20;
/// Max number of grammars that are known to compile. They are compiled without the helper.
const MAX_KNOWN_GRAMMARS: usize = 256;

/// Tokens of a vocabulary that a grammar can name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpecialTokens {
    /// Number of tokens.
    pub tokens: usize,
    /// Tokens that are not text, with their bytes in the matcher.
    pub words: Vec<(u32, Vec<u8>)>,
    /// Tokens that end an answer.
    pub ends: Vec<u32>,
}

/// A request to the helper: a grammar to compile.
#[derive(Serialize, Deserialize)]
pub(crate) struct Request {
    pub source: GrammarSource,
    pub special: SpecialTokens,
}

/// The program that compiles grammars first.
#[derive(Debug)]
pub(crate) struct Helper {
    program: PathBuf,
    hasher: RandomState,
    /// Hashes of the last grammars that compiled, the newest last.
    known_grammars: Mutex<VecDeque<u64>>,
}

impl Helper {
    pub fn new(program: PathBuf) -> Helper {
        Helper { program, hasher: RandomState::new(), known_grammars: Mutex::default() }
    }

    /// Compiles a grammar in the helper, unless it was compiled there recently.
    ///
    /// # Errors
    /// When the grammar cannot be compiled or exceeds a limit, or the helper fails.
    pub fn check(
        &self,
        source: &GrammarSource,
        special: &SpecialTokens,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), GrammarError> {
        let failed = |message: String| GrammarError::HelperFailed { message };
        let request = Request { source: source.clone(), special: special.clone() };
        let request = serde_json::to_vec(&request).map_err(|error| failed(error.to_string()))?;
        let hash = self.hasher.hash_one(&request);
        let known_grammars = || self.known_grammars.lock().unwrap_or_else(PoisonError::into_inner);
        if known_grammars().contains(&hash) {
            return Ok(());
        }
        let answer = helper::ask(&self.program, COMPILE_ARGUMENT, &request, ANSWER_BYTES, is_wanted);
        let answer = answer.map_err(|death| match death {
            Death::Memory => GrammarError::CompileLimit { what: "memory".into() },
            Death::Stack => GrammarError::CompileLimit { what: "stack".into() },
            Death::Time => GrammarError::CompileTime,
            Death::Unwanted => GrammarError::ClientGone,
            Death::Start { reason } | Death::Failed { reason } => failed(reason),
        })?;
        let result: Result<(), GrammarError> =
            serde_json::from_slice(&answer).map_err(|error| failed(error.to_string()))?;
        result?;
        let mut known_grammars = known_grammars();
        known_grammars.push_back(hash);
        if known_grammars.len() > MAX_KNOWN_GRAMMARS {
            known_grammars.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_fails_is_no_fault_of_the_grammar() {
        // Neither program compiles a grammar: one does not exist, and the other ends at once.
        for (program, says) in [("/nowhere/ixc", "cannot start /nowhere/ixc"), ("/bin/false", "the helper ended")] {
            let helper = Helper::new(program.into());
            let checked = helper.check(&GrammarSource::json_object(), &SpecialTokens::default(), &|| true);
            let Err(GrammarError::HelperFailed { message }) = checked else { panic!("{checked:?}") };
            assert!(message.starts_with(says), "{message}");
        }
    }
}
