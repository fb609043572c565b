//! Generator of text: requests that share the steps of one engine.
//!
//! ```text
//! step 1   request a: 200 tokens of its prompt
//! step 2   request a: 1 token | request b: the first 255 tokens of its prompt
//! step 3   request a: 1 token | request b: the rest, 45 tokens | request c: 12 tokens, 90 are b's
//! ```
//!
//! Each request has a slot: a sequence of the engine. Generated tokens come first in a step.
//! Prompts fill the rest of it, in the order of submission. A sequence keeps its tokens after its
//! request has ended. A later request with the same prefix reuses them
//! (`generator/slot_choice.rs`).
//!
//! With speculation ([`Generator::speculate`]), a step without prompts also computes drafts.
//!
//! ```
//! use ixc_generate::generator::{Event, Generator, Request};
//! use ixc_generate::loaded_model::{LoadOptions, LoadedModel};
//! use ixc_runtime::sample::SamplerSettings;
//!
//! let mut options = LoadOptions::default();
//! options.run.sequences = 2;
//! let model = LoadedModel::open(None, &options)?; // The demo model.
//! let mut generator = Generator::new(model)?;
//! for prompt in ["The borrow checker", "A trait is"] {
//!     let tokens = generator.model().encode_prompt(prompt)?;
//!     let request = Request::new(tokens, SamplerSettings::greedy());
//!     generator.submit(Request { limit: Some(4), ..request })?;
//! }
//! let mut made = 0;
//! while !generator.is_idle() {
//!     let events = generator.step();
//!     made += events.iter().filter(|(_, event)| matches!(event, Event::Token { .. })).count();
//! }
//! assert_eq!(made, 8);
//! # Ok::<(), ixc_generate::Error>(())
//! ```
//!
//! Other threads make the masks of grammars ([`crate::masks`]). A request without its mask is left
//! out of a step.
//!
//! Invariant: a request's bits depend neither on other requests nor on how much of its prompt was
//! cached. That holds on targets without tiles, or with
//! [`exact_batch`](ixc_runtime::engine::EngineOptions::exact_batch). Kernels for few rows sum in
//! another order than kernels for many. Therefore no part of a prompt is shorter than
//! [`min_rows`](ixc_runtime::engine::Engine::min_rows). docs/serving.md lists the exceptions.
//!
//! A [`Session`](crate::session::Session) has a generator with one slot and one caller, which waits
//! for the request. Its prompts fill whole steps, and sampling waits for the masks.

mod request;
mod rows;
mod slot;
mod slot_choice;
mod step;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ixc_runtime::engine::{EvictError, FIRST, RankCounts, SequenceId, StepError};
use ixc_runtime::homes::NodeUse;
use ixc_runtime::sample::Sampler;
use ixc_runtime::streaming::store::EvictionResult;
use ixc_text::tokenizer::Tokenizer;

use crate::Error;
use crate::loaded_model::LoadedModel;
use crate::masks::{Bell, Budget, Masks};
use crate::output_text::OutputText;
use crate::prompt_cache::{self, PromptCache};
use crate::speculate::{Speculation, Tally};
pub use request::{DraftCounts, End, Event, FinalState, LogProbs, Request, RequestId};
use slot::Slot;
pub use slot::{SlotSize, SlotStatus};

/// Default limit of prompt tokens in a step that also generates tokens. A larger limit computes
/// prompts sooner, since a step reads weights once, but delays the generated tokens.
pub const PROMPT_ROWS: usize = 256;
/// Parts of a prompt, except the last, are multiples of this number of tokens. States that are
/// computed in chunks then round the same way.
const PROMPT_PART: usize = 64;
/// Prompt parts in shorter steps are multiples of this number of tokens: the length of a chunk of
/// recurrent states.
const CHUNK: usize = 16;
/// If other requests are active, a step waits for masks for the time of the last step divided by
/// this number.
const MASK_WAIT_SHARE: u32 = 8;
/// Min time to wait for masks. Usual masks take less.
const MIN_MASK_WAIT: Duration = Duration::from_millis(1);
/// Max time to wait for masks if there is nothing to compute. After it, the thread handles new
/// messages.
const MAX_MASK_WAIT: Duration = Duration::from_millis(20);

/// Shift of a full context. It keeps the first tokens, because attention needs them (StreamingLLM,
/// Xiao et al., 2023), and the later half of the other tokens. The rest is dropped.
///
/// The remaining tokens are computed again, so that their states are those of a text without the
/// dropped tokens. Otherwise rotated keys, recurrent states and later layers would still depend on
/// the dropped tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextShift {
    /// Number of first tokens that stay.
    pub keep: usize,
}

