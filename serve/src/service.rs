//! Service: an HTTP server that runs until it is stopped, and finishes its work then.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ixc_generate::Error as GenerationError;
use ixc_generate::expert_use::ExpertUse;

use crate::Error;
use crate::http;
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
