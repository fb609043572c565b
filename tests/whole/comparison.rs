//! Comparison of two measurements: the printed lines and the exit status.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use crate::support::{ixc, scratch, stderr, stdout};

/// Writes a measurement of the demo model; returns the file and its contents.
fn measured(folder: &Path) -> (PathBuf, Json) {
    let bench = ["bench", "-p", "4", "-n", "4", "-t", "1", "-r", "4", "--target", "portable", "--json"];
    let text = stdout(ixc(bench));
    let file = folder.join("a.json");
    fs::write(&file, &text).unwrap();
    (file, serde_json::from_str(&text).unwrap())
}

/// Returns exit status, standard output and standard error of a comparison.
fn compared(a: &Path, b: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let output = ixc(["bench", "--compare"]).arg(a).arg(b).args(more).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout.clone()).unwrap(), stderr(&output))
}

#[test]
fn significant_changes_are_reported_and_set_exit_status() {
    let folder = scratch("comparison");
    let (a, mut document) = measured(&folder);
    // The documents of both measurements describe the model, the options and the machine.
    for part in ["model", "options", "cpu", "ixc", "os", "time"] {
        assert!(!document[part].is_null(), "{part}");
    }
    assert!(
        document["model"]["identity"][0]["header_crc32"].is_string() && document["memory"].is_u64(),
        "{document:#}"
    );
    assert!(document["ixc"].as_object().unwrap().contains_key("commit"), "{document:#}");
    let (status, said, _) = compared(&a, &a, &[]);
    assert!(status == Some(0) && said.contains("the same model, options, machine and version"), "{said}");
    assert_eq!(said.matches("no change beyond noise").count(), 2, "{said}");
    // Sets other rates in a measurement. Their spread is that of a quiet machine.
    let at = |document: &mut Json, rates: [[f64; 4]; 2]| {
        for (row, rates) in document["rows"].as_array_mut().unwrap().iter_mut().zip(rates) {
            (row["all"], row["median"]) = (json!(rates), json!(rates[0]));
        }
    };
    let write = |name: &str, document: &Json| {
        let file = folder.join(name);
        fs::write(&file, document.to_string()).unwrap();
        file
    };
    at(&mut document, [[100.0, 101.0, 99.0, 100.5], [10.0, 10.1, 9.9, 10.0]]);
    let base = write("base.json", &document);
    at(&mut document, [[120.0, 121.0, 119.0, 120.5], [10.05, 10.1, 9.9, 10.0]]);
    let faster = write("faster.json", &document);
    let (status, said, _) = compared(&base, &faster, &[]);
    assert!(status == Some(0) && said.contains("1.200") && said.contains(" faster"), "{said}");
    assert_eq!(said.matches("no change beyond noise").count(), 1, "{said}");
    let (status, _, error) = compared(&faster, &base, &[]);
    assert!(status == Some(3) && error.contains("slower beyond noise: 1 of 2 rows"), "{error}");
    // The exit status is the same for every output format.
    let (status, text, _) = compared(&faster, &base, &["--json"]);
    let facts: Json = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &facts["schema"]), (Some(3), &"ixc.bench-comparison.v1".into()));
    let row = &facts["rows"][0];
    assert!(row["verdict"] == "slower" && row["ratio"]["high"].as_f64().unwrap() < 0.9, "{facts:#}");
    let (_, csv, _) = compared(&base, &faster, &["--format", "csv"]);
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines.len() == 3 && lines.iter().all(|line| line.matches(',').count() == 12), "{csv}");
    let (_, markdown, _) = compared(&base, &faster, &["--format", "md"]);
    assert_eq!(markdown.lines().filter(|line| line.starts_with("| 1 | portable |")).count(), 2, "{markdown}");
    assert_eq!(compared(&base, &faster, &["--format", "jsonl"]).1.lines().count(), 2);
    // Differences between the settings are printed first, except for names of files.
    document["model"]["bytes"] = 5.into();
    document["model"]["file"] = "other.gguf".into();
    document["options"]["pin"] = "on".into();
    document["rows"].as_array_mut().unwrap().remove(1);
    let other = write("other.json", &document);
    let (_, said, _) = compared(&base, &other, &[]);
    let different: Vec<&str> = said.lines().filter(|line| line.starts_with("different")).collect();
    assert!(
        different.len() == 2
            && different[0].contains("model.bytes: ")
            && different[1].contains("options.pin: off | on"),
        "{said}"
    );
    assert!(said.find("different") < said.find(" faster") && said.contains("only in a: threads 1"), "{said}");
}

