//! Ranks in several processes: `mpirun -n 4 ixc run plan.ixp`.
//!
//! Rank 0 talks to the user. The other ranks repeat its steps, and print nothing but a failure of
//! their own. The program without the feature `mpi` has no connection to other processes.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use ixc_compile::build;
use ixc_generate::loaded_model::{LoadOptions, LoadedModel};
use ixc_transport::handshake::introduce;
use ixc_transport::launch::Launch;
use ixc_transport::{Transport, TransportError};

use super::{Command, Usage, output};

/// Function that reports a failure which no other rank reports.
pub type Report = Arc<dyn Fn(&TransportError) + Send + Sync>;
/// Function that connects this process to the others that were started together.
pub type Connect = fn(Report) -> anyhow::Result<Arc<dyn Transport>>;

/// The connection to the other ranks, if there is one.
static TRANSPORT: OnceLock<Arc<dyn Transport>> = OnceLock::new();

/// Connects this process to the other ranks, if `mpirun` started several and the command runs on
/// several.
///
/// # Errors
/// If the program has no MPI, or if another rank has another version.
pub fn join(command: &Command, connect: Option<Connect>) -> anyhow::Result<()> {
    let Some(launch) = Launch::current().filter(|_| matches!(command, Command::Run(_) | Command::Serve(_))) else {
        return Ok(());
    };
    let Some(connect) = connect else {
        let problem = format!(
            "{} processes were started together, but this program has no MPI: build it with `cargo build --release \
             --features mpi`, or start one process",
            launch.ranks
        );
        return Err(Usage(problem).into());
    };
    let report = |error: &TransportError| output::print_stderr(&output::describe(&error.clone().into()));
    let transport = connect(Arc::new(report))?;
    let transport = TRANSPORT.get_or_init(|| transport);
    if is_follower() {
        output::set_loudness(true, 0);
    }
    Ok(introduce(&**transport, build::version())?)
}

/// Returns the connection to the other ranks.
pub fn transport() -> Option<Arc<dyn Transport>> {
    TRANSPORT.get().cloned()
}

/// Returns whether this process repeats the steps of another one. It then writes no files, and
/// nothing to standard output.
pub fn is_follower() -> bool {
    TRANSPORT.get().is_some_and(|transport| transport.rank() > 0)
}

/// Returns whether another process prints the same error, because ranks are not connected yet.
pub fn is_repetition() -> bool {
    TRANSPORT.get().is_none() && Launch::current().is_some_and(|launch| launch.rank > 0)
}

/// Returns the message of a failure with the number of this rank, unless it is rank 0.
pub fn numbered(message: String) -> String {
    match (TRANSPORT.get().map(|transport| transport.rank()), message.strip_prefix("error: ")) {
        (Some(rank @ 1..), Some(rest)) => format!("error: rank {rank}: {rest}"),
        (None | Some(_), _) => message,
    }
}

/// Returns the number of threads of a rank if several ranks share all processors of this machine.
pub fn threads() -> Option<usize> {
    let local = TRANSPORT.get().and_then(|_| Launch::current()).filter(|launch| launch.local > 1)?.local as usize;
    let all = online_processors();
    let own = std::thread::available_parallelism().map_or(1, usize::from);
    // If `mpirun` gave each rank its own processors, they are this rank's alone.
    (i64::try_from(own).ok() == Some(all)).then(|| (own / local).max(1))
}

/// Returns the number of processors of this machine, also of those that this process may not use.
fn online_processors() -> i64 {
    // SAFETY: it reads a number of the system.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }
}

/// Loads the part of this rank, and repeats the steps of rank 0 until it ends.
///
/// # Errors
/// If the model cannot be loaded, or a step fails.
pub fn follow(path: Option<&Path>, options: &LoadOptions) -> anyhow::Result<()> {
    let mut engine = LoadedModel::open(path, options)?.into_engine();
    Ok(engine.follow()?)
}

/// Ends this rank's part of a run after success. Waits for the other ranks.
///
/// # Errors
/// If another rank fails meanwhile.
pub fn leave() -> anyhow::Result<()> {
    Ok(TRANSPORT.get().map_or(Ok(()), |transport| transport.close())?)
}

/// Ends all ranks after a failure of this one. If a lower rank failed, too, it reports its failure,
/// and this process ends here.
pub fn end(reason: &str) {
    if let Some(transport) = TRANSPORT.get() {
        transport.end(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_all_processors_of_a_process() {
        let own = std::thread::available_parallelism().unwrap().get();
        assert!(online_processors() >= i64::try_from(own).unwrap());
    }
}
