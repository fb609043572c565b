//! A helper: this program once more, in a process of its own that does one piece of work and may
//! die of it.
//!
//! ```text
//! parent  starts the helper ── request on its standard input ──▶ waits, or kills it where nobody wants the answer
//! helper  closes what it inherited ▶ reads all ▶ limits itself for good ▶ works ▶ answer on its standard output
//! ```
//!
//! Templates are rendered so ([`crate::template`]), and grammars compiled for the first time. Stack
//! overflows, refused memory and endless loops of the work end the helper, and its parent turns
//! each into a [`Death`].
//!
//! Invariant: the helper opens no file, writes none, and gains no rights.

use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Most that is read of a helper's complaints.
const MAX_COMPLAINT_BYTES: u64 = 16 << 10;
/// Address space beside stack and heap: the program itself, and what the allocator reserves without
/// using it.
const RESERVED_BYTES: u64 = 1 << 30;
/// Set in a helper: one that asks a helper itself does not know its argument, and would go on so
/// for ever.
const HELPING: &str = "IXC_RENDERING";
/// Period of the parent's checks whether the answer is still wanted.
const LOOK: Duration = Duration::from_millis(20);

/// Limits of a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Stack of its thread.
    pub stack_bytes: u64,
    /// Memory besides.
    pub memory_bytes: u64,
    /// Processor time.
    pub cpu_seconds: u64,
    /// Niceness, from 0 to 19.
    pub niceness: i32,
}

/// Why a helper gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Death {
    /// The system did not start the helper.
    Start {
        /// Why.
        reason: String,
    },
    /// The system refused memory.
    Memory,
    /// The stack was full.
    Stack,
    /// The time limit was passed.
    Time,
    /// The answer was not wanted any more.
    Unwanted,
    /// Something else.
    Failed {
        /// Message for people.
        reason: String,
    },
}

/// The program that runs, to be started once more as the helper: on Linux the open file that it was
/// started from, which is there also after an upgrade has put another in its place; elsewhere its
/// path.
///
/// # Errors
/// When the system does not say where it is.
pub fn own_program() -> io::Result<PathBuf> {
    let open = Path::new("/proc/self/exe");
    // Where there is no /proc the path will do.
    if open.exists() { Ok(open.into()) } else { std::env::current_exe() }
}

/// Asks a helper, and waits for at most `answer_bytes` of an answer. It is killed when `is_wanted`
/// says no.
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
    if std::env::var_os(HELPING).is_some() {
        return Err(failed(argument, &"the program does not serve this argument first"));
    }
    let mut child = Command::new(program)
        .arg(argument)
        .env_clear()
        .env(HELPING, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Death::Start { reason: format!("cannot start {}: {error}", program.display()) })?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let child = Mutex::new(child);
    let (written, answer, complaint, wanted) = std::thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        let child = &child;
        let watch = scope.spawn(move || kill_unwanted(child, &ended, is_wanted));
        // The helper reads its whole input before it writes, so one after the other cannot block.
        // It may also be dead by now, which its status tells better than a broken pipe.
        let written = stdin.map_or(Ok(()), |mut stdin| stdin.write_all(request));
        let answer = read_up_to(stdout, answer_bytes);
        let complaint = read_up_to(stderr, MAX_COMPLAINT_BYTES);
        drop(end);
        (written, answer, complaint, watch.join().unwrap_or(true))
    });
    let mut child = child.into_inner().unwrap_or_else(PoisonError::into_inner);
    let status = child.wait().map_err(|error| failed("helper", &error))?;
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

/// Kills a helper whose answer is not wanted any more; whether it was wanted to the end.
fn kill_unwanted(child: &Mutex<Child>, ended: &Receiver<()>, is_wanted: &(dyn Fn() -> bool + Sync)) -> bool {
    loop {
        match ended.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) if is_wanted() => {}
            Err(RecvTimeoutError::Timeout) => {
                // It may have ended by itself.
                let _ = child.lock().unwrap_or_else(PoisonError::into_inner).kill();
                return false;
            }
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return true,
        }
    }
}

/// Reads all, or as much as may be; what comes after is dropped and with it the pipe.
fn read_up_to(from: Option<impl Read>, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(limit).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Reads the cause of death from a helper's complaint. The words are those of Rust's runtime, which has no other way to say it.
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
    Death::Failed { reason: format!("the helper ended with {status}: {first_line}") }
}

/// Does a helper's whole work: reads the request from standard input, has it parsed together with
/// its limits, limits this process for good, and writes the answer. Called before anything else is
/// set up.
pub fn serve<R>(parse: impl FnOnce(&[u8]) -> io::Result<(R, Limits)>, work: impl FnOnce(R) -> Vec<u8>) -> ExitCode {
    let answer = || -> io::Result<Vec<u8>> {
        close_what_was_inherited();
        let mut request = Vec::new();
        io::stdin().lock().read_to_end(&mut request)?;
        let (parsed, limits) = parse(&request)?;
        drop(request);
        limit_this_process(limits)?;
        Ok(work(parsed))
    };
    let written = answer().and_then(|answer| {
        let mut out = io::stdout().lock();
        out.write_all(&answer).and_then(|()| out.flush())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Its parent reads the first line.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// Closes every descriptor but the three standard ones: what the caller left open is no concern of
/// the work's.
fn close_what_was_inherited() {
    #[cfg(target_os = "linux")]
    // SAFETY: nothing in this process has opened a descriptor of its own yet, so that none is
    // closed that somebody uses. Kernels before 5.9 have no such call and refuse it, which does no
    // harm.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32);
    }
}

/// Sets the limits of this process; they cannot be raised again.
fn limit_this_process(limits: Limits) -> io::Result<()> {
    let data = limits.stack_bytes.saturating_add(limits.memory_bytes);
    let (space, niceness) = (data.saturating_add(RESERVED_BYTES), limits.niceness);
    let limits = [
        (libc::RLIMIT_CORE, 0, 0),
        // No file is opened, none is written; threads are left, work has one of its own.
        (libc::RLIMIT_NOFILE, 0, 0),
        (libc::RLIMIT_FSIZE, 0, 0),
        // Soft: SIGXCPU ends the process. Hard, should it live: SIGKILL.
        (libc::RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds.saturating_add(1)),
        (libc::RLIMIT_DATA, data, data),
        // For systems that count no mappings as data.
        (libc::RLIMIT_AS, space, space),
    ];
    // Nothing that is executed from here on gains a right by it.
    #[cfg(target_os = "linux")]
    // SAFETY: takes numbers only.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    }
    // SAFETY: takes a number only. Where it is refused the helper is as fast as others.
    unsafe {
        libc::nice(niceness);
    }
    for (resource, soft, hard) in limits {
        let mut limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
        let mut inherited = libc::rlimit { rlim_cur: 0, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the call writes to `inherited`, which outlives it.
        if unsafe { libc::getrlimit(resource, &mut inherited) } == 0 {
            // A process without privileges cannot raise a limit that it inherited.
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
