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

/// Maximum time in which all ranks must start. MPI waits for all of them.
const START: Duration = Duration::from_secs(60);
/// Time that `mpirun` gets to forward an error message before other ranks end. After they end, it
/// drops messages.
const FORWARD: Duration = Duration::from_millis(200);
/// Environment variable of Open MPI. If there are more ranks than processors, Open MPI would yield
/// the processor in each call, which takes milliseconds. The transport yields by itself.
const YIELD: &str = "OMPI_MCA_mpi_yield_when_idle";

/// The reason why this process has no connection to other ranks.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// MPI was initialised before in this process.
    #[error("MPI was initialised before in this process")]
    Initialised,
    /// The MPI library does not support calls from several threads.
    #[error("this MPI library supports {found:?}; expected at least {expected:?}, since several threads send messages")]
    Threads {
        /// Thread support that the library reports.
        found: Threading,
        /// Thread support that the transport needs.
        expected: Threading,
    },
    /// An MPI function failed.
    #[error(transparent)]
    Library(#[from] ixc_transport::link::LinkError),
    /// The system could not start the thread for heartbeats.
    #[error("the system cannot start a thread for heartbeats")]
    Thread(#[source] std::io::Error),
}

/// Connects this process to all ranks that `mpirun` started with it. Call it once, on the main
/// thread. [`Transport::close`] must be called on the main thread, too.
///
/// If another rank or the network fails, all processes of the run end, and one of them calls
/// `report`.
///
/// # Errors
/// Fails if MPI fails, or if MPI does not support calls from several threads.
pub fn connect(report: Report) -> Result<Arc<dyn Transport>, ConnectError> {
    if std::env::var_os(YIELD).is_none() {
        // SAFETY: no other thread of this process reads or changes environment variables while the
        // process starts.
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
