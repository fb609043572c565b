//! Finalisation of MPI in this process, after a run or after a failure.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use std::{fmt, mem, thread};

use ixc_transport::TransportError;
use ixc_transport::linked::REPORTED;
use mpi::environment::Universe;

use crate::library::abort;

/// Maximum time for the finalisation of MPI after all ranks have left the group.
const END: Duration = Duration::from_secs(8);
/// Maximum time for MPI's abort after a failure. Then this process exits, and `mpirun` ends the
/// other processes.
const ABORT: Duration = Duration::from_secs(1);
/// Exit status (`EX_IOERR`) of a rank that ends because another rank or the network failed.
const STATUS: u8 = 74;

/// Function that prints a failure that no other rank reports.
pub type Report = Arc<dyn Fn(&TransportError) + Send + Sync>;

/// The initialised MPI of this process. Its finalisation has a time limit, because another rank may
/// fail during it.
pub(crate) struct EndingUniverse {
    pub universe: Universe,
    pub rank: u32,
    pub report: Report,
}

impl fmt::Debug for EndingUniverse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndingUniverse").finish_non_exhaustive()
    }
}

impl EndingUniverse {
    /// Finalises MPI in this process, within a time limit.
    pub fn end(self) {
        within(END, self.rank, &self.report, || drop(self.universe));
    }

    /// Leaves MPI without finalising it. The finalisation would wait for other ranks, which may
    /// have failed.
    pub fn abandon(self) {
        mem::forget(self.universe);
    }
}

/// Calls an MPI function that waits for other ranks. Ends the process if the function takes longer
/// than `limit`.
pub(crate) fn within<T>(limit: Duration, rank: u32, report: &Report, call: impl FnOnce() -> T) -> T {
    let (done, is_done) = channel::<()>();
    let report = Arc::clone(report);
    let watch = move || {
        if is_done.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            let error = TransportError::Stuck { rank, seconds: limit.as_secs() };
            report(&error);
            end_process(&error);
        }
    };
    // If the thread cannot be started, the call has no time limit.
    let _ = thread::Builder::new().name("mpi-watch".into()).spawn(watch);
    let result = call();
    drop(done);
    result
}

/// Ends this process after a failure of another rank or of the network.
pub(crate) fn end_process(error: &TransportError) {
    match error {
        // When the first process ends, `mpirun` ends all others. This rank waits, so that the rank
        // that reports the failure and the rank that ended the group exit first.
        TransportError::Ended { .. } => thread::sleep(REPORTED),
        // MPI hangs in another call, so it is not called again.
        TransportError::Stuck { .. } => {}
        // A process that is stopped or hangs does not end by itself. MPI's abort ends all
        // processes, unless MPI hangs.
        TransportError::Peer { .. }
        | TransportError::Length { .. }
        | TransportError::Sequence { .. }
        | TransportError::Control { .. }
        | TransportError::Silent { .. }
        | TransportError::Link { .. } => {
            let watch = || {
                thread::sleep(ABORT);
                exit()
            };
            // If the thread cannot be started, the abort has no time limit.
            let _ = thread::Builder::new().name("mpi-abort".into()).spawn(watch);
            abort(STATUS);
        }
    }
    exit()
}

/// Ends this process at once, without finalising MPI.
fn exit() -> ! {
    // SAFETY: the call only ends the process. Finalising MPI would wait for the rank that failed.
    unsafe { libc::_exit(STATUS.into()) }
}
