//! Connections that are refused because there is no place for them.
//!
//! The client may send its request after the answer. If the connection were closed, the system
//! would reset it, and the client would lose the answer. So the rest of the request is read.
//!
//! Invariant: a refusal never waits for a client. At most [`MAX_REFUSED`] connections stay open,
//! and at most [`MAX_OF_CLIENT`] of one client.

use std::io::Write;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::app::AppOptions;
use crate::http::connection_limit::network;
use crate::http::lingering;

/// Max refused connections that wait for the rest of their requests. Further ones are closed at
/// once, and their clients may lose the answer.
const MAX_REFUSED: u32 = 64;
/// Max number of refused connections that one client has, so that places remain for other clients.
const MAX_OF_CLIENT: usize = MAX_REFUSED as usize / 4;

/// Refused connections whose clients may still be sending a request. They have no place among the
/// connections, so there are at most [`MAX_REFUSED`].
#[derive(Debug)]
pub(crate) struct Refusals {
    places: Arc<Semaphore>,
    clients: Clients,
}

/// Client of each refused connection that is open.
type Clients = Arc<Mutex<Vec<IpAddr>>>;

/// Place of a refused connection. Dropping it frees the place.
struct Place {
    client: IpAddr,
    clients: Clients,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = clients.iter().position(|client| *client == self.client) {
            clients.swap_remove(at);
        }
    }
}

impl Refusals {
    /// Makes an empty set.
    pub(crate) fn new() -> Refusals {
        Refusals { places: Arc::new(Semaphore::new(MAX_REFUSED as usize)), clients: Clients::default() }
    }

    /// Takes a place for a connection of a client; `None` if the limit of the client or of all
    /// connections is reached.
    fn take_place(&self, client: IpAddr) -> Option<Place> {
        let client = network(client);
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.iter().filter(|other| **other == client).count() >= MAX_OF_CLIENT {
            return None;
        }
        let permit = Arc::clone(&self.places).try_acquire_owned().ok()?;
        clients.push(client);
        Some(Place { client, clients: Arc::clone(&self.clients), _permit: permit })
    }

    /// Refuses a connection. Never waits for its client.
    pub(crate) fn refuse(&self, stream: TcpStream, client: SocketAddr, options: &AppOptions, message: &str) {
        options.log.iter().for_each(|log| log.write_refusal(client, StatusCode::SERVICE_UNAVAILABLE, message));
        // The answer fits into the socket buffer of a new connection. If it does not fit, the
        // server does not wait for the client. The write bypasses the runtime, which may not know
        // yet that the socket is writable.
        let Ok(mut stream) = stream.into_std() else { return };
        let _ = stream.write_all(refusal(message).as_bytes());
        let Some(place) = self.take_place(client.ip()) else {
            let _ = stream.shutdown(Shutdown::Write);
            return lingering::drop_received(&stream);
        };
        let Ok(stream) = TcpStream::from_std(stream) else { return };
        let max_pause = options.rest_stall;
        tokio::spawn(async move {
            lingering::drain(stream, max_pause).await;
            drop(place);
        });
    }

    /// Waits until all refused connections are closed.
    pub(crate) async fn wait_until_closed(&self) {
        // The result is an error only for a closed semaphore.
        let _ = self.places.acquire_many(MAX_REFUSED).await;
    }
}

/// Returns the answer to a refused connection.
fn refusal(message: &str) -> String {
    let body =
        serde_json::json!({"error": {"message": message, "type": "unavailable_error", "param": null, "code": null}});
    let body = body.to_string();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 2\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};
    use std::time::Duration;

    use axum::routing::get;
    use axum::{Extension, Router};
    use tokio::net::TcpListener;
    use tokio::sync::watch;

    use super::*;
    use crate::http::admission::Connection;
    use crate::http::connection;
    use crate::http::connection_limit::Phase;

    /// Checks that a client gets at most a quarter of the places, and that a place becomes free.
    #[test]
    fn a_client_leaves_places_to_others() {
        let refusals = Refusals::new();
        let take_all = |last: u8| -> Vec<Place> {
            std::iter::from_fn(|| refusals.take_place([192, 0, 2, last].into())).take(MAX_REFUSED as usize).collect()
        };
        let mut places: Vec<Vec<Place>> = (0..5).map(take_all).collect();
        assert_eq!(places.iter().map(Vec::len).collect::<Vec<_>>(), [16, 16, 16, 16, 0]);
        places.remove(1);
        assert_eq!((take_all(0).len(), take_all(4).len()), (0, MAX_OF_CLIENT));
    }

    /// Checks that a refused client gets the answer even if it sends its request later.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_refused_client_may_send_its_request_later() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let answer = move |Extension(of): Extension<Connection>| {
            of.state.enter(Phase::Answering);
            let _ = begun.send(());
            std::future::pending::<()>()
        };
        let router = Router::new().route("/", get(answer));
        let (drain, rest_stall) = (Duration::ZERO, Duration::from_secs(60));
        let options = AppOptions { connections: 1, drain, rest_stall, ..AppOptions::default() };
        let (end, ending) = watch::channel(false);
        let server = tokio::spawn(async move {
            connection::serve(listener, router, &options, connection::Queue::Answer, ending).await;
        });
        let first = TcpStream::connect(address).await.unwrap();
        first.writable().await.unwrap();
        first.try_write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        begins.recv().await.unwrap();
        let late = tokio::task::spawn_blocking(move || {
            let mut client = std::net::TcpStream::connect(address)?;
            client.peek(&mut [0])?;
            let body = vec![b'x'; 256 << 10];
            write!(client, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len())?;
            client.write_all(&body)?;
            let mut text = String::new();
            client.read_to_string(&mut text)?;
            io::Result::Ok(text)
        });
        let text = late.await.unwrap().unwrap();
        assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("one client may have"), "{text}");
        end.send(true).unwrap();
        server.await.unwrap();
    }
}
