//! Many requests at once: each has a sequence of its own in one engine, and every step computes rows of all that have something to compute.
//!
//! ```text
//! step 1   request a: 200 tokens of its prompt
//! step 2   request a: 1 token | request b: the first 255 tokens of its prompt
//! step 3   request a: 1 token | request b: the rest, 45 tokens | request c: 12 tokens, since 90 of its 102 are those that b began with
//! ```
//!
//! Tokens that are made come first, then prompts, in the order in which they were submitted, as far as there is room in the step. What a sequence holds
//! stays when its request has ended, and serves the next one that begins with the same tokens (`scheduler/slot_choice.rs`).
//!
//! Where tokens are guessed ([`Scheduler::speculate`]), a step without prompts has rows of what may follow, too, as far as it has not many anyway.
//!
//! ```
//! use ixc::runtime::sample::Settings;
//! use ixc::scheduler::{Event, Job, Scheduler};
//! use ixc::session::{End, Session, SessionOptions};
//!
//! let mut options = SessionOptions::default();
//! options.run.sequences = 2;
//! let mut scheduler = Scheduler::new(Session::open(None, &options)?)?; // The demo model.
//! for prompt in ["The borrow checker", "A trait is"] {
//!     let tokens = scheduler.session().encode_prompt(prompt)?;
//!     scheduler.submit(Job { limit: Some(4), ..Job::new(tokens, Settings::greedy()) })?;
//! }
//! let mut made = 0;
//! while !scheduler.is_idle() {
//!     made += scheduler.step().iter().filter(|(_, event)| matches!(event, Event::Token { .. })).count();
//! }
//! assert_eq!(made, 8);
//! # Ok::<(), ixc::Error>(())
//! ```
//!
//! Other threads make the masks of grammars ([`crate::masks`]). A request without its mask is left
//! out of a step.
//!
//! Invariant: a request's bits depend neither on other requests nor on how much of its prompt was
//! cached. That holds on targets without tiles, or with
//! [`exact_batch`](ixc_runtime::engine::Options::exact_batch). Kernels for few rows sum in another
//! order than kernels for many. So no part of a prompt is shorter than
//! [`least_rows`](ixc_runtime::engine::Engine::least_rows). docs/serving.md lists the exceptions.

mod slot_choice;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ixc_files::Output;
use ixc_frontend::tokenizer::Tokenizer;
use ixc_grammar::Matcher;
use ixc_ir::plan::MAX_OUTPUTS;
use ixc_runtime::engine::{Addition, EvictError, FIRST, Sequence, SequenceId, StepError};
use ixc_runtime::sample::{Likely, Sampler, Settings, SettingsError, likely};
use ixc_runtime::stream::store::Evicted;

use crate::Error;
use crate::masks::{Bell, Budget, Masks, Progress as Following};
use crate::prompt_cache::{self, PromptCache};
use crate::session::{ContextShift, End, Session};
use crate::slot_file;
use crate::speculate::{Seen, Speculation, Tally, Text};

/// Most tokens of prompts in a step that others' tokens wait for, where nobody says: the more, the longer these wait, and the sooner prompts are read, for a
/// step reads weights once for all of them.
pub const PROMPT_ROWS: usize = 256;
/// Parts of prompts are multiples of so many tokens, but for the last: states that are computed in chunks round alike then.
const PART: usize = 64;
/// Multiple for shorter steps: the length of a chunk of recurrent states.
const CHUNK: usize = 16;
/// Divisor of a step's time: other requests wait this long for masks.
const SHARE: u32 = 8;
/// Least time to wait for masks. A usual mask takes less.
const LEAST_WAIT: Duration = Duration::from_millis(1);
/// Max time to wait for masks when there is nothing to compute. Messages are read after it.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// What to generate.
#[derive(Clone, Debug)]
pub struct Job {
    /// All tokens before, from the first position on; one at least.
    pub tokens: Vec<u32>,
    /// Most tokens to make.
    pub limit: Option<usize>,
    /// How to choose them.
    pub sampling: Arc<Settings>,
    /// Number added to the seed.
    pub number: u32,
    /// Whether end tokens are never sampled.
    pub ignore_end: bool,
    /// What they are to follow, at its beginning.
    pub grammar: Option<Matcher>,
    /// How many of the likeliest tokens are told with each, and how likely it was itself; neither where `None`.
    pub likeliest: Option<usize>,
    /// Whether that is told of what samplers left, and not of what the model says.
    pub after_sampling: bool,
    /// Whether it reads from and writes to the prompt cache.
    pub cache_prompt: bool,
}

