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
//! use ixc_runtime::sample::Settings;
//!
//! let mut options = LoadOptions::default();
//! options.run.sequences = 2;
//! let model = LoadedModel::open(None, &options)?; // The demo model.
//! let mut generator = Generator::new(model)?;
//! for prompt in ["The borrow checker", "A trait is"] {
//!     let tokens = generator.model().encode_prompt(prompt)?;
//!     generator.submit(Request { limit: Some(4), ..Request::new(tokens, Settings::greedy()) })?;
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
//! [`exact_batch`](ixc_runtime::engine::Options::exact_batch). Kernels for few rows sum in another
//! order than kernels for many. So no part of a prompt is shorter than
//! [`min_rows`](ixc_runtime::engine::Engine::min_rows). docs/serving.md lists the exceptions.
//!
//! A [`Session`](crate::session::Session) has a generator with one slot and one caller, which waits
//! for the request. Its prompts fill whole steps, and sampling waits for the masks.

mod request;
mod rows;
mod slot_choice;
mod step;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ixc_files::Output;
use ixc_runtime::engine::{EvictError, FIRST, Sequence, SequenceId, StepError};
use ixc_runtime::sample::Sampler;
use ixc_runtime::saved::{LoadedSequence, SavedError};
use ixc_runtime::stream::store::Evicted;
use ixc_text::tokenizer::Tokenizer;

use crate::Error;
use crate::loaded_model::LoadedModel;
use crate::masks::{Bell, Budget, Masks};
use crate::output_text::OutputText;
use crate::prompt_cache::{self, PromptCache};
use crate::slot_file;
use crate::speculate::{Speculation, Tally};
pub use request::{DraftCounts, End, Event, FinalState, LogProbs, Request, RequestId};

/// Default limit of prompt tokens in a step that also generates tokens. A larger limit computes
/// prompts sooner, since a step reads weights once, but delays the generated tokens.
pub const PROMPT_ROWS: usize = 256;
/// Unit of the parts of prompts, except the last part. States that are computed in chunks then
/// round alike.
const PART: usize = 64;
/// Multiple for shorter steps: the length of a chunk of recurrent states.
const CHUNK: usize = 16;
/// Divisor of a step's time: other requests wait this long for masks.
const SHARE: u32 = 8;
/// Least time to wait for masks. A usual mask takes less.
const LEAST_WAIT: Duration = Duration::from_millis(1);
/// Max time to wait for masks when there is nothing to compute. Messages are read after it.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// Shift of a full context. The first tokens stay, because attention needs them (StreamingLLM, Xiao
/// et al., 2023), and so does the later half of the others. The rest is dropped.
///
/// The remaining tokens are computed again, so that their states are those of a text without the
/// forgotten tokens. Rotated keys, recurrent states and later layers would show them otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextShift {
    /// Number of first tokens that stay.
    pub keep: usize,
}

impl ContextShift {
    /// Returns the remaining tokens of a text in a context of this length. Half of the context is
    /// then free, unless the first tokens take more.
    pub fn kept(self, tokens: &[u32], context: usize) -> Vec<u32> {
        let first = self.keep.min(context / 2).min(tokens.len());
        let rest = ((context - first) / 2).max(1).min(tokens.len() - first);
        [&tokens[..first], &tokens[tokens.len() - rest..]].concat()
    }
}

/// Callers of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Callers {
    /// One caller, which waits for one request. Parts of its prompt are as long as steps, and all
    /// but the last token is reused. A step computes logits while their mask is made.
    One,
    /// Many callers. Parts of prompts keep the module's invariant, and no request waits for the
    /// masks of others.
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
    /// Reason of the end with the last token, unless the grammar ends there, too.
    ending: Option<End>,
    /// Number of generated tokens.
    made: usize,
}

