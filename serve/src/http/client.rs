//! The client of a request, for long work: whether the client is connected, the deadline of the
//! request, and the budget that its body takes.
//!
//! A connection drops the future of a request when its client leaves, but threads that work for the
//! request do not notice. So the request runs inside [`serve`], and work on other threads gets
//! [`Client::current`]. The work periodically checks whether the client is connected, and keeps the
//! body's budget until the work ends.
//!
//! Invariant: the bytes of a body count against
//! [`AppOptions::bodies_bytes`](crate::http::AppOptions::bodies_bytes) until no thread works on it.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use tokio::time::Instant;

use crate::model::Refusal;

tokio::task_local! {
    static CLIENT: Client;
}

/// The client of a request.
#[derive(Clone, Default)]
pub(crate) struct Client {
    gone: Arc<AtomicBool>,
    /// Time at which the request must have ended, if the request has a time limit.
    deadline: Option<Instant>,
    /// Share of the memory budget that the request's body takes.
    _room: Option<Arc<dyn Any + Send + Sync>>,
}

impl Client {
    /// Returns the client of the request that this task serves. Outside of requests, returns a
    /// client that never leaves.
    pub(crate) fn current() -> Client {
        CLIENT.try_with(Clone::clone).unwrap_or_default()
    }

    /// Returns whether the client is still connected.
    pub(crate) fn is_there(&self) -> bool {
        !self.gone.load(Ordering::Relaxed)
    }

    /// Returns the time at which the request must have ended, if it has a time limit.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Ends work for a client that has disconnected.
    ///
    /// # Errors
    /// [`Refusal::Gone`].
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if self.is_there() { Ok(()) } else { Err(Refusal::Gone) }
    }
}

/// Guard that marks the client as disconnected when it is dropped.
struct Presence(Arc<AtomicBool>);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Serves a request whose body takes this budget. Returns `None` after a panic. The panic is
/// logged, and the connection stays open. Does not end the request at its deadline.
pub(crate) async fn serve<T>(
    room: impl Send + Sync + 'static,
    deadline: Option<Instant>,
    request: impl Future<Output = T>,
) -> Option<T> {
    let client = Client { gone: Arc::default(), deadline, _room: Some(Arc::new(room)) };
    let _presence = Presence(Arc::clone(&client.gone));
    let mut request = pin!(CLIENT.scope(client, request));
    poll_fn(|context| {
        // A request that has panicked is not polled again.
        match catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(context))) {
            Ok(polled) => polled.map(Some),
            Err(_) => Poll::Ready(None),
        }
    })
    .await
}

/// Waits until a deadline, if there is one. Returns `None` after the deadline, and drops the work.
pub(crate) async fn wait_until<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, work).await.ok(),
        None => Some(work.await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_detects_a_disconnected_client() {
        let seen = serve((), None, async { Client::current() }).await.unwrap();
        assert_eq!((seen.is_there(), seen.check()), (false, Err(Refusal::Gone)));
        let there = serve((), None, async { Client::current().is_there() }).await;
        assert_eq!((there, Client::current().is_there()), (Some(true), true));
    }

    #[tokio::test]
    async fn panic_ends_only_its_own_request() {
        assert_eq!(serve((), None, async { panic!("of a test") as u32 }).await, None);
    }
}
