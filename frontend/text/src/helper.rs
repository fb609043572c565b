//! Helper processes. A helper is a second instance of this program that performs one untrusted
//! task.
//!
//! ```text
//! parent  starts the helper ── request to stdin ──▶ waits, or kills the helper if cancelled
//! helper  closes inherited files ▶ reads the request ▶ limits itself ▶ works ▶ answer to stdout
//! ```
//!
//! Helpers render chat templates ([`crate::template`]) and compile a grammar for the first time. A
//! stack overflow, refused memory or an endless loop ends only the helper. The parent returns each
//! such end as a [`Death`]. A process that may not start programs starts helpers through a
//! [`crate::launcher`].
//!
//! Invariant: the helper opens and writes no file, starts no process, and gains no rights. If the
//! kernel has Landlock and seccomp, they enforce this ([`ixc_sandbox`]).

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ixc_sandbox::support::Support;
use ixc_sandbox::{Role, files, filter, process};

use crate::launcher::{Channel, HELPER_VARIABLE, LaunchedHelper, launch};

/// Maximum number of bytes that are read from a helper's standard error.
const MAX_COMPLAINT_BYTES: u64 = 16 << 10;
/// Address space that a helper needs in addition to stack and heap, in bytes: the program itself,
/// and reservations of the allocator.
const RESERVED_BYTES: u64 = 1 << 30;
/// Period at which the parent checks whether the request was cancelled.
const POLL_PERIOD: Duration = Duration::from_millis(20);

/// Limits of a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of the stack of the helper's thread in bytes.
    pub stack_bytes: u64,
    /// Maximum memory in addition to the stack, in bytes.
    pub memory_bytes: u64,
    /// Max processor time, in seconds.
    pub cpu_seconds: u64,
    /// Niceness, from 0 to 19.
    pub niceness: i32,
}

/// Reason why a helper returned no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Death {
    /// The system did not start the helper.
    Start {
        /// Reason why the helper did not start.
        reason: String,
    },
    /// The system refused memory to the helper.
    Memory,
    /// The helper's stack overflowed.
    Stack,
    /// The helper exceeded its processor time.
    Time,
    /// The parent cancelled the request.
    Unwanted,
    /// The helper failed for another reason.
    Failed {
        /// Text that describes the reason.
        reason: String,
    },
}

/// Returns the path with which the running program can be started as a helper. On Linux, it refers
/// to the open file, which stays valid if an upgrade replaces the program. On other systems, it is
/// the program's path.
///
/// # Errors
/// When the system does not provide the path.
pub fn own_program() -> io::Result<PathBuf> {
    let open = Path::new("/proc/self/exe");
    // If /proc is not mounted, the program's path is used.
    if open.exists() { Ok(open.into()) } else { std::env::current_exe() }
}

/// Starts a helper, and waits for its answer, which has at most `answer_bytes` bytes. Kills the
/// helper as soon as `is_wanted` returns false.
///
/// # Errors
/// See [`Death`].
pub fn ask(
    program: &Path,
    argument: &str,
    request: &[u8],
    answer_bytes: u64,
    is_wanted: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<u8>, Death> {
    let failed = |what: &str, error: &dyn std::fmt::Display| Death::Failed { reason: format!("{what}: {error}") };
    if std::env::var_os(HELPER_VARIABLE).is_some() {
        return Err(failed(argument, &"the program does not serve this argument first"));
    }
    let HelperProcess { stdin, stdout, stderr, process } = HelperProcess::launch(program, argument)?;
    let (written, answer, complaint, wanted) = std::thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        let process = &process;
        let watch = scope.spawn(move || kill_unwanted(process, &ended, is_wanted));
        // The helper reads its whole input before it writes, so writing first cannot block. If the
        // helper has already ended, writing fails, but its exit status is more informative.
        let written = { stdin }.write_all(request);
        let answer = read_up_to(stdout, answer_bytes);
        let complaint = read_up_to(stderr, MAX_COMPLAINT_BYTES);
        drop(end);
        (written, answer, complaint, watch.join().unwrap_or(true))
    });
    let status = process.wait().map_err(|error| failed("helper", &error))?;
    if !wanted {
        return Err(Death::Unwanted);
    }
    let complaint = String::from_utf8_lossy(&complaint.unwrap_or_default()).into_owned();
    if !status.success() {
        return Err(death(status, &complaint));
    }
    written.map_err(|error| failed("request", &error))?;
    answer.map_err(|error| failed("answer", &error))
}

/// Helper that was started, with the pipes to it.
struct HelperProcess {
    stdin: PipeWriter,
    stdout: PipeReader,
    stderr: PipeReader,
    process: Process,
}

impl HelperProcess {
    /// Starts a helper through the launcher, if this process has one, otherwise as a program.
    fn launch(program: &Path, argument: &str) -> Result<HelperProcess, Death> {
        let refused =
            |error: io::Error| Death::Start { reason: format!("cannot start {}: {error}", program.display()) };
        if let Some(launched) = launch(argument) {
            let LaunchedHelper { stdin, stdout, stderr, channel } = launched.map_err(refused)?;
            return Ok(HelperProcess { stdin, stdout, stderr, process: Process::Launched(channel) });
        }
        let mut child = Command::new(program)
            .arg(argument)
            .env_clear()
            .env(HELPER_VARIABLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(refused)?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(refused(io::ErrorKind::BrokenPipe.into()));
        };
        Ok(HelperProcess {
            stdin: OwnedFd::from(stdin).into(),
            stdout: OwnedFd::from(stdout).into(),
            stderr: OwnedFd::from(stderr).into(),
            process: Process::Child(Mutex::new(child)),
        })
    }
}

