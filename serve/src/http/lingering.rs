//! The end of a connection whose client may still be sending a request.
//!
//! The system resets a connection that is closed while received bytes are unread. The client then
//! loses an answer that it has not read yet. So the server closes only its own side, and reads and
//! drops the rest of the request for a short time.
//!
//! Invariant: after the answer, the connection ends within [`MAX_TIME`], after a pause without a
//! byte, and after at most [`MAX_BYTES`]. Another connection may take its place earlier.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Max time in which the rest of a request is read.
const MAX_TIME: Duration = Duration::from_secs(10);
/// Max bytes of a request that are read after its answer: more than a body may have.
const MAX_BYTES: usize = 48 << 20;
/// Bytes that are read at a time.
const READ_BYTES: usize = 16 << 10;

/// Whether the last request of a connection was answered before its body was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreadBody(Arc<AtomicBool>);

impl UnreadBody {
    /// Returns whether the client may still be sending the body.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Records that no byte of the body is missing.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Wraps the body of the connection's next request.
    pub(crate) fn watch(&self, body: Incoming) -> WatchedBody {
        WatchedBody { body, has_ended: false, unread: self.clone() }
    }
}

/// Body of a request. When it is dropped, it records whether bytes are missing.
#[derive(Debug)]
pub(crate) struct WatchedBody {
    body: Incoming,
    has_ended: bool,
    unread: UnreadBody,
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.has_ended |= matches!(polled, Poll::Ready(None));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        // A body of known length is not polled after its last byte.
        let is_unread = !self.has_ended && !self.body.is_end_stream();
        self.unread.0.store(is_unread, Ordering::Relaxed);
    }
}

/// Closes the server's side of a connection. Then reads and drops bytes until the client closes its
/// side, within the limits of this module, or sends nothing for `max_pause`.
pub(crate) async fn drain(mut stream: impl AsyncRead + AsyncWrite + Unpin, max_pause: Duration) {
    let read_rest = async {
        poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await?;
        let (mut bytes, mut left) = (vec![0; READ_BYTES], MAX_BYTES);
        while left > 0 {
            let mut part = ReadBuf::new(&mut bytes);
            let filled = poll_fn(|context| Pin::new(&mut stream).poll_read(context, &mut part));
            match tokio::time::timeout(max_pause, filled).await {
                Ok(filled) => filled?,
                Err(_) => break,
            }
            let read = part.filled().len();
            left = if read == 0 { 0 } else { left.saturating_sub(read) };
        }
        io::Result::Ok(())
    };
    if let Ok(Err(error)) = tokio::time::timeout(MAX_TIME, read_rest).await {
        tracing::debug!(%error, "the rest of a request cannot be read");
    }
}

/// Reads and drops what a connection has received so far, at most [`MAX_BYTES`]. Never waits for
/// a connection that does not block.
pub(crate) fn drop_received(mut stream: impl io::Read) {
    let (mut bytes, mut left) = (vec![0; READ_BYTES], MAX_BYTES);
    while left > 0 {
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(read) => left = left.saturating_sub(read),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::post;
    use tokio::net::TcpListener;
    use tokio::sync::watch;

    use super::*;
    use crate::http::AppOptions;
    use crate::http::connection;

    /// Sends a request to a server that reads no bodies. Returns the answer, which is read after
    /// the whole request was sent.
    async fn answer(request: Vec<u8>) -> io::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let router = Router::new().route("/", post(async || (StatusCode::UNAUTHORIZED, "refused")));
        let (_end, ending) = watch::channel(false);
        let server = tokio::spawn(async move {
            connection::serve(listener, router, &AppOptions::default(), connection::Queue::Answer, ending).await;
        });
        let client = move || {
            let mut client = std::net::TcpStream::connect(address)?;
            client.write_all(&request)?;
            let mut text = String::new();
            client.read_to_string(&mut text)?;
            Ok(text)
        };
        let text = tokio::task::spawn_blocking(client).await.unwrap();
        server.abort();
        text
    }

    fn request(header: &str, body: &[u8]) -> Vec<u8> {
        [format!("POST / HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n").as_bytes(), body].concat()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn client_with_an_unread_body_gets_the_whole_answer() {
        const BYTES: usize = 3 << 20;
        let plain = request(&format!("Content-Length: {BYTES}"), &vec![b'x'; BYTES]);
        let part = [b"10000\r\n", &[b'x'; 1 << 16][..], b"\r\n"].concat().repeat(40);
        let chunked = request("Transfer-Encoding: chunked", &[&part[..], b"0\r\n\r\n"].concat());
        for sent in [plain, chunked] {
            let text = answer(sent).await.unwrap();
            assert!(text.starts_with("HTTP/1.1 401") && text.ends_with("refused"), "{text}");
        }
        // The head of this request is too long, so hyper refuses it.
        let text = answer(request(&format!("X: {}", "x".repeat(BYTES)), b"")).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 431"), "{text}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn endless_body_is_cut_off() {
        let bytes = 2 * MAX_BYTES;
        let error = answer(request(&format!("Content-Length: {bytes}"), &vec![b'x'; bytes])).await.unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{error}");
    }
}
