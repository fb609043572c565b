//! What a command took, by the system's word: processor time and the most memory at once.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What a command did and took.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Exit status, or `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
    /// Processor time of all its threads, and of its children.
    pub processor: Duration,
    /// Most memory at once, in KiB, mapped files included.
    pub peak_kib: u64,
}

/// Runs a command. One that takes more than `seconds` of processor time is ended by the system.
pub fn measured(mut command: Command, seconds: u64) -> Measured {
    use std::os::unix::process::CommandExt;
    let limit = libc::rlimit { rlim_cur: seconds, rlim_max: seconds };
    // SAFETY: between fork and exec only setrlimit is called, which is async-signal-safe and reads a value that the closure owns.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_CPU, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut out, mut error) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        error.read_to_end(&mut bytes).map(|_| bytes)
    });
    let mut stdout = Vec::new();
    out.read_to_end(&mut stdout).unwrap();
    let stderr = String::from_utf8_lossy(&errors.join().unwrap().unwrap()).into_owned();
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: the child is ours and was not waited for; both places are valid, and an rusage may be all zeros.
    let usage = unsafe {
        assert_eq!(libc::wait4(pid, &mut status, 0, usage.as_mut_ptr()), pid);
        usage.assume_init()
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    Measured {
        code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        stdout,
        stderr,
        processor: time(usage.ru_utime) + time(usage.ru_stime),
        peak_kib: usage.ru_maxrss as u64,
    }
}