/// Process of a helper.
enum Process {
    /// Child process of this process.
    Child(Mutex<Child>),
    /// Process that the launcher started.
    Launched(Channel),
}

impl Process {
    /// Kills the helper, if it has not ended.
    fn kill(&self) {
        match self {
            // Killing fails if the helper has already ended, which is fine.
            Process::Child(child) => drop(child.lock().unwrap_or_else(PoisonError::into_inner).kill()),
            Process::Launched(channel) => channel.kill(),
        }
    }

    /// Waits until the helper has ended.
    fn wait(self) -> io::Result<ExitStatus> {
        match self {
            Process::Child(child) => child.into_inner().unwrap_or_else(PoisonError::into_inner).wait(),
            Process::Launched(channel) => channel.wait(),
        }
    }
}

/// Kills a helper as soon as `is_wanted` returns false. Returns whether the helper ended before
/// that.
fn kill_unwanted(process: &Process, ended: &Receiver<()>, is_wanted: &(dyn Fn() -> bool + Sync)) -> bool {
    loop {
        match ended.recv_timeout(POLL_PERIOD) {
            Err(RecvTimeoutError::Timeout) if is_wanted() => {}
            Err(RecvTimeoutError::Timeout) => {
                process.kill();
                return false;
            }
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return true,
        }
    }
}

/// Reads at most `limit` bytes, then closes the pipe.
fn read_up_to(from: PipeReader, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the reason why a helper died, from its status and its standard error. Rust's runtime
/// reports stack overflows and refused memory only as text.
fn death(status: ExitStatus, complaint: &str) -> Death {
    if complaint.contains("memory allocation of") || complaint.contains("capacity overflow") {
        return Death::Memory;
    }
    if complaint.contains("overflowed its stack") {
        return Death::Stack;
    }
    if let Some(libc::SIGXCPU | libc::SIGKILL) = status.signal() {
        return Death::Time;
    }
    let first_line: String = complaint.lines().next().unwrap_or_default().chars().take(200).collect();
    Death::Failed { reason: format!("the helper process ended with {status}: {first_line}") }
}

/// Runs the helper's side. It reads the request from standard input, and `parse` returns the task
/// and its limits. It then limits this process, works, and writes the answer. Call it before
/// anything else is set up.
pub fn serve<R>(parse: impl FnOnce(&[u8]) -> io::Result<(R, Limits)>, work: impl FnOnce(R) -> Vec<u8>) -> ExitCode {
    let answer = || -> io::Result<Vec<u8>> {
        close_what_was_inherited();
        let mut request = Vec::new();
        io::stdin().lock().read_to_end(&mut request)?;
        let (parsed, limits) = parse(&request)?;
        drop(request);
        // Landlock's rules need a file descriptor, so they come before the limits. The seccomp
        // filter forbids setting limits, so it comes after them.
        files::confine_all().and_then(|()| process::drop_all_capabilities()).map_err(io::Error::other)?;
        limit_this_process(limits)?;
        if Support::of_kernel().seccomp {
            filter::install(Role::Helper).map_err(io::Error::other)?;
        }
        Ok(work(parsed))
    };
    let written = answer().and_then(|answer| {
        let mut out = io::stdout().lock();
        out.write_all(&answer).and_then(|()| out.flush())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The parent reads the first line of standard error.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// Closes all descriptors except the three standard ones, so that the task cannot use files that
/// the parent left open.
fn close_what_was_inherited() {
    #[cfg(target_os = "linux")]
    // SAFETY: this process uses no other descriptor, so no descriptor in use is closed.
    // Kernels before 5.9 lack the call and return an error, which does no harm.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32);
    }
}

/// Sets the limits of this process. They cannot be raised again.
fn limit_this_process(limits: Limits) -> io::Result<()> {
    let data = limits.stack_bytes.saturating_add(limits.memory_bytes);
    let (space, niceness) = (data.saturating_add(RESERVED_BYTES), limits.niceness);
    let limits = [
        (libc::RLIMIT_CORE, 0, 0),
        // No file may be opened or written. The number of threads is not limited, as the task has
        // its own thread.
        (libc::RLIMIT_NOFILE, 0, 0),
        (libc::RLIMIT_FSIZE, 0, 0),
        // At the soft limit, SIGXCPU ends the process. If it survives, SIGKILL ends it at the hard
        // limit.
        (libc::RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds.saturating_add(1)),
        (libc::RLIMIT_DATA, data, data),
        // This limits memory on systems where mappings do not count as data.
        (libc::RLIMIT_AS, space, space),
    ];
    // SAFETY: takes a number only. If the call fails, the helper keeps the normal priority.
    unsafe {
        libc::nice(niceness);
    }
    for (resource, soft, hard) in limits {
        let mut limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
        let mut inherited = libc::rlimit { rlim_cur: 0, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the call writes to `inherited`, which outlives it.
        if unsafe { libc::getrlimit(resource, &mut inherited) } == 0 {
            // A process without privileges cannot raise inherited hard limits, so they are kept.
            limit.rlim_max = hard.min(inherited.rlim_max);
            limit.rlim_cur = soft.min(limit.rlim_max);
        }
        // SAFETY: `limit` is a valid rlimit for the time of the call, which reads it and keeps no
        // pointer.
        if unsafe { libc::setrlimit(resource, &limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
