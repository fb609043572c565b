//! The engine's thread for token generation; it computes all current requests together, and sends
//! the generator's events to the clients.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::model::{ExpertCounts, Refusal, SlotAction, Status};
use ixc_files::Guard;
use ixc_runtime::engine::{Engine, EvictError};
use ixc_runtime::saved;
use ixc_runtime::streaming::store::EvictionResult;
use ixc_runtime::streaming::store::stats::{self, GroupStats};
use tokio::sync::mpsc::UnboundedSender;

use super::rank_watch::RankWatch;
use super::thread::{EmbeddingTexts, LogitsRequest, Shared, SlotRequest, Submission, Work};
use ixc_generate::Error;
use ixc_generate::generator::{End, Event, Generator, RequestId, SlotSize, StepRows};
use ixc_generate::speculate::Tally;

/// Client of a request in progress.
struct Client {
    events: UnboundedSender<Event>,
    /// Time of submission.
    submitted: Instant,
    /// Time of the last token.
    last_token: Option<Instant>,
    has_begun: bool,
}

impl Client {
    /// Sends an event, unless the client has disconnected.
    fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

/// Returns the counters of streamed experts for the status.
fn experts(stats: &stats::Stats) -> ExpertCounts {
    let (sum, drive) = (GroupStats::sum(&stats.groups), &stats.drive);
    ExpertCounts {
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
pub(super) struct Worker<'s> {
    generator: Generator,
    clients: HashMap<RequestId, Client>,
    status: Status,
    shared: &'s Shared,
    /// Folder for saved sequences, and actions that wait for a free slot.
    folder: Option<PathBuf>,
    slot_requests: Vec<SlotRequest>,
    /// Tokens that wait for a free slot, to get their logits.
    logits_requests: Vec<LogitsRequest>,
    rank_watch: RankWatch,
}

impl<'s> Worker<'s> {
    pub(super) fn new(generator: Generator, shared: &'s Shared, folder: Option<PathBuf>) -> Worker<'s> {
        Worker {
            generator,
            clients: HashMap::new(),
            status: Status::default(),
            shared,
            folder,
            slot_requests: Vec::new(),
            logits_requests: Vec::new(),
            rank_watch: RankWatch::default(),
        }
    }

    /// Performs the waiting actions on slots without a request.
    fn serve_slots(&mut self) {
        let busy_slots: Vec<bool> = self.generator.slots().map(|slot| slot.has_request).collect();
        let is_busy = |request: &SlotRequest| busy_slots.get(request.number).copied().unwrap_or(false);
        let (later, now) = std::mem::take(&mut self.slot_requests).into_iter().partition(is_busy);
        self.slot_requests = later;
        for SlotRequest { number, action, done } in now {
            let folder = self.folder.clone().unwrap_or_default();
            let result = self.act(number, &action, &folder).map_err(|error| slot_refusal(&error, &folder));
            self.publish();
            let _ = done.send(result);
        }
        for LogitsRequest { tokens, done } in std::mem::take(&mut self.logits_requests) {
            match self.generator.idle_slot() {
                Some(number) => {
                    let logits = self.generator.logits(number, &tokens);
                    let _ = done.send(logits.map_err(|error| Refusal::Invalid { message: error.to_string() }));
                }
                None => self.logits_requests.push(LogitsRequest { tokens, done }),
            }
        }
    }

    fn act(&mut self, number: usize, action: &SlotAction, folder: &Path) -> Result<SlotSize, Error> {
        match action {
            SlotAction::Save(name) => {
                // Existing files of other kinds are not replaced.
                let guard = Guard { kind: Some(&saved::KIND), ..Guard::default() };
                self.generator.save_slot(number, ixc_files::Output::open(&folder.join(name), &guard)?)
            }
            SlotAction::Restore(name) => self.generator.restore_slot(number, &folder.join(name)),
            SlotAction::Erase => Ok(SlotSize { tokens: self.generator.erase_slot(number)?, bytes: 0 }),
        }
    }

    /// Removes a client whose request is over, and sends the last event.
    fn end(&mut self, id: RequestId, last: Event) {
        let Some(client) = self.clients.remove(&id) else { return };
        if !client.has_begun {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        match &last {
            Event::Ended { end, .. } => {
                self.status.ended += 1;
                self.status.truncated += u64::from(matches!(end, End::Limit | End::Context));
                self.status.distributions.whole.add(client.submitted.elapsed().as_secs_f64());
            }
            _ => self.status.failed += 1,
        }
        // Publish before the client gets its answer, which is then already counted.
        self.publish();
        client.send(last);
    }
}

/// Converts an error about a slot's file to the error for the client.
fn slot_refusal(error: &Error, folder: &Path) -> Refusal {
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

    fn request(&mut self, Submission { request, events, time }: Submission) {
        match self.generator.submit(request) {
            Ok(id) => {
                self.clients.insert(id, Client { events, submitted: time, last_token: None, has_begun: false });
            }
            Err(error) => {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                let _ = events.send(Event::Failed(error));
            }
        }
    }

    fn slot(&mut self, request: SlotRequest) {
        self.slot_requests.push(request);
    }

    fn logits(&mut self, request: LogitsRequest) {
        self.logits_requests.push(request);
    }

    fn embed(&mut self, texts: EmbeddingTexts) {
        // [`Host::embed`](crate::serving::Host::embed) refuses such requests, so this call does not
        // happen.
        let _ = texts.done.send(Err(Refusal::Ending));
    }

    fn disconnected_requests(&self) -> Vec<RequestId> {
        self.clients.iter().filter(|(_, client)| client.events.is_closed()).map(|(&id, _)| id).collect()
    }

    fn cancel(&mut self, id: RequestId) {
        self.generator.cancel(id);
        if self.clients.remove(&id).is_some_and(|client| !client.has_begun) {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn fail_all(&mut self, error: &dyn Fn() -> Error) {
        self.generator.abandon();
        let ids: Vec<RequestId> = self.clients.keys().copied().collect();
        for id in ids {
            self.end(id, Event::Failed(error()));
        }
    }

    fn is_idle(&self) -> bool {
        self.generator.is_idle()
    }

    fn step(&mut self) {
        self.serve_slots();
        let (begin, before) = (Instant::now(), self.generator.active_requests());
        let events = self.generator.step();
        let admitted = events.iter().filter(|(_, event)| matches!(event, Event::Begun { .. })).count();
        let busy_slots = before + admitted;
        let now = Instant::now();
        let took = (now - begin).as_secs_f64();
        let StepRows { total: rows, prompt: prompts } = self.generator.last_rows();
        if rows > 0 {
            self.status.steps += 1;
            self.status.rows += rows as u64;
            self.status.busy_slots += busy_slots as u64;
            self.status.distributions.rows.add(rows as f64);
            self.status.prompt_tokens += prompts as u64;
            let seconds = if prompts > 0 { &mut self.status.prompt_seconds } else { &mut self.status.decode_seconds };
            *seconds += took;
        }
        for (id, event) in events {
            match event {
                Event::Computed { .. } | Event::Shifted => {}
                Event::Begun { reused, .. } => {
                    self.status.reused_tokens += reused as u64;
                    if let Some(client) = self.clients.get_mut(&id) {
                        client.has_begun = true;
                        self.status.distributions.queued.add((begin - client.submitted).as_secs_f64());
                        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                        client.send(event);
                    }
                }
                Event::Token { .. } => {
                    let Some(client) = self.clients.get_mut(&id) else { continue };
                    self.status.generated_tokens += 1;
                    let distributions = &mut self.status.distributions;
                    match client.last_token.replace(now) {
                        None => distributions.first_token.add((now - client.submitted).as_secs_f64()),
                        Some(last) => distributions.between_tokens.add((now - last).as_secs_f64()),
                    }
                    client.send(event);
                }
                Event::Drafted(_) | Event::Text(_) => {
                    if let Some(client) = self.clients.get(&id) {
                        client.send(event);
                    }
                }
                Event::Failed(ref error) => {
                    tracing::error!(%error, "a request failed");
                    self.end(id, event);
                }
                Event::Ended { .. } => self.end(id, event),
            }
        }
    }

    fn publish(&mut self) {
        self.status.active = self.generator.active_requests();
        self.status.recent = self.generator.recent_slot();
        let Tally { drafted, accepted, drafts, .. } = self.generator.speculation_tally();
        (self.status.drafted_tokens, self.status.accepted_tokens, self.status.drafts) = (drafted, accepted, drafts);
        let cache = self.generator.prompt_cache_tally();
        (self.status.prompt_cache_memory, self.status.prompt_cache_folder) = (cache.memory, cache.folder);
        self.status.slots = self.generator.slots().collect();
        let most = self.status.slots.iter().map(|slot| slot.cached_tokens).max();
        self.status.max_slot_tokens = self.status.max_slot_tokens.max(most.unwrap_or(0));
        let engine = self.generator.model().engine();
        self.status.experts = engine.stream().map(|cache| experts(&cache.stats()));
        self.status.states = engine.state_bytes();
        let now = Instant::now();
        self.rank_watch.update(now, &mut self.status, || self.generator.rank_counts());
        self.rank_watch.update_nodes(now, &mut self.status, || self.generator.node_use());
        self.shared.publish(&self.status);
    }

    fn status(&mut self) -> &mut Status {
        &mut self.status
    }

    fn engine(&self) -> &Engine {
        self.generator.model().engine()
    }

    fn evict_experts(&mut self, layer: usize, pinned: bool) -> Result<EvictionResult, EvictError> {
        self.generator.evict_experts(layer, pinned)
    }

    fn finish(&mut self) {
        self.generator.finish();
    }
}
