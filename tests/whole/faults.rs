//! A model file may be truncated or replaced while a run reads it. The run then ends with an error
//! and an exit status, never with a signal or wrong text. The text printed before is a prefix of an
//! undisturbed run's text.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::support::measure::measured;
use crate::support::{demo_model, ixc, scratch, stderr, stdout};

const RUN: [&str; 12] = ["run", "--raw", "-p", "The", "-n", "1900", "--temp", "1", "--seed", "1", "-t", "2"];

/// Starts a run that would write text for a long time. Damages the model after the first text, and
/// returns the output. The printed text must be a prefix of `right`.
fn broken_while_it_runs(arguments: &[&str], path: &Path, right: &str, damage: impl FnOnce()) -> Output {
    let mut child = ixc(RUN).args(arguments).arg(path).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut text = child.stdout.take().unwrap();
    let mut written = vec![0];
    text.read_exact(&mut written).unwrap();
    damage();
    text.read_to_end(&mut written).unwrap();
    let output = child.wait_with_output().unwrap();
    let (written, message) = (String::from_utf8(written).unwrap(), stderr(&output));
    assert!(written.len() < right.len(), "it was not broken while it ran: {message}");
    assert!(right.starts_with(&written), "{written:?} is no beginning of what is right: {message}");
    output
}

/// Returns the text of a run whose model file is not damaged.
fn undisturbed(arguments: &[&str]) -> String {
    let mut command = ixc(RUN);
    command.args(arguments).arg(demo_model());
    stdout(command)
}

/// Returns the least budget with which a model or plan streams, plus a reserve, because the
/// process's other memory varies.
fn budget(path: &Path, arguments: &[&str]) -> u64 {
    let refused =
        ixc(["run", "--raw", "-p", "The", "-t", "2", "--memory", "1MiB"]).args(arguments).arg(path).output().unwrap();
    let message = stderr(&refused);
    // The error names the needed memory.
    let needed: u64 = message.split("experts, and ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    needed + 2
}

fn cut(path: &Path) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
}

/// Copies the demo model.
fn model(folder: &Path) -> PathBuf {
    let path = folder.join("model.gguf");
    fs::copy(demo_model(), &path).unwrap();
    path
}

#[test]
fn truncated_mapped_model_is_an_error_without_a_signal() {
    let folder = scratch("faults_mapped");
    let path = model(&folder);
    // Kernels of this target read weights in the mapped file during the whole run.
    let portable = ["--target", "portable"];
    let output = broken_while_it_runs(&portable, &path, &undisturbed(&portable), || cut(&path));
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{}: {message}", output.status);
    assert!(message.contains("changed while in use: its length") && message.lines().count() == 1, "{message}");
}

/// Checks that a run ends with an error if its model file is overwritten. The cases read weights in
/// three ways: packing at first use, reads from the file, and kernels that read the mapped file.
#[test]
fn model_overwritten_in_place_is_an_error() {
    let right = undisturbed(&[]);
    let folder = scratch("faults_overwritten");
    let plan = folder.join("plan.ixp");
    for (arguments, runs_plan, sets_time_back) in [
        (&[][..], false, false),
        (&["--no-pack"], false, false),
        (&["--no-pack"], false, true),
        (&["--experts", "map"], true, false),
    ] {
        let path = model(&folder);
        if runs_plan {
            let mut compile = ixc(["compile", "--memory", "1MiB", "--no-pack", "--no-weights", "--force"]);
            compile.arg(&path).arg("-o").arg(&plan);
            stdout(compile);
        }
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30);
        file.set_modified(time).unwrap();
        let overwrite = Damage::Overwritten.prepare(&path);
        let damage = || {
            overwrite();
            if sets_time_back {
                file.set_modified(time).unwrap();
            }
        };
        let output = broken_while_it_runs(arguments, if runs_plan { &plan } else { &path }, &right, damage);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}, {}: {message}", output.status);
        // Overwriting the file and setting its time back are two changes. If the program checks
        // between them, it sees the new modification time.
        let status = sets_time_back && message.contains("its time of its last change of status");
        let changed = status || message.contains("its time of change");
        assert!(message.contains("model.gguf: ") && changed, "{arguments:?}: {message}");
    }
}

