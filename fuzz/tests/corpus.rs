//! Tests of the corpus and of the table of targets: every input passes, and the runner reports what
//! it must report.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use ixc_fuzz::{TARGETS, corpus};

fn runner(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ixc-fuzz"));
    command.args(words);
    command
}

/// Checks that each input of the corpus, and each input that code generates, passes in its target.
/// The corpus contains the inputs of former findings.
#[test]
fn every_input_of_the_corpus_passes() {
    let findings = tempfile::tempdir().unwrap();
    let output = runner(&["replay", "--findings", &findings.path().to_string_lossy()]).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{text}");
    assert!(output.status.success(), "{text}\n{errors}");
    // A target without accepted inputs tests only the first check of its input.
    for target in TARGETS {
        let row = text.lines().find(|line| line.starts_with(&format!("| {} |", target.name))).unwrap();
        let accepted: u64 = row.split('|').nth(3).unwrap().trim().parse().unwrap();
        assert!(accepted > 0, "no input is accepted: {row}");
    }
}

/// Returns the number of cases of a target, from the table that the runner prints.
fn cases(output: &std::process::Output, target: &str) -> u64 {
    let text = String::from_utf8_lossy(&output.stdout);
    let row = text.lines().find(|line| line.starts_with(&format!("| {target} |"))).unwrap();
    row.split('|').nth(2).unwrap().trim().parse().unwrap()
}

/// Checks that the corpus is replayed completely, even if the time is over before. A run without
/// any case must not succeed.
#[test]
fn short_runs_replay_the_corpus_and_empty_runs_fail() {
    let findings = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let findings = findings.path().to_string_lossy();
        runner(&[words, &["--findings", &findings]].concat()).output().unwrap()
    };
    let (replay, short) = (run(&["replay", "grid"]), run(&["run", "grid", "--seconds", "0.001"]));
    assert!(replay.status.success() && short.status.success(), "{short:?}");
    assert!(cases(&short, "grid") >= cases(&replay, "grid") && cases(&replay, "grid") > 1);
    let empty = run(&["run", "grid", "--seconds", "0"]);
    assert!(!empty.status.success());
    assert!(String::from_utf8_lossy(&empty.stderr).contains("no case has run: grid"), "{empty:?}");
}

#[test]
fn corpus_has_only_folders_of_targets_and_is_small() {
    let mut bytes = 0;
    for entry in fs::read_dir(corpus::folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(TARGETS.iter().any(|target| target.name == name), "{name} is no target");
        for file in corpus::files(&corpus::folder(), &name).unwrap() {
            bytes += fs::metadata(file).unwrap().len();
        }
    }
    assert!(bytes < 1 << 20, "the corpus has {bytes} bytes");
}

/// Checks that the manifest for libFuzzer has a program for each target.
#[test]
fn every_target_has_a_program_for_libfuzzer() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("libfuzzer/Cargo.toml");
    let manifest = fs::read_to_string(manifest).unwrap();
    let programs = manifest.split("[[bin]]").skip(1).map(|section| {
        section.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')).unwrap().to_owned()
    });
    let targets = TARGETS.iter().map(|target| target.name.to_owned());
    assert_eq!(programs.collect::<BTreeSet<_>>(), targets.collect::<BTreeSet<_>>());
}

/// Checks that an unknown target and a missing file are errors of the runner, not findings.
#[test]
fn wrong_arguments_are_errors() {
    for words in [&["run", "no-target"][..], &["one", "gguf", "/nonexistent"]] {
        let output = runner(words).output().unwrap();
        assert!(!output.status.success());
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("Error: "), "{output:?}");
    }
}
