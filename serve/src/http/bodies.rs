//! Bodies of requests, read within a time limit and within a memory budget of all bodies.
//!
//! Invariant: only received bytes count against the budget, not the announced length. So a slow
//! body does not delay others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::error::HttpError;

/// Bodies up to this many bytes need no budget, because one such body for each connection fits into
/// memory.
pub(crate) const SMALL_BODY: usize = 64 << 10;

/// Bounds of the memory for request bodies.
#[derive(Debug)]
pub(crate) struct Bodies {
    /// Max bytes of one body.
    max: usize,
    /// Time limit of one body.
    time: Duration,
    /// Budget that is left for larger bodies.
    left: Arc<Semaphore>,
}

/// Received body with its share of the budget. Dropping this value releases the share.
#[derive(Debug)]
pub(crate) struct ReadBody {
    bytes: Bytes,
    room: Option<OwnedSemaphorePermit>,
}

impl ReadBody {
    /// Separates the body from its share of the budget.
    pub(crate) fn into_parts(self) -> (Bytes, Option<OwnedSemaphorePermit>) {
        (self.bytes, self.room)
    }
}

impl Bodies {
    /// Makes bounds: `max` bytes for each body, and `all` bytes for all bodies above
    /// [`SMALL_BODY`] together.
    pub(crate) fn new(max: usize, all: usize, time: Duration) -> Bodies {
        Bodies { max: max.min(all), time, left: Arc::new(Semaphore::new(all)) }
    }

    /// Reads a body.
    ///
    /// # Errors
    /// When the body is too large, breaks off or is too slow, or other bodies take the whole
    /// budget.
    pub(crate) async fn read(&self, body: Body, announced: Option<u64>) -> Result<ReadBody, HttpError> {
        if announced.is_some_and(|bytes| bytes > self.max as u64) {
            return Err(self.too_large());
        }
        let waits_for_room = AtomicBool::new(false);
        match tokio::time::timeout(self.time, self.collect(body, &waits_for_room)).await {
            Ok(read) => read,
            Err(_) if waits_for_room.into_inner() => {
                let wrong =
                    HttpError::invalid(None, "the bodies of other requests use all memory for bodies; try again later");
                Err(wrong.with_status(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error"))
            }
            Err(_) => {
                let wrong = HttpError::invalid(None, "the body of the request did not arrive in time");
                Err(wrong.with_status(StatusCode::REQUEST_TIMEOUT, "invalid_request_error"))
            }
        }
    }

    async fn collect(&self, mut body: Body, waits_for_room: &AtomicBool) -> Result<ReadBody, HttpError> {
        let mut bytes = Vec::new();
        let mut room: Option<OwnedSemaphorePermit> = None;
        let broken = |error| HttpError::invalid(None, format!("the body cannot be read: {error}"));
        while let Some(frame) = body.frame().await {
            // Trailers are ignored.
            let Ok(part) = frame.map_err(broken)?.into_data() else { continue };
            let all = bytes.len() + part.len();
            if all > self.max {
                return Err(self.too_large());
            }
            let taken = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let more = budget_bytes(all).saturating_sub(taken);
            if more > 0 {
                waits_for_room.store(true, Ordering::Relaxed);
                let more = Arc::clone(&self.left).acquire_many_owned(u32::try_from(more).unwrap_or(u32::MAX)).await;
                let more = more.map_err(|error| HttpError::server_error(error.to_string()))?;
                waits_for_room.store(false, Ordering::Relaxed);
                match &mut room {
                    Some(room) => room.merge(more),
                    None => room = Some(more),
                }
            }
            bytes.extend_from_slice(&part);
        }
        Ok(ReadBody { bytes: bytes.into(), room })
    }

    fn too_large(&self) -> HttpError {
        HttpError::invalid(None, format!("the body is larger than {} bytes", self.max))
            .with_status(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error")
    }
}

/// Returns how many bytes of a body count against the budget.
fn budget_bytes(bytes: usize) -> usize {
    if bytes > SMALL_BODY { bytes } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, StreamExt, stream};

    const MIB: usize = 1 << 20;

    /// Returns a chunked body of unknown length.
    fn chunks(chunks: &[usize], ends: bool) -> Body {
        let parts: Vec<_> = chunks.iter().map(|length| Ok::<_, std::io::Error>(vec![b' '; *length])).collect();
        let rest = if ends { stream::empty().left_stream() } else { stream::pending().right_stream() };
        Body::from_stream(stream::iter(parts).chain(rest))
    }

    #[tokio::test]
    async fn received_bodies_share_a_memory_limit() {
        let bodies = Bodies::new(MIB, 2 * MIB, Duration::from_millis(1));
        let read = async |length: usize| bodies.read(Body::from(vec![b' '; length]), None).await;
        let (one, two) = (read(MIB).await.unwrap(), read(MIB).await.unwrap());
        let refused = read(SMALL_BODY + 1).await.unwrap_err();
        assert!(refused.message().contains("use all memory for bodies"), "{refused:?}");
        assert_eq!(read(SMALL_BODY).await.unwrap().bytes.len(), SMALL_BODY);
        drop(two);
        assert!(read(MIB).await.is_ok());
        drop(one);
        for (length, announced) in [(MIB + 1, None), (1, Some(MIB as u64 + 1))] {
            let refused = bodies.read(Body::from(vec![b' '; length]), announced).await.unwrap_err();
            assert!(refused.message().contains("larger than 1048576"), "{refused:?}");
        }
    }

    /// Slow bodies take budget for their received bytes only, however long they may become.
    #[tokio::test]
    async fn slow_body_blocks_no_other_body() {
        let bodies = Bodies::new(MIB, 2 * MIB, Duration::MAX);
        let mut slow: Vec<_> = (0..64).map(|_| Box::pin(bodies.read(chunks(&[100, 1], false), None))).collect();
        for one in &mut slow {
            assert!(one.as_mut().now_or_never().is_none());
        }
        let (a, b) = (bodies.read(chunks(&[MIB], true), None), bodies.read(chunks(&[1000; 1000], true), None));
        assert_eq!((a.await.unwrap().bytes.len(), b.await.unwrap().bytes.len()), (MIB, 1_000_000));
        let late = Bodies::new(MIB, MIB, Duration::from_millis(1));
        let refused = late.read(chunks(&[100], false), None).await.unwrap_err();
        assert!(refused.message().contains("in time"), "{refused:?}");
    }
}
