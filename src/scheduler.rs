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
//! Invariant: what a request is given does not depend on the others, on targets without tiles or with
//! [`exact_batch`](ixc_runtime::engine::Options::exact_batch); but for a prompt that is read in other parts where others take room in a step, in models
//! whose states round by these.

mod slot_choice;

use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use ixc_files::{Output, open_regular};
use ixc_frontend::tokenizer::Tokenizer;
use ixc_grammar::Matcher;
use ixc_ir::plan::MAX_OUTPUTS;
use ixc_runtime::engine::{Addition, EvictError, FIRST, Sequence, SequenceId, StepError};
use ixc_runtime::sample::{Likely, Sampler, Settings, likely};
use ixc_runtime::saved::SavedError;
use ixc_runtime::stream::store::Evicted;

use crate::Error;
use crate::prompt_cache::{self, PromptCache};
use crate::session::{self, ContextShift, End, Session};
use crate::speculate::{Seen, Speculation, Tally, Text};

/// Most tokens of prompts in a step that others' tokens wait for, where nobody says: the more, the longer these wait, and the sooner prompts are read, for a
/// step reads weights once for all of them.
pub const PROMPT_ROWS: usize = 256;
/// Parts of prompts are multiples of so many tokens, but for the last: states that are computed in chunks round alike then.
const PART: usize = 64;

/// What to generate.
#[derive(Clone, Debug)]
pub struct Job {
    /// All tokens before, from the first position on; one at least.
    pub tokens: Vec<u32>,
    /// Most tokens to make.
    pub limit: Option<usize>,
    /// How to choose them.
    pub sampling: Settings,
    /// What they are to follow, at its beginning.
    pub grammar: Option<Matcher>,
    /// How many of the likeliest tokens are told with each, and how likely it was itself; neither where `None`.
    pub likeliest: Option<usize>,
    /// Whether that is told of what samplers left, and not of what the model says.
    pub after_sampling: bool,
}

