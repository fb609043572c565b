//! The engine's thread: it takes messages and computes steps in turn, for any kind of work.
//!
//! ```text
//! publish status ─▶ receive messages ─▶ cancel requests of disconnected clients ─▶ step ─┐
//!     ▲                                                                                  │
//!     └──────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Invariant: a request whose client has disconnected is cancelled before the next step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::model::{Embeddings, ExpertsAction, Refusal, SlotAction, Status};
use ixc_runtime::engine::{Engine, EvictError, StepError};
use ixc_runtime::streaming::store::EvictionResult;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::invalid;
use ixc_generate::Error;
use ixc_generate::expert_use::ExpertUse;
use ixc_generate::generator::{Event, Request, SlotSize};

/// Interval of the idle thread's status updates.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Message to the thread.
pub(super) enum Message {
    Request(Box<Submission>),
    Slot(SlotRequest),
    Logits(LogitsRequest),
    Experts(ExpertsAction, Reply<Value>),
    Embed(EmbeddingTexts),
    /// Ends the thread after the current requests; no message follows.
    End,
}

/// Channel for a reply.
pub(super) type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// Action on a sequence, requested by a client.
pub(super) struct SlotRequest {
    pub(super) number: usize,
    pub(super) action: SlotAction,
    pub(super) done: Reply<SlotSize>,
}

/// Request for the logits at every position of these tokens.
pub(super) struct LogitsRequest {
    pub(super) tokens: Vec<u32>,
    pub(super) done: Reply<Vec<f32>>,
}

/// Request for text, and the channel of its events.
pub(super) struct Submission {
    pub(super) request: Request,
    pub(super) events: UnboundedSender<Event>,
    pub(super) time: Instant,
}

/// State that the thread publishes.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) status: Mutex<(Status, Instant)>,
    /// Requests that are submitted but not yet started.
    pub(super) waiting: AtomicUsize,
    /// The reason why the model can compute no further step.
    pub(super) failure: OnceLock<StepError>,
}

impl Shared {
    /// Publishes a status; its time shows that the thread is alive.
    pub(super) fn publish(&self, status: &Status) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = (status.clone(), Instant::now());
    }
}

/// Request for embeddings of texts.
pub(super) struct EmbeddingTexts {
    pub(super) tokens: Vec<Vec<u32>>,
    pub(super) dimensions: Option<usize>,
    pub(super) done: Reply<Embeddings>,
}

/// Work of the thread.
pub(super) trait Work {
    /// Identity of a request.
    type Id;

    /// Begins a request for tokens.
    fn request(&mut self, submission: Submission);

    /// Performs an action on a sequence as soon as possible.
    fn slot(&mut self, request: SlotRequest);

    /// Computes logits in the next sequence without a request.
    fn logits(&mut self, request: LogitsRequest);

    /// Begins a request for vectors.
    fn embed(&mut self, texts: EmbeddingTexts);

    /// Returns requests whose clients have disconnected.
    fn disconnected_requests(&self) -> Vec<Self::Id>;

    /// Cancels a request that has not ended.
    fn cancel(&mut self, id: Self::Id);

    /// Returns whether there are no requests.
    fn is_idle(&self) -> bool;

    /// Computes a step for the current requests.
    fn step(&mut self);

    /// Ends all requests with an error, after a step that panicked, or because no further step is
    /// possible.
    fn fail_all(&mut self, error: &dyn Fn() -> Error);

    /// Publishes the status.
    fn publish(&mut self);

    /// Returns the status to publish.
    fn status(&mut self) -> &mut Status;

    fn engine(&self) -> &Engine;

    /// Evicts the streamed experts of a layer: [`Engine::evict_experts`]. Between steps no expert
    /// is in use.
    fn evict_experts(&mut self, layer: usize, pinned: bool) -> Result<EvictionResult, EvictError>;

    /// Finishes the work after the last message.
    fn finish(&mut self);
}

/// Handles messages and computes steps until all senders are dropped and all requests have ended,
/// or until the group of ranks ends. Returns the expert use.
pub(super) fn run(mut work: impl Work, shared: &Shared, incoming: &Receiver<Message>) -> ExpertUse {
    let mut open = true;
    while open || !work.is_idle() {
        work.publish();
        if let Some(error) = work.engine().end_of_group() {
            tracing::error!(%error, "the engine's thread ends");
            let error = shared.failure.get_or_init(|| error);
            work.fail_all(&|| error.clone().into());
            break;
        }
        if work.is_idle() {
            match incoming.recv_timeout(STATUS_INTERVAL) {
                Ok(message) => open &= handle_message(&mut work, message),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => open = false,
            }
        }
        while let Ok(message) = incoming.try_recv() {
            open &= handle_message(&mut work, message);
        }
        for id in work.disconnected_requests() {
            work.cancel(id);
            work.status().cancelled += 1;
        }
        // A panic fails the requests of this step; later requests are computed.
        if catch_unwind(AssertUnwindSafe(|| work.step())).is_err() {
            tracing::error!("a step failed; all requests in it are ended");
            work.fail_all(&|| Error::StepPanicked);
        }
    }
    work.finish();
    ExpertUse::from_engine(work.engine())
}

/// Handles a message. Returns whether further messages may follow.
fn handle_message(work: &mut impl Work, message: Message) -> bool {
    match message {
        Message::End => return false,
        Message::Request(submission) => work.request(*submission),
        Message::Slot(request) => work.slot(request),
        Message::Logits(request) => work.logits(request),
        Message::Embed(texts) => work.embed(texts),
        Message::Experts(action, done) => {
            let used = ExpertUse::from_engine(work.engine());
            let evict = |layer, pinned| work.evict_experts(layer, pinned);
            // The client may be gone.
            let _ = done.send(expert_action(action, &used, evict));
        }
    }
    true
}

/// Returns the expert use, or evicts experts, between two steps.
fn expert_action(
    action: ExpertsAction,
    used: &ExpertUse,
    mut evict: impl FnMut(usize, bool) -> Result<EvictionResult, EvictError>,
) -> Result<Value, Refusal> {
    let (layers, pinned) = match action {
        // The record of expert use is JSON.
        ExpertsAction::Look => return serde_json::to_value(used).map_err(invalid),
        ExpertsAction::Evict { layer: Some(layer), pinned } => (layer..layer.saturating_add(1), pinned),
        ExpertsAction::Evict { layer: None, pinned } => (0..used.chosen.len(), pinned),
    };
    let (mut blocks, mut bytes) = (0, 0);
    for layer in layers {
        let evicted = evict(layer, pinned).map_err(|error| match error {
            EvictError::NotStreamed => Refusal::Unsupported { message: error.to_string(), remedy: None },
            EvictError::NoLayer { .. } => invalid(error),
        })?;
        (blocks, bytes) = (blocks + evicted.blocks, bytes + evicted.bytes);
    }
    Ok(json!({"evicted": blocks, "bytes": bytes}))
}
