//! The engine's thread for token generation; it computes all current requests together.
//!
//! Invariant: text that was sent to a client is final. It has whole characters, no part of a stop
//! text, and no token after one.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::model::{self, Experts, Guessed, Refusal, Request, Slot, SlotAction, SlotDone, Status};
use ixc_files::Guard;
use ixc_runtime::engine::{Engine, EvictError};
use ixc_runtime::stream::store::Evicted;
use ixc_runtime::stream::store::stats::{self, GroupStats};
use ixc_runtime::{sample, saved};
use ixc_text::tokenizer::{DecodeOptions, Tokenizer};
use tokio::sync::mpsc::UnboundedSender;

use super::thread::{FAILED, LogitsWish, Shared, SlotWish, Submission, Texts, Work};
use ixc_generate::Error;
use ixc_generate::generator::{End, Event, Generator, RequestId};
use ixc_generate::output_text::{OutputText, RestOfText, StopStrings};
use ixc_generate::speculate::Tally;

/// Client of a request in progress.
struct Client<'t> {
    events: UnboundedSender<model::Event>,
    text: OutputText<'t>,
    /// Tokens that end the answer and are not part of it.
    stop_tokens: Vec<u32>,
    made: usize,
    guessed: Guessed,
    begun: bool,
    /// Time of submission, and time of the last token.
    at: Instant,
    last: Option<Instant>,
}

impl Client<'_> {
    /// Sends an event; returns whether the client is still there.
    fn tell(&self, event: model::Event) -> bool {
        self.events.send(event).is_ok()
    }

    /// Sends the withheld text, and the reason of the end.
    fn end(self, end: model::End) {
        let Client { events, text, made, guessed, .. } = self;
        let RestOfText { text, stop } = text.finish();
        let guessed = (guessed.drafted > 0).then_some(model::Event::Guessed(guessed));
        let ended = model::Event::Ended { end: stop.map_or(end, model::End::Stop), made };
        for event in [model::Event::Text { text, made }].into_iter().chain(guessed).chain([ended]) {
            // The client may be gone.
            let _ = events.send(event);
        }
    }
}

/// Converts a token and its probability to the client's form.
fn told(tokenizer: Option<&Tokenizer>, likely: sample::TokenLogProb) -> model::Likely {
    let sample::TokenLogProb { token, log_probability } = likely;
    let bytes = tokenizer.and_then(|tokenizer| tokenizer.token_bytes(token).ok()).unwrap_or_default().to_vec();
    model::Likely { token, bytes, log_probability }
}

/// Returns the counters of streamed experts in the client's form.
fn experts(stats: &stats::Stats) -> Experts {
    let (sum, drive) = (GroupStats::sum(&stats.groups), &stats.drive);
    Experts {
        hits: sum.hits,
        foreseen: sum.foreseen,
        on_the_way: sum.on_the_way,
        misses: sum.misses,
        stall_seconds: sum.stall.as_secs_f64(),
        reads: drive.routed.reads + drive.predicted.reads,
        read_bytes: drive.bytes(),
        busy_seconds: drive.busy.as_secs_f64(),
    }
}

/// Worker of the thread that generates tokens.
pub(super) struct Worker<'t> {
    generator: Generator,
    tokenizer: Option<&'t Tokenizer>,
    ends: Vec<u32>,
    clients: HashMap<RequestId, Client<'t>>,
    status: Status,
    shared: &'t Shared,
    /// Folder for saved sequences, and actions that wait for a free slot.
    folder: Option<PathBuf>,
    wishes: Vec<SlotWish>,
    /// Tokens that wait for a free slot, to get their logits.
    logits: Vec<LogitsWish>,
}

