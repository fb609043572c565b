//! Weights that are locked in memory (`--mlock`): the number of bytes that the system counts as
//! locked, and the error if the system refuses.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use crate::support::{demo_model, ixc, stderr, stdout};

/// Runs the demo model. Returns its messages, and the locked bytes that the system reports while
/// the program waits for its prompt.
fn locked(arguments: &[&str]) -> (String, u64) {
    let mut run = ixc(["run", "-f", "-", "-n", "4", "--temp", "0", "-t", "2", "--no-chat", "--stats"]);
    let mut child = run
        .arg(demo_model())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said = Vec::new();
    for line in lines.by_ref() {
        said.push(line);
        if said.last().is_some_and(|line| line.starts_with("states ")) {
            break;
        }
    }
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let kib: Option<u64> =
        status.lines().find_map(|line| line.strip_prefix("VmLck:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    child.stdin.take().unwrap().write_all(b"The borrow checker").unwrap();
    said.extend(lines);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{said:?}");
    (said.join("\n"), kib.unwrap_or(0) << 10)
}

/// Returns the limit of locked bytes of this process, which its children inherit.
fn may_lock() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")).unwrap().to_owned();
    let is_root = fs::read_to_string("/proc/self/status").unwrap().lines().any(|line| {
        let capabilities = line.strip_prefix("CapEff:").map(|hex| u64::from_str_radix(hex.trim(), 16).unwrap());
        capabilities.is_some_and(|capabilities| capabilities >> CAP_IPC_LOCK & 1 == 1)
    });
    line.split_whitespace().next().unwrap().parse().ok().filter(|_| !is_root)
}

/// Number of the Linux capability to lock memory without a limit.
const CAP_IPC_LOCK: u32 = 14;

#[test]
fn mlock_locks_weights_in_every_storage() {
    if let Some(limit) = may_lock().filter(|limit| *limit < 32 << 20) {
        println!("NOT RUN: {limit} bytes may be locked");
        return;
    }
    let (said, none) = locked(&[]);
    assert!(none == 0 && !said.contains("locked"), "{none} {said}");
    // The demo model has 9.2 MiB of weights; 4 MiB of them are experts.
    for (arguments, least) in [(&["--mlock"][..], 8 << 20), (&["--mlock", "--no-pack"], 8 << 20)] {
        let (said, bytes) = locked(arguments);
        assert!(bytes >= least && said.contains("locked    "), "{arguments:?}: {bytes} {said}");
    }
    // Experts that are streamed are not locked.
    let (said, bytes) = locked(&["--mlock", "--memory", "80MiB"]);
    assert!(bytes >= 1 << 20, "{bytes} {said}");
    assert_eq!(stdout(run_for_text(&["--mlock"])), stdout(run_for_text(&[])));
}

fn run_for_text(arguments: &[&str]) -> std::process::Command {
    let mut run = ixc(["run", "-p", "The", "-n", "8", "--temp", "0", "-t", "2", "--no-chat"]);
    run.arg(demo_model()).args(arguments);
    run
}

#[test]
fn too_small_mlock_limit_error_suggests_a_remedy() {
    let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
    let mut run = run_for_text(&["--mlock"]);
    // SAFETY: the child makes only system calls that are allowed between fork and exec.
    unsafe {
        run.pre_exec(move || {
            // A child of root could lock memory without a limit, so the capability is dropped. For
            // other users, this call fails, but they do not have the capability.
            libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(CAP_IPC_LOCK), 0, 0, 0);
            match libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let output = run.output().unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(69), "{message}");
    for says in ["cannot lock ", "of weights in memory", "RLIMIT_MEMLOCK", "64 KiB", "ulimit -l", "LimitMEMLOCK"] {
        assert!(message.contains(says), "{says}: {message}");
    }
}