impl ContextShift {
    /// Returns the remaining tokens of a text in a context of this length. Half of the context is
    /// then free, unless the first tokens take more.
    pub fn remaining(self, tokens: &[u32], context: usize) -> Vec<u32> {
        let first = self.keep.min(context / 2).min(tokens.len());
        let rest = ((context - first) / 2).max(1).min(tokens.len() - first);
        [&tokens[..first], &tokens[tokens.len() - rest..]].concat()
    }
}

/// Callers of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Callers {
    /// One caller, which waits for one request. Parts of its prompt are as long as steps. All
    /// cached tokens except the last one are reused. A step computes logits while their mask is
    /// computed.
    One,
    /// Many callers. Prompts are divided into parts so that the module's invariant holds. No
    /// request waits for the masks of others.
    Many,
}

/// Request with a slot.
#[derive(Debug)]
struct ActiveRequest {
    id: RequestId,
    request: Request,
    sampler: Sampler,
    /// Assembler of the text.
    output: OutputText,
    /// Masks of the request's grammar.
    masks: Option<Masks>,
    /// Reason why the text ends after the last token; [`End::Grammar`] takes precedence.
    pending_end: Option<End>,
    /// Number of generated tokens.
    generated_tokens: usize,
}

/// Rows of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepRows {
    /// All rows, including drafts.
    pub total: usize,
    /// Rows of prompts.
    pub prompt: usize,
}

/// Requests for text, and the model that they share.
#[derive(Debug)]
pub struct Generator {
    model: LoadedModel,
    callers: Callers,
    slots: Vec<Slot>,
    waiting: VecDeque<(RequestId, Request)>,
    /// Prefixes of prompts that no sequence holds any more.
    cache: Option<PromptCache>,
    /// Shift of full contexts.
    shift: Option<ContextShift>,
    /// Drafter of tokens.
    speculation: Option<Speculation>,
    end_tokens: Vec<u32>,
    /// Number of requests so far.
    request_count: u64,
    /// Number of steps so far.
    steps: u64,
    last_rows: StepRows,
    /// Max number of prompt tokens in a step that also decodes.
    prompt_rows: usize,
    /// See [`min_rows`](ixc_runtime::engine::Engine::min_rows).
    min_rows: usize,
    /// CPU time for the masks of a request.
    budget: Budget,
    /// Bell that rings when a mask is ready.
    bell: Arc<Bell>,
    /// Duration of the last step.
    last_step_time: Duration,
}

impl Generator {
    /// Creates a generator with one slot for each sequence of the engine. Further requests wait.
    ///
    /// # Errors
    /// When the system refuses memory for a sequence.
    pub fn new(mut model: LoadedModel) -> Result<Generator, Error> {
        let mut sequences = vec![FIRST];
        while sequences.len() < model.engine.sequences() as usize {
            sequences.push(model.engine.add_sequence()?);
        }
        Ok(Generator::with_sequences(model, &sequences, Callers::Many))
    }

    /// Creates a generator with one slot, for one caller.
    pub(crate) fn for_one(model: LoadedModel) -> Generator {
        Generator::with_sequences(model, &[FIRST], Callers::One)
    }

    fn with_sequences(mut model: LoadedModel, sequences: &[SequenceId], callers: Callers) -> Generator {
        model.engine.reset();
        let end_tokens = model.tokenizer().map(Tokenizer::end_of_generation).unwrap_or_default();
        let min_rows = model.engine.min_rows() as usize;
        Generator {
            model,
            callers,
            min_rows,
            budget: Budget::DEFAULT,
            bell: Arc::default(),
            last_step_time: Duration::ZERO,
            slots: sequences.iter().copied().map(Slot::new).collect(),
            waiting: VecDeque::new(),
            cache: None,
            shift: None,
            speculation: None,
            end_tokens,
            request_count: 0,
            steps: 0,
            last_rows: StepRows::default(),
            prompt_rows: PROMPT_ROWS,
        }
    }

    /// Returns the model.
    pub fn model(&self) -> &LoadedModel {
        &self.model
    }

    /// Returns the model, to take its statistics.
    pub(crate) fn model_mut(&mut self) -> &mut LoadedModel {
        &mut self.model
    }

    /// Stores the states of reused sequences in a prompt cache, for prompts with the same
    /// beginning.
    ///
    /// # Errors
    /// When the folder cannot be created or used.
    pub fn enable_prompt_cache(&mut self, options: prompt_cache::PromptCacheOptions) -> Result<(), Error> {
        self.cache = Some(PromptCache::new(options, &self.model.engine)?);
        Ok(())
    }

    /// Sets the limit of prompt tokens in a step that also generates tokens, in place of
    /// [`PROMPT_ROWS`]. At least one.
    pub fn limit_prompt_rows(&mut self, rows: usize) {
        self.prompt_rows = rows.max(1);
    }

    /// Sets the shift of full contexts. Without one, a full context ends the text.
    pub fn set_context_shift(&mut self, shift: Option<ContextShift>) {
        self.shift = shift;
    }