impl Job {
    /// As many tokens as there is room for, without a grammar.
    pub fn new(tokens: Vec<u32>, sampling: impl Into<Arc<Settings>>) -> Job {
        Job {
            tokens,
            limit: None,
            sampling: sampling.into(),
            number: 0,
            ignore_end: false,
            grammar: None,
            likeliest: None,
            after_sampling: false,
            cache_prompt: true,
        }
    }

    /// Makes the sampler and shows it the prompt's tokens.
    fn sampler(&self, ends: &[u32]) -> Result<Sampler, SettingsError> {
        let mut settings = Settings::clone(&self.sampling);
        settings.seed = settings.seed.wrapping_add(self.number.into());
        if self.ignore_end {
            settings.never.extend_from_slice(ends);
        }
        let mut sampler = Sampler::new(settings)?;
        self.tokens.iter().for_each(|&token| sampler.accept(token));
        Ok(sampler)
    }
}

/// The number of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

/// What has happened to a request.
#[derive(Debug)]
pub enum Event {
    /// Of so many tokens of its prompt, so many were computed before.
    Begun {
        /// Tokens of the prompt.
        prompt: usize,
        /// Those of them that a sequence held already.
        reused: usize,
    },
    /// A token was made.
    Token {
        /// It.
        token: u32,
        /// How likely it was, and the likeliest, where that was asked for.
        likely: Option<(Likely, Vec<Likely>)>,
    },
    /// Of tokens that were guessed so many were computed, and so many of these made. Comes behind them.
    Guessed {
        /// Computed.
        drafted: usize,
        /// Made.
        accepted: usize,
    },
    /// There are no more.
    Ended(End),
    /// It failed, and with it all that were computed in the same step.
    Failed(Error),
}

/// A request that is worked on.
#[derive(Debug)]
struct Active {
    id: RequestId,
    job: Job,
    sampler: Sampler,
    /// Masks of the request's grammar.
    masks: Option<Masks>,
    /// Reason of the end with the last token, unless the grammar ends there, too.
    ending: Option<End>,
    /// What was made so far.
    made: usize,
}

/// Result of drawing tokens for a request.
#[derive(Debug)]
struct Drawn {
    id: RequestId,
    /// Tokens of the sequence that belong to its text.
    held: usize,
    /// Tokens of the draft that were drawn.
    accepted: usize,
    end: Option<Event>,
}

/// A sequence of the engine, and whose it is.
#[derive(Debug)]
struct Slot {
    sequence: SequenceId,
    /// What its states hold.
    cached: Vec<u32>,
    active: Option<Active>,
    /// Tokens of the last request's prompt. Later tokens were computed one by one.
    prompt: usize,
    /// Whether only its request may read the cached tokens.
    is_private: bool,
    /// When it was last used: the slot that was not for the longest time is given to the next request that goes on in none.
    used: u64,
}

/// What a step computes for a slot.
#[derive(Debug)]
struct Rows {
    /// The slot's number.
    number: usize,
    /// Tokens of its request.
    count: usize,
    /// What was guessed to follow them.
    draft: Vec<u32>,
}

impl Rows {
    /// Of a request alone.
    fn new(number: usize, count: usize) -> Rows {
        Rows { number, count, draft: Vec::new() }
    }
}

