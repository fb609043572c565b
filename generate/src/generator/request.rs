//! Requests for text, and the events of their generation.

use std::ops::AddAssign;
use std::sync::Arc;

use ixc_grammar::Matcher;
use ixc_runtime::sample::{Sampler, SamplerSettings, SamplerState, SettingsError, TokenLogProb};

use crate::Error;

/// Request for a continuation of a text, from any interface.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens of the prompt; at least one.
    pub tokens: Vec<u32>,
    /// Maximum number of tokens to generate. 0 computes the prompt, and samples nothing.
    pub limit: Option<usize>,
    /// Settings of the sampler.
    pub sampling: Arc<SamplerSettings>,
    /// Number added to the seed, so that several answers to one prompt differ.
    pub seed_offset: u32,
    /// State at which the sampler resumes.
    pub sampler_state: Option<SamplerState>,
    /// Texts that end the answer and are not part of it.
    pub stop: Arc<[String]>,
    /// Tokens that end the answer. They count as generated tokens, but have no text.
    pub stop_tokens: Vec<u32>,
    /// Whether end tokens are never sampled.
    pub ignore_end: bool,
    /// Whether the text contains the names of control tokens.
    pub show_special: bool,
    /// Grammar of the generated text.
    pub grammar: Option<Matcher>,
    /// Number of likeliest tokens to return with each token. `None` also omits the probability of
    /// the token itself.
    pub top_logprobs: Option<usize>,
    /// Whether probabilities are those after the samplers, instead of the model's.
    pub after_sampling: bool,
    /// Whether the request reads and writes cached prompts.
    pub cache_prompt: bool,
}

impl Request {
    /// Creates a request that ends with the model's end token or a full context.
    pub fn new(tokens: impl Into<Vec<u32>>, sampling: impl Into<Arc<SamplerSettings>>) -> Request {
        Request {
            tokens: tokens.into(),
            limit: None,
            sampling: sampling.into(),
            seed_offset: 0,
            sampler_state: None,
            stop: Arc::default(),
            stop_tokens: Vec::new(),
            ignore_end: false,
            show_special: false,
            grammar: None,
            top_logprobs: None,
            after_sampling: false,
            cache_prompt: true,
        }
    }

    /// Creates the sampler, and gives it the prompt's tokens.
    pub(super) fn sampler(&self, end_tokens: &[u32]) -> Result<Sampler, SettingsError> {
        let mut settings = SamplerSettings::clone(&self.sampling);
        settings.seed = settings.seed.wrapping_add(self.seed_offset.into());
        if settings.min_tokens > 0 {
            settings.late_tokens = [end_tokens, &self.stop_tokens].concat();
        }
        if self.ignore_end {
            settings.banned.extend_from_slice(end_tokens);
        }
        let mut sampler = Sampler::new(settings)?;
        self.sampler_state.iter().for_each(|state| sampler.resume(state));
        self.tokens.iter().for_each(|&token| sampler.accept(token));
        Ok(sampler)
    }
}

/// Number of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(super) u64);

/// Probability of a sampled token, and the likeliest tokens at its position.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbs {
    /// The sampled token.
    pub token: TokenLogProb,
    /// The likeliest tokens, as many as [`Request::top_logprobs`].
    pub top: Vec<TokenLogProb>,
}

/// Counts of draft tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Draft tokens that were computed.
    pub drafted: usize,
    /// Draft tokens that the model accepted, because it sampled the same tokens.
    pub accepted: usize,
}

impl AddAssign for DraftCounts {
    fn add_assign(&mut self, other: DraftCounts) {
        self.drafted += other.drafted;
        self.accepted += other.accepted;
    }
}

/// Event of a request.
#[derive(Debug)]
pub enum Event {
    /// The request has a sequence.
    Begun {
        /// Tokens of the prompt.
        prompt: usize,
        /// Number of tokens of the prompt that were already cached in the sequence.
        reused: usize,
    },
    /// A step computed tokens of the request.
    Computed {
        /// Number of tokens, without drafts.
        tokens: usize,
        /// Number of tokens in the sequence, without drafts.
        position: usize,
    },
    /// A token was sampled.
    Token {
        /// Id of the token.
        token: u32,
        /// Text that is final with this token; empty while it may belong to a stop string or to an
        /// incomplete character.
        text: String,
        /// Probabilities, if [requested](Request::top_logprobs).
        log_probs: Option<LogProbs>,
    },
    /// The context was full, and was shifted: some tokens were dropped.
    Shifted,
    /// A step computed a draft. This event follows the events of the draft's accepted tokens.
    Drafted(DraftCounts),
    /// Text that was withheld until the end. It precedes [`Event::Ended`], unless it is empty.
    Text(String),
    /// The request has ended.
    Ended {
        /// Reason of the end.
        end: End,
        /// Final state of the text.
        state: FinalState,
    },
    /// The request failed. A step that fails ends all of its requests.
    Failed(Error),
}

impl Event {
    /// Returns the text that is final with this event.
    pub fn text(&self) -> Option<&str> {
        match self {
            Event::Token { text, .. } | Event::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Reason why a text ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The model sampled this end token or stop token, which is not part of the text.
    Token(u32),
    /// The text contained this stop string, before which it ends.
    StopString(String),
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
pub struct FinalState {
    /// Tokens of the prompt and generated tokens, without tokens that a context shift dropped.
    pub tokens: Vec<u32>,
    /// State of the sampler.
    pub sampler: SamplerState,
}
