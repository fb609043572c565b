//! The end of MPI in this process, after a run or a failure.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use std::{fmt, mem, thread};

use ixc_transport::TransportError;
use ixc_transport::linked::REPORTED;
use mpi::environment::Universe;

use crate::library::abort;

/// Time in which MPI must end after all ranks left.
const END: Duration = Duration::from_secs(8);
/// Time in which MPI must end all processes after a failure. `mpirun` then ends the others.
const ABORT: Duration = Duration::from_secs(1);
/// Exit status of a rank that ends because of another rank, or of the network (`EX_IOERR`).
const STATUS: u8 = 74;

/// Function that prints a failure which no other rank reports.
pub type Report = Arc<dyn Fn(&TransportError) + Send + Sync>;

/// MPI in this process. Its end has a limit of time, because a rank may fail even then.
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
    /// Ends MPI in this process.
    pub fn end(self) {
        within(END, self.rank, &self.report, || drop(self.universe));
    }

    /// Leaves MPI as it is. Its end would wait for other ranks, which may have failed.
    pub fn abandon(self) {
        mem::forget(self.universe);
    }
}

/// Calls a function of MPI that waits for other ranks. Ends the process if it takes too long.
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
    // Without this thread, the call has no limit.
    let _ = thread::Builder::new().name("mpi-watch".into()).spawn(watch);
    let result = call();
    drop(done);
    result
}

/// Ends this process after a failure of the group.
pub(crate) fn end_process(error: &TransportError) {
    match error {
        // `mpirun` ends all processes after the first one. The reporting rank and the one that
        // ended the group must be earlier.
        TransportError::Ended { .. } => thread::sleep(REPORTED),
        // MPI hangs in another call.
        TransportError::Stuck { .. } => {}
        // A stopped process does not end by itself: MPI ends all of them, unless it hangs.
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
            // Without this thread, the call has no limit.
            let _ = thread::Builder::new().name("mpi-abort".into()).spawn(watch);
            abort(STATUS);
        }
    }
    exit()
}

/// Ends this process at once.
fn exit() -> ! {
    // SAFETY: it only ends the process. MPI's own end would wait for the rank that failed.
    unsafe { libc::_exit(STATUS.into()) }
}
