//! Thread that writes a test's text in place of a model.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ixc_generate::generator::{End, Event, FinalState, Request};
use ixc_runtime::sample::{Sampler, SamplerSettings};
use ixc_text::template::ChatTemplate;
use serde_json::json;
use tokio::sync::mpsc::UnboundedSender;

use super::thread::{Message, Submission};
use super::{Host, ServingOptions};
use crate::model::ModelFacts;

/// Text that the thread writes, and the last request.
#[derive(Debug)]
pub(crate) struct Script {
    text: Mutex<(String, End)>,
    request: Mutex<Option<Request>>,
    /// Whether answers never end.
    endless: AtomicBool,
    /// Channels of answers that never end.
    open: Mutex<Vec<UnboundedSender<Event>>>,
}

impl Script {
    /// Creates a script that writes nothing.
    pub(crate) fn new() -> Arc<Script> {
        Arc::new(Script {
            text: Mutex::new((String::new(), End::Token(0))),
            request: Mutex::default(),
            endless: AtomicBool::new(false),
            open: Mutex::default(),
        })
    }

    /// Sets the text and the end of the next answers.
    pub(crate) fn set(&self, text: &str, end: End) {
        *self.text.lock().unwrap() = (text.to_owned(), end);
    }

    /// Sets whether the next answers never end.
    pub(crate) fn set_endless(&self, endless: bool) {
        self.endless.store(endless, Ordering::Relaxed);
    }

    /// Returns the number of answers so far that never end.
    pub(crate) fn endless_count(&self) -> usize {
        self.open.lock().unwrap().len()
    }

    /// Returns whether all clients of endless answers have left.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.open.lock().unwrap().iter().all(UnboundedSender::is_closed)
    }

    /// Returns the last request that arrived.
    pub(crate) fn request(&self) -> Option<Request> {
        self.request.lock().unwrap().clone()
    }

    /// Answers a request, one character at a time.
    fn answer(&self, Submission { request, events, .. }: Submission) {
        let tokens = request.tokens.clone();
        *self.request.lock().unwrap() = Some(request);
        let (text, end) = self.text.lock().unwrap().clone();
        // The client may have disconnected.
        let send = |event| drop(events.send(event));
        send(Event::Begun { prompt: tokens.len(), reused: 0 });
        for c in text.chars() {
            send(Event::Token { token: 0, text: c.into(), log_probs: None });
        }
        if self.endless.load(Ordering::Relaxed) {
            return self.open.lock().unwrap().push(events);
        }
        let sampler = Sampler::new(SamplerSettings::greedy()).unwrap().state();
        send(Event::Ended { end, state: FinalState { tokens, sampler } });
    }
}

/// Creates a host with this chat template and the demo model's tokenizer, whose answers are a
/// script.
pub(crate) fn host(template: &str, script: Arc<Script>) -> Host {
    let tokenizer = ixc_compile::model::tokenizer(&ixc_compile::demo::open().unwrap()).unwrap();
    let facts = ModelFacts {
        name: "scripted".into(),
        context: 1 << 20,
        trained_context: 1 << 20,
        vocabulary: tokenizer.token_count(),
        parallel: 4,
        queue: 8,
        template: Some(template.to_owned()),
        ..ModelFacts::default()
    };
    let options = ServingOptions { name: facts.name.clone(), queue: facts.queue, ..ServingOptions::default() };
    let template = ChatTemplate::from_source(template).unwrap();
    let host = Host::with_thread(facts, Some(Arc::new(tokenizer)), Some(template), options, move |shared, incoming| {
        while let Ok(message) = incoming.recv() {
            match message {
                Message::Request(submission) => {
                    shared.waiting.fetch_sub(1, Ordering::Relaxed);
                    script.answer(*submission);
                }
                Message::End => break,
                Message::Slot(_) | Message::Logits(_) | Message::Experts(..) | Message::Embed(_) => {}
            }
        }
        serde_json::from_value(json!({"schema": "", "chosen": []})).unwrap()
    });
    host.unwrap()
}
