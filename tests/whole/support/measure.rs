//! Processor time and peak memory of a command, as the system reports them.
//!
//! The system's peak memory of a child includes the memory of its parent, so the parent must be
//! small. The parent is this test program, started again only for measuring
//! ([`measuring_program`]).

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Results and resources of a command.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Exit status of the command, or `None` after a signal.
    pub code: Option<i32>,
    /// Standard output of the command.
    pub stdout: Vec<u8>,
    /// Standard error of the command.
    pub stderr: String,
    /// Processor time of all threads of the command and of its child processes.
    pub processor: Duration,
    /// Peak memory of the command in KiB, including mapped files.
    pub peak_kib: u64,
}

/// A command to measure, with its limits.
#[derive(Serialize, Deserialize)]
struct Task {
    program: String,
    arguments: Vec<String>,
    /// Seconds of processor time after which the system ends the command.
    seconds: u64,
    /// Bytes of address space.
    address_space: u64,
    /// Folder for the command's output and measurements.
    folder: PathBuf,
}

/// Resources that a program used, as the measuring program writes them.
#[derive(Serialize, Deserialize)]
struct Taken {
    code: Option<i32>,
    processor: Duration,
    peak_kib: u64,
}

/// Environment variable that contains a [`Task`] for the measuring program.
const TASK: &str = "IXC_TEST_MEASURE";
/// Name of the test function that measures a command.
const NAME: &str = "support::measure::measuring_program";

/// Runs a command's program and arguments with empty standard input, and measures it. The system
/// ends the program after `seconds` of processor time. Allocations beyond `address_space` bytes
/// fail.
pub fn measured(command: &Command, seconds: u64, address_space: Option<u64>) -> Measured {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("measured-{}-{number}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let text = |text: &std::ffi::OsStr| text.to_str().unwrap().to_owned();
    let task = Task {
        program: text(command.get_program()),
        arguments: command.get_args().map(text).collect(),
        seconds,
        address_space: address_space.unwrap_or(libc::RLIM_INFINITY),
        folder,
    };
    let mut helper = Command::new(std::env::current_exe().unwrap());
    helper.args([NAME, "--exact", "--test-threads", "1"]).env_remove("IXC_LOG");
    let output = helper.env(TASK, serde_json::to_string(&task).unwrap()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let read = |name: &str| fs::read(task.folder.join(name)).unwrap();
    let Taken { code, processor, peak_kib } = serde_json::from_slice(&read("taken")).unwrap();
    let (stdout, stderr) = (read("stdout"), String::from_utf8_lossy(&read("stderr")).into_owned());
    fs::remove_dir_all(&task.folder).unwrap();
    Measured { code, stdout, stderr, processor, peak_kib }
}

/// Measures the command that [`TASK`] describes. Does nothing if the variable is not set.
#[test]
fn measuring_program() {
    use std::os::unix::process::CommandExt;
    let Ok(task) = std::env::var(TASK) else { return };
    let task: Task = serde_json::from_str(&task).unwrap();
    let mut command = Command::new(&task.program);
    command.args(&task.arguments).env_remove(TASK).stdin(std::process::Stdio::null());
    let file = |name: &str| fs::File::create(task.folder.join(name)).unwrap();
    command.stdout(file("stdout")).stderr(file("stderr"));
    let limits = [(libc::RLIMIT_CPU, task.seconds), (libc::RLIMIT_AS, task.address_space)];
    // SAFETY: between fork and exec only setrlimit is called. It is async-signal-safe and reads
    // values that the closure owns.
    unsafe {
        command.pre_exec(move || {
            let refused = |&(resource, limit): &(_, u64)| {
                libc::setrlimit(resource, &libc::rlimit { rlim_cur: limit, rlim_max: limit }) != 0
            };
            if limits.iter().any(refused) { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    #[expect(clippy::zombie_processes, reason = "wait4 waits, and says what the child took")]
    let child = command.spawn().unwrap();
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: the child belongs to this process and was not waited for; both pointers are valid,
    // and an rusage may be all zeros.
    let usage = unsafe {
        assert_eq!(libc::wait4(pid, &mut status, 0, usage.as_mut_ptr()), pid);
        usage.assume_init()
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    let taken = Taken {
        code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        processor: time(usage.ru_utime) + time(usage.ru_stime),
        peak_kib: usage.ru_maxrss as u64,
    };
    fs::write(task.folder.join("taken"), serde_json::to_vec(&taken).unwrap()).unwrap();
}
