//! Malformed files. Every command that uses the malformed part of a file exits with status 65 and
//! one message. The tests limit the memory of a command. They also check that its time and memory
//! are small compared with the size of the file.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::support::measure::{Measured, measured};
use crate::support::{ixc, scratch, shared, stderr};
use ixc::model_files::gguf::write::GgufWriter;

/// Bytes of address space for a command on a malformed file. They hold the program with its
/// libraries and threads' stacks, the demo model, and the 64 MiB that a malformed file may cost.
const ADDRESS_SPACE: u64 = 512 << 20;

/// Max processor time and memory for refusing a file, in addition to those of `inspect` on a small
/// valid file. A release build takes half of the time. The memory is in addition to the size of the
/// file.
const PROCESSOR: Duration = Duration::from_secs(1);
const MEMORY_KIB: u64 = 64 << 10;

/// Runs a command with the limit of address space.
fn limited(mut command: Command) -> Output {
    let limit = libc::rlimit { rlim_cur: ADDRESS_SPACE, rlim_max: ADDRESS_SPACE };
    // SAFETY: between fork and exec only setrlimit is called. It is async-signal-safe and reads a
    // value that the closure owns.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_AS, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command.output().unwrap()
}

/// Runs a command with the limit of address space, and measures it.
fn limited_and_measured(command: Command) -> Measured {
    measured(&command, 60, Some(ADDRESS_SPACE))
}

/// Measures `inspect` on a file without tensors.
fn baseline(folder: &Path) -> Measured {
    let path = folder.join("nothing.gguf");
    fs::write(&path, GgufWriter::new().key("general.architecture", "llama").finish()).unwrap();
    let mut command = ixc(["inspect"]);
    command.arg(&path);
    let base = limited_and_measured(command);
    assert_eq!(base.code, Some(0), "{}", base.stderr);
    base
}

/// Checks that a command took no more time and memory than refusing a file of `bytes` bytes may
/// take.
#[track_caller]
fn assert_cheap(shown: &str, taken: &Measured, base: &Measured, bytes: u64) {
    let (processor, memory) = (base.processor + PROCESSOR, base.peak_kib + MEMORY_KIB + bytes / 1024);
    assert!(taken.processor < processor, "{shown}: {:?} of processor time; {processor:?} allowed", taken.processor);
    assert!(taken.peak_kib < memory, "{shown}: {} KiB of memory; {memory} allowed", taken.peak_kib);
}

/// Returns the commands that read all parts of a model file.
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
fn every_malformed_file_has_its_expected_result() {
    let Some(bad) = shared("bad-gguf") else { return };
    let folder = scratch("malformed");
    let (out, base) = (folder.join("out.npy"), baseline(&folder));
    let manifest = fs::read_to_string(bad.join("manifest.tsv")).unwrap();
    let mut rejected = 0;
    for line in manifest.lines().skip(1) {
        let [file, expect, ..] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let bytes = fs::metadata(bad.join(file)).unwrap().len();
        for command in commands(&bad.join(file), &out) {
            let shown = format!("{command:?}");
            let taken = limited_and_measured(command);
            let (code, said) = (taken.code, &taken.stderr);
            assert!(code.is_some(), "{shown}: a signal: {said}");
            assert!(!said.contains("panicked"), "{shown}: {said}");
            assert_cheap(&shown, &taken, &base, bytes);
            if expect == "reject" {
                assert_eq!(code, Some(65), "{shown}: {line}: {said}");
                assert!(said.starts_with("error: "), "{shown}: {said}");
                rejected += 1;
            } else if expect == "accept" && shown.contains("\"inspect\"") {
                assert_eq!(code, Some(0), "{shown}: {said}");
            } else {
                assert!(matches!(code, Some(0 | 65)), "{shown}: {code:?}: {said}");
            }
            assert!(!said.contains('\x1b') && !String::from_utf8_lossy(&taken.stdout).contains('\x1b'), "{shown}");
        }
    }
    assert!(rejected >= 3 * 50, "{rejected}");
    assert!(!out.exists());
}

