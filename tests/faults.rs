//! What users see when a model file is cut short or replaced while it is in use: an error and a status, never a signal or wrong text.

mod support;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use support::{demo_model, ixc, scratch, stderr};

/// Runs something that writes more text than can be waited for, breaks the model as soon as there is some, and gives how it ended.
fn broken_while_it_runs(arguments: &[&str], path: &Path, damage: impl FnOnce()) -> Output {
    let mut child = ixc(["run", "-p", "The", "-n", "4000", "--temp", "1", "--seed", "1", "-t", "2"])
        .args(arguments)
        .arg(path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = child.stdout.take().unwrap();
    text.read_exact(&mut [0]).unwrap();
    damage();
    text.read_to_end(&mut Vec::new()).unwrap();
    child.wait_with_output().unwrap()
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
    let output = broken_while_it_runs(&["--target", "portable"], &path, || cut(&path));
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(74), "{}: {message}", output.status);
    assert!(message.contains("cut short while it was in use") && message.lines().count() == 1, "{message}");
}

#[test]
fn a_streamed_model_that_is_cut_short_or_replaced_ends_with_an_error() {
    for replaced in [false, true] {
        let folder = scratch(&format!("faults_streamed_{replaced}"));
        let path = model(&folder);
        let refused = ixc(["run", "-p", "The", "-t", "2", "--memory", "1MiB"]).arg(&path).output().unwrap();
        let message = stderr(&refused);
        // What is needed, the refusal says; what a process takes differs a little from time to time.
        let needed: u64 = message.split("experts, and ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        let memory = format!("{}MiB", needed + 2);
        let output = broken_while_it_runs(&["--memory", &memory], &path, || {
            if replaced {
                let other = folder.join("other.gguf");
                fs::copy(&path, &other).unwrap();
                fs::rename(&other, &path).unwrap();
            } else {
                cut(&path);
            }
        });
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{}: {message}", output.status);
        assert!(message.contains("model.gguf: "), "{message}");
        let why = if replaced { "its device and inode is" } else { "" };
        assert!(message.contains("changed while running") || message.contains("truncated"), "{message}");
        assert!(message.contains(why), "{message}");
    }
}
