//! Service: an HTTP server that runs until it is stopped, and finishes its work then.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ixc_generate::Error as GenerationError;
use ixc_generate::expert_use::ExpertUse;

use crate::Error;
use crate::http::{self, RequestLog};
use crate::serving::Registry;
use crate::supervisor::Notifier;

/// Time limit for threads with abandoned work to end.
const LAST: Duration = Duration::from_secs(1);

/// Interval of checks whether a model has failed.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Listens on the first of these addresses that the system accepts.
///
/// # Errors
/// When the system refuses all addresses.
pub fn listen(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(addresses)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A server that answers every request with status 503 while a model or a prompt cache is loaded.
/// Dropping it ends its thread, so that a sandbox can limit all threads. Later connections wait for
/// [`serve`].
#[derive(Debug)]
pub struct LoadingServer {
    end: tokio::sync::watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl LoadingServer {
    /// Starts to answer and log the requests of a listener, which stays open.
    ///
    /// # Errors
    /// When the system refuses a thread or a copy of the listener.
    pub fn start(listener: &TcpListener, log: Option<Arc<RequestLog>>) -> Result<LoadingServer, Error> {
        let failed = || Error::io(Path::new("the server"), "run");
        let listener = listener.try_clone().map_err(failed())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed())?;
        let (end, ending) = tokio::sync::watch::channel(false);
        let answer = async move {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => http::loading::serve(listener, log, ending).await,
                Err(error) => tracing::warn!(%error, "requests wait while the model is loaded"),
            }
        };
        let thread = std::thread::Builder::new().name("loading".into()).spawn(move || runtime.block_on(answer));
        Ok(LoadingServer { end, thread: Some(thread.map_err(failed())?) })
    }
}

impl Drop for LoadingServer {
    fn drop(&mut self) {
        let _ = self.end.send(true);
        // The thread has no result. A panic has printed its message.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Serves until `ended` is sent or dropped, SIGTERM comes, or a model can compute no further step.
/// Then notifies the service manager, finishes the current answers and writes the prompt cache.
/// Returns the expert use.
///
/// # Errors
/// When the system refuses threads, or a group of ranks has ended.
pub fn serve(
    models: Registry,
    listener: TcpListener,
    options: http::AppOptions,
    notifier: Notifier,
    ended: tokio::sync::oneshot::Receiver<()>,
) -> Result<Option<ExpertUse>, Error> {
    let failed = || Error::io(Path::new("the server"), "run");
    // Two threads parse requests and write answers; the engine has its own thread.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(failed())?;
    let models = Arc::new(models);
    let (served, watched) = (Arc::clone(&models), Arc::clone(&models));
    let result = runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let end = async move {
            tokio::select! {
                _ = ended => {}
                () = wait_for_sigterm() => {}
                () = fails(&watched) => {}
            }
            // The server ends even if the service manager does not expect it.
            if let Err(error) = notifier.stopping() {
                tracing::warn!(%error, "the service manager was not notified");
            }
        };
        http::serve(listener, served, options, end).await;
        Ok::<(), io::Error>(())
    });
    // This also closes connections that did not end in time, and abandons grammars in compilation
    // and prompts in preparation.
    runtime.shutdown_timeout(LAST);
    let failure = models.failure();
    let used = models.end();
    result.map_err(failed())?;
    match failure {
        Some(error) => Err(GenerationError::from(error).into()),
        None => Ok(used),
    }
}

/// Waits until a model can compute no further step.
async fn fails(models: &Registry) {
    while models.failure().is_none() {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Waits for SIGTERM; waits for ever if the system cannot report it.
async fn wait_for_sigterm() {
    #[cfg(unix)]
    if let Ok(mut signal) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        signal.recv().await;
        return;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::Mutex;
    use std::time::Instant;

    use super::*;
    use crate::serving::scripted::{Script, host};

    /// Lines of a log, shared with its writer.
    #[derive(Clone, Default)]
    struct SharedLines(Arc<Mutex<Vec<u8>>>);

    impl SharedLines {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for SharedLines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn connect(address: SocketAddr, request: &str) -> TcpStream {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        client
    }

    fn answer(mut client: TcpStream) -> String {
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn requests_are_refused_while_a_model_is_loaded() {
        let listener = listen(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let address = listener.local_addr().unwrap();
        let lines = SharedLines::default();
        let log = RequestLog::new(http::LogFormat::Text, lines.clone()).unwrap();
        let loading = LoadingServer::start(&listener, Some(Arc::new(log))).unwrap();
        let body = "x".repeat(1 << 19);
        let post =
            |path: &str| format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        for (request, kind) in [
            ("GET /health HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), "unavailable_error"),
            (post("/v1/completions"), "unavailable_error"),
            (post("/v1/messages"), "overloaded_error"),
        ] {
            let text = answer(connect(address, &request));
            assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("\r\nretry-after: 2\r\n"), "{text}");
            assert!(text.contains("Loading model") && text.contains(kind), "{text}");
        }
        // A client that sends nothing does not delay the end for long. A client that connects later
        // waits for the server of the model.
        let idle = TcpStream::connect(address).unwrap();
        drop(loading);
        // If the machine is busy, the thread of the log writes its last lines later.
        let is_request = |line: &&str| line.ends_with(": Loading model");
        let deadline = Instant::now() + Duration::from_secs(60);
        while lines.text().lines().filter(is_request).count() < 3 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let written = lines.text();
        let of_requests: Vec<&str> = written.lines().filter(is_request).collect();
        let has = |request: &str| of_requests.iter().filter(|line| line.contains(request)).count() == 1;
        assert!(of_requests.len() == 3 && has(" GET /health 503 ") && has(" POST /v1/messages 503 "), "{written}");
        let later = connect(address, "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let (end, ended) = tokio::sync::oneshot::channel();
        let server = std::thread::spawn(move || {
            let models = Registry::one(host("", Script::new()));
            serve(models, listener, http::AppOptions::default(), Notifier::default(), ended).unwrap();
        });
        let text = answer(later);
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        drop((idle, end));
        server.join().unwrap();
    }
}
