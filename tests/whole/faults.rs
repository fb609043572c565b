//! What users see when a model file is cut short or replaced while it is in use: an error and a status, never a signal or wrong text:
//! what was written by then is the beginning of what a run writes that nothing happens to.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::support::{demo_model, ixc, scratch, stderr, stdout};

const RUN: [&str; 12] = ["run", "--raw", "-p", "The", "-n", "1900", "--temp", "1", "--seed", "1", "-t", "2"];

/// Runs something that writes more text than can be waited for, breaks the model as soon as there is some, and gives how it ended. What was
/// written by then has to be the beginning of `right`.
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

/// The text of a run that nothing happens to.
fn undisturbed(arguments: &[&str]) -> String {
    let mut command = ixc(RUN);
    command.args(arguments).arg(demo_model());
    stdout(command)
}

/// The least budget that a model or plan streams with, and a little more: what a process takes differs from time to time.
fn budget(path: &Path, arguments: &[&str]) -> u64 {
    let refused =
        ixc(["run", "--raw", "-p", "The", "-t", "2", "--memory", "1MiB"]).args(arguments).arg(path).output().unwrap();
    let message = stderr(&refused);
    // What is needed, the refusal says.
    let needed: u64 = message.split("experts, and ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    needed + 2
}

fn cut(path: &Path) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
}

/// The demo model, copied.
fn model(folder: &Path) -> PathBuf {
    let path = folder.join("model.gguf");
    fs::copy(demo_model(), &path).unwrap();
    path
}

#[test]
fn a_mapped_model_that_is_cut_short_ends_with_an_error_and_no_signal() {
    let folder = scratch("faults_mapped");
    let path = model(&folder);
    // Its kernels read weights in the mapped file, all the time.
    let portable = ["--target", "portable"];
    let output = broken_while_it_runs(&portable, &path, &undisturbed(&portable), || cut(&path));
    let message = stderr(&output);
    // Where no kernel read behind the cut before the step's end, that notices it.
    let says = match output.status.code() {
        Some(74) => "cut short while it was in use",
        _ => "changed while running: its length",
    };
    assert!(matches!(output.status.code(), Some(1 | 74)), "{}: {message}", output.status);
    assert!(message.contains(says) && message.lines().count() == 1, "{message}");
}

/// Packed when first needed, read as they lie in the file, or left to the page cache.
#[test]
fn a_model_that_is_overwritten_in_place_ends_with_an_error_wherever_its_weights_are() {
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
        // The program may look between the two changes, and then finds the new time of change.
        let status = sets_time_back && message.contains("its time of its last change of status");
        let changed = status || message.contains("its time of change");
        assert!(message.contains("model.gguf: ") && changed, "{arguments:?}: {message}");
    }
}

/// A limit of a file's size ends a command with an error, and without an output. A part of a plan
/// stays, since compiling again continues it.
#[test]
fn a_limit_of_file_sizes_is_an_error() {
    let folder = scratch("faults_file_size");
    let (plan, state) = (folder.join("plan.ixp"), folder.join("state"));
    let mut compile = ixc(["compile", "-o"]);
    compile.arg(&plan).arg(demo_model());
    let mut run = ixc(["run", "--raw", "-p", "The", "-n", "2", "--save-state"]);
    run.arg(&state).arg(demo_model());
    let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
    for mut command in [compile, run] {
        // SAFETY: only a system call in the child, which may be made between fork and exec.
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

/// What happens to a file that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Cut,
    Overwritten,
    Replaced,
}

impl Damage {
    const ALL: [Damage; 3] = [Damage::Cut, Damage::Overwritten, Damage::Replaced];

    /// Makes what is needed for it, so that the damage itself is done at once.
    fn prepare(self, path: &Path) -> impl FnOnce() + '_ {
        let other = path.with_extension("other");
        fs::copy(path, &other).unwrap();
        move || match self {
            Damage::Cut => cut(path),
            Damage::Overwritten => {
                // As long as before, from the middle on.
                let length = fs::metadata(path).unwrap().len();
                let file = fs::OpenOptions::new().write(true).open(path).unwrap();
                file.write_all_at(&vec![0x55; (length - length / 2) as usize], length / 2).unwrap();
            }
            Damage::Replaced => fs::rename(&other, path).unwrap(),
        }
    }
}

#[test]
fn a_streamed_model_that_is_cut_short_overwritten_or_replaced_ends_with_an_error() {
    let right = undisturbed(&[]);
    for damage in Damage::ALL {
        let folder = scratch(&format!("faults_streamed_{damage:?}"));
        let path = model(&folder);
        let memory = format!("{}MiB", budget(&path, &[]));
        let output = broken_while_it_runs(&["--memory", &memory], &path, &right, damage.prepare(&path));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{damage:?}, {}: {message}", output.status);
        assert!(message.contains("model.gguf: ") && !message.contains("the plan failed"), "{damage:?}: {message}");
        assert!(message.contains("changed while running") || message.contains("truncated"), "{damage:?}: {message}");
        let why = if damage == Damage::Replaced { "its device and inode is" } else { "" };
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn a_streamed_plan_with_blocks_that_is_cut_short_overwritten_or_replaced_ends_with_an_error() {
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
        // A block that is read for the first time then has another checksum, which may be what is noticed first.
        let damaged = output.status.code() == Some(65) && message.contains("damaged");
        let changed = output.status.code() == Some(1)
            && (message.contains("changed while running") || message.contains("truncated"));
        assert!(changed || damaged && damage == Damage::Overwritten, "{damage:?}, {}: {message}", output.status);
        assert!(message.contains("model.ixp: "), "{damage:?}: {message}");
    }
}