    /// Enables speculation: see [`crate::speculate`]. A step with prompts has no drafts. The room
    /// for drafts is [`more_additions`](ixc_runtime::engine::EngineOptions::more_additions).
    ///
    /// # Errors
    /// [`Error::NoSpeculation`] if states cannot be truncated.
    pub fn speculate(&mut self, speculation: Speculation) -> Result<(), Error> {
        self.model.check_speculation()?;
        self.speculation = Some(speculation);
        Ok(())
    }

    /// Returns the name of the drafter, if there is one.
    pub fn drafter_name(&self) -> Option<&'static str> {
        self.speculation.as_ref().map(Speculation::name)
    }

    /// Returns the results of speculation so far.
    pub fn speculation_tally(&self) -> Tally {
        self.speculation.as_ref().map(Speculation::tally).unwrap_or_default()
    }

    /// Returns the size of the prompt cache.
    pub fn prompt_cache_tally(&self) -> prompt_cache::Tally {
        self.cache.as_ref().map(PromptCache::tally).unwrap_or_default()
    }

    /// Stores the states of all sequences in the prompt cache, and waits until they are written to
    /// its folder.
    pub fn finish(&mut self) {
        for number in 0..self.slots.len() {
            self.store_prompt(number);
        }
        self.cache.iter_mut().for_each(PromptCache::finish);
    }

    /// Stores the state of a sequence in the prompt cache.
    pub(super) fn store_prompt(&mut self, number: usize) {
        if let (Some(cache), Some(slot)) = (&mut self.cache, self.slots.get(number).filter(|slot| !slot.is_private)) {
            cache.store(&self.model.engine, slot.sequence, &slot.cached_tokens);
        }
    }

    /// Returns the logits at every position, `[tokens, vocabulary]`: [`LoadedModel::logits`], in
    /// an idle slot. The slot is empty afterwards.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, the tokens do not fit into the context, or no slot
    /// has this number.
    pub fn logits(&mut self, number: usize, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        self.model.check(tokens)?;
        self.store_prompt(number);
        self.erase_slot(number)?;
        let sequence = self.slots[number].sequence;
        let logits = self.model.logits_in(sequence, tokens);
        // Truncation to 0 tokens always succeeds.
        let _ = self.model.engine.truncate_sequence(sequence, 0);
        logits
    }

    /// Evicts the streamed experts of a layer; see [`LoadedModel::evict_experts`].
    ///
    /// # Errors
    /// When experts are not streamed, or there is no such layer.
    pub fn evict_experts(&mut self, layer: usize, pinned: bool) -> Result<EvictionResult, EvictError> {
        self.model.evict_experts(layer, pinned)
    }

    /// Collects the counters of all ranks, as
    /// [`Engine::rank_counts`](ixc_runtime::engine::Engine::rank_counts) does.
    ///
    /// # Errors
    /// If another rank has ended.
    pub fn rank_counts(&mut self) -> Result<Vec<RankCounts>, StepError> {
        self.model.engine_mut().rank_counts()
    }

    /// Returns the use of NUMA nodes, as
    /// [`Engine::node_use`](ixc_runtime::engine::Engine::node_use) does.
    pub fn node_use(&self) -> Vec<NodeUse> {
        self.model.engine().node_use()
    }

    /// Submits a request.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, there are no tokens or too many for the context, or a
    /// setting is outside its range.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, Error> {
        self.model.check(&request.tokens)?;
        if request.tokens.is_empty() {
            return Err(StepError::NoTokens.into());
        }
        request.sampling.check()?;
        let id = RequestId(self.request_count);
        self.request_count += 1;
        self.waiting.push_back((id, request));
        Ok(id)
    }

    /// Cancels a waiting or active request. Its computed tokens stay cached. Does nothing if the
    /// request has ended.
    pub fn cancel(&mut self, id: RequestId) {
        self.waiting.retain(|(waiting, _)| *waiting != id);
        for slot in &mut self.slots {
            slot.active_request.take_if(|active| active.id == id);
        }
        self.forget_private();
    }

    /// Drops all requests and empties all sequences, after a step that was interrupted by a panic.
    pub fn abandon(&mut self) {
        self.waiting.clear();
        for slot in &mut self.slots {
            (slot.active_request, slot.is_private) = (None, false);
            slot.cached_tokens.clear();
            let _ = self.model.engine.truncate_sequence(slot.sequence, 0);
        }
    }

    /// Returns the rows of the last step.
    pub fn last_rows(&self) -> StepRows {
        self.last_rows
    }

    /// Returns the number of requests that wait for a sequence.
    pub fn waiting_requests(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of requests in progress.
    pub fn active_requests(&self) -> usize {
        self.slots.iter().filter(|slot| slot.active_request.is_some()).count()
    }

    /// Returns whether there is no request.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active_requests() == 0
    }
}
