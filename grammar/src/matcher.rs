//! Matcher of an answer: a grammar, and the answer's position in it.

use llguidance::CancellationHandle;
use llguidance::toktrie::SimpleVob;

use crate::GrammarError;
use crate::keys::Keys;

/// Handle that lets another thread stop a matcher's work.
#[derive(Clone, Debug)]
pub struct Canceller(Option<CancellationHandle>);

impl Canceller {
    /// Stops the matcher's current and later work with an error. The work stops soon, but not at
    /// once.
    pub fn cancel(&self) {
        self.0.iter().for_each(CancellationHandle::cancel);
    }
}

/// Matcher of an answer: a grammar, and the answer's position in it.
#[derive(Clone)]
pub struct Matcher {
    inner: llguidance::Matcher,
    tokens: usize,
    /// Keys of the open objects, or `None` if the grammar has no schemas.
    keys: Option<Keys>,
    mask: SimpleVob,
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher").field("ended", &self.is_ended()).finish_non_exhaustive()
    }
}

impl Matcher {
    pub(crate) fn new(inner: llguidance::Matcher, tokens: usize, keys: Option<Keys>) -> Matcher {
        Matcher { inner: inner.into_cancellable(), tokens, keys, mask: SimpleVob::new() }
    }

    /// Returns a handle that stops this matcher's work. A clone of the matcher has a handle of its
    /// own.
    pub fn canceller(&self) -> Canceller {
        Canceller(self.inner.cancellation_handle())
    }

    /// Returns the tokens that may come next as a mask with one bit per token. The lowest bit of
    /// the first word is token 0. If the answer may end here, the tokens that end it are included.
    ///
    /// # Errors
    /// [`GrammarError::AnswerMismatch`] if no token may come next, or another error if the
    /// computation exceeds its limit.
    pub fn token_mask(&mut self) -> Result<&[u32], GrammarError> {
        let mut mask = self.inner.compute_mask_or_eos().map_err(|error| self.wrong(&error.to_string()))?;
        if let Some(keys) = &self.keys {
            keys.restrict(&mut mask, &self.inner);
        }
        // The matcher has an additional token that ends answers. The model does not have it.
        if mask.len() > self.tokens {
            mask.set(self.tokens, false);
        }
        if mask.is_zero() && !self.may_end() {
            return Err(self.wrong("no token of this model can write the text that must follow"));
        }
        self.mask = mask;
        Ok(self.mask.as_slice())
    }

    /// Accepts a token as the next one, if it is allowed.
    ///
    /// # Errors
    /// [`GrammarError::AnswerMismatch`] if the token is not allowed.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        self.inner.consume_token(token).map_err(|error| self.wrong(&error.to_string()))?;
        if let Some(keys) = &mut self.keys {
            keys.accept(token);
        }
        Ok(())
    }

    /// Returns whether the answer is complete and nothing can follow.
    pub fn is_ended(&self) -> bool {
        self.inner.is_stopped() && self.inner.stop_reason().is_ok()
    }

    /// Returns whether the answer may end here.
    pub fn may_end(&mut self) -> bool {
        self.is_ended() || self.inner.is_accepting().unwrap_or(false)
    }

    fn wrong(&self, message: &str) -> GrammarError {
        let line = message.lines().next().unwrap_or_default();
        let is_empty = line.contains("NoExtensionBias");
        let message = if is_empty { "no token of this model can write the text that must follow" } else { line };
        GrammarError::AnswerMismatch { message: message.to_owned() }
    }
}
