//! The engine's thread where it makes vectors of texts: those of all requests that are there, together.
//!
//! Invariant: a request whose client went away is forgotten before the next step.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use ixc_server::model::{self, Embeddings, Refusal, Slot, Status};

use super::{BEAT, Message, Reply, Shared, expert_action, invalid};
use crate::Error;
use crate::embedding::{Embedder, TextId, cut};
use crate::expert_use::ExpertUse;

/// A request on its way to the thread.
pub(super) struct Texts {
    pub(super) tokens: Vec<Vec<u32>>,
    pub(super) dimensions: Option<usize>,
    pub(super) done: Reply<Embeddings>,
}

/// A request whose texts are computed.
struct Client {
    ids: Vec<TextId>,
    /// By text; empty until it is there.
    vectors: Vec<Vec<f32>>,
    left: usize,
    tokens: usize,
    dimensions: Option<usize>,
    done: Reply<Embeddings>,
}

/// What the thread works with.
pub(super) struct Worker<'s> {
    embedder: Embedder,
    clients: HashMap<u64, Client>,
    /// Which request a text is of, and which of its texts.
    of_text: HashMap<TextId, (u64, usize)>,
    /// Requests so far.
    count: u64,
    status: Status,
    shared: &'s Shared,
    /// Whether there may be more.
    open: bool,
}

impl<'s> Worker<'s> {
    pub(super) fn new(embedder: Embedder, shared: &'s Shared) -> Worker<'s> {
        let (clients, of_text) = (HashMap::new(), HashMap::new());
        Worker { embedder, clients, of_text, count: 0, status: Status::default(), shared, open: true }
    }

    /// Works until nobody can submit any more and all that was has ended. Gives which experts were used.
    pub(super) fn run(mut self, incoming: &Receiver<Message>) -> ExpertUse {
        while self.open || !self.embedder.is_idle() {
            self.publish();
            if self.embedder.is_idle() {
                match incoming.recv_timeout(BEAT) {
                    Ok(message) => self.take(message),
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => self.open = false,
                }
            }
            while let Ok(message) = incoming.try_recv() {
                self.take(message);
            }
            let gone: Vec<u64> =
                self.clients.iter().filter(|(_, client)| client.done.is_closed()).map(|(&number, _)| number).collect();
            for number in gone {
                self.status.cancelled += 1;
                self.forget(number);
            }
            self.step();
        }
        ExpertUse::of(self.embedder.session().engine())
    }

    fn take(&mut self, message: Message) {
        // Whoever sends what this thread does not do has been refused before.
        let no_tokens = || Refusal::Unsupported { message: super::NO_TOKENS.to_owned() };
        match message {
            Message::End => self.open = false,
            Message::Embed(texts) => self.submit(texts),
            Message::Experts(action, done) => {
                let used = ExpertUse::of(self.embedder.session().engine());
                let evict = |layer, pinned| self.embedder.evict_experts(layer, pinned);
                let _ = done.send(expert_action(action, &used, evict));
            }
            Message::Request(submission) => {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                let message = no_tokens().to_string();
                let _ = submission.events.send(model::Event::Failed { message });
            }
            Message::Slot(wish) => {
                let _ = wish.done.send(Err(no_tokens()));
            }
        }
    }

    fn submit(&mut self, Texts { tokens, dimensions, done }: Texts) {
        let number = self.count;
        self.count += 1;
        let (count, sum) = (tokens.len(), tokens.iter().map(Vec::len).sum());
        let mut client = Client {
            ids: Vec::with_capacity(count),
            vectors: vec![Vec::new(); count],
            left: count,
            tokens: sum,
            dimensions,
            done,
        };
        for (index, tokens) in tokens.into_iter().enumerate() {
            match self.embedder.submit(tokens) {
                Ok(id) => {
                    client.ids.push(id);
                    self.of_text.insert(id, (number, index));
                }
                Err(error) => return self.end(client, Err(invalid(error))),
            }
        }
        self.clients.insert(number, client);
    }

    /// Forgets what is left of a request.
    fn forget(&mut self, number: u64) {
        let Some(client) = self.clients.remove(&number) else { return };
        self.release(&client);
    }

    /// Nothing of a request is computed any more.
    fn release(&mut self, client: &Client) {
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        for id in &client.ids {
            self.embedder.cancel(*id);
            self.of_text.remove(id);
        }
    }

    /// Tells a client what came of its request.
    fn end(&mut self, client: Client, result: Result<(), Refusal>) {
        self.release(&client);
        let Client { vectors, tokens, done, .. } = client;
        match &result {
            Ok(()) => self.status.ended += 1,
            Err(_) => self.status.failed += 1,
        }
        // Before the client is told: whoever has an answer finds it counted.
        self.publish();
        let _ = done.send(result.map(|()| Embeddings { vectors, tokens }));
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
            // Others of a request that failed have none any more.
            let Some((number, index)) = self.of_text.remove(&id) else { continue };
            match vector {
                Ok(vector) => self.keep(number, index, vector),
                Err(error) => self.fail(number, &error),
            }
        }
    }

    fn keep(&mut self, number: u64, index: usize, vector: Vec<f32>) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let vector = match client.dimensions {
            Some(dimensions) => cut(&vector, dimensions),
            None => vector,
        };
        client.left -= 1;
        if let Some(place) = client.vectors.get_mut(index) {
            *place = vector;
        }
        if client.left == 0
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

    /// Says how it is.
    fn publish(&mut self) {
        self.status.slots =
            self.embedder.slots().map(|(cached, active)| Slot { cached, active, ..Slot::default() }).collect();
        self.status.active = self.status.slots.iter().filter(|slot| slot.active).count();
        self.shared.publish(&self.status);
    }
}
