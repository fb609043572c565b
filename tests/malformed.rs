//! Malformed files: exit status 65 and one message from every command that uses what is wrong, within limits on memory that
//! the system keeps.

mod support;

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output};

use support::{ixc, scratch, shared, stderr};

/// Address space for a command on a malformed file: the program with its libraries and threads' stacks, the demo model, and the 64 MiB that a malformed file
/// may cost.
const ADDRESS_SPACE: u64 = 512 << 20;

/// Runs a command with the limit.
fn limited(mut command: Command) -> Output {
    let limit = libc::rlimit { rlim_cur: ADDRESS_SPACE, rlim_max: ADDRESS_SPACE };
    // SAFETY: between fork and exec only setrlimit is called, which is async-signal-safe and reads a value that the closure owns.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_AS, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command.output().unwrap()
}

/// The commands that read all of a model.
fn commands(file: &Path, out: &Path) -> [Command; 3] {
    let mut logits = ixc(["logits", "--tokens", "1", "-o"]);
    logits.arg(out).arg(file);
    let mut inspect = ixc(["inspect"]);
    inspect.arg(file);
    let mut tokenize = ixc(["tokenize"]);
    tokenize.arg(file).arg("text");
    [inspect, logits, tokenize]
}

#[test]
fn every_case_of_the_manifest_gets_what_it_must() {
    let Some(bad) = shared("bad-gguf") else { return };
    let out = scratch("malformed").join("out.npy");
    let manifest = fs::read_to_string(bad.join("manifest.tsv")).unwrap();
    let mut rejected = 0;
    for line in manifest.lines().skip(1) {
        let [file, expect, ..] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        for command in commands(&bad.join(file), &out) {
            let shown = format!("{command:?}");
            let output = limited(command);
            let (status, said) = (output.status, stderr(&output));
            assert_eq!(status.signal(), None, "{shown}: {status}: {said}");
            assert!(!said.contains("panicked"), "{shown}: {said}");
            if expect == "reject" {
                assert_eq!(status.code(), Some(65), "{shown}: {line}: {said}");
                assert!(said.starts_with("error: "), "{shown}: {said}");
                rejected += 1;
            } else if expect == "accept" && shown.contains("\"inspect\"") {
                assert_eq!(status.code(), Some(0), "{shown}: {said}");
            } else {
                assert!(matches!(status.code(), Some(0 | 65)), "{shown}: {status}: {said}");
            }
            assert!(!said.contains('\x1b') && !String::from_utf8_lossy(&output.stdout).contains('\x1b'), "{shown}");
        }
    }
    assert!(rejected >= 3 * 50, "{rejected}");
    assert!(!out.exists());
}

/// The demo model, cut or with a byte changed anywhere in its header, never ends in a panic or a signal.
#[test]
fn damaged_headers_are_refused_or_read() {
    let good = fs::read(support::demo_model()).unwrap();
    let folder = scratch("damaged");
    let path = folder.join("model.gguf");
    // A linear congruential generator with Knuth's factor: where to damage.
    let mut state = 0x5eed_u64;
    println!("seed {state:#x}");
    for round in 0..60 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut bytes = good.clone();
        match round % 3 {
            // Tensor data begins after some 150 kB.
            0 => bytes[(state >> 33) as usize % 150_000] ^= 1 << (state >> 29 & 7),
            1 => bytes.truncate((state >> 33) as usize % good.len()),
            _ => bytes[8 + (state >> 33) as usize % 600] = (state >> 25) as u8,
        }
        fs::write(&path, bytes).unwrap();
        let mut command = ixc(["inspect"]);
        command.arg(&path);
        let output = limited(command);
        assert!(matches!(output.status.code(), Some(0 | 65)), "round {round}: {}: {}", output.status, stderr(&output));
    }
}

#[test]
fn what_is_missing_is_no_malformed_file() {
    let output = ixc(["inspect", "no/such/file.gguf"]).output().unwrap();
    assert_eq!(output.status.code(), Some(66));
    let output = ixc(["inspect", env!("CARGO_MANIFEST_DIR")]).output().unwrap();
    assert_eq!(output.status.code(), Some(66), "{}", stderr(&output));
    assert_eq!(ixc(["no-such-command"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn token_ids_are_checked() {
    let out = scratch("token_ids").join("out.npy");
    for (tokens, status) in [("4096", 65), ("4294967296", 65), ("1,x", 65), ("", 65), ("@no/such/file", 66)] {
        let mut command = ixc(["logits", "--tokens", tokens, "-o"]);
        let output = command.arg(&out).arg(support::demo_model()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{tokens}: {}", stderr(&output));
    }
    assert!(!out.exists());
}