/// Checks valid files that are designed to be expensive, with the commands that read their keys.
#[test]
fn hostile_vocabularies_and_headers_use_few_resources() {
    let folder = scratch("hostile-headers");
    let base = baseline(&folder);
    let (path, text) = (folder.join("hostile.gguf"), folder.join("text"));
    fs::write(&text, "a".repeat(1 << 20)).unwrap();
    let spm = |tokens: Vec<String>, ty: i32| {
        let types = [vec![2, 3, 3], vec![ty; tokens.len()]].concat();
        let all = ["<unk>", "<s>", "</s>"].into_iter().chain(tokens.iter().map(String::as_str));
        GgufWriter::new()
            .key("general.architecture", "llama")
            .key("tokenizer.ggml.model", "llama")
            .key("tokenizer.ggml.tokens", all.collect::<Vec<_>>())
            .key("tokenizer.ggml.token_type", types)
    };
    let runs = |longest: usize| (1..=longest).map(|n| "a".repeat(n)).collect::<Vec<_>>();
    let keys = (0..200_000).fold(GgufWriter::new(), |writer, i| writer.key(&format!("{i:x}"), true));
    let cases = [
        // A special token begins at every byte of the text. An earlier version of the tokenizer
        // collected all matches first, and took 6 GB.
        ("special tokens", spm(runs(255), 3), 0),
        (
            "special tokens that end otherwise",
            spm(runs(250).into_iter().map(|run| run + "b").chain(["a".into()]).collect(), 4),
            0,
        ),
        ("longer special tokens", spm(runs(2000), 3), 65),
        ("tokens", spm(runs(500), 1), 0),
        ("long tokens", spm(vec!["a".repeat(1 << 20)], 1), 65),
        ("many tokens", spm((0..600_000).map(|i| i.to_string()).collect(), 1), 65),
        ("keys", keys, 65),
    ];
    for (name, writer, expected) in cases {
        let bytes = writer.finish();
        fs::write(&path, &bytes).unwrap();
        let mut command = ixc(["tokenize", "--json", "--file"]);
        command.arg(&text).arg(&path);
        let taken = limited_and_measured(command);
        println!(
            "{name}: {} bytes, {} KiB, {:?}: {}",
            bytes.len(),
            taken.peak_kib,
            taken.processor,
            taken.stderr.trim()
        );
        assert_eq!(taken.code, Some(expected), "{name}: {}", taken.stderr);
        // If a file is accepted, it is used to tokenize a mebibyte of text. Each byte of the text
        // becomes a symbol of 20 bytes and a candidate of the same size.
        let text = if expected == 0 { Duration::from_secs(2) } else { Duration::ZERO };
        let memory = bytes.len() as u64 + if expected == 0 { 64 << 20 } else { 0 };
        let base = Measured { processor: base.processor + text, ..base.clone() };
        assert_cheap(name, &taken, &base, memory);
    }
}

/// Checks that the demo model, truncated or with a changed byte in its header, never causes a panic
/// or a signal.
#[test]
fn damaged_headers_are_refused_or_read() {
    let good = fs::read(crate::support::demo_model()).unwrap();
    let folder = scratch("damaged");
    let path = folder.join("model.gguf");
    // A linear congruential generator with Knuth's factor chooses the position of the damage.
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
fn missing_file_is_distinguished_from_malformed_file() {
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
        let output = command.arg(&out).arg(crate::support::demo_model()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{tokens}: {}", stderr(&output));
    }
    assert!(!out.exists());
}

/// Checks that logits that are not finite are an error in each command that computes logits.
#[test]
fn logits_that_are_not_finite_are_refused() {
    let folder = scratch("not-finite");
    let (path, out) = (folder.join("model.gguf"), folder.join("out.npy"));
    let mut bytes = fs::read(crate::support::demo_model()).unwrap();
    let model = ixc::model_files::gguf::Gguf::from_bytes(&path, bytes.clone()).unwrap();
    // If all bits of the bytes are ones, the scales are NaN, wherever a block format has its scale.
    let output = model.tensor("output.weight").or(model.tensor("token_embd.weight")).unwrap().offset() as usize;
    bytes[output..output + 256].fill(0xff);
    fs::write(&path, bytes).unwrap();
    for engine in ["compiled", "interpreter"] {
        let mut command = ixc(["logits", "--tokens", "1,2", "--engine", engine, "-o"]);
        let output = command.arg(&out).arg(&path).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(65), "{engine}: {said}");
        assert!(said.contains("the logit of token ") && said.contains("NaN") && !out.exists(), "{engine}: {said}");
    }
}

/// Checks the errors for a file that is not a model and for a truncated model. They state this
/// fact, and do not mention bytes or tables.
#[test]
fn foreign_and_truncated_files_are_named_in_errors() {
    let folder = scratch("no-models");
    let whole = fs::read(crate::support::demo_model()).unwrap();
    let half = whole[..whole.len() / 2].to_vec();
    for (name, bytes, says) in [
        (
            "passwd",
            b"root:x:0:0:root:/root:/bin/bash\n".to_vec(),
            "is not a GGUF file, a plan or the folder of a model (it starts with \"root:x:0\")",
        ),
        ("empty", Vec::new(), "is not a GGUF file, a plan or the folder of a model (it is empty)"),
        ("half.gguf", half, " of 9.3 MiB; download or copy it again"),
    ] {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        for command in [&["run", "-p", "x"][..], &["inspect"], &["tokenize", "-p", "x"]] {
            let output = ixc(command).arg(&path).output().unwrap();
            let said = stderr(&output);
            assert!(output.status.code() == Some(65) && said.contains(says), "{name}: {said}");
            assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        }
    }
}

/// Checks that a special file of the kernel in place of a tokenizer is refused, since reading it
/// may never end.
#[test]
fn folder_linking_to_a_system_file_is_refused() {
    let folder = scratch("system-link");
    fs::write(folder.join("config.json"), "{}").unwrap();
    for name in ["tokenizer.json", "config.json"] {
        let path = folder.join(name);
        let _ = fs::remove_file(&path);
        std::os::unix::fs::symlink("/proc/self/status", &path).unwrap();
    }
    let output = ixc(["inspect"]).arg(&folder).output().unwrap();
    assert!(output.status.code().is_some_and(|code| code != 0), "{}", stderr(&output));
}