/// Checks that a limit on file sizes ends a command with an error and without an output. A partial
/// plan is kept, since compiling again continues it.
#[test]
fn file_size_limit_is_an_error_without_output() {
    let folder = scratch("faults_file_size");
    let (plan, state) = (folder.join("plan.ixp"), folder.join("state"));
    let mut compile = ixc(["compile", "-o"]);
    compile.arg(&plan).arg(demo_model());
    let mut run = ixc(["run", "--raw", "-p", "The", "-n", "2", "--save-state"]);
    run.arg(&state).arg(demo_model());
    let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
    for mut command in [compile, run] {
        // SAFETY: the child makes only one system call, which is allowed between fork and exec.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let output = command.output().unwrap();
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(74), "{}: {message}", output.status);
        assert!(message.contains("File too large"), "{message}");
        assert!(!plan.exists() && !state.exists(), "{message}");
    }
}

/// Kind of damage to a file while it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Cut,
    Overwritten,
    Replaced,
}

impl Damage {
    const ALL: [Damage; 3] = [Damage::Cut, Damage::Overwritten, Damage::Replaced];

    /// Prepares the damage, so that applying it takes only one step.
    fn prepare(self, path: &Path) -> impl FnOnce() + '_ {
        let other = path.with_extension("other");
        fs::copy(path, &other).unwrap();
        move || match self {
            Damage::Cut => cut(path),
            Damage::Overwritten => {
                // The length stays the same, and the second half is overwritten.
                let length = fs::metadata(path).unwrap().len();
                let file = fs::OpenOptions::new().write(true).open(path).unwrap();
                file.write_all_at(&vec![0x55; (length - length / 2) as usize], length / 2).unwrap();
            }
            Damage::Replaced => fs::rename(&other, path).unwrap(),
        }
    }
}

#[test]
fn changed_streamed_model_is_an_error() {
    let right = undisturbed(&[]);
    for damage in Damage::ALL {
        let folder = scratch(&format!("faults_streamed_{damage:?}"));
        let path = model(&folder);
        let memory = format!("{}MiB", budget(&path, &[]));
        let output = broken_while_it_runs(&["--memory", &memory], &path, &right, damage.prepare(&path));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{damage:?}, {}: {message}", output.status);
        assert!(message.contains("model.gguf: ") && !message.contains("the plan failed"), "{damage:?}: {message}");
        assert!(message.contains("changed while in use") || message.contains("truncated"), "{damage:?}: {message}");
        let why = if damage == Damage::Replaced { "its device and inode is" } else { "" };
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn changed_streamed_plan_with_blocks_is_an_error() {
    let right = undisturbed(&[]);
    for damage in Damage::ALL {
        let folder = scratch(&format!("faults_packed_{damage:?}"));
        let path = folder.join("model.ixp");
        let mut compile = ixc(["compile", "--memory", "1MiB", "--pack"]);
        compile.arg(demo_model()).arg("-o").arg(&path);
        stdout(compile);
        let memory = format!("{}MiB", budget(&path, &[]));
        let output = broken_while_it_runs(&["--memory", &memory], &path, &right, damage.prepare(&path));
        let message = stderr(&output);
        // The run may also notice the damage by the wrong checksum of a block that it reads for the
        // first time.
        let damaged = output.status.code() == Some(65) && message.contains("damaged");
        let changed = output.status.code() == Some(1)
            && (message.contains("changed while in use") || message.contains("truncated"));
        assert!(changed || damaged && damage == Damage::Overwritten, "{damage:?}, {}: {message}", output.status);
        assert!(message.contains("model.ixp: "), "{damage:?}: {message}");
    }
}

/// Checks runs with a limit on their address space, in most cases below their need. Each run ends
/// with a status and a message, whichever allocation fails first.
#[test]
fn refused_memory_is_an_error_with_a_status() {
    let mut statuses = Vec::new();
    for mebibytes in [80, 90, 100, 110, 120] {
        let mut command = ixc(["run", "--raw", "-p", "The", "-n", "1", "-t", "2"]);
        command.arg(demo_model());
        let run = measured(&command, 60, Some(mebibytes << 20));
        let status = run.code.unwrap_or_else(|| panic!("{mebibytes} MiB: ended by a signal: {}", run.stderr));
        assert!(status == 0 || run.stderr.contains("error: "), "{mebibytes} MiB: {status}: {}", run.stderr);
        statuses.push(status);
    }
    assert!(statuses.iter().any(|status| *status != 0), "{statuses:?}: all runs had enough memory");
}
