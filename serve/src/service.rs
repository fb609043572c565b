//! Service: an HTTP server that runs until it is stopped, and finishes its work then.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use ixc_generate::expert_use::ExpertUse;

use crate::http;
use crate::serving::Registry;
use crate::supervisor::Notifier;

/// Time limit for threads with abandoned work to end.
const LAST: Duration = Duration::from_secs(1);

/// Listens on the first of these addresses that the system accepts.
///
/// # Errors
/// When the system refuses all addresses.
pub fn listen(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(addresses)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves until `ended` is sent or dropped, or SIGTERM comes. Then notifies the service manager,
/// finishes the current answers and writes the prompt cache. Returns the expert use.
///
/// # Errors
/// When the system refuses threads.
pub fn serve(
    models: Registry,
    listener: TcpListener,
    options: http::Options,
    notifier: Notifier,
    ended: tokio::sync::oneshot::Receiver<()>,
) -> io::Result<Option<ExpertUse>> {
    // Two threads parse requests and write answers; the engine has its own thread.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let models = Arc::new(models);
    let served = Arc::clone(&models);
    let result = runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let end = async move {
            tokio::select! {
                _ = ended => {}
                () = terminated() => {}
            }
            // The server ends even if the service manager does not expect it.
            if let Err(error) = notifier.stopping() {
                tracing::warn!(%error, "the service manager was not notified");
            }
        };
        http::serve(listener, served, options, end).await;
        Ok(())
    });
    // This also closes connections that did not end in time, and abandons grammars in compilation
    // and prompts in preparation.
    runtime.shutdown_timeout(LAST);
    let used = models.end();
    result.map(|()| used)
}

/// Waits for SIGTERM; waits for ever if the system cannot report it.
async fn terminated() {
    #[cfg(unix)]
    if let Ok(mut signal) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        signal.recv().await;
        return;
    }
    std::future::pending().await
}
