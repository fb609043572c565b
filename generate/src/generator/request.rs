//! Requests for text, and the events of their generation.

use std::sync::Arc;

use ixc_grammar::Matcher;
use ixc_runtime::sample::{Sampler, SamplerState, Settings, SettingsError, TokenLogProb};

use crate::Error;

/// Request for a continuation of a text.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens of the prompt; at least one.
    pub tokens: Vec<u32>,
    /// Maximum number of tokens to generate. 0 computes the prompt, and samples nothing.
    pub limit: Option<usize>,
    /// Settings of the sampler.
    pub sampling: Arc<Settings>,
    /// Number added to the seed.
    pub number: u32,
    /// State of the sampler that this one resumes.
    pub resumed: Option<SamplerState>,
    /// Whether end tokens are never sampled.
    pub ignore_end: bool,
    /// Grammar of the generated text.
    pub grammar: Option<Matcher>,
    /// Number of likeliest tokens to return with each token. `None` also omits the probability of
    /// the token itself.
    pub likeliest: Option<usize>,
    /// Whether probabilities are those after sampling, not those of the model.
    pub after_sampling: bool,
    /// Whether the request reads and writes cached prompts.
    pub cache_prompt: bool,
}

impl Request {
    /// Creates a request that ends with the model's end token or a full context.
    pub fn new(tokens: impl Into<Vec<u32>>, sampling: impl Into<Arc<Settings>>) -> Request {
        Request {
            tokens: tokens.into(),
            limit: None,
            sampling: sampling.into(),
            number: 0,
            resumed: None,
            ignore_end: false,
            grammar: None,
            likeliest: None,
            after_sampling: false,
            cache_prompt: true,
        }
    }

    /// Creates the sampler, and gives it the prompt's tokens.
    pub(super) fn sampler(&self, ends: &[u32]) -> Result<Sampler, SettingsError> {
        let mut settings = Settings::clone(&self.sampling);
        settings.seed = settings.seed.wrapping_add(self.number.into());
        if self.ignore_end {
            settings.banned.extend_from_slice(ends);
        }
        let mut sampler = Sampler::new(settings)?;
        self.resumed.iter().for_each(|state| sampler.resume(state));
        self.tokens.iter().for_each(|&token| sampler.accept(token));
        Ok(sampler)
    }
}

/// Number of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

/// Event of a request.
#[derive(Debug)]
pub enum Event {
    /// The request has a sequence.
    Begun {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the prompt that the sequence held already.
        reused: usize,
    },
    /// A step computed tokens of the request.
    Computed {
        /// Number of tokens, without drafts.
        tokens: usize,
        /// Number of tokens that the sequence holds, without drafts.
        position: usize,
    },
    /// A token was sampled.
    Token {
        /// The token.
        token: u32,
        /// Probability of the token and the likeliest tokens, if requested.
        likely: Option<(TokenLogProb, Vec<TokenLogProb>)>,
    },
    /// The context was full, and tokens after the first ones were forgotten.
    Shifted,
    /// A step computed a draft. The event follows its accepted tokens.
    Guessed {
        /// Tokens of the draft.
        drafted: usize,
        /// Tokens of the draft that were sampled.
        accepted: usize,
    },
    /// The request has ended.
    Ended {
        /// Reason of the end.
        end: End,
        /// Final state of the text.
        text: FinalText,
    },
    /// The request failed. A step that fails ends all of its requests.
    Failed(Error),
}

/// Reason why a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model sampled this end token, which is not part of the text.
    Token(u32),
    /// The grammar allows no further token.
    Grammar,
    /// The text has the requested number of tokens.
    Limit,
    /// The KV cache is full.
    Context,
    /// The caller stopped the request.
    Stopped,
}

/// Final state of a text. A later request can continue from it.
#[derive(Clone, Debug)]
pub struct FinalText {
    /// Tokens of the prompt and the generated tokens, without forgotten ones.
    pub tokens: Vec<u32>,
    /// State of the sampler.
    pub sampler: SamplerState,
}
