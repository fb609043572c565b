//! The engine's thread for embeddings; it computes the texts of all current requests together.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::model::{Embeddings, Refusal, Status};
use ixc_runtime::engine::{Engine, EvictError};
use ixc_runtime::streaming::store::EvictionResult;

use super::invalid;
use super::rank_watch::RankWatch;
use super::thread::{EmbeddingTexts, LogitsRequest, Reply, Shared, SlotRequest, Submission, Work};
use ixc_generate::Error;
use ixc_generate::embedding::{Embedder, TextId};

/// Client of a request in progress.
struct Client {
    ids: Vec<TextId>,
    /// Vectors by text; empty until computed.
    vectors: Vec<Vec<f32>>,
    missing: usize,
    tokens: usize,
    dimensions: Option<usize>,
    done: Reply<Embeddings>,
}

/// Worker of the thread that computes embeddings.
pub(super) struct Worker<'s> {
    embedder: Embedder,
    clients: HashMap<u64, Client>,
    /// Request of each text, and the text's index in the request.
    request_of_text: HashMap<TextId, (u64, usize)>,
    /// Number of requests so far.
    count: u64,
    status: Status,
    shared: &'s Shared,
    rank_watch: RankWatch,
}

impl<'s> Worker<'s> {
    pub(super) fn new(embedder: Embedder, shared: &'s Shared) -> Worker<'s> {
        let (clients, request_of_text) = (HashMap::new(), HashMap::new());
        let (status, rank_watch) = (Status::default(), RankWatch::default());
        Worker { embedder, clients, request_of_text, count: 0, status, shared, rank_watch }
    }

    /// Cancels everything that a request still computes.
    fn release(&mut self, client: &Client) {
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        for id in &client.ids {
            self.embedder.cancel(*id);
            self.request_of_text.remove(id);
        }
    }

    /// Sends a client the result of its request.
    fn end(&mut self, client: Client, result: Result<(), Refusal>) {
        self.release(&client);
        let Client { vectors, tokens, done, .. } = client;
        match &result {
            Ok(()) => self.status.ended += 1,
            Err(_) => self.status.failed += 1,
        }
        // Publish before the client gets its answer, which is then already counted.
        self.publish();
        let _ = done.send(result.map(|()| Embeddings { vectors, tokens }));
    }

    fn add_vector(&mut self, number: u64, index: usize, vector: Vec<f32>) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let vector = match client.dimensions {
            Some(dimensions) => self.embedder.cut(&vector, dimensions),
            None => vector,
        };
        client.missing -= 1;
        if let Some(place) = client.vectors.get_mut(index) {
            *place = vector;
        }
        if client.missing == 0
            && let Some(client) = self.clients.remove(&number)
        {
            self.end(client, Ok(()));
        }
    }

    fn fail(&mut self, number: u64, error: &Error) {
        tracing::error!(%error, "a request failed");
        if let Some(client) = self.clients.remove(&number) {
            self.end(client, Err(Refusal::Failed { message: error.to_string() }));
        }
    }
}

/// Requests for text do not arrive here, because the host refuses them. Actions on the states of
/// sequences are refused here.
impl Work for Worker<'_> {
    type Id = u64;

    fn request(&mut self, _submission: Submission) {
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    fn slot(&mut self, request: SlotRequest) {
        let _ =
            request.done.send(Err(Refusal::Unsupported { message: super::NO_TEXT_MESSAGE.to_owned(), remedy: None }));
    }

    fn logits(&mut self, request: LogitsRequest) {
        let _ =
            request.done.send(Err(Refusal::Unsupported { message: super::NO_TEXT_MESSAGE.to_owned(), remedy: None }));
    }

    fn embed(&mut self, EmbeddingTexts { tokens, dimensions, done }: EmbeddingTexts) {
        let number = self.count;
        self.count += 1;
        let (count, sum) = (tokens.len(), tokens.iter().map(Vec::len).sum());
        let mut client = Client {
            ids: Vec::with_capacity(count),
            vectors: vec![Vec::new(); count],
            missing: count,
            tokens: sum,
            dimensions,
            done,
        };
        for (index, tokens) in tokens.into_iter().enumerate() {
            match self.embedder.submit(tokens) {
                Ok(id) => {
                    client.ids.push(id);
                    self.request_of_text.insert(id, (number, index));
                }
                Err(error) => return self.end(client, Err(invalid(error))),
            }
        }
        self.clients.insert(number, client);
    }

    fn disconnected_requests(&self) -> Vec<u64> {
        self.clients.iter().filter(|(_, client)| client.done.is_closed()).map(|(&number, _)| number).collect()
    }

    fn cancel(&mut self, number: u64) {
        let Some(client) = self.clients.remove(&number) else { return };
        self.release(&client);
    }

    fn fail_all(&mut self, error: &dyn Fn() -> Error) {
        for (_, client) in std::mem::take(&mut self.clients) {
            self.end(client, Err(Refusal::Failed { message: error().to_string() }));
        }
    }

    fn is_idle(&self) -> bool {
        self.embedder.is_idle()
    }

    fn step(&mut self) {
        let begin = Instant::now();
        let ended = self.embedder.step();
        let rows = self.embedder.last_rows() as u64;
        if rows > 0 {
            self.status.steps += 1;
            self.status.rows += rows;
            self.status.prompt_tokens += rows;
            self.status.prompt_seconds += begin.elapsed().as_secs_f64();
        }
        for (id, vector) in ended {
            // Texts of a failed request are no longer in the map.
            let Some((number, index)) = self.request_of_text.remove(&id) else { continue };
            match vector {
                Ok(vector) => self.add_vector(number, index, vector),
                Err(error) => self.fail(number, &error),
            }
        }
    }

    fn publish(&mut self) {
        self.status.slots = self.embedder.slots().collect();
        self.status.active = self.status.slots.iter().filter(|slot| slot.has_request).count();
        let now = Instant::now();
        self.rank_watch.update(now, &mut self.status, || self.embedder.rank_counts());
        self.rank_watch.update_nodes(now, &mut self.status, || self.embedder.node_use());
        self.shared.publish(&self.status);
    }

    fn status(&mut self) -> &mut Status {
        &mut self.status
    }

    fn engine(&self) -> &Engine {
        self.embedder.model().engine()
    }

    fn evict_experts(&mut self, layer: usize, pinned: bool) -> Result<EvictionResult, EvictError> {
        self.embedder.evict_experts(layer, pinned)
    }

    fn finish(&mut self) {}
}
