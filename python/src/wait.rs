//! Waiting for work of other threads, without the GIL.

use std::future::Future;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use ixc::error::Class;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::failure;

/// Longest time between Ctrl-C and its exception.
const SIGNALS: Duration = Duration::from_millis(50);

/// Returns the runtime of this process, which runs requests and blocking work.
fn runtime(py: Python<'_>) -> PyResult<&'static Runtime> {
    static RUNTIME: OnceLock<io::Result<Runtime>> = OnceLock::new();
    let start = || Builder::new_multi_thread().worker_threads(2).thread_name("ixc").enable_all().build();
    // Other threads may start the runtime, which needs no GIL.
    let runtime = py.detach(|| RUNTIME.get_or_init(start).as_ref());
    runtime.map_err(|error| {
        failure::exception(py, Class::Unavailable, &format!("cannot start threads that wait for results: {error}"))
    })
}

/// Waits for a result, and runs Python's signal handlers meanwhile. An exception of a handler drops
/// the work.
pub(crate) fn wait<T: Send>(py: Python<'_>, work: impl Future<Output = T> + Send) -> PyResult<T> {
    let (runtime, mut work) = (runtime(py)?, Box::pin(work));
    loop {
        match py.detach(|| runtime.block_on(async { timeout(SIGNALS, &mut work).await })) {
            Ok(result) => return Ok(result),
            Err(_) => py.check_signals()?,
        }
    }
}

/// Runs blocking work in another thread, and waits for its result. After Ctrl-C the work continues,
/// and its result is dropped.
pub(crate) fn run<T: Send + 'static>(py: Python<'_>, work: impl FnOnce() -> T + Send + 'static) -> PyResult<T> {
    let running = runtime(py)?.spawn_blocking(work);
    let result = wait(py, running)?;
    result.map_err(|error| failure::exception(py, Class::Failed, &format!("ixc failed: {error}")))
}