impl Job {
    /// As many tokens as there is room for, without a grammar.
    pub fn new(tokens: Vec<u32>, sampling: Settings) -> Job {
        Job { tokens, limit: None, sampling, grammar: None, likeliest: None, after_sampling: false }
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
    /// What was made so far.
    made: usize,
}

/// A sequence of the engine, and whose it is.
#[derive(Debug)]
struct Slot {
    sequence: SequenceId,
    /// What its states hold.
    cached: Vec<u32>,
    active: Option<Active>,
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
    waiting: VecDeque<(RequestId, Job, Sampler)>,
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
}

impl Scheduler {
    /// For as many requests at once as the session's engine was loaded for; the others wait.
    ///
    /// # Errors
    /// When the system refuses memory for a sequence.
    pub fn new(mut session: Session) -> Result<Scheduler, Error> {
        session.engine.reset();
        let slot = |sequence| Slot { sequence, cached: Vec::new(), active: None, used: 0 };
        let mut slots = vec![slot(FIRST)];
        while slots.len() < session.engine.sequences() as usize {
            slots.push(slot(session.engine.add_sequence()?));
        }
        let ends = session.tokenizer().map(Tokenizer::end_of_generation).unwrap_or_default();
        Ok(Scheduler {
            session,
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
        if let (Some(cache), Some(slot)) = (&mut self.cache, self.slots.get(number)) {
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

    /// Makes a sequence that no request is computed in what was written by [`Scheduler::save_slot`]; gives how many tokens, and bytes.
    ///
    /// # Errors
    /// When there is no such sequence, or the file is none of this model's; the sequence is empty then.
    pub fn restore_slot(&mut self, number: usize, path: &Path) -> Result<(usize, u64), Error> {
        let slots = self.slots.len();
        let file = open_regular(path).map_err(Error::io(path, "open"))?;
        let bytes = file.metadata().map_err(Error::io(path, "read"))?.len();
        self.keep(number);
        let slot = self.free_slot(number).ok_or(Error::NoSlot { number, slots })?;
        slot.cached.clear();
        let id = slot.sequence;
        let mut input = std::io::BufReader::with_capacity(1 << 20, file);
        let loaded = self.session.engine.load_state(id, &mut input, bytes);
        let loaded = loaded.map_err(|source: SavedError| {
            let _ = self.session.engine.truncate_sequence(id, 0);
            Error::Saved { path: path.to_owned(), source: Box::new(source) }
        })?;
        let held = self.session.engine.sequence(id).map_or(0, |sequence| sequence.position()) as usize;
        let slot = &mut self.slots[number];
        slot.cached.extend_from_slice(&loaded.tokens[..held]);
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
        let mut sampler = Sampler::new(job.sampling.clone())?;
        job.tokens.iter().for_each(|&token| sampler.accept(token));
        let id = RequestId(self.count);
        self.count += 1;
        self.waiting.push_back((id, job, sampler));
        Ok(id)
    }

    /// Forgets a request, whether it waits or is worked on; what was computed of it stays to be reused. Does nothing where it has ended.
    pub fn cancel(&mut self, id: RequestId) {
        self.waiting.retain(|(waiting, ..)| *waiting != id);
        for slot in &mut self.slots {
            slot.active.take_if(|active| active.id == id);
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

    /// Runs one step, if there is something to do; gives what has happened, in the order of requests.
    pub fn step(&mut self) -> Vec<(RequestId, Event)> {
        self.steps += 1;
        let mut events = Vec::new();
        while let Some((id, job, sampler)) = self.waiting.pop_front() {
            let Some(number) = self.choose(&job.tokens) else {
                self.waiting.push_front((id, job, sampler));
                break;
            };
            let reused = self.slots[number].cached.len();
            events.push((id, Event::Begun { prompt: job.tokens.len(), reused }));
            self.slots[number].active = Some(Active { id, job, sampler, made: 0 });
            self.speculation.iter_mut().for_each(|speculation| speculation.begin(number));
        }
        let mut rows = self.rows();
        let is_prompt = |number: usize| self.slots[number].active.as_ref().is_some_and(|active| active.made == 0);
        let prompts = rows.iter().filter(|rows| is_prompt(rows.number)).map(|rows| rows.count).sum();
        if rows.is_empty() {
            self.last_rows = (0, 0);
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
        if let Some(speculation) = self.speculation.as_mut().filter(|_| guesses && computed.is_ok()) {
            let packed = self.session.engine.packing_time().saturating_sub(packing);
            speculation.note_step(rows.len(), all, begin.elapsed().saturating_sub(packed));
        }
        if let Err(error) = computed {
            for &Rows { number, .. } in &rows {
                let slot = &mut self.slots[number];
                let left = self.session.engine.sequence(slot.sequence).map_or(0, |sequence| sequence.position());
                slot.cached.truncate(left as usize);
                if let Some(active) = slot.active.take() {
                    events.push((active.id, Event::Failed(error.clone().into())));
                }
            }
            return events;
        }
        self.show(&rows);
        let (mut output, mut cuts) = (0, Vec::new());
        for Rows { number, count, draft } in &rows {
            let slot = &mut self.slots[*number];
            let Some(active) = &mut slot.active else { continue };
            let begin = slot.cached.len();
            slot.cached.extend_from_slice(&active.job.tokens[begin..begin + count]);
            slot.used = self.steps;
            if slot.cached.len() < active.job.tokens.len() {
                continue;
            }
            // How much of it is the request's.
            let mut held = slot.cached.len();
            slot.cached.extend_from_slice(draft);
            let id = active.id;
            let mut accepted = 0;
            // Each token is drawn as it would be without guesses; what was guessed tells only whether the next one's logits are there already.
            let ended = loop {
                // What an answer goes on with may be all that there was to say.
                if active.job.grammar.as_ref().is_some_and(|grammar| grammar.is_ended()) {
                    break Some(Event::Ended(End::Grammar));
                }
                let logits = self.session.engine.logits(output + accepted);
                let sampled = session::choose(
                    &mut active.sampler,
                    active.job.grammar.as_mut(),
                    logits,
                    &self.session.engine,
                    &self.ends,
                );
                let ended = match sampled {
                    Err(error) => Some(Event::Failed(error)),
                    Ok(token) if self.ends.contains(&token) => Some(Event::Ended(End::Token(token))),
                    // It was to make none.
                    Ok(_) if active.job.limit == Some(0) => Some(Event::Ended(End::Limit)),
                    Ok(token) => {
                        let likely = active.job.likeliest.map(|count| match active.job.after_sampling {
                            true => active.sampler.drawn(token, count),
                            false => likely(logits, token, count),
                        });
                        events.push((id, Event::Token { token, likely }));
                        active.made += 1;
                        active.job.tokens.push(token);
                        let context = self.session.engine.context() as usize;
                        let is_full = active.job.tokens.len() > context;
                        if let Some(shift) = self.shift.filter(|_| is_full) {
                            active.job.tokens = shift.kept(&active.job.tokens, context);
                            let common = slot.cached.iter().zip(&active.job.tokens).take_while(|(a, b)| a == b);
                            held = held.min(common.count());
                        }
                        let endless = self.shift.is_some() && active.job.limit.is_none() && active.made >= context;
                        match &active.job {
                            Job { grammar: Some(grammar), .. } if grammar.is_ended() => {
                                Some(Event::Ended(End::Grammar))
                            }
                            Job { limit, .. } if endless || *limit == Some(active.made) => {
                                Some(Event::Ended(End::Limit))
                            }
                            _ if is_full && self.shift.is_none() => Some(Event::Ended(End::Context)),
                            // There are no guesses behind what the context has room for.
                            _ if draft.get(accepted) == Some(&token) && !is_full => {
                                accepted += 1;
                                held += 1;
                                continue;
                            }
                            _ => break None,
                        }
                    }
                };
                break ended;
            };
            output += 1 + draft.len();
            if held < slot.cached.len() {
                cuts.push((*number, held));
            }
            if guesses && let Some(speculation) = &mut self.speculation {
                speculation.note_draft(*number, draft.len(), accepted);
            }
            if !draft.is_empty() {
                events.push((id, Event::Guessed { drafted: draft.len(), accepted }));
            }
            if let Some(event) = ended {
                events.push((id, event));
                slot.active = None;
            }
        }
        // When all logits were read. Where a text's beginning was forgotten, what is left is a prompt again, of which the beginning is there.
        for (number, held) in cuts {
            self.cut(number, held);
        }
        events
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
        let (mut single, mut prompts): (Vec<_>, Vec<_>) =
            active().partition(|(_, slot, active)| left(slot, active) == 1);
        // Where a step has fewer rows than there are sequences, those that have waited longest come first, and one row is a prompt's.
        single.sort_by_key(|(_, slot, _)| slot.used);
        let most_single = if prompts.is_empty() { most } else { most.saturating_sub(1).max(1) };
        let mut rows: Vec<Rows> = single.iter().map(|(number, ..)| Rows::new(*number, 1)).take(most_single).collect();
        let mut room = most - rows.len();
        if !rows.is_empty() {
            room = room.min(self.prompt_rows);
        }
        // What is left of a step, or all of it, may be shorter than a part.
        let is_short = room < PART;
        prompts.sort_by_key(|(.., active)| active.id);
        for (number, slot, active) in prompts {
            let count = match left(slot, active) {
                left if left <= room => left,
                _ if is_short => room,
                _ => room - room % PART,
            };
            if count > 0 {
                rows.push(Rows::new(number, count));
                room -= count;
            }
        }
        rows
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
