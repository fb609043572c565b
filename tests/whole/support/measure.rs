//! What a command took, by the system's word: processor time and the most memory at once.
//!
//! The system counts a child's peak from what its parent had in memory when it was made, so that the parent must be small: this test program,
//! started once more for nothing else ([`measuring_program`]).

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

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

/// What is to be measured: a program and its limits.
#[derive(Serialize, Deserialize)]
struct Task {
    program: String,
    arguments: Vec<String>,
    /// Seconds of processor time after which the system ends it.
    seconds: u64,
    /// Bytes of address space.
    address_space: u64,
    /// Where its output goes, and what it took.
    folder: PathBuf,
}

/// What a program took, as the measuring one tells it.
#[derive(Serialize, Deserialize)]
struct Taken {
    code: Option<i32>,
    processor: Duration,
    peak_kib: u64,
}

/// Names a [`Task`] to the program that measures.
const TASK: &str = "IXC_TEST_MEASURE";
/// As libtest names it.
const NAME: &str = "support::measure::measuring_program";

/// Runs a command, of which the program and its arguments count, with nothing on its standard input. One that takes more than `seconds` of processor
/// time is ended by the system; allocations beyond `address_space` bytes fail.
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

/// Measures what [`TASK`] names, and nothing where it names nothing.
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
    // SAFETY: between fork and exec only setrlimit is called, which is async-signal-safe and reads values that the closure owns.
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
    // SAFETY: the child is ours and was not waited for; both places are valid, and an rusage may be all zeros.
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