/// Requests, and the session that computes them.
#[derive(Debug)]
pub struct Scheduler {
    session: Session,
    slots: Vec<Slot>,
    waiting: VecDeque<(RequestId, Job)>,
    /// What prompts began with that no sequence holds any more.
    cache: Option<PromptCache>,
    /// What goes on where a context is full.
    shift: Option<ContextShift>,
    /// What guesses tokens.
    speculation: Option<Speculation>,
    ends: Vec<u32>,
    /// Requests so far.
    count: u64,
    /// Steps so far.
    steps: u64,
    /// Rows of the last step, and those of prompts among them.
    last_rows: (usize, usize),
    /// Most tokens of prompts in a step that others' tokens wait for.
    prompt_rows: usize,
    /// See [`least_rows`](ixc_runtime::engine::Engine::least_rows).
    least: usize,
    /// Time that masks of a request may take.
    budget: Budget,
    /// Rings when a mask is there.
    bell: Arc<Bell>,
    /// Duration of the last step.
    last_step: Duration,
}

impl Scheduler {
    /// For as many requests at once as the session's engine was loaded for; the others wait.
    ///
    /// # Errors
    /// When the system refuses memory for a sequence.
    pub fn new(mut session: Session) -> Result<Scheduler, Error> {
        session.engine.reset();
        let slot =
            |sequence| Slot { sequence, cached: Vec::new(), active: None, prompt: 0, is_private: false, used: 0 };
        let mut slots = vec![slot(FIRST)];
        while slots.len() < session.engine.sequences() as usize {
            slots.push(slot(session.engine.add_sequence()?));
        }
        let ends = session.tokenizer().map(Tokenizer::end_of_generation).unwrap_or_default();
        let least = session.engine.least_rows() as usize;
        Ok(Scheduler {
            session,
            least,
            budget: Budget::USUAL,
            bell: Arc::default(),
            last_step: Duration::ZERO,
            slots,
            waiting: VecDeque::new(),
            cache: None,
            shift: None,
            speculation: None,
            ends,
            count: 0,
            steps: 0,
            last_rows: (0, 0),
            prompt_rows: PROMPT_ROWS,
        })
    }

    /// The session: its tokenizer, and what is known of the model.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Keeps what sequences hold when they are given to others, for prompts that begin alike.
    ///
    /// # Errors
    /// When the folder cannot be had.
    pub fn keep_prompts(&mut self, options: prompt_cache::Options) -> Result<(), Error> {
        self.cache = Some(PromptCache::new(options, &self.session.engine)?);
        Ok(())
    }

    /// How many tokens of prompts a step has at most that others' tokens wait for, one at least, in place of [`PROMPT_ROWS`].
    pub fn limit_prompt_rows(&mut self, rows: usize) {
        self.prompt_rows = rows.max(1);
    }

    /// Has requests go on where their context is full: see [`ContextShift`]. A request without a limit ends at as many tokens as the context has.
    pub fn shift_contexts(&mut self, shift: ContextShift) {
        self.shift = Some(shift);
    }

    /// Has tokens guessed: see [`crate::speculate`]. As many are guessed in a step as [`engine::Options::more_additions`] has room for, and none beside prompts.
    ///
    /// [`engine::Options::more_additions`]: ixc_runtime::engine::Options::more_additions
    ///
    /// # Errors
    /// [`Error::NoSpeculation`] where states cannot be cut.
    pub fn speculate(&mut self, speculation: Speculation) -> Result<(), Error> {
        self.session.check_speculation()?;
        self.speculation = Some(speculation);
        Ok(())
    }

    /// What came of guesses so far.
    pub fn guessed(&self) -> Tally {
        self.speculation.as_ref().map(Speculation::tally).unwrap_or_default()
    }

    /// What is kept of prompts.
    pub fn kept(&self) -> prompt_cache::Tally {
        self.cache.as_ref().map(PromptCache::tally).unwrap_or_default()
    }

    /// Keeps what all sequences hold, and waits until it is in the folder.
    pub fn finish(&mut self) {
        for number in 0..self.slots.len() {
            self.keep(number);
        }
        self.cache.iter_mut().for_each(PromptCache::finish);
    }

    /// Keeps what a sequence holds.
    fn keep(&mut self, number: usize) {
        if let (Some(cache), Some(slot)) = (&mut self.cache, self.slots.get(number).filter(|slot| !slot.is_private)) {
            cache.keep(&self.session.engine, slot.sequence, &slot.cached);
        }
    }

