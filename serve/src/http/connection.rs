//! Connections. The accept loop is implemented here, because request heads have a time limit, and
//! so do clients that do not read their answers.
//!
//! Invariant: a connection whose client neither sends nor reads is closed. There are at most
//! [`AppOptions::connections`] connections, and in addition at most 64 refused connections
//! ([`Refusals`]). Invariant: work for a client ends soon after the client has left, even if the
//! client had sent more requests.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use futures_util::FutureExt;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep};
use tower::ServiceExt;

use crate::http::admission::Connection;
use crate::http::app::AppOptions;
use crate::http::connection_limit::{ConnectionLimit, ConnectionPermit, ConnectionState};
use crate::http::lingering::{self, UnreadBody};
use crate::http::refusals::Refusals;

/// Max bytes of the head of a request.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Pause after the system refuses a connection, perhaps because too many are open.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Interval of checks whether the client has closed the connection, and the time that an answer may
/// go on after that.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Time after the deadline of a request in which the client must read the end of the answer.
const LAST_READ: Duration = Duration::from_secs(1);
/// Time in which connections take requests after the listener was closed.
const LAST_REQUESTS: Duration = Duration::from_millis(500);
/// Max number of queued connections that are accepted when the server ends. Linux has at most 4096
/// by default.
const MAX_QUEUE: usize = 4096;

/// Treatment of connections that the system has queued when the server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// The connections are answered, because the listener closes.
    Answer,
    /// The connections are left to another server with the same socket.
    Leave,
}
/// Message for a client that has too many connections.
const CLIENT_LIMIT_MESSAGE: &str = "all connections that one client may have are in use; try again later";
/// Message for a client that finds no free connection while the server ends.
const ENDING_MESSAGE: &str = "the server ends, and all its connections are in use; try again later";

/// Serves connections until `ending` is set. Then waits for open connections to end, for at most
/// [`AppOptions::drain`]. Requests that clients send before the listener closes are answered.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    options: &AppOptions,
    queue: Queue,
    mut ending: watch::Receiver<bool>,
) {
    let limit = Arc::new(ConnectionLimit::new(options.connections));
    let refusals = Refusals::new();
    let (stop, stopping) = watch::channel(false);
    let begin = |stream: TcpStream, client: SocketAddr, permit: ConnectionPermit| {
        let (router, options, stopping) = (router.clone(), options.clone(), stopping.clone());
        tokio::spawn(async move { answer(stream, client, &permit, router, &options, stopping).await });
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = wait_for_end(&mut ending) => break,
        };
        let (stream, client) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        // Also watch for the end of the server while all connections are in use. A free place comes
        // first, because the client has sent its request already.
        let permit = tokio::select! {
            biased;
            permit = limit.take(client.ip()) => permit,
            () = wait_for_end(&mut ending) => {
                refusals.refuse(stream, client, options, ENDING_MESSAGE);
                break;
            }
        };
        match permit {
            Ok(permit) => begin(stream, client, permit),
            Err(_) => refusals.refuse(stream, client, options, CLIENT_LIMIT_MESSAGE),
        }
    }
    // The system has accepted the queued connections, and would reset them together with the
    // listener. They are accepted without the runtime, which may not know of them yet.
    if let (Queue::Answer, Ok(listener)) = (queue, listener.into_std()) {
        for (stream, client) in std::iter::from_fn(|| listener.accept().ok()).take(MAX_QUEUE) {
            // Clients may connect during this loop. Yielding lets other tasks of the runtime answer
            // requests before the next connection is accepted.
            tokio::task::yield_now().await;
            let Ok(stream) = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) else { continue };
            match limit.take(client.ip()).now_or_never() {
                Some(Ok(permit)) => begin(stream, client, permit),
                Some(Err(_)) | None => refusals.refuse(stream, client, options, ENDING_MESSAGE),
            }
        }
    }
    // Requests on these connections, on refused connections and on idle connections may still
    // arrive.
    let are_closed = async { tokio::join!(limit.wait_until_empty(), refusals.wait_until_closed()) };
    let _ = tokio::time::timeout(LAST_REQUESTS, are_closed).await;
    let _ = stop.send(true);
    if tokio::time::timeout(options.drain, limit.wait_until_empty()).await.is_err() {
        tracing::warn!("connections were closed because their requests did not end in time");
    }
}

