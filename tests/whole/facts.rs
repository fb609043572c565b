//! JSON and reports of commands. JSON names its schema, measurements have their settings and units,
//! and lines fit the terminal.

use std::process::{Command, Stdio};

use crate::support::{ixc, scratch, stderr, stdout};
use serde_json::Value as Json;

fn json(command: Command) -> Json {
    let text = stdout(command);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn every_json_output_names_its_schema() {
    let folder = scratch("schemas");
    let (plan, bundle) = (folder.join("demo.ixp"), folder.join("kernel"));
    let (plan, bundle) = (plan.to_str().unwrap(), bundle.to_str().unwrap());
    for (arguments, schema) in [
        (&["inspect", "--json"][..], "ixc.inspect.v1"),
        (&["compile", "-o", plan, "--no-weights", "--json"], "ixc.compile.v1"),
        (&["inspect", plan, "--json"], "ixc.inspect.v1"),
        (&["tokenize", "-p", "x", "--json"], "ixc.tokenize.v1"),
        (&["detokenize", "1", "--json"], "ixc.detokenize.v1"),
        (&["bench", "-p", "4", "-n", "0", "-r", "1", "--json"], "ixc.bench.v1"),
        (&["doctor", "--no-bandwidth", "--json"], "ixc.doctor.v1"),
        (&["plan", "--json"], "ixc.plan.v1"),
        (&["cache", "ls", "--json"], "ixc.cache.v1"),
        (&["simulate", "--json"], "ixc.simulate.v1"),
        (&["simulate", "-p", "The", "-n", "1", "--json"], "ixc.simulate.v1"),
        (&["simulate", "--ranks", "2", "--json"], "ixc.ranks.v1"),
        (&["kernel", "list", "--json"], "ixc.kernel-list.v1"),
        (&["kernel", "list", "--model", "demo", "--json"], "ixc.kernel-list-of-model.v1"),
        (&["explain", "--json"], "ixc.explain.v1"),
        (&["kernel", "cost", "gemv_q4_k", "--target", "zen4", "--json"], "ixc.kernel-cost.v1"),
        (&["kernel", "run", "rms_norm_f32", "--target", "portable", "--json"], "ixc.kernel-run.v1"),
        (&["kernel", "export", "rms_norm_f32", "--target", "avx2", "-o", bundle, "--json"], "ixc.kernel-export.v1"),
        (&["kernel", "replay", bundle, "--json"], "ixc.kernel-replay.v1"),
    ] {
        let mut command = ixc(arguments);
        command.env("XDG_CACHE_HOME", &folder);
        assert_eq!(json(command)["schema"], schema, "{arguments:?}");
    }
}

#[test]
fn bench_json_describes_program_machine_and_model() {
    let bench = json(ixc(["bench", "-p", "4", "-n", "3", "-t", "1", "-r", "3", "--target", "portable", "--json"]));
    assert_eq!(bench["ixc"]["version"], env!("CARGO_PKG_VERSION"));
    let time = bench["time"].as_str().unwrap();
    assert!(time.len() == 20 && time.ends_with('Z') && time.as_bytes()[10] == b'T', "{time}");
    let model = &bench["model"];
    assert_eq!((&model["architecture"], &model["plan"]), (&"qwen3moe".into(), &false.into()));
    let facts = json(ixc(["inspect", "--json"]));
    assert_eq!((&model["bytes"], &model["parameters"]), (&facts["file_bytes"], &facts["parameters"]));
    for format in facts["formats"].as_array().unwrap() {
        assert_eq!(model["formats"][format["format"].as_str().unwrap()], format["bytes"], "{model}");
    }
    assert!(!bench["cpu"]["name"].as_str().unwrap().is_empty() && bench["cpu"]["threads"].as_u64() >= Some(1));
    assert!(bench["os"].as_str().unwrap().starts_with(std::env::consts::OS), "{bench}");
    let arguments = bench["options"]["arguments"].as_array().unwrap();
    assert!(arguments.contains(&"--target".into()) && bench["options"]["repetitions"] == 3, "{bench}");
    for row in bench["rows"].as_array().unwrap() {
        assert!(row["all"].as_array().unwrap().len() == 3 && row["target"] == "portable", "{row}");
    }
}

#[test]
fn measurements_are_written_in_every_format() {
    let bench = |format: &str| {
        stdout(ixc(["bench", "-p", "4,8", "-n", "0", "-t", "1", "-r", "2", "--target", "portable", "--format", format]))
    };
    let lines = bench("jsonl");
    let lines: Vec<Json> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.iter().map(|line| line["tokens"].as_u64().unwrap()).collect::<Vec<_>>(), [4, 8]);
    for line in &lines {
        assert!(line["schema"] == "ixc.bench.v1" && line["model"]["bytes"].is_u64() && line["cpu"]["name"].is_string());
        assert_eq!(line["all"].as_array().unwrap().len(), 2);
    }
    let table = bench("csv");
    let mut rows = table.lines().map(cells);
    let names = rows.next().unwrap();
    let column =
        |name: &str| names.iter().position(|found| found == name).unwrap_or_else(|| panic!("{name}: {names:?}"));
    for (row, tokens) in rows.zip(["4", "8"]) {
        assert_eq!(row.len(), names.len(), "{row:?}");
        assert_eq!((&*row[column("tokens")], &*row[column("test")]), (tokens, "prefill"));
        assert_eq!(row[column("all")].split(' ').count(), 2);
        assert!(!row[column("cpu")].is_empty() && !row[column("model_bytes")].is_empty());
    }
    let markdown = bench("md");
    assert_eq!(markdown.lines().filter(|line| line.starts_with("| 1 | portable | prefill |")).count(), 2, "{markdown}");
    assert!(markdown.contains("- ixc_version: "), "{markdown}");
    assert!(bench("text").lines().nth(1).unwrap().trim_start().starts_with("threads target"));
    assert_eq!(ixc(["bench", "--format", "csv", "--json"]).output().unwrap().status.code(), Some(2));
}

