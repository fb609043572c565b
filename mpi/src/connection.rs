//! The start and end of MPI in this process.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use std::{fmt, mem, thread};

use ixc_transport::launch::Launch;
use ixc_transport::linked::{FailureHandler, LinkedTransport};
use ixc_transport::{Transport, TransportError};
use mpi::Threading;
use mpi::environment::Universe;
use mpi::traits::Communicator;

use crate::library::{abort, return_errors};
use crate::mpi_link::MpiLink;

/// Time in which all ranks must start. MPI waits for all of them.
const START: Duration = Duration::from_secs(60);
/// Time in which MPI must end after all ranks left.
const END: Duration = Duration::from_secs(8);
/// Time in which `mpirun` forwards a message, before other ranks end. Later it drops messages.
const FORWARD: Duration = Duration::from_millis(200);
/// Time in which the rank that ended the group reports the reason.
const REPORT: Duration = Duration::from_millis(700);
/// Variable of Open MPI. With more ranks than processors, each of its calls would yield its
/// processor, which takes milliseconds each. The transport yields by itself.
const YIELD: &str = "OMPI_MCA_mpi_yield_when_idle";
/// Exit status of a rank that ends because of another rank, or of the network (`EX_IOERR`).
const STATUS: u8 = 74;

/// The reason why this process has no connection to other ranks.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// MPI was initialised before in this process.
    #[error("MPI was initialised before in this process")]
    Initialised,
    /// The MPI library cannot be called from several threads.
    #[error("this MPI library supports {found:?}; expected at least {expected:?}, since several threads send messages")]
    Threads {
        /// Support of the library.
        found: Threading,
        /// Support that is needed.
        expected: Threading,
    },
    /// MPI failed.
    #[error(transparent)]
    Library(#[from] ixc_transport::link::LinkError),
    /// The system has no thread for heartbeats.
    #[error("the system refuses a thread for heartbeats")]
    Thread(#[source] std::io::Error),
}

/// Function that prints a failure which no other rank reports.
pub type Report = Arc<dyn Fn(&TransportError) + Send + Sync>;

/// Connects this process to all that `mpirun` started with it. Call it on the main thread, once.
/// [`Transport::close`] must be called on the main thread, too.
///
/// When another rank or the network fails, all processes end, and one of them calls `report`.
///
/// # Errors
/// Fails if MPI does, or if it cannot be called from several threads.
pub fn connect(report: Report) -> Result<Arc<dyn Transport>, ConnectError> {
    if std::env::var_os(YIELD).is_none() {
        // SAFETY: no other thread of this process reads or changes variables while it starts.
        unsafe { std::env::set_var(YIELD, "0") };
    }
    let rank = Launch::current().map_or(0, |launch| launch.rank);
    let initialise = || mpi::initialize_with_threading(Threading::Serialized);
    let (universe, found) = within(START, rank, &report, initialise).ok_or(ConnectError::Initialised)?;
    if found < Threading::Serialized {
        return Err(ConnectError::Threads { found, expected: Threading::Serialized });
    }
    return_errors()?;
    let world = universe.world();
    let [rank, ranks] = [world.rank(), world.size()].map(i32::unsigned_abs);
    let link = MpiLink::new(EndingUniverse { universe, rank, report: Arc::clone(&report) }, rank, ranks);
    let report = move |error: &TransportError| {
        report(error);
        thread::sleep(FORWARD);
    };
    let handler = FailureHandler { report: Box::new(report), react: Box::new(end_process) };
    Ok(Arc::new(LinkedTransport::new(link, handler).map_err(ConnectError::Thread)?))
}

/// MPI in this process. Its end has a limit of time, because a rank may fail even then.
pub(crate) struct EndingUniverse {
    universe: Universe,
    rank: u32,
    report: Report,
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
fn within<T>(limit: Duration, rank: u32, report: &Report, call: impl FnOnce() -> T) -> T {
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
fn end_process(error: &TransportError) {
    match error {
        // `mpirun` ends all processes after the first one. The reporting rank must be earlier.
        TransportError::Ended { .. } => thread::sleep(REPORT),
        // MPI hangs in another call.
        TransportError::Stuck { .. } => {}
        // A stopped process does not end by itself: MPI ends all of them.
        TransportError::Peer { .. }
        | TransportError::Length { .. }
        | TransportError::Sequence { .. }
        | TransportError::Control { .. }
        | TransportError::Silent { .. }
        | TransportError::Link { .. } => abort(STATUS),
    }
    // SAFETY: it only ends the process. MPI's own end would wait for the rank that failed.
    unsafe { libc::_exit(STATUS.into()) }
}
