//! Running a program: its output, time and peak memory, and the load by other processes.

use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

/// Measured time, memory and exit status of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgramResources {
    /// The exit status; `None` if a signal ended the program.
    pub status: Option<i32>,
    /// Time from before the program's start to its end, in seconds.
    pub seconds: f64,
    /// The most resident memory, including mapped files (`ru_maxrss`).
    pub peak_memory: u64,
    /// Mean number of processors that other processes kept busy meanwhile; near 0 on a quiet
    /// machine.
    pub foreign: f64,
}

/// Output and resources of a program that has ended without an error.
#[derive(Clone, Debug)]
pub struct FinishedProgram {
    /// Standard output of the program.
    pub stdout: String,
    /// Time and memory of the program.
    pub taken: ProgramResources,
}

/// Settings for running programs.
#[derive(Clone, Debug, Default)]
pub struct Launcher {
    /// Command that precedes each program, such as `taskset -c 0,1` or a lock. Its own time does
    /// not count.
    pub prefix: Vec<OsString>,
    /// Time after which a command is ended and counts as failed.
    pub limit: Option<Duration>,
}

impl Launcher {
    /// Runs a command to its end.
    ///
    /// # Errors
    /// If the command cannot be run or fails; the error has its last lines of output.
    pub fn run(&self, command: &[OsString]) -> anyhow::Result<FinishedProgram> {
        let name = command.first().context("there is no command")?;
        let name = Path::new(name).display();
        if self.prefix.is_empty() {
            let (stdout, stderr, taken) =
                run(command, true, self.limit).with_context(|| format!("cannot run {name}"))?;
            check(taken, &stderr, self.limit).with_context(|| format!("{name} failed"))?;
            return Ok(FinishedProgram { stdout, taken });
        }
        // The prefix starts this program again, which then measures the command. So the prefix's
        // own time, such as waiting for a lock, is not counted.
        let file = tempfile::Builder::new().prefix("ixc-bench-").suffix(".json").tempfile()?;
        let mut clock = vec![std::env::current_exe()?.into(), "clock".into()];
        if let Some(limit) = self.limit {
            clock.extend(["--limit".into(), limit.as_secs_f64().to_string().into()]);
        }
        clock.extend([file.path().into(), "--".into()]);
        let whole: Vec<OsString> = self.prefix.iter().chain(&clock).chain(command).cloned().collect();
        let outer = run(&whole, true, None).with_context(|| format!("cannot run {}", whole[0].display()));
        // The file is missing if the prefix failed before it started this program.
        let taken = ixc_files::read_bytes(file.path(), MAX_BYTES).ok();
        let taken = taken.and_then(|json| serde_json::from_slice::<ProgramResources>(&json).ok());
        let (stdout, stderr, outer) = outer?;
        match taken {
            Some(taken) => check(taken, &stderr, self.limit).with_context(|| format!("{name} failed"))?,
            None => {
                check(outer, &stderr, None).with_context(|| format!("{} {name} failed", whole[0].display()))?;
                bail!("{} did not run {name}", whole[0].display());
            }
        }
        Ok(FinishedProgram { stdout, taken: taken.unwrap_or(outer) })
    }
}

/// Runs a command with this process's standard output, and writes its time and memory to a file.
pub fn clock(result: &Path, command: &[OsString], limit: Option<Duration>) -> anyhow::Result<()> {
    let (_, _, taken) = run(command, false, limit).with_context(|| format!("cannot run {}", command[0].display()))?;
    ixc_files::atomic_write(result, &serde_json::to_vec(&taken)?)
        .with_context(|| format!("cannot write {}", result.display()))
}

/// Max bytes that are read of [`clock`]'s result.
const MAX_BYTES: u64 = 1 << 20;

fn check(taken: ProgramResources, stderr: &str, limit: Option<Duration>) -> anyhow::Result<()> {
    if taken.status == Some(0) {
        return Ok(());
    }
    let said: Vec<&str> = stderr.lines().rev().filter(|line| !line.trim().is_empty()).take(4).collect();
    let said: Vec<&str> = said.into_iter().rev().collect();
    let how = match (taken.status, limit) {
        (Some(status), _) => format!("exit status {status}"),
        (None, Some(limit)) if taken.seconds >= limit.as_secs_f64() => {
            bail!("the program exceeded its time limit of {:.0} s and was stopped", limit.as_secs_f64())
        }
        (None, _) => "a signal ended the program".to_owned(),
    };
    if said.is_empty() {
        bail!("{how}");
    }
    bail!("{how}: {}", said.join(" / "))
}