/// Sequence of the engine, and its request.
#[derive(Debug)]
struct Slot {
    sequence: SequenceId,
    /// Tokens that its states hold.
    cached: Vec<u32>,
    active: Option<ActiveRequest>,
    /// Tokens of the last request's prompt. Later tokens were computed one by one.
    prompt: usize,
    /// Whether only its request may read the cached tokens.
    is_private: bool,
    /// Step of its last use. The least recently used slot is the first to be reused.
    used: u64,
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
    ends: Vec<u32>,
    /// Requests so far.
    count: u64,
    /// Steps so far.
    steps: u64,
    /// Rows of the last step, and those of prompts among them.
    last_rows: (usize, usize),
    /// Max number of prompt tokens in a step that also decodes.
    prompt_rows: usize,
    /// See [`min_rows`](ixc_runtime::engine::Engine::min_rows).
    least: usize,
    /// CPU time for the masks of a request.
    budget: Budget,
    /// Rings when a mask is there.
    bell: Arc<Bell>,
    /// Duration of the last step.
    last_step: Duration,
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
        let slot =
            |&sequence| Slot { sequence, cached: Vec::new(), active: None, prompt: 0, is_private: false, used: 0 };
        let ends = model.tokenizer().map(Tokenizer::end_of_generation).unwrap_or_default();
        let least = model.engine.min_rows() as usize;
        Generator {
            model,
            callers,
            least,
            budget: Budget::USUAL,
            bell: Arc::default(),
            last_step: Duration::ZERO,
            slots: sequences.iter().map(slot).collect(),
            waiting: VecDeque::new(),
            cache: None,
            shift: None,
            speculation: None,
            ends,
            count: 0,
            steps: 0,
            last_rows: (0, 0),
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
    /// When the folder cannot be had.
    pub fn keep_prompts(&mut self, options: prompt_cache::Options) -> Result<(), Error> {
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
    /// for drafts is [`engine::Options::more_additions`].
    ///
    /// [`engine::Options::more_additions`]: ixc_runtime::engine::Options::more_additions
    ///
    /// # Errors
    /// [`Error::NoSpeculation`] if states cannot be cut.
    pub fn speculate(&mut self, speculation: Speculation) -> Result<(), Error> {
        self.model.check_speculation()?;
        self.speculation = Some(speculation);
        Ok(())
    }

    /// Returns the name of the drafter, if there is one.
    pub fn guesses(&self) -> Option<&'static str> {
        self.speculation.as_ref().map(Speculation::name)
    }

    /// Returns the results of speculation so far.
    pub fn guessed(&self) -> Tally {
        self.speculation.as_ref().map(Speculation::tally).unwrap_or_default()
    }

    /// Returns the size of the prompt cache.
    pub fn kept(&self) -> prompt_cache::Tally {
        self.cache.as_ref().map(PromptCache::tally).unwrap_or_default()
    }

    /// Stores the states of all sequences in the prompt cache, and waits until its folder has them.
    pub fn finish(&mut self) {
        for number in 0..self.slots.len() {
            self.keep(number);
        }
        self.cache.iter_mut().for_each(PromptCache::finish);
    }

    /// Stores the state of a sequence in the prompt cache.
    fn keep(&mut self, number: usize) {
        if let (Some(cache), Some(slot)) = (&mut self.cache, self.slots.get(number).filter(|slot| !slot.is_private)) {
            cache.keep(&self.model.engine, slot.sequence, &slot.cached);
        }
    }

    /// Saves the state of a sequence. Returns the numbers of tokens and bytes.
    ///
    /// # Errors
    /// When there is no such sequence, it is empty, or it cannot be written.
    pub fn save_slot(&self, number: usize, output: Output) -> Result<(usize, u64), Error> {
        let slot = self.slots.get(number).ok_or(Error::NoSlot { number, slots: self.slots.len() })?;
        let bytes = self.model.save(slot.sequence, &slot.cached, None, output)?;
        Ok((slot.cached.len(), bytes))
    }

    /// Restores an idle sequence from a file of [`Generator::save_slot`]; returns its tokens and
    /// bytes. Links are not followed.
    ///
    /// # Errors
    /// When there is no such sequence, or the file is not a state of this model. The sequence stays
    /// as it was.
    pub fn restore_slot(&mut self, number: usize, path: &Path) -> Result<(usize, u64), Error> {
        let slots = self.slots.len();
        self.free_slot(number).ok_or(Error::NoSlot { number, slots })?;
        let (file, bytes) = slot_file::open(path, &self.model.engine)?;
        self.keep(number);
        self.load_slot(number, file, bytes).map_err(|source| slot_file::refused(path, source))?;
        let held = self.slots[number].cached.len();
        Ok((held, bytes))
    }

    /// Replaces the states of an idle slot by saved ones. The slot stays as it was on an error.
    pub(crate) fn load_slot(&mut self, number: usize, file: File, bytes: u64) -> Result<LoadedSequence, SavedError> {
        let (engine, slot) = (&mut self.model.engine, &mut self.slots[number]);
        // Damage after the header is found only while the sequence is being overwritten.
        let mut before = Vec::new();
        let kept = engine.save_state(slot.sequence, &slot.cached, None, &mut before);
        let mut input = std::io::BufReader::with_capacity(1 << 20, file);
        let loaded = engine.load_state(slot.sequence, &mut input, bytes).inspect_err(|_| {
            let length = before.len() as u64;
            let again = kept.is_ok() && engine.load_state(slot.sequence, &mut &before[..], length).is_ok();
            if !again {
                let _ = engine.truncate_sequence(slot.sequence, 0);
                slot.cached.clear();
            }
        })?;
        let held = engine.sequence(slot.sequence).map_or(0, |sequence| sequence.position()) as usize;
        slot.cached.clear();
        slot.cached.extend_from_slice(&loaded.tokens[..held]);
        // A restored slot is not the next to be reused.
        (slot.prompt, slot.used) = (0, self.steps);
        Ok(loaded)
    }

    /// Returns the slot whose request computed last, if any has.
    pub fn recent_slot(&self) -> Option<usize> {
        let used = self.slots.iter().enumerate().filter(|(_, slot)| slot.used > 0);
        used.max_by_key(|(_, slot)| slot.used).map(|(number, _)| number)
    }

    /// Returns an idle slot, preferably the one that was used least recently.
    pub fn idle_slot(&self) -> Option<usize> {
        let idle = self.slots.iter().enumerate().filter(|(_, slot)| slot.active.is_none());
        idle.min_by_key(|(_, slot)| slot.used).map(|(number, _)| number)
    }

    /// Returns the logits at every position, `[tokens, vocabulary]`: [`LoadedModel::logits`], in
    /// an idle slot. The slot is empty afterwards.
    ///
    /// # Errors
    /// When the tokens are not of this model, or do not fit into the context, or there is no such
    /// slot.
    pub fn logits(&mut self, number: usize, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        self.model.check(tokens)?;
        self.keep(number);
        self.erase_slot(number)?;
        let sequence = self.slots[number].sequence;
        let logits = self.model.logits_in(sequence, tokens);
        // A sequence is cut to its beginning in any case.
        let _ = self.model.engine.truncate_sequence(sequence, 0);
        logits
    }

    /// Evicts the streamed experts of a layer; see [`LoadedModel::evict_experts`].
    ///
    /// # Errors
    /// When experts are not streamed, or there is no such layer.
    pub fn evict_experts(&mut self, layer: usize, pinned: bool) -> Result<Evicted, EvictError> {
        self.model.evict_experts(layer, pinned)
    }

    /// Empties an idle sequence, and returns the number of its tokens.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn erase_slot(&mut self, number: usize) -> Result<usize, Error> {
        let slots = self.slots.len();
        let slot = self.free_slot(number).ok_or(Error::NoSlot { number, slots })?;
        let (id, held) = (slot.sequence, slot.cached.len());
        slot.cached.clear();
        self.model.engine.truncate_sequence(id, 0)?;
        Ok(held)
    }