/// Splits a line of CSV into cells.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut quoted) = (vec![String::new()], false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            c => cells.last_mut().unwrap().push(c),
        }
    }
    cells
}

#[test]
fn the_version_names_commit_and_targets() {
    let short = stdout(ixc(["-V"]));
    let rest = short.strip_prefix(concat!("ixc ", env!("CARGO_PKG_VERSION"))).unwrap().trim_end();
    // A checkout has a commit and a date. Sources without git have neither.
    if let Some(known) = rest.strip_prefix(" (").and_then(|rest| rest.strip_suffix(')')) {
        let (commit, date) = known.split_once(' ').unwrap();
        assert!(commit.len() >= 9 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{short}");
        assert!(date.len() == 10 && date.starts_with("20"), "{short}");
    } else {
        assert_eq!(rest, "", "{short}");
    }
    let long = stdout(ixc(["--version"]));
    assert!(long.starts_with(short.trim_end()) && long.contains("targets: portable, avx2"), "{long}");
    assert!(long.contains("architectures: llama") && long.contains("\ncommit: "), "{long}");
}

/// Checks that `--stats=json` prints the times of a run as one JSON document on standard error.
#[test]
fn stats_are_printed_as_json_on_request() {
    let run = |more: &[&str]| {
        let words = ["run", "--raw", "-p", "The borrow checker", "-n", "4", "-t", "2", "--temp", "0"];
        let output = ixc([&words[..], more].concat()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        (output.stdout.clone(), stderr(&output))
    };
    let (text, said) = run(&["--stats=json"]);
    assert_eq!(run(&[]).0, text);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 1, "{said}");
    let facts: Json = serde_json::from_str(lines[0]).unwrap();
    assert_eq!((&facts["schema"], &facts["threads"]), (&"ixc.stats.v1".into(), &2.into()));
    assert!(facts["limits"]["bytes_per_second"].as_f64().unwrap() > 0.0, "{facts:#}");
    for (part, tokens) in [("prefill", 3), ("decode", 3)] {
        let part = &facts[part];
        assert!(part["tokens"].as_u64().unwrap() >= tokens && part["steps"].as_u64().unwrap() >= 1, "{part:#}");
        let ops = part["ops"].as_array().unwrap();
        let linear = ops.iter().find(|op| op["op"] == "expert.swiglu").unwrap();
        assert!(linear["bytes"].as_u64().unwrap() > 0 && linear["products"]["int8"].as_u64().unwrap() > 0, "{linear}");
        assert!(linear["share_of_bandwidth"].as_f64().unwrap() > 0.0, "{linear}");
        assert!(linear["share_of_peak"].as_f64().unwrap() > 0.0, "{linear}");
        let shares: f64 = ops.iter().map(|op| op["share"].as_f64().unwrap()).sum();
        assert!(shares > 0.0 && shares <= 1.001, "{shares}");
        // The times of kernels add up to the same sum as the times of ops.
        let kernels = part["kernels"].as_array().unwrap();
        let sum = |rows: &[Json]| -> f64 { rows.iter().map(|row| row["seconds"].as_f64().unwrap()).sum() };
        assert!((sum(kernels) - sum(ops)).abs() < 1e-6 && sum(ops) > 0.0, "{part:#}");
        // Ops are sorted by time, the longest first.
        let seconds: Vec<f64> = ops.iter().map(|op| op["seconds"].as_f64().unwrap()).collect();
        assert!(seconds.is_sorted_by(|a, b| a >= b), "{seconds:?}");
    }
    assert!(run(&["--stats=text"]).1.contains("decode") && run(&["--stats"]).1.contains(" GB/s"));
    assert_eq!(ixc(["run", "--stats=xml"]).output().unwrap().status.code(), Some(2));
}

#[test]
fn doctor_fits_a_terminal_and_verbose_shows_more() {
    let short = stdout(ixc(["doctor", "--no-bandwidth"]));
    for line in short.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(!short.contains("not in CPUID") && short.contains(" chosen"), "{short}");
    assert!(short.lines().any(|line| line.starts_with("features")), "{short}");
    let long = stdout(ixc(["doctor", "--no-bandwidth", "-v"]));
    assert!(long.lines().filter(|line| line.starts_with("feature  ")).count() > 10, "{long}");
}

/// Checks that the result goes to standard output and the report to standard error. If both are the
/// same terminal, they must not share a line.
#[test]
fn simulate_check_result_has_its_own_line() {
    let mut command = Command::new("sh");
    let simulate = r#""$0" simulate -p "The borrow checker" -n 2 --check 2>&1"#;
    command.args(["-c", simulate, env!("CARGO_BIN_EXE_ixc")]).stdin(Stdio::null());
    let text = stdout(command);
    assert!(text.lines().any(|line| line.starts_with("check  ")), "{text}");
}

#[test]
fn simulation_report_uses_the_common_units() {
    let one = stdout(ixc(["simulate"]));
    assert!(one.contains("step       1 token at position 0\n"), "{one}");
    let four = stdout(ixc(["simulate", "--batch", "4"]));
    assert!(four.contains("step       4 tokens at position 0, pipelined"), "{four}");
    for text in [one, four] {
        for wrong in ["kB", "MB", "GB", "ktokens", "Mtokens", "byte-hops", " bytes"] {
            assert!(!text.contains(wrong), "{wrong}: {text}");
        }
        assert!(text.contains("KiB") || text.contains("MiB"), "{text}");
    }
}

/// Regression test: values that model files have in f32 were once printed in graphs with all digits
/// of their 64-bit expansions.
#[test]
fn floats_in_graphs_are_printed_as_the_model_file_has_them() {
    let graph = stdout(ixc(["dump", "--stage", "graph"]));
    assert!(graph.contains("eps = 1e-6") && !graph.contains("e-7"), "{}", &graph[..2000.min(graph.len())]);
    let plain = |line: &str| {
        line.split(" = ").skip(1).all(|value| {
            let digits = value.split([',', '}', ' ']).next().unwrap_or_default();
            digits.parse::<f64>().is_err() || digits.len() <= 12
        })
    };
    assert!(graph.lines().all(plain));
    assert!(stderr(&ixc(["dump", "--stage", "fused"]).output().unwrap()).is_empty());
}

#[test]
fn kernel_cost_fits_a_terminal() {
    for kernel in ["gemm_q4_k", "gemv_q6_k"] {
        let text = stdout(ixc(["kernel", "cost", kernel, "--target", "sapphire-rapids", "--rows", "64"]));
        for line in text.lines() {
            assert!(line.chars().count() <= 120, "{}: {line}", line.chars().count());
        }
    }
}