/// Runs a command and kills it after the limit. Returns its standard output and standard error if
/// `capture` is set.
fn run(
    command: &[OsString],
    capture: bool,
    limit: Option<Duration>,
) -> anyhow::Result<(String, String, ProgramResources)> {
    let (program, arguments) = command.split_first().context("there is no command")?;
    let pipe = || if capture { Stdio::piped() } else { Stdio::inherit() };
    let busy = busy_seconds();
    let begin = Instant::now();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(pipe()).stderr(pipe());
    let mut child = command.spawn()?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let pid = libc::pid_t::try_from(child.id())?;
    std::thread::scope(|scope| {
        let (out, err) = (child.stdout.take(), child.stderr.take());
        scope.spawn(|| err.map(|mut pipe| pipe.read_to_end(&mut stderr)));
        let (done, ended) = mpsc::channel::<()>();
        if let Some(limit) = limit {
            scope.spawn(move || {
                if ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                    // SAFETY: the child was not waited for, because `wait` follows this scope. Its
                    // id is therefore still its own.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                }
            });
        }
        let read = out.map(|mut pipe| pipe.read_to_end(&mut stdout)).transpose();
        let ended = await_end(pid);
        // Without a limit, no thread receives this message.
        let _ = done.send(());
        read.map_err(anyhow::Error::from).and(ended)
    })?;
    let (status, usage) = wait(pid)?;
    let seconds = begin.elapsed().as_secs_f64();
    let own = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
    let foreign = match (busy, busy_seconds()) {
        (Some(before), Some(after)) => ((after - before - own) / seconds.max(1e-3)).max(0.0),
        _ => 0.0,
    };
    // `ru_maxrss` is in KiB.
    let peak_memory = u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((text(stdout), text(stderr), ProgramResources { status, seconds, peak_memory, foreign }))
}

fn seconds_of(time: libc::timeval) -> f64 {
    time.tv_sec as f64 + time.tv_usec as f64 * 1e-6
}

/// Waits until a child has ended, without reaping it: its id remains valid.
fn await_end(pid: libc::pid_t) -> anyhow::Result<()> {
    let id = libc::id_t::try_from(pid)?;
    loop {
        // SAFETY: `siginfo_t` consists of numbers, so all zeros are a valid value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a local that lives until the call returns.
        let ended = unsafe { libc::waitid(libc::P_PID, id, &raw mut info, libc::WEXITED | libc::WNOWAIT) };
        if ended == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error).context("cannot wait for it");
        }
    }
}

/// Waits for a child that no other code waits for. Returns its exit status, and the resources that
/// it and its own children used.
fn wait(pid: libc::pid_t) -> anyhow::Result<(Option<i32>, libc::rusage)> {
    let mut status = 0;
    // SAFETY: `rusage` consists of numbers, so all zeros are a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are to locals that live until the call returns.
        let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
        if waited == pid {
            return Ok((libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)), usage));
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error).context("cannot wait for it");
        }
    }
}

/// Returns the seconds that all processors were busy since the machine started, including time that
/// the host took away.
fn busy_seconds() -> Option<f64> {
    let stat = ixc_files::read_system(Path::new("/proc/stat"))?;
    // SAFETY: `sysconf` has no preconditions.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some(busy_ticks(&stat)? as f64 / ticks as f64)
}

/// Sums busy ticks in the text of `/proc/stat`: user, nice, system, (idle, iowait,) irq, softirq,
/// steal.
fn busy_ticks(stat: &str) -> Option<u64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let numbers: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6, 7].map(|index| numbers.get(index).copied().unwrap_or(0));
    (numbers.len() >= 4).then(|| busy.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> anyhow::Result<FinishedProgram> {
        Launcher::default().run(&["/bin/sh".into(), "-c".into(), script.into()])
    }

    #[test]
    fn program_output_time_and_memory_are_recorded() {
        let finished = shell("echo out; echo err >&2").unwrap();
        assert_eq!(finished.stdout, "out\n");
        assert!(finished.taken.peak_memory > 100 << 10 && finished.taken.seconds > 0.0, "{finished:?}");
    }

    #[test]
    fn failure_contains_program_output_and_exit_status() {
        let error = format!("{:#}", shell("echo 'no such model' >&2; exit 3").unwrap_err());
        assert_eq!(error, "/bin/sh failed: exit status 3: no such model");
        let error = format!("{:#}", shell("kill -9 $$").unwrap_err());
        assert_eq!(error, "/bin/sh failed: a signal ended the program");
        let error = format!("{:#}", Launcher::default().run(&["/no/such/program".into()]).unwrap_err());
        assert!(error.contains("/no/such/program"), "{error}");
    }

    #[test]
    fn hanging_program_is_killed_after_its_limit() {
        let launcher = Launcher { limit: Some(Duration::from_millis(50)), ..Launcher::default() };
        let hang = ["/bin/sh".into(), "-c".into(), "while :; do :; done".into()];
        let error = format!("{:#}", launcher.run(&hang).unwrap_err());
        assert!(error.contains("exceeded its time limit"), "{error}");
        assert_eq!(shell("echo out").unwrap().stdout, "out\n");
    }

    #[test]
    fn busy_ticks_exclude_idle_time() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 1000 8 16 32 64 64\ncpu0 1"), Some(63));
        assert_eq!(busy_ticks("intr 5"), None);
    }
}