impl<'t> Worker<'t> {
    pub(super) fn new(
        generator: Generator,
        tokenizer: Option<&'t Tokenizer>,
        shared: &'t Shared,
        folder: Option<PathBuf>,
    ) -> Worker<'t> {
        let ends = tokenizer.map(Tokenizer::end_of_generation).unwrap_or_default();
        let (clients, status) = (HashMap::new(), Status::default());
        Worker { generator, tokenizer, ends, clients, status, shared, folder, wishes: Vec::new(), logits: Vec::new() }
    }

    /// Performs the waiting actions on slots without a request.
    fn grant(&mut self) {
        let busy: Vec<bool> = self.generator.slots().map(|(_, active)| active).collect();
        let is_busy = |wish: &SlotWish| busy.get(wish.number).copied().unwrap_or(false);
        let (later, now) = std::mem::take(&mut self.wishes).into_iter().partition(is_busy);
        self.wishes = later;
        for SlotWish { number, action, done } in now {
            let folder = self.folder.clone().unwrap_or_default();
            let result = self.act(number, &action, &folder).map_err(|error| told_of_slot(&error, &folder));
            self.publish();
            let _ = done.send(result);
        }
        for LogitsWish { tokens, done } in std::mem::take(&mut self.logits) {
            match self.generator.idle_slot() {
                Some(number) => {
                    let logits = self.generator.logits(number, &tokens);
                    let _ = done.send(logits.map_err(|error| Refusal::Invalid { message: error.to_string() }));
                }
                None => self.logits.push(LogitsWish { tokens, done }),
            }
        }
    }

    fn act(&mut self, number: usize, action: &SlotAction, folder: &Path) -> Result<SlotDone, Error> {
        let (tokens, bytes) = match action {
            SlotAction::Save(name) => {
                // Existing files of other kinds stay.
                let guard = Guard { kind: Some(&saved::KIND), ..Guard::default() };
                self.generator.save_slot(number, ixc_files::Output::open(&folder.join(name), &guard)?)?
            }
            SlotAction::Restore(name) => self.generator.restore_slot(number, &folder.join(name))?,
            SlotAction::Erase => (self.generator.erase_slot(number)?, 0),
        };
        Ok(SlotDone { tokens, bytes })
    }

    fn end(&mut self, id: RequestId, end: model::End) {
        if let Some(client) = self.clients.remove(&id) {
            self.status.ended += 1;
            self.status.bounded += u64::from(matches!(end, model::End::Limit | model::End::Context));
            self.status.distributions.whole.add(client.at.elapsed().as_secs_f64());
            // Publish before the client gets its answer, which is then already counted.
            self.publish();
            client.end(end);
        }
    }
}

/// Converts an error about a slot's file to the error for the client.
fn told_of_slot(error: &Error, folder: &Path) -> Refusal {
    // Errors of writing contain the whole path: remove the folder.
    let message = error.to_string().replace(&format!("{}/", folder.display()), "");
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded)) {
            return Refusal::NoSpace { message };
        }
        cause = error.source();
    }
    Refusal::Invalid { message }
}