    /// Writes what a sequence holds; gives how many tokens, and bytes.
    ///
    /// # Errors
    /// When there is no such sequence, it holds nothing, or it cannot be written.
    pub fn save_slot(&self, number: usize, output: Output) -> Result<(usize, u64), Error> {
        let slot = self.slots.get(number).ok_or(Error::NoSlot { number, slots: self.slots.len() })?;
        let bytes = self.session.save(slot.sequence, &slot.cached, None, output)?;
        Ok((slot.cached.len(), bytes))
    }

    /// Restores an idle sequence from a file of [`Scheduler::save_slot`]; returns its tokens and
    /// bytes. Links are not followed.
    ///
    /// # Errors
    /// When there is no such sequence, or the file is not a state of this model. The sequence stays
    /// as it was.
    pub fn restore_slot(&mut self, number: usize, path: &Path) -> Result<(usize, u64), Error> {
        let slots = self.slots.len();
        let id = self.free_slot(number).ok_or(Error::NoSlot { number, slots })?.sequence;
        let (file, bytes) = slot_file::open(path, &self.session.engine)?;
        self.keep(number);
        // Damage after the header is found only while the sequence is being overwritten.
        let engine = &mut self.session.engine;
        let (slot, mut before) = (&mut self.slots[number], Vec::new());
        let kept = engine.save_state(id, &slot.cached, None, &mut before);
        let mut input = std::io::BufReader::with_capacity(1 << 20, file);
        let loaded = engine.load_state(id, &mut input, bytes).map_err(|source| {
            let again = kept.is_ok() && engine.load_state(id, &mut &before[..], before.len() as u64).is_ok();
            if !again {
                let _ = engine.truncate_sequence(id, 0);
                slot.cached.clear();
            }
            slot_file::refused(path, source)
        })?;
        let held = engine.sequence(id).map_or(0, |sequence| sequence.position()) as usize;
        slot.cached.clear();
        slot.cached.extend_from_slice(&loaded.tokens[..held]);
        slot.prompt = 0;
        // It is not the first to be given away.
        slot.used = self.steps;
        Ok((held, bytes))
    }

    /// Gives up the streamed experts of a layer; see [`Session::evict_experts`].
    ///
    /// # Errors
    /// When experts are not streamed, or there is no such layer.
    pub fn evict_experts(&mut self, layer: usize, pinned: bool) -> Result<Evicted, EvictError> {
        self.session.evict_experts(layer, pinned)
    }

    /// Empties a sequence that no request is computed in; gives how many tokens it held.
    ///
    /// # Errors
    /// When there is no such sequence.
    pub fn erase_slot(&mut self, number: usize) -> Result<usize, Error> {
        let slots = self.slots.len();
        let slot = self.free_slot(number).ok_or(Error::NoSlot { number, slots })?;
        let (id, held) = (slot.sequence, slot.cached.len());
        slot.cached.clear();
        self.session.engine.truncate_sequence(id, 0)?;
        Ok(held)
    }

    fn free_slot(&mut self, number: usize) -> Option<&mut Slot> {
        self.slots.get_mut(number).filter(|slot| slot.active.is_none())
    }

    /// Takes a request.
    ///
    /// # Errors
    /// When its tokens are none of this model's, there are none or too many for the context, or a setting is outside its range.
    pub fn submit(&mut self, job: Job) -> Result<RequestId, Error> {
        self.session.check(&job.tokens)?;
        if job.tokens.is_empty() {
            return Err(StepError::NoTokens.into());
        }
        job.sampling.check()?;
        let id = RequestId(self.count);
        self.count += 1;
        self.waiting.push_back((id, job));
        Ok(id)
    }

