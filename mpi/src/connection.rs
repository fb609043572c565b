//! The start of MPI in this process.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ixc_transport::launch::Launch;
use ixc_transport::linked::{FailureHandler, LinkedTransport};
use ixc_transport::{Transport, TransportError};
use mpi::Threading;
use mpi::traits::Communicator;

use crate::ending::{EndingUniverse, Report, end_process, within};
use crate::library::return_errors;
use crate::mpi_link::MpiLink;

/// Time in which all ranks must start. MPI waits for all of them.
const START: Duration = Duration::from_secs(60);
/// Time in which `mpirun` forwards a message, before other ranks end. Later it drops messages.
const FORWARD: Duration = Duration::from_millis(200);
/// Variable of Open MPI. With more ranks than processors, each of its calls would yield its
/// processor, which takes milliseconds each. The transport yields by itself.
const YIELD: &str = "OMPI_MCA_mpi_yield_when_idle";

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
