//! First compilation of a grammar in a helper process ([`ixc_text::helper`]). If the grammar
//! overflows the stack, needs too much memory or never ends, it is refused before this process
//! compiles it.
//!
//! The helper's vocabulary has the special tokens, which grammars can name. It has single bytes
//! instead of all other tokens, so an ordinary grammar compiles in milliseconds. Apart from the
//! vocabulary, compilation costs as much in the helper as in this process.
//!
//! Invariant: if a grammar crashes its compiler, only the helper ends and only its request fails.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use ixc_text::helper::{self, Death};
use serde::{Deserialize, Serialize};

use crate::{GrammarError, GrammarSource};

/// First argument that tells a program to call [`crate::serve_compile_request`].
pub const COMPILE_ARGUMENT: &str = "__compile-grammar";

/// Max bytes of the helper's error for a grammar.
const ANSWER_BYTES: u64 = 1 << 20;
/// Max number of remembered grammars that compiled. They are compiled again without the helper.
const MAX_KNOWN_GRAMMARS: usize = 256;

/// Special tokens of a vocabulary, which grammars can name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpecialTokens {
    /// Number of tokens in the vocabulary.
    pub tokens: usize,
    /// Tokens that are not text, each with its bytes in the matcher.
    pub words: Vec<(u32, Vec<u8>)>,
    /// Tokens that end an answer.
    pub ends: Vec<u32>,
}

/// Request to the helper, with a grammar to compile.
#[derive(Serialize, Deserialize)]
pub(crate) struct Request {
    pub source: GrammarSource,
    pub special: SpecialTokens,
}

/// Helper program, which is the first to compile a grammar.
#[derive(Debug)]
pub(crate) struct Helper {
    program: PathBuf,
    hasher: RandomState,
    /// Hashes of the grammars that compiled last. The newest hash is last.
    known_grammars: Mutex<VecDeque<u64>>,
}

impl Helper {
    pub fn new(program: PathBuf) -> Helper {
        Helper { program, hasher: RandomState::new(), known_grammars: Mutex::default() }
    }

    /// Compiles a grammar in the helper, unless the helper compiled it recently.
    ///
    /// # Errors
    /// If the grammar cannot be compiled or exceeds a limit, or if the helper fails.
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
        // Neither of these programs compiles a grammar. The first does not exist, and the second
        // ends at once.
        for (program, says) in
            [("/nowhere/ixc", "cannot start /nowhere/ixc"), ("/bin/false", "the helper process ended")]
        {
            let helper = Helper::new(program.into());
            let checked = helper.check(&GrammarSource::json_object(), &SpecialTokens::default(), &|| true);
            let Err(GrammarError::HelperFailed { message }) = checked else { panic!("{checked:?}") };
            assert!(message.starts_with(says), "{message}");
        }
    }
}