    fn free_slot(&mut self, number: usize) -> Option<&mut Slot> {
        self.slots.get_mut(number).filter(|slot| slot.active.is_none())
    }

    /// Submits a request.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, there are no tokens, they do not fit into the
    /// context, or a setting is outside its range.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, Error> {
        self.model.check(&request.tokens)?;
        if request.tokens.is_empty() {
            return Err(StepError::NoTokens.into());
        }
        request.sampling.check()?;
        let id = RequestId(self.count);
        self.count += 1;
        self.waiting.push_back((id, request));
        Ok(id)
    }

    /// Cancels a waiting or active request. Its computed tokens stay cached. Does nothing if the
    /// request has ended.
    pub fn cancel(&mut self, id: RequestId) {
        self.waiting.retain(|(waiting, _)| *waiting != id);
        for slot in &mut self.slots {
            slot.active.take_if(|active| active.id == id);
        }
        self.forget_private();
    }

    /// Drops all requests and empties all sequences, after a step that was not finished.
    pub fn abandon(&mut self) {
        self.waiting.clear();
        for slot in &mut self.slots {
            (slot.active, slot.is_private) = (None, false);
            slot.cached.clear();
            let _ = self.model.engine.truncate_sequence(slot.sequence, 0);
        }
    }

    /// Returns the number of cached tokens of each slot, and whether it has an active request.
    pub fn slots(&self) -> impl Iterator<Item = (usize, bool)> {
        self.slots.iter().map(|slot| (slot.cached.len(), slot.active.is_some()))
    }

    /// Returns the used bytes of each slot, and how many of them lie in shared pages.
    pub fn slot_bytes(&self) -> impl Iterator<Item = (u64, u64)> {
        let sequence = |slot: &Slot| self.model.engine.sequence(slot.sequence);
        self.slots.iter().map(move |slot| sequence(slot).map_or((0, 0), Sequence::bytes))
    }

    /// Returns the rows of the last step, including drafts, and the number of prompt rows among
    /// them.
    pub fn last_rows(&self) -> (usize, usize) {
        self.last_rows
    }

    /// Returns the number of requests that wait for a sequence.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of requests in progress.
    pub fn active(&self) -> usize {
        self.slots.iter().filter(|slot| slot.active.is_some()).count()
    }

    /// Whether there is no request.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active() == 0
    }

    /// Empties the slots of finished private requests.
    fn forget_private(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_private && slot.active.is_none()) {
            slot.is_private = false;
            slot.cached.clear();
            // A sequence is cut to its beginning in any case.
            let _ = self.model.engine.truncate_sequence(slot.sequence, 0);
        }
    }

    /// Cuts a sequence to its first `len` tokens.
    fn cut(&mut self, number: usize, len: usize) {
        let slot = &mut self.slots[number];
        let left = self.model.engine.truncate_sequence(slot.sequence, len as u32);
        slot.cached.truncate(left.map_or(0, |left| left as usize));
    }
}