    /// Forgets a request, whether it waits or is worked on; what was computed of it stays to be reused. Does nothing where it has ended.
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
            let _ = self.session.engine.truncate_sequence(slot.sequence, 0);
        }
    }

    /// Of each sequence, how many tokens it holds, and whether a request is worked on.
    pub fn slots(&self) -> impl Iterator<Item = (usize, bool)> {
        self.slots.iter().map(|slot| (slot.cached.len(), slot.active.is_some()))
    }

    /// Of each sequence, the bytes that hold something, and how many of these lie in pages that others may have, too.
    pub fn slot_bytes(&self) -> impl Iterator<Item = (u64, u64)> {
        let sequence = |slot: &Slot| self.session.engine.sequence(slot.sequence);
        self.slots.iter().map(move |slot| sequence(slot).map_or((0, 0), Sequence::bytes))
    }

    /// Rows of the last step, those of guesses included, and how many of them are of prompts.
    pub fn last_rows(&self) -> (usize, usize) {
        self.last_rows
    }

    /// Requests that wait for a sequence.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Requests that are worked on.
    pub fn active(&self) -> usize {
        self.slots.iter().filter(|slot| slot.active.is_some()).count()
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active() == 0
    }

    /// Runs one step, if there is something to do; returns events in the order of requests. Waits a
    /// little if all requests wait for masks.
    pub fn step(&mut self) -> Vec<(RequestId, Event)> {
        self.steps += 1;
        let mut events = Vec::new();
        self.admit(&mut events);
        self.settle(&mut events);
        let mut rows = self.rows();
        let is_prompt = |number: usize| self.slots[number].active.as_ref().is_some_and(|active| active.made == 0);
        let prompts = rows.iter().filter(|rows| is_prompt(rows.number)).map(|rows| rows.count).sum();
        if rows.is_empty() {
            self.last_rows = (0, 0);
            // The last rows of a prompt that wait for a mask are not part of the step.
            if events.is_empty() && self.active() > 0 {
                self.bell.wait(LONGEST_WAIT);
            }
            return events;
        }
        // Beside prompts a step has rows enough, and its time says nothing about guesses.
        let guesses = rows.iter().all(|rows| rows.count == 1) && prompts == 0;
        if guesses {
            self.guess(&mut rows);
        }
        let all = rows.iter().map(|rows| rows.count + rows.draft.len()).sum();
        self.last_rows = (all, prompts);
        let (begin, packing) = (Instant::now(), self.session.engine.packing_time());
        let computed = self.compute(&rows);
        self.last_step = begin.elapsed();
        if let Some(speculation) = self.speculation.as_mut().filter(|_| guesses && computed.is_ok()) {
            let packed = self.session.engine.packing_time().saturating_sub(packing);
            speculation.note_step(rows.len(), all, begin.elapsed().saturating_sub(packed));
        }
        if let Err(error) = computed {
            self.fail(&rows, &error, &mut events);
            return events;
        }
        self.show(&rows);
        let (mut output, mut cuts) = (0, Vec::new());
        for rows in &rows {
            let Some(drawn) = self.draw(rows, output, &mut events) else { continue };
            output += 1 + rows.draft.len();
            if drawn.held < self.slots[rows.number].cached.len() {
                cuts.push((rows.number, drawn.held));
            }
            if guesses && let Some(speculation) = &mut self.speculation {
                speculation.note_draft(rows.number, rows.draft.len(), drawn.accepted);
            }
            if !rows.draft.is_empty() {
                events.push((drawn.id, Event::Guessed { drafted: rows.draft.len(), accepted: drawn.accepted }));
            }
            if let Some(event) = drawn.end {
                events.push((drawn.id, event));
                self.slots[rows.number].active = None;
            }
        }
        // When all logits were read. Where a text's beginning was forgotten, what is left is a prompt again, of which the beginning is there.
        for (number, held) in cuts {
            self.cut(number, held);
        }
        self.forget_private();
        events
    }

    /// Assigns free slots to waiting requests.
    fn admit(&mut self, events: &mut Vec<(RequestId, Event)>) {
        while let Some((id, job)) = self.waiting.pop_front() {
            let Some(number) = self.choose(&job.tokens, job.cache_prompt) else {
                self.waiting.push_front((id, job));
                break;
            };
            let active = match self.activate(id, job) {
                Ok(active) => active,
                Err(error) => {
                    events.push((id, Event::Failed(error)));
                    continue;
                }
            };
            let slot = &mut self.slots[number];
            events.push((id, Event::Begun { prompt: active.job.tokens.len(), reused: slot.cached.len() }));
            (slot.is_private, slot.prompt) = (!active.job.cache_prompt, active.job.tokens.len());
            slot.active = Some(active);
            self.speculation.iter_mut().for_each(|speculation| speculation.begin(number));
        }
    }

    /// A request that is to be worked on.
    fn activate(&self, id: RequestId, mut job: Job) -> Result<Active, Error> {
        let sampler = job.sampler(&self.ends)?;
        let follow =
            |grammar| Masks::follow(grammar, self.budget, &self.bell).map_err(Error::io("masks".as_ref(), "start"));
        let masks = job.grammar.take().map(follow).transpose()?;
        Ok(Active { id, job, sampler, masks, ending: None, made: 0 })
    }

    /// Waits a little for masks, and ends the requests whose grammars have ended or failed.
    fn settle(&mut self, events: &mut Vec<(RequestId, Event)>) {
        let begin = Instant::now();
        loop {
            let (mut pending, mut others) = (false, false);
            for number in 0..self.slots.len() {
                let Some(active) = &mut self.slots[number].active else { continue };
                let end = match active.masks.as_mut().map(Masks::progress) {
                    Some(Err(error)) => Some(Event::Failed(error.into())),
                    Some(Ok(Following::Ended)) => Some(Event::Ended(End::Grammar)),
                    Some(Ok(Following::Making | Following::Ready)) if active.ending.is_some() => {
                        active.ending.map(Event::Ended)
                    }
                    _ => None,
                };
                let is_pending = active.masks.as_ref().is_some_and(Masks::is_pending);
                match end {
                    Some(event) => {
                        events.push((active.id, event));
                        self.slots[number].active = None;
                    }
                    None if is_pending && self.needs_mask(number) => pending = true,
                    None => others = true,
                }
            }
            // Other requests wait for a small part of a step only.
            let most = if others { (self.last_step / SHARE).max(LEAST_WAIT) } else { LONGEST_WAIT };
            match most.checked_sub(begin.elapsed()) {
                Some(left) if pending && (events.is_empty() || others) => self.bell.wait(left),
                _ => break,
            }
        }
        self.forget_private();
    }

    /// Whether the next rows of a slot give logits that a mask is needed for.
    fn needs_mask(&self, number: usize) -> bool {
        let slot = &self.slots[number];
        let left = |active: &Active| active.job.tokens.len() - slot.cached.len();
        slot.active.as_ref().is_some_and(|active| left(active) <= 1 || active.ending.is_some())
    }

    /// Ends the requests of a step that failed.
    fn fail(&mut self, rows: &[Rows], error: &StepError, events: &mut Vec<(RequestId, Event)>) {
        for &Rows { number, .. } in rows {
            let slot = &mut self.slots[number];
            let left = self.session.engine.sequence(slot.sequence).map_or(0, |sequence| sequence.position());
            slot.cached.truncate(left as usize);
            if let Some(active) = slot.active.take() {
                events.push((active.id, Event::Failed(error.clone().into())));
            }
        }
        self.forget_private();
    }

    /// Records the rows that a step computed for a slot. If the request's last row was among them,
    /// draws tokens; `output` is the index of their logits.
    fn draw(&mut self, rows: &Rows, output: usize, events: &mut Vec<(RequestId, Event)>) -> Option<Drawn> {
        let Rows { number, count, draft } = rows;
        let slot = &mut self.slots[*number];
        let active = slot.active.as_mut()?;
        let begin = slot.cached.len();
        slot.cached.extend_from_slice(&active.job.tokens[begin..begin + count]);
        slot.used = self.steps;
        if slot.cached.len() < active.job.tokens.len() {
            return None;
        }
        // How much of it is the request's.
        let mut held = slot.cached.len();
        slot.cached.extend_from_slice(draft);
        let (id, mut accepted) = (active.id, 0);
        let context = self.session.engine.context() as usize;
        // Each token is drawn as without guesses. A right guess means that the next logits are
        // there.
        let end = loop {
            let logits = self.session.engine.logits(output + accepted);
            let mask = active.masks.as_ref().and_then(Masks::mask);
            let token = match active.sampler.sample_allowed(logits, mask, &self.session.engine) {
                Err(error) => break Some(Event::Failed(error.into())),
                Ok(token) if self.ends.contains(&token) => break Some(Event::Ended(End::Token(token))),
                // It was to make none.
                Ok(_) if active.job.limit == Some(0) => break Some(Event::Ended(End::Limit)),
                Ok(token) => token,
            };
            let likely = active.job.likeliest.map(|count| match active.job.after_sampling {
                true => active.sampler.drawn(token, count),
                false => likely(logits, token, count),
            });
            events.push((id, Event::Token { token, likely }));
            active.made += 1;
            active.job.tokens.push(token);
            let is_full = active.job.tokens.len() > context;
            if let Some(shift) = self.shift.filter(|_| is_full) {
                active.job.tokens = shift.kept(&active.job.tokens, context);
                let common = slot.cached.iter().zip(&active.job.tokens).take_while(|(a, b)| a == b);
                held = held.min(common.count());
            }
            let endless = self.shift.is_some() && active.job.limit.is_none() && active.made >= context;
            let end = match active.job.limit {
                limit if endless || limit == Some(active.made) => Some(End::Limit),
                _ if is_full && self.shift.is_none() => Some(End::Context),
                _ => None,
            };
            // A full context has no room for drafted tokens.
            let is_guessed = draft.get(accepted) == Some(&token) && !is_full;
            if let Some(masks) = &mut active.masks {
                masks.accept(token);
                // The grammar is asked first whether the text is complete.
                active.ending = end;
                let comes = end.is_none() && is_guessed;
                match if comes { masks.wait(LEAST_WAIT) } else { Ok(false) } {
                    Err(error) => break Some(Event::Failed(error.into())),
                    Ok(true) if masks.mask().is_some() => {}
                    Ok(_) => break None,
                }
            } else if end.is_some() || !is_guessed {
                break end.map(Event::Ended);
            }
            accepted += 1;
            held += 1;
        };
        Some(Drawn { id, held, accepted, end })
    }

    /// Empties slots of requests that leave nothing behind and have ended.
    fn forget_private(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_private && slot.active.is_none()) {
            slot.is_private = false;
            slot.cached.clear();
            // A sequence is cut to its beginning in any case.
            let _ = self.session.engine.truncate_sequence(slot.sequence, 0);
        }
    }

    /// Cuts a sequence to so many tokens.
    fn cut(&mut self, number: usize, held: usize) {
        let slot = &mut self.slots[number];
        let left = self.session.engine.truncate_sequence(slot.sequence, held as u32);
        slot.cached.truncate(left.map_or(0, |left| left as usize));
    }

    /// Guesses what follows the requests of a step, of each of which it has the last token.
    fn guess(&mut self, rows: &mut [Rows]) {
        let Some(speculation) = &mut self.speculation else { return };
        let engine = &self.session.engine;
        let most = engine.max_tokens().min(engine.max_additions()).min(MAX_OUTPUTS) as usize;
        let room = most.saturating_sub(rows.len());
        let context = engine.context() as usize;
        let slots = &self.slots;
        let text = |rows: &Rows| {
            let Active { job, made, .. } = slots[rows.number].active.as_ref()?;
            let left = job.limit.map_or(usize::MAX, |limit| limit.saturating_sub(made + 1));
            let most = context.saturating_sub(job.tokens.len()).min(left);
            Some(Text { slot: rows.number, tokens: &job.tokens, most, draft: Vec::new() })
        };
        let texts: Vec<Text<'_>> = rows.iter().filter_map(text).collect();
        if texts.len() == rows.len() {
            let drafts = speculation.draft(texts, room);
            rows.iter_mut().zip(drafts).for_each(|(rows, draft)| rows.draft = draft);
        }
    }

    /// Shows what guesses from hidden states what a step of these has computed.
    fn show(&mut self, rows: &[Rows]) {
        let Some(speculation) = self.speculation.as_mut().filter(|speculation| speculation.sees()) else { return };
        let engine = &self.session.engine;
        let (mut hidden, width) = (engine.hidden(), engine.gives_hidden().unwrap_or(0) as usize);
        let mut texts = Vec::with_capacity(rows.len());
        for Rows { number, count, draft } in rows {
            let slot = &self.slots[*number];
            let Some(active) = &slot.active else { continue };
            let begin = slot.cached.len();
            let own = hidden.split_off(..(count + draft.len()) * width).unwrap_or(&[]);
            let added = [&active.job.tokens[begin..begin + count], &draft[..]];
            texts.push(Seen { slot: *number, before: &slot.cached, added, hidden: own });
        }
        speculation.see(&texts);
    }

    /// Which slots have rows in the next step, and how many; without guesses.
    fn rows(&self) -> Vec<Rows> {
        let most = self.session.max_tokens();
        let active =
            || self.slots.iter().enumerate().filter_map(|(number, slot)| Some((number, slot, slot.active.as_ref()?)));
        let left = |slot: &Slot, active: &Active| active.job.tokens.len() - slot.cached.len();
        let waits = |active: &Active| active.masks.as_ref().is_some_and(Masks::is_pending);
        let (mut single, mut prompts): (Vec<_>, Vec<_>) = active()
            .filter(|(_, _, active)| active.ending.is_none())
            .partition(|(_, slot, active)| left(slot, active) == 1);
        single.retain(|(_, _, active)| !waits(active));
        // Where a step has fewer rows than there are sequences, those that have waited longest come first, and one row is a prompt's.
        single.sort_by_key(|(_, slot, _)| slot.used);
        let most_single = if prompts.is_empty() { most } else { most.saturating_sub(1).max(1) };
        let mut rows: Vec<Rows> = single.iter().map(|(number, ..)| Rows::new(*number, 1)).take(most_single).collect();
        let mut room = most - rows.len();
        if !rows.is_empty() {
            room = room.min(self.prompt_rows);
        }
        // What is left of a step, or all of it, may be shorter than a part.
        let unit = if room < PART { CHUNK } else { PART };
        prompts.sort_by_key(|(.., active)| active.id);
        for (number, slot, active) in prompts {
            let left = left(slot, active);
            let count = self.part(left, room, unit);
            // Its last rows give logits.
            if count > 0 && !(count == left && waits(active)) {
                rows.push(Rows::new(number, count));
                room -= count;
            }
        }
        rows
    }

    /// Returns how many of a prompt's `left` tokens fit into the next step: all, or a multiple of
    /// `unit`. Neither part is shorter than [`Scheduler::least`].
    fn part(&self, left: usize, room: usize, unit: usize) -> usize {
        if left <= room {
            return left;
        }
        // Room that is left after one token of each other slot.
        let always = self.prompt_rows.min((self.session.max_tokens() + 1).saturating_sub(self.slots.len()));
        if always < 2 * (self.least + CHUNK) {
            // The steps are too short for that.
            return if room < unit { room } else { room - room % unit };
        }
        let whole = room - room % unit;
        let short = self.least.saturating_sub(left - whole);
        let count = whole.saturating_sub(short.next_multiple_of(CHUNK));
        if count < self.least { 0 } else { count }
    }

    /// Computes the rows of a step. What was guessed is added token by token, so that each has the bits that it has in a step of its own.
    fn compute(&mut self, rows: &[Rows]) -> Result<(), StepError> {
        let mut parts = Vec::with_capacity(rows.len());
        for Rows { number, count, draft } in rows {
            let slot = &self.slots[*number];
            let Some(active) = &slot.active else { continue };
            let begin = slot.cached.len();
            let last = (begin + count == active.job.tokens.len()).then_some(*count as u32 - 1);
            parts.push((slot.sequence, &active.job.tokens[begin..begin + count], last));
            parts.extend(draft.chunks(1).map(|token| (slot.sequence, token, Some(0))));
        }
        let additions: Vec<Addition<'_>> = parts
            .iter()
            .map(|(sequence, tokens, last)| Addition { sequence: *sequence, tokens, outputs: last.as_slice() })
            .collect();
        self.session.engine.step_batch(&additions).map(drop)
    }
}
