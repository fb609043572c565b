//! The client of a request, as long work sees it: whether it is still there, and the room of its
//! body.
//!
//! A connection drops the future of a request when its client goes away, and threads that were
//! given work by it do not know. So the request is run inside [`serve`], and work on other threads
//! takes [`Client::current`] along: it asks now and then, and holds the body's room until it ends.
//!
//! Invariant: the bytes of a body count against
//! [`Options::bodies_bytes`](crate::Options::bodies_bytes) until no thread works on it.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use crate::model::Refusal;

tokio::task_local! {
    static CLIENT: Client;
}

/// The client of a request.
#[derive(Clone, Default)]
pub(crate) struct Client {
    gone: Arc<AtomicBool>,
    /// Room that its body takes.
    _room: Option<Arc<dyn Any + Send + Sync>>,
}

impl Client {
    /// The client of the request that this task serves; where there is none, one that stays.
    pub(crate) fn current() -> Client {
        CLIENT.try_with(Clone::clone).unwrap_or_default()
    }

    /// Whether it still waits.
    pub(crate) fn is_there(&self) -> bool {
        !self.gone.load(Ordering::Relaxed)
    }

    /// Ends work for a client that has gone.
    ///
    /// # Errors
    /// [`Refusal::Gone`].
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if self.is_there() { Ok(()) } else { Err(Refusal::Gone) }
    }
}

/// Marks the client as gone when it is dropped.
struct Presence(Arc<AtomicBool>);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Serves a request, whose body takes this room. `None` where that panics: the panic is logged, and
/// the connection goes on.
pub(crate) async fn serve<T>(room: impl Send + Sync + 'static, request: impl Future<Output = T>) -> Option<T> {
    let client = Client { gone: Arc::default(), _room: Some(Arc::new(room)) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_sees_that_its_client_has_gone() {
        let seen = serve((), async { Client::current() }).await.unwrap();
        assert_eq!((seen.is_there(), seen.check()), (false, Err(Refusal::Gone)));
        let there = serve((), async { Client::current().is_there() }).await;
        assert_eq!((there, Client::current().is_there()), (Some(true), true));
    }

    #[tokio::test]
    async fn a_panic_is_one_requests() {
        assert_eq!(serve((), async { panic!("of a test") as u32 }).await, None);
    }
}