/// Checks that all options of two measurements are compared; options that are files are compared by
/// content. Rows that differ only in the number of threads are compared with each other.
#[test]
fn options_and_threads_that_differ_are_named() {
    let folder = scratch("comparison-options");
    let dump = folder.join("d");
    let mut compile = ixc(["compile", "--target", "portable", "--no-weights", "-o"]);
    compile.arg(folder.join("plan.ixp")).arg("--dump-dir").arg(&dump);
    stdout(compile);
    let kernels = dump.join("kernels");
    let bench = |name: &str, more: &[&str]| {
        let mut bench = ixc(["bench", "-p", "4", "-n", "2", "-r", "1", "--target", "portable", "--json"]);
        bench.args(more);
        let file = folder.join(name);
        fs::write(&file, stdout(bench)).unwrap();
        file
    };
    let plain = bench("plain.json", &["-t", "1"]);
    let one = bench("one.json", &["-t", "2", "--cache", "lru", "--override", kernels.to_str().unwrap()]);
    let (status, said, _) = compared(&plain, &one, &[]);
    assert!(matches!(status, Some(0 | 3)), "{said}");
    for says in [
        "different  options.given.cache: - | lru",
        "different  options.given.override: - | ",
        " bytes, CRC-32 ",
        "different  rows.threads: 1 | 2",
    ] {
        assert!(said.contains(says), "{says}: {said}");
    }
    assert_eq!(said.lines().filter(|line| line.trim_start().starts_with("1|2 portable")).count(), 2, "{said}");
    // A file with the same name but other content counts as another option.
    let files = fs::read_dir(&kernels).unwrap().map(|entry| entry.unwrap().path());
    let first = files.filter(|path| path.extension().is_some_and(|extension| extension == "ix")).min().unwrap();
    let text = fs::read_to_string(&first).unwrap() + "; edited\n";
    fs::write(&first, text).unwrap();
    let two = bench("two.json", &["-t", "2", "--cache", "lru", "--override", kernels.to_str().unwrap()]);
    let (_, said, _) = compared(&one, &two, &[]);
    let different: Vec<&str> = said.lines().filter(|line| line.starts_with("different")).collect();
    assert!(different.len() == 1 && different[0].contains("options.given.override: "), "{said}");
}

#[test]
fn impossible_bench_is_refused_before_output() {
    for format in ["text", "csv", "md", "json"] {
        let output = ixc(["bench", "-p", "100000", "--format", format]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(output.stdout.is_empty(), "{format}: {}", String::from_utf8_lossy(&output.stdout));
        assert!(stderr(&output).contains("100000"), "{}", stderr(&output));
    }
}

#[test]
fn invalid_bench_files_are_refused() {
    let folder = scratch("comparison-refused");
    let file = |name: &str, text: &str| {
        let file = folder.join(name);
        fs::write(&file, text).unwrap();
        file
    };
    let good = file("good.json", r#"{"schema": "ixc.bench.v1", "rows": [{"threads": 1, "all": [1, "x", -1]}]}"#);
    let refused = |other: &Path, code: i32, says: &str| {
        let (status, _, error) = compared(&good, other, &[]);
        assert!(status == Some(code) && error.contains(says), "{status:?} {error}");
    };
    refused(&file("text", "hello"), 65, "it is not a JSON document");
    refused(&file("other", r#"{"schema": "ixc.inspect.v1"}"#), 65, "expected \"ixc.bench.v1\"");
    refused(&file("rows", r#"{"schema": "ixc.bench.v1", "rows": 5}"#), 65, "it has no rows");
    refused(&file("none", r#"{"schema": "ixc.bench.v1", "rows": []}"#), 65, "no measured row in common");
    refused(&folder.join("missing"), 66, "missing");
    // Rows with too few rounds are not compared.
    let (status, said, _) = compared(&good, &good, &[]);
    assert!(status == Some(0) && said.contains("too few rounds to tell"), "{said}");
    assert_eq!(ixc(["bench", "demo", "--compare", "a", "b"]).output().unwrap().status.code(), Some(2));
    assert_eq!(ixc(["bench", "--compare", "a"]).output().unwrap().status.code(), Some(2));
}
