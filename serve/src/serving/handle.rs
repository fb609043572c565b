//! Handle of a request that a [`Host`] computes: it can be polled, waited for, or read as a stream.
//!
//! ```
//! use ixc_generate::generator::Request;
//! use ixc_generate::loaded_model::{LoadedModel, LoadOptions};
//! use ixc_runtime::sample::SamplerSettings;
//! use ixc_serve::serving::{Host, ServingOptions};
//!
//! let mut options = LoadOptions::default();
//! options.run.sequences = 2;
//! let model = LoadedModel::open(None, &options)?;
//! let host = Host::new(model, None, ServingOptions { queue: 8, ..ServingOptions::default() })?;
//! let request = |prompt: &str| -> Result<Request, Box<dyn std::error::Error>> {
//!     let tokens = host.encode(prompt, true, true)?;
//!     Ok(Request { limit: Some(4), ..Request::new(tokens, SamplerSettings::greedy()) })
//! };
//! let prompts = [request("The borrow checker")?, request("A trait is")?];
//! let [mut one, two] = host.submit_all(prompts)?.try_into().unwrap();
//! // Both are computed concurrently; the second one is cancelled.
//! two.cancel();
//! let mut text = String::new();
//! while let Some(event) = one.wait() {
//!     text += event.text().unwrap_or_default();
//! }
//! assert!(!text.is_empty() && one.is_over());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::model::Refusal;
use futures_core::Stream;
use ixc_generate::generator::{Event, Request};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::Host;

/// Handle of a submitted request. Dropping it cancels the request before the next step.
#[derive(Debug)]
pub struct Handle {
    events: UnboundedReceiver<Event>,
    is_over: bool,
}

/// State of a request.
#[derive(Debug)]
pub enum PollResult {
    /// An event.
    Event(Event),
    /// No event has arrived.
    Nothing,
    /// The request is over.
    Over,
}

impl Host {
    /// Starts a request.
    ///
    /// # Errors
    /// See [`Host::start`].
    pub fn submit(&self, request: Request) -> Result<Handle, Refusal> {
        let (send, events) = unbounded_channel();
        self.start(request, send)?;
        Ok(Handle { events, is_over: false })
    }

    /// Starts several requests: all, or none if one is refused.
    ///
    /// # Errors
    /// See [`Host::submit`].
    pub fn submit_all(&self, requests: impl IntoIterator<Item = Request>) -> Result<Vec<Handle>, Refusal> {
        requests.into_iter().map(|request| self.submit(request)).collect()
    }
}

impl Handle {
    /// Returns the next event without waiting.
    pub fn poll(&mut self) -> PollResult {
        match self.events.try_recv() {
            Ok(event) => PollResult::Event(self.note_end(event)),
            Err(TryRecvError::Empty) => PollResult::Nothing,
            Err(TryRecvError::Disconnected) => {
                self.is_over = true;
                PollResult::Over
            }
        }
    }

    /// Waits for the next event; `None` after the end. Asynchronous runtimes must poll the stream
    /// instead, because this call blocks.
    ///
    /// # Panics
    /// If it is called within an asynchronous runtime.
    pub fn wait(&mut self) -> Option<Event> {
        let event = self.events.blocking_recv();
        self.is_over |= event.is_none();
        event.map(|event| self.note_end(event))
    }

    /// Cancels the request; its computed prefix remains for reuse.
    pub fn cancel(self) {}

    /// Returns whether the request's last event has been returned.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    fn note_end(&mut self, event: Event) -> Event {
        self.is_over |= matches!(event, Event::Ended { .. } | Event::Failed(_));
        event
    }
}

impl Stream for Handle {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let polled = self.events.poll_recv(context);
        if matches!(polled, Poll::Ready(None)) {
            self.is_over = true;
        }
        polled.map(|event| event.map(|event| self.note_end(event)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::ServingOptions;
    use ixc_generate::loaded_model::{LoadOptions, LoadedModel};
    use ixc_runtime::sample::SamplerSettings;

    fn host() -> Host {
        let mut options = LoadOptions::default();
        (options.run.sequences, options.run.threads) = (2, Some(2));
        Host::new(
            LoadedModel::open(None, &options).unwrap(),
            None,
            ServingOptions { queue: 8, ..ServingOptions::default() },
        )
        .unwrap()
    }

    fn request(host: &Host, limit: usize) -> Request {
        let tokens = host.encode("The borrow checker", true, true).unwrap();
        Request { limit: Some(limit), ignore_end: true, ..Request::new(tokens, SamplerSettings::greedy()) }
    }

    /// Returns the events of a request without the first one, which depends on the reused prefix.
    fn event_texts(events: Vec<Event>) -> String {
        assert!(matches!(events[0], Event::Begun { .. }) && matches!(events.last(), Some(Event::Ended { .. })));
        assert_eq!(events.iter().filter(|event| matches!(event, Event::Token { .. })).count(), 6);
        format!("{:?}", &events[1..])
    }

    #[test]
    fn waiting_polling_and_streaming_give_the_same() {
        let host = host();
        let [mut waited, mut polled, mut streamed] =
            host.submit_all([(); 3].map(|()| request(&host, 6))).unwrap().try_into().unwrap();
        let expected = event_texts(std::iter::from_fn(|| waited.wait()).collect());
        assert!(waited.is_over() && matches!(waited.poll(), PollResult::Over));
        let mut events = Vec::new();
        loop {
            match polled.poll() {
                PollResult::Event(event) => events.push(event),
                PollResult::Nothing => std::thread::yield_now(),
                PollResult::Over => break,
            }
        }
        assert_eq!(event_texts(events), expected);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let events = runtime.block_on(async {
            let mut events = Vec::new();
            while let Some(event) = std::future::poll_fn(|context| Pin::new(&mut streamed).poll_next(context)).await {
                events.push(event);
            }
            events
        });
        assert_eq!(event_texts(events), expected);
        assert!(streamed.is_over());
        host.end();
    }

    #[test]
    fn cancelled_requests_free_slots_and_refused_groups_are_atomic() {
        let host = host();
        let mut endless = host.submit(request(&host, 1 << 20)).unwrap();
        assert!(matches!(endless.wait(), Some(Event::Begun { .. })));
        endless.cancel();
        let too_long = Request::new(vec![1; host.facts().context + 1], SamplerSettings::greedy());
        let refused = host.submit_all([request(&host, 1 << 20), too_long]);
        assert!(matches!(refused, Err(Refusal::TooLong { .. })));
        while host.status().cancelled < 2 {
            std::thread::yield_now();
        }
        assert!(matches!(host.submit(request(&host, 1)).unwrap().wait(), Some(Event::Begun { .. })));
        host.end();
    }
}