/// Answers the requests of a connection.
async fn answer(
    stream: TcpStream,
    client: SocketAddr,
    permit: &ConnectionPermit,
    router: Router,
    options: &AppOptions,
    mut ending: watch::Receiver<bool>,
) {
    // Parts of an answer are small and must arrive without delay (no Nagle).
    let _ = stream.set_nodelay(true);
    let stream = SharedStream(Arc::new(Mutex::new(stream)));
    let io = TokioIo::new(TimedStream::new(stream.clone(), options.write_stall, Arc::clone(permit.state())));
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(options.head).max_buf_size(MAX_HEAD_BYTES);
    let of = Connection { client, state: Arc::clone(permit.state()) };
    let unread = UnreadBody::default();
    let watching = unread.clone();
    let service = router.map_request(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(of.clone());
        request.map(|body| watching.watch(body))
    });
    let mut connection = pin!(http.serve_connection(io, TowerToHyperService::new(service)));
    let served = async {
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = wait_for_end(&mut ending) => {
                // After an early answer, hyper's next poll receives the rest of the request, or
                // closes the connection. So an idle connection that stays open has received the
                // whole request.
                if let Some(result) = connection.as_mut().now_or_never() {
                    result
                } else {
                    if permit.state().is_idle() {
                        unread.clear();
                    }
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        };
        if let Err(error) = &result {
            tracing::debug!(%error, "connection");
            log_head(client, error, options);
        }
        if unread.is_set() || result.is_err_and(|error| error.is_parse()) {
            lingering::drain(stream.clone(), options.rest_stall).await;
        }
    };
    tokio::select! {
        () = served => {},
        () = stream.wait_closed() => tracing::debug!("the client has gone"),
        () = permit.wait_for_revocation() => tracing::debug!("another connection has the place"),
    }
}

/// Logs a malformed request head, which hyper has refused itself.
fn log_head(client: SocketAddr, error: &hyper::Error, options: &AppOptions) {
    let status = match error.is_parse_too_large() {
        true => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        false => StatusCode::BAD_REQUEST,
    };
    if error.is_parse() {
        options.log.iter().for_each(|log| log.write_refusal(client, status, &error.to_string()));
    }
}

/// Waits until the server ends.
async fn wait_for_end(ending: &mut watch::Receiver<bool>) {
    // The result is dropped at once, because its borrow must not cross threads.
    let _ = ending.wait_for(|ending| *ending).await;
}

/// A connection that is shared by its reader, its writer and the check for disconnects.
#[derive(Clone)]
struct SharedStream(Arc<Mutex<TcpStream>>);

impl SharedStream {
    fn lock(&self) -> MutexGuard<'_, TcpStream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes soon after the client has closed its side of the connection. While hyper waits for
    /// bytes, it notices the close at once. If hyper holds bytes of a further request, it does not
    /// read until the previous answer was sent, and would never notice the close. The system still
    /// reports the close, unless the client has sent more than the system's buffers hold. Then the
    /// close comes after unread bytes, and the next write fails.
    async fn wait_closed(&self) {
        let is_closed = || {
            let ready = self.lock().ready(Interest::READABLE).now_or_never();
            ready.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()))
        };
        while !is_closed() {
            sleep(CHECK_INTERVAL).await;
        }
        sleep(CHECK_INTERVAL).await;
    }
}

impl AsyncRead for SharedStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_read(context, buffer)
    }
}

impl AsyncWrite for SharedStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.lock()).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.lock()).poll_shutdown(context)
    }
}

