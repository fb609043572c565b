//! The whole runner, with scripts in place of the engines: their calls, and the runner's results,
//! table and JSON.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value as Json;

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Writes a script that appends its arguments to `calls`, then runs `body`.
fn program(folder: &Path, name: &str, body: &str) {
    let path = folder.join(name);
    let calls = folder.join("calls");
    let text = format!("#!/bin/sh\necho \"$(basename $0) $*\" >> '{}'\n{body}\n", calls.display());
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Script in place of ixc. It prints recorded results of ixc for the requested depth and tests.
const IXC: &str = r#"
[ "$1" = run ] && exit 0
while [ $# -gt 0 ]; do case $1 in -d) depth=$2;; -n) decode=$2;; esac; shift; done
if [ $decode = 0 ]; then
  echo '[{"threads": 1, "target": "avx2", "test": "prefill", "tokens": 8, "depth": 0, "bytes_per_token": null, "all": [300.0]}]'
else
  echo '[{"threads": 1, "target": "avx2", "test": "decode", "tokens": '$decode', "depth": '$depth', "bytes_per_token": 1000, "all": [40.0]}]'
fi"#;

/// Script in place of llama-bench. It is twice as fast with repacked weights, and prints an
/// irrelevant line on standard error.
const LLAMA: &str = r#"
echo "load_backend: loaded" >&2
while [ $# -gt 0 ]; do case $1 in -p) prefill=$2;; -n) decode=$2;; -d) depth=$2;; --repack) repack=$2;; esac; shift; done
rate=$((10 + 10 * repack))
echo '[{"build_commit": "x", "n_prompt": '$prefill', "n_gen": '$decode', "n_depth": '$depth', "samples_ts": ['$rate']}]'"#;

fn compare(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ixc-bench"));
    command.arg("compare").arg("--ixc").arg(folder.join("ixc")).arg(folder.join("model.gguf"));
    command.args(["-p", "8", "-n", "4", "-t", "1", "--bandwidth-size", "0.01"]).args(arguments).output().unwrap()
}

fn setup(name: &str) -> PathBuf {
    let folder = scratch(name);
    fs::write(folder.join("model.gguf"), "").unwrap();
    program(&folder, "ixc", IXC);
    program(&folder, "llama-bench", LLAMA);
    program(&folder, "llama-completion", "exit 0");
    folder
}

#[test]
fn compare_runs_rounds_and_writes_json_and_table() {
    let folder = setup("rounds");
    let (bin, json) = (folder.to_str().unwrap(), folder.join("out.json"));
    let arguments =
        ["--llama", bin, "--rounds", "2", "--depth", "64", "--first-token", "--json", json.to_str().unwrap()];
    let output = compare(&folder, &arguments);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stderr}");

    let report: Json = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let kinds: Vec<_> = rows.iter().map(|row| row["work"]["kind"].as_str().unwrap()).collect();
    let expected = ["prefill", "memory", "decode", "memory", "decode", "memory", "first_token", "memory"];
    assert_eq!(kinds, expected);
    for row in rows {
        let entries = row["entries"].as_array().unwrap();
        assert_eq!(entries.len(), 5, "ixc and four variants");
        for entry in entries {
            assert_eq!((entry["rounds"].as_array().unwrap().len(), &entry["problem"]), (2, &Json::Null), "{entry}");
        }
    }
    let prefill = &rows[0]["entries"];
    assert_eq!(prefill[1]["ratio"]["of_medians"], 15.0);
    assert_eq!((&prefill[1]["best"], &prefill[3]["best"]), (&true.into(), &false.into()));
    let decode = &rows[4];
    assert_eq!((&decode["work"]["depth"], &decode["bytes_per_token"]), (&64.into(), &1000.into()));
    assert!(decode["entries"][0]["bandwidth_share"].as_f64().unwrap() > 0.0);
    assert!(report["bandwidth"][0]["bytes_per_second"].as_f64().unwrap() > 0.0);
    assert!(stdout.contains("decode 16 at 64") && stdout.contains("15.00x"), "{stdout}");

    // The rounds begin with different entrants, and the entrants of a round follow each other.
    let calls = fs::read_to_string(folder.join("calls")).unwrap();
    let prefills: Vec<_> = calls.lines().take(10).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(prefills[0], "ixc");
    assert_eq!((prefills[5], prefills[9]), ("llama-bench", "ixc"), "{calls}");

    // The table can be printed again from the file.
    let table = Command::new(env!("CARGO_BIN_EXE_ixc-bench")).arg("table").arg(&json).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&table.stdout), stdout);
}

#[test]
fn failing_rival_is_reported_and_others_continue() {
    let folder = setup("fails");
    program(&folder, "llama-bench", "echo 'cannot load model' >&2; exit 1");
    let output = compare(&folder, &["--llama", folder.to_str().unwrap(), "--rounds", "2"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && stdout.contains("300.0"), "{stdout}");
    assert!(stdout.contains("exit status 1: cannot load model"), "{stdout}");
    // The failed entrant does not run in the second round.
    let calls = fs::read_to_string(folder.join("calls")).unwrap();
    assert_eq!(calls.lines().filter(|line| line.starts_with("llama-bench")).count(), 8, "{calls}");
}

#[test]
fn missing_measurement_is_a_failure() {
    let folder = setup("lacks");
    program(&folder, "llama-bench", "echo '[]'");
    let output = compare(&folder, &["--llama", folder.to_str().unwrap(), "--rounds", "1"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("the output of the benchmark has no result for prefill 8"), "{stdout}");
}

#[test]
fn screening_leaves_slow_variants_out_after_a_round() {
    let folder = setup("screen");
    let output = compare(&folder, &["--llama", folder.to_str().unwrap(), "--rounds", "3", "--screen", "50"]);
    assert!(output.status.success());
    let calls = fs::read_to_string(folder.join("calls")).unwrap();
    let count = |part: &str| calls.lines().filter(|line| line.contains(part)).count();
    // Two groups of works, two variants each.
    assert_eq!((count("--repack 1"), count("--repack 0")), (12, 4), "{calls}");
}

#[test]
fn a_prefix_stands_before_every_command() {
    let folder = setup("prefix");
    let marks = folder.join("marks");
    let prefix = folder.join("prefix");
    program(&folder, "prefix", &format!("echo mark >> '{}'\nexec \"$@\"", marks.display()));
    let output =
        compare(&folder, &["--llama", folder.to_str().unwrap(), "--rounds", "1", "--prefix", prefix.to_str().unwrap()]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains("15.00x"),
        "{stdout}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // The bandwidth runs at the start and in the round of decode. Five entrants each do two groups
    // of works.
    assert_eq!(fs::read_to_string(&marks).unwrap().lines().count(), 12);
    // A failure inside the prefix is reported as if there were no prefix.
    program(&folder, "llama-bench", "echo 'cannot load model' >&2; exit 1");
    let output =
        compare(&folder, &["--llama", folder.to_str().unwrap(), "--rounds", "1", "--prefix", prefix.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("exit status 1: cannot load model"));
}