impl Work for Worker<'_> {
    type Id = RequestId;

    fn request(&mut self, Submission { request, events, at }: Submission) {
        let Request { mut generation, stop, stop_tokens, show_special } = request;
        if generation.sampling.min_tokens > 0 {
            Arc::make_mut(&mut generation.sampling).late_tokens = [&*self.ends, &stop_tokens].concat();
        }
        match self.generator.submit(generation) {
            Ok(id) => {
                let options = DecodeOptions { show_special, at_start: false };
                let decoder = self.tokenizer.map(|tokenizer| tokenizer.stream(options));
                let (text, guessed) = (OutputText::new(decoder, StopStrings::from(stop)), Guessed::default());
                let client = Client { events, text, stop_tokens, made: 0, guessed, begun: false, at, last: None };
                self.clients.insert(id, client);
            }
            Err(error) => {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                let _ = events.send(model::Event::Failed { message: error.to_string() });
            }
        }
    }

    fn slot(&mut self, wish: SlotWish) {
        self.wishes.push(wish);
    }

    fn logits(&mut self, wish: LogitsWish) {
        self.logits.push(wish);
    }

    fn embed(&mut self, texts: Texts) {
        // Such a request has been refused earlier.
        let _ = texts.done.send(Err(Refusal::Ending));
    }

    fn gone(&self) -> Vec<RequestId> {
        self.clients.iter().filter(|(_, client)| client.events.is_closed()).map(|(&id, _)| id).collect()
    }

    fn forget(&mut self, id: RequestId) {
        self.generator.cancel(id);
        if self.clients.remove(&id).is_some_and(|client| !client.begun) {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn fail_all(&mut self) {
        self.generator.abandon();
        for (_, client) in std::mem::take(&mut self.clients) {
            if !client.begun {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            self.status.failed += 1;
            client.tell(model::Event::Failed { message: FAILED.to_owned() });
        }
    }

    fn is_idle(&self) -> bool {
        self.generator.is_idle()
    }

    fn step(&mut self) {
        self.grant();
        let (begin, before) = (Instant::now(), self.generator.active());
        let events = self.generator.step();
        let begun = events.iter().filter(|(_, event)| matches!(event, Event::Begun { .. })).count();
        let busy = before + begun;
        let now = Instant::now();
        let took = (now - begin).as_secs_f64();
        let (rows, prompts) = self.generator.last_rows();
        if rows > 0 {
            self.status.steps += 1;
            self.status.rows += rows as u64;
            self.status.busy += busy as u64;
            self.status.distributions.rows.add(rows as f64);
            self.status.prompt_tokens += prompts as u64;
            let seconds = if prompts > 0 { &mut self.status.prompt_seconds } else { &mut self.status.decode_seconds };
            *seconds += took;
        }
        for (id, event) in events {
            match event {
                Event::Begun { reused, .. } => {
                    self.status.reused_tokens += reused as u64;
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.begun = true;
                        self.status.distributions.queued.add((begin - client.at).as_secs_f64());
                        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                        client.tell(model::Event::Begun { reused });
                    }
                }
                Event::Token { token, likely } => {
                    // The same step may give tokens after a stop text: drop them.
                    let Some(client) = self.clients.get_mut(&id) else { continue };
                    self.status.made_tokens += 1;
                    client.made += 1;
                    let distributions = &mut self.status.distributions;
                    match client.last.replace(now) {
                        None => distributions.first_token.add((now - client.at).as_secs_f64()),
                        Some(last) => distributions.between_tokens.add((now - last).as_secs_f64()),
                    }
                    if let Some((token, likeliest)) = likely {
                        let told = |one| told(self.tokenizer, one);
                        let likeliest = likeliest.into_iter().map(told).collect();
                        client.tell(model::Event::Likely { token: told(token), likeliest });
                    }
                    let ends = client.stop_tokens.contains(&token);
                    // A stop token has no text, and neither has a token that the tokenizer lacks.
                    let text = if ends { String::new() } else { client.text.push(token).unwrap_or_default() };
                    client.tell(model::Event::Text { text, made: client.made });
                    if ends || client.text.stopped() {
                        self.generator.cancel(id);
                        self.end(id, model::End::Model);
                    }
                }
                Event::Guessed { drafted, accepted } => {
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.guessed.drafted += drafted;
                        client.guessed.accepted += accepted;
                    }
                }
                Event::Computed { .. } | Event::Shifted => {}
                Event::Ended { end, .. } => self.end(
                    id,
                    match end {
                        End::Token(_) | End::Stopped | End::Grammar => model::End::Model,
                        End::Limit => model::End::Limit,
                        End::Context => model::End::Context,
                    },
                ),
                Event::Failed(error) => {
                    self.status.failed += 1;
                    self.publish();
                    tracing::error!(%error, "a request failed");
                    if let Some(client) = self.clients.remove(&id) {
                        if !client.begun {
                            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                        }
                        let message = error.to_string();
                        client.tell(match error {
                            // An invalid grammar is the client's fault.
                            Error::Grammar(_) => model::Event::Refused { message },
                            _ => model::Event::Failed { message },
                        });
                    }
                }
            }
        }
    }

    fn publish(&mut self) {
        self.status.active = self.generator.active();
        self.status.recent = self.generator.recent_slot();
        let Tally { drafted, accepted, drafts, .. } = self.generator.guessed();
        (self.status.drafted_tokens, self.status.accepted_tokens, self.status.drafts) = (drafted, accepted, drafts);
        let kept = self.generator.kept();
        (self.status.kept_memory, self.status.kept_folder) = (kept.memory, kept.folder);
        let held = self.generator.slots().zip(self.generator.slot_bytes());
        let slot = |((cached, active), (bytes, shared_bytes))| Slot { cached, active, bytes, shared_bytes };
        self.status.slots = held.map(slot).collect();
        let most = self.status.slots.iter().map(|slot| slot.cached).max();
        self.status.most_held = self.status.most_held.max(most.unwrap_or(0));
        let engine = self.generator.model().engine();
        self.status.experts = engine.stream().map(|cache| experts(&cache.stats()));
        self.status.states = engine.state_bytes();
        self.shared.publish(&self.status);
    }

    fn status(&mut self) -> &mut Status {
        &mut self.status
    }

    fn engine(&self) -> &Engine {
        self.generator.model().engine()
    }

    fn evict_experts(&mut self, layer: usize, pinned: bool) -> Result<Evicted, EvictError> {
        self.generator.evict_experts(layer, pinned)
    }

    fn finish(&mut self) {
        self.generator.finish();
    }
}
