//! Ranks in several processes: `mpirun -n 4 ixc run plan.ixp`.
//!
//! Rank 0 talks to the user. The other ranks repeat its steps, and print nothing but a failure of
//! their own. The program without the feature `mpi` has no connection to other processes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use ixc_compile::build;
use ixc_generate::loaded_model::{LoadOptions, LoadedModel};
use ixc_transport::handshake::introduce;
use ixc_transport::launch::Launch;
use ixc_transport::{Transport, TransportError};

use super::{Command, Usage, interrupt, output};

/// Function that reports a failure which no other rank reports.
pub type Report = Arc<dyn Fn(&TransportError) + Send + Sync>;
/// Function that connects this process to the others that were started together.
pub type Connect = fn(Report) -> anyhow::Result<Arc<dyn Transport>>;

/// The connection to the other ranks, if there is one.
static TRANSPORT: OnceLock<Arc<dyn Transport>> = OnceLock::new();
/// Whether this process has reported its failure, or must not report one.
static IS_REPORTED: AtomicBool = AtomicBool::new(false);

/// Connects this process to the other ranks, if `mpirun` started several and the command runs on
/// several.
///
/// # Errors
/// If the program has no MPI, or if another rank has another version.
pub fn join(command: &Command, connect: Option<Connect>) -> anyhow::Result<()> {
    let Some(launch) = Launch::current().filter(|_| runs_on_ranks(command)) else {
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
    let transport = connect(Arc::new(report))?;
    let transport = TRANSPORT.get_or_init(|| transport);
    interrupt::before_end(|| end_silently("the run was interrupted"));
    if is_follower() {
        output::set_loudness(true, 0);
        // `mpirun` sends Ctrl-C to all ranks. Rank 0 then ends all of them.
        ignore_interrupts();
        #[cfg(unix)]
        if matches!(command, Command::Serve(_)) {
            ignore_sigterm();
        }
    }
    Ok(introduce(&**transport, build::version())?)
}

/// Returns whether the processes that `mpirun` started run a command together.
fn runs_on_ranks(command: &Command) -> bool {
    match command {
        Command::Run(_) | Command::Serve(_) => true,
        Command::Bench(args) => args.measures(),
        Command::Doctor(args) => args.measures_links(),
        _ => false,
    }
}

/// Returns the connection to the other ranks.
pub fn transport() -> Option<Arc<dyn Transport>> {
    TRANSPORT.get().cloned()
}

/// Returns whether this process repeats the steps of rank 0. It then writes no files, and nothing
/// to standard output.
pub fn is_follower() -> bool {
    TRANSPORT.get().is_some_and(|transport| transport.rank() > 0)
}

/// Returns whether another process prints the same error, because ranks are not connected yet.
pub fn is_repetition() -> bool {
    TRANSPORT.get().is_none() && Launch::current().is_some_and(|launch| launch.rank > 0)
}

/// Prints a failure that no other rank prints: a rank ended all ranks, or the connection to a rank
/// was lost.
fn report(error: &TransportError) {
    if !IS_REPORTED.swap(true, Ordering::Relaxed) {
        output::print_stderr(&match error {
            TransportError::Ended { by, reason } => with_rank(format!("error: {reason}"), *by),
            error => output::describe(&error.clone().into()),
        });
    }
}

/// Returns the message of a failure with the number of its rank, unless it is rank 0.
fn with_rank(message: String, rank: u32) -> String {
    match (rank, message.strip_prefix("error: ")) {
        (1.., Some(rest)) => format!("error: rank {rank}: {rest}"),
        _ => message,
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

/// Ignores SIGTERM on a rank that repeats the steps of rank 0. `mpirun` sends the signal to all
/// ranks, and rank 0 ends all of them after its running answers.
#[cfg(unix)]
fn ignore_sigterm() {
    // SAFETY: it changes only the action of this signal. If the system refuses, nothing changes.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
}

/// Ignores Ctrl-C on a rank that repeats the steps of rank 0, which ends all ranks.
fn ignore_interrupts() {
    interrupt::on_next(ignore_interrupts);
}

/// Returns the number of processors of this machine, also of those that this process may not use.
fn online_processors() -> i64 {
    // SAFETY: it reads a number of the system.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }
}

/// Loads this rank's part of the model, and repeats the steps of rank 0 until it ends.
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

/// Ends all ranks after a failure of this one. Rank 0 prints this rank's message, unless rank 0 has
/// failed, too. If a lower rank failed first, this process ends here.
pub fn end(message: String) {
    if let Some(transport) = TRANSPORT.get() {
        transport.end(message.trim_start_matches("error: "));
        if transport.is_end_reported() {
            return;
        }
    }
    if !IS_REPORTED.swap(true, Ordering::Relaxed) {
        let rank = TRANSPORT.get().map(|transport| transport.rank());
        let rank = rank.or_else(|| Launch::current().map(|launch| launch.rank));
        output::print_stderr(&with_rank(message, rank.unwrap_or(0)));
    }
}

/// Ends all ranks without a message, such as after Ctrl-C.
pub fn end_silently(reason: &str) {
    if let Some(transport) = TRANSPORT.get() {
        IS_REPORTED.store(true, Ordering::Relaxed);
        transport.end(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_ranks_than_rank_0_have_their_number_in_a_message() {
        let message = || "error: the drive is full".to_owned();
        assert_eq!(with_rank(message(), 0), "error: the drive is full");
        assert_eq!(with_rank(message(), 3), "error: rank 3: the drive is full");
    }

    #[test]
    fn a_machine_has_all_processors_of_a_process() {
        let own = std::thread::available_parallelism().unwrap().get();
        assert!(online_processors() >= i64::try_from(own).unwrap());
    }
}