/// A stream whose writes fail if nothing can be written for some time, or if the client still reads
/// long after the deadline of its request. It notifies the connection state when all bytes are
/// written.
struct TimedStream {
    stream: SharedStream,
    limit: Duration,
    state: Arc<ConnectionState>,
    /// Timer that runs while a write is blocked.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl TimedStream {
    fn new(stream: SharedStream, limit: Duration, state: Arc<ConnectionState>) -> TimedStream {
        TimedStream { stream, limit, state, waiting: None }
    }

    /// Returns the result of a write attempt; an error if the write waits too long.
    fn check_stall<T>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.waiting = None;
            return result;
        }
        let stalled = Instant::now() + self.limit;
        let last = self.state.deadline().and_then(|deadline| deadline.checked_add(LAST_READ));
        let deadline = last.map_or(stalled, |last| stalled.min(last));
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        match waiting.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_stall(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper drops an answer's body before it writes and flushes its buffer, so a flush means
        // that the answer is complete.
        let result = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(result, Poll::Ready(Ok(()))) {
            self.state.record_flush();
        }
        self.check_stall(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.check_stall(context, result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::connection_limit::RequestGuard;
    use axum::Extension;
    use axum::routing::get;

    /// Checks that the server ends after the time limit for answers in progress, even if an endless
    /// answer uses the only connection.
    #[tokio::test]
    async fn server_stops_while_an_endless_answer_runs() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let answer = move || {
            begun.send(()).unwrap();
            std::future::pending::<()>()
        };
        let router = Router::new().route("/", get(answer));
        let options = AppOptions { connections: 1, drain: Duration::from_millis(10), ..AppOptions::default() };
        let (end, ending) = watch::channel(false);
        let server = tokio::spawn(async move { serve(listener, router, &options, Queue::Answer, ending).await });
        let client = TcpStream::connect(address).await.unwrap();
        client.writable().await.unwrap();
        client.try_write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        begins.recv().await.unwrap();
        end.send(true).unwrap();
        server.await.unwrap();
    }

    /// Checks that requests are answered that were sent before the listener closes. Some of their
    /// connections are accepted before the end, some at the end, and some after it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn requests_in_the_queue_are_answered_at_the_end() {
        use std::io::{Read, Write};

        for is_accepting in [true, false].repeat(16) {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let router = Router::new().route("/", get(async || "answered"));
            let (end, ending) = watch::channel(false);
            let run = async move { serve(listener, router, &AppOptions::default(), Queue::Answer, ending).await };
            let connect = |_| {
                let mut client = std::net::TcpStream::connect(address).unwrap();
                client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
                client
            };
            let connect_all = || (0..8).map(connect).collect::<Vec<_>>();
            let clients = if is_accepting {
                let server = tokio::spawn(run);
                let clients = connect_all();
                end.send(true).unwrap();
                server.await.unwrap();
                clients
            } else {
                let clients = connect_all();
                end.send(true).unwrap();
                run.await;
                clients
            };
            for mut client in clients {
                let mut text = String::new();
                client.read_to_string(&mut text).unwrap();
                assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("answered"), "{text}");
            }
        }
    }

    /// Checks that an idle connection does not delay the end of the server, although its last
    /// request was answered before its body was read.
    #[tokio::test]
    async fn a_body_that_was_read_late_does_not_delay_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = |Extension(of): Extension<Connection>| async move {
            drop(RequestGuard::new(of.state));
            "refused"
        };
        let router = Router::new().route("/", axum::routing::post(answer));
        let limit = Arc::new(ConnectionLimit::new(1));
        let permit = limit.take(address.ip()).await.unwrap();
        let state = Arc::clone(permit.state());
        let client = TcpStream::connect(address).await.unwrap();
        let (stream, from) = listener.accept().await.unwrap();
        let (end, ending) = watch::channel(false);
        let served = tokio::spawn(async move {
            super::answer(stream, from, &permit, router, &AppOptions::default(), ending).await;
        });
        client.writable().await.unwrap();
        client.try_write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody").unwrap();
        client.readable().await.unwrap();
        while !state.is_idle() {
            tokio::task::yield_now().await;
        }
        assert!(!served.is_finished(), "the connection stays open");
        end.send(true).unwrap();
        // The server ends without a timer. Waiting for the rest of the body would take seconds.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert!(served.is_finished());
    }

    /// Checks that another connection waits while a slow client reads its answer on the only
    /// allowed connection.
    #[tokio::test]
    async fn a_slow_reader_gets_its_whole_answer() {
        // More than the system's buffers hold.
        const BYTES: usize = 64 << 20;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // As in `track_request`, the request guard is dropped when hyper drops the body.
        let answer = |Extension(of): Extension<Connection>| async move {
            let _request_guard = RequestGuard::new(of.state);
            vec![b'x'; BYTES]
        };
        let router = Router::new().route("/", get(answer));
        let limit = Arc::new(ConnectionLimit::new(1));
        let permit = limit.take(address.ip()).await.unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        let (stream, from) = listener.accept().await.unwrap();
        let (_end, ending) = watch::channel(false);
        let served = tokio::spawn(async move {
            super::answer(stream, from, &permit, router, &AppOptions::default(), ending).await;
        });
        client.writable().await.unwrap();
        client.try_write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        client.readable().await.unwrap();
        let mut other = pin!(limit.take([192, 0, 2, 1].into()));
        assert!(other.as_mut().now_or_never().is_none());
        let mut read = 0;
        while read < BYTES {
            client.readable().await.unwrap();
            match client.try_read(&mut [0; 1 << 16]) {
                Ok(0) => panic!("the answer was cut after {read} bytes"),
                Ok(bytes) => read += bytes,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        // The connection is now idle, so the waiting connection replaces it.
        other.await.unwrap();
        served.await.unwrap();
    }

    /// Checks that a client cannot hold a connection by reading its answer slowly.
    #[tokio::test]
    async fn a_slow_reader_is_cut_off_after_its_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = |Extension(of): Extension<Connection>| async move {
            of.state.set_deadline(Some(Instant::now()));
            vec![b'x'; 64 << 20]
        };
        let router = Router::new().route("/", get(answer));
        let limit = Arc::new(ConnectionLimit::new(1));
        let permit = limit.take(address.ip()).await.unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        let (stream, from) = listener.accept().await.unwrap();
        let (_end, ending) = watch::channel(false);
        let options = AppOptions { write_stall: Duration::from_secs(3600), ..AppOptions::default() };
        let served = tokio::spawn(async move { super::answer(stream, from, &permit, router, &options, ending).await });
        client.writable().await.unwrap();
        client.try_write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        // The client always makes progress, but never reads all of the answer.
        while !served.is_finished() {
            let _ = client.try_read(&mut [0; 1 << 10]);
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Value that sends a message when it is dropped.
    struct Dropped(tokio::sync::mpsc::UnboundedSender<()>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    /// Checks that the server notices a closed connection although the client has sent further
    /// requests, more than hyper's buffer holds.
    #[tokio::test]
    async fn disconnect_is_detected_despite_pipelined_requests() {
        for further in [0, 1, 3000] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
            let (dropped, mut drops) = tokio::sync::mpsc::unbounded_channel();
            let answer = move || {
                begun.send(()).unwrap();
                let dropped = Dropped(dropped.clone());
                async move {
                    let _dropped = dropped;
                    std::future::pending::<()>().await;
                }
            };
            let router = Router::new().route("/", get(answer));
            let (_end, ending) = watch::channel(false);
            let server =
                tokio::spawn(
                    async move { serve(listener, router, &AppOptions::default(), Queue::Answer, ending).await },
                );
            let client = TcpStream::connect(address).await.unwrap();
            let bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1 + further);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                client.writable().await.unwrap();
                match client.try_write(rest) {
                    Ok(written) => rest = &rest[written..],
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
            begins.recv().await.unwrap();
            assert!(drops.try_recv().is_err(), "the answer is waited for");
            drop(client);
            drops.recv().await.unwrap();
            server.abort();
        }
    }
}
