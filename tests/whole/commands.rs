//! Tests of every command: help, JSON output, and behaviour in pipes.

use std::io::Read;
use std::process::Stdio;

use crate::support::{demo_model, ixc, piped, stderr, stdout};
use serde_json::Value as Json;

/// Returns the commands that `ixc --help` lists.
fn commands() -> Vec<String> {
    let help = stdout(ixc(["--help"]));
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let names = list
        .lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    // `help` is clap's own command.
    names.map(|line| line.split_whitespace().next().unwrap().to_owned()).filter(|name| name != "help").collect()
}

#[test]
fn the_help_of_every_command_has_an_example_of_it() {
    let commands = commands();
    println!("{commands:?}");
    assert!(commands.len() >= 5);
    for command in commands {
        let help = stdout(ixc([&*command, "--help"]));
        let (_, examples) = help.split_once("EXAMPLES:").unwrap_or_else(|| panic!("{command} has no examples"));
        assert!(examples.contains(&format!("ixc {command}")), "{command}: {examples}");
    }
}

#[test]
fn inspect_shows_the_demo_model() {
    let facts: Json = serde_json::from_str(&stdout(ixc(["inspect", "--json"]))).unwrap();
    assert_eq!(facts["architecture"], "qwen3moe");
    assert_eq!((&facts["supported"], &facts["experts"], &facts["layers"]), (&true.into(), &16.into(), &4.into()));
    assert_eq!(facts["tokenizer"]["tokens"], 4096);
    let mut command = ixc(["inspect", "--tensors"]);
    let text = stdout({
        command.arg(demo_model());
        command
    });
    assert!(text.contains("tensor        token_embd.weight") && text.contains("supported     yes"), "{text}");
}

#[test]
fn doctor_finds_a_target() {
    let facts: Json = serde_json::from_str(&stdout(ixc(["doctor", "--json", "--no-bandwidth"]))).unwrap();
    let target = facts["target"].as_str().unwrap();
    assert!(facts["targets"].as_array().unwrap().iter().any(|row| row["name"] == target && row["chosen"] == true));
    assert!(facts["executable_memory"]["available"].is_boolean() && facts["io_uring"]["available"].is_boolean());
}

#[test]
fn doctor_measures_a_drive_and_remembers_it() {
    let folder = crate::support::scratch("drive");
    // The file is sparse, because this test checks the output, not the speed of the drive.
    std::fs::File::create(folder.join("file")).unwrap().set_len(65 << 20).unwrap();
    let doctor = |path: &std::path::Path, more: &[&str]| {
        let mut command = ixc(["doctor", "--no-bandwidth", "--drive"]);
        command.arg(path).args(more).env("XDG_CACHE_HOME", folder.join("cache"));
        command
    };
    let facts: Json = serde_json::from_str(&stdout(doctor(folder.as_path(), &["--json"]))).unwrap();
    let drive = &facts["drive"];
    assert!(drive["file"].as_str().unwrap().ends_with("file"), "{drive}");
    let rates = drive["rates"].as_array().unwrap();
    assert_eq!(rates.iter().map(|rate| rate["depth"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64]);
    assert!(rates.iter().all(|rate| rate["bytes_per_second"].as_f64().unwrap() > 0.0), "{drive}");
    assert!(rates.iter().any(|rate| rate["depth"] == drive["queue_depth"]), "{drive}");
    // On a file system without a drive or without O_DIRECT, the rate is measured but not stored.
    let there = std::fs::read_dir(folder.join("cache").join("ixc")).map_or(0, Iterator::count);
    assert_eq!(there, usize::from(drive["remembered"] == true), "{drive}");

    std::fs::File::create(folder.join("file")).unwrap().set_len(1 << 20).unwrap();
    let refused = doctor(folder.as_path(), &[]).output().unwrap();
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(
        refused.status.code() == Some(65) && message.contains("has 1 MiB; expected a file of at least 64 MiB"),
        "{message}"
    );
    let missing = doctor(&folder.join("none"), &[]).output().unwrap();
    assert_eq!(missing.status.code(), Some(66));
}

#[test]
fn plan_predicts_speed_and_runs_report_the_error() {
    let folder = crate::support::scratch("plan");
    let with = |arguments: &[&str]| {
        let mut command = ixc([arguments, &["-t", "2"]].concat());
        command.env("XDG_CACHE_HOME", folder.join("cache"));
        command
    };
    let model = demo_model();
    let model = model.to_str().unwrap();
    let facts: Json = serde_json::from_str(&stdout(with(&["plan", model, "--json"]))).unwrap();
    let rows = facts["budgets"].as_array().unwrap();
    let number = |row: &Json, name: &str| row[name].as_f64().unwrap();
    // The rows go from the least budget to the budget for all experts. A larger budget is never
    // slower.
    assert!(rows.len() > 2 && rows[0]["memory"] == facts["least_memory"], "{facts}");
    for pair in rows.windows(2) {
        for name in ["memory", "hit_rate", "decode", "prefill"] {
            assert!(number(&pair[0], name) <= number(&pair[1], name), "{name}: {facts}");
        }
    }
    let last = rows.last().unwrap();
    assert_eq!(
        (&last["limit"], &last["experts_in_memory"], number(last, "hit_rate")),
        (&"memory".into(), &64.into(), 1.0)
    );
    assert!(number(last, "decode") > 0.0 && number(&rows[0], "bytes_per_token") > 0.0, "{facts}");

    // The least budget varies between runs, since the process's memory for other purposes varies.
    let text = stdout(with(&["plan", model, "--hit-rate", "0.75"]));
    assert!(text.contains("   75 % ") && text.contains("all is in memory"), "{text}");
    let refused = with(&["plan", model, "--memory", "1MiB"]).output().unwrap();
    let message = stderr(&refused);
    assert!(refused.status.code() == Some(2) && message.contains("memory budget of 1 MiB is too small"), "{message}");
    let refused = stderr(&with(&["run", model, "--raw", "-p", "x", "--memory", "1MiB"]).output().unwrap());
    let (_, needed) = refused.rsplit_once("experts, and ").unwrap();
    let needed: u64 = needed.split_once(" MiB").unwrap().0.parse().unwrap();
    let some = format!("{}MiB", needed + 8);
    // A plan with experts in blocks has the same number of experts, and needs no packing when it is
    // loaded.
    let packed = folder.join("packed.ixp");
    let packed = packed.to_str().unwrap();
    stdout(with(&["compile", model, "-o", packed, "--memory", "1MiB", "--pack"]));
    let blocks: Json = serde_json::from_str(&stdout(with(&["plan", packed, "--json"]))).unwrap();
    assert_eq!((&blocks["experts"], &blocks["target"]), (&facts["experts"], &facts["target"]));
    assert!(blocks["budgets"].as_array().unwrap().iter().all(|row| number(row, "decode") > 0.0), "{blocks}");
    let dense = folder.join("dense.ixp");
    stdout(with(&["compile", model, "-o", dense.to_str().unwrap(), "--no-weights"]));
    let refused = with(&["plan", dense.to_str().unwrap()]).output().unwrap();
    assert!(refused.status.code() == Some(65) && stderr(&refused).contains("experts"), "{}", stderr(&refused));

    let bench: Json = serde_json::from_str(&stdout(with(&[
        "bench", model, "-p", "0", "-n", "4", "-r", "1", "--memory", &some, "--json",
    ])))
    .unwrap();
    let lines = bench["rows"][0]["forecast"].as_array().unwrap();
    assert!(lines.iter().any(|line| line.as_str().unwrap().starts_with("predicted ")), "{bench}");
    let run = with(&["run", model, "--raw", "-p", "Hello", "-n", "4", "--memory", &some, "--stats"]).output().unwrap();
    let message = stderr(&run);
    assert!(run.status.success() && message.contains("forecast  predicted "), "{message}");

    // Runs record the hit rate of their routing, unless experts are deferred. Runs with and without
    // read-ahead record the same rate, because predicted experts are counted as missed.
    //
    // Memory holds a small part of the experts, so some experts are missed, and some predicted
    // experts are absent. Their number depends on the other memory of a busy machine, and forty
    // tokens are few. The measurements therefore agree only to about a third.
    let part = format!("{}MiB", needed + 2);
    let evenness = |more: &[&str]| {
        let run = ["run", model, "--raw", "-p", "Hello", "-n", "40", "--temp", "0", "--memory", &part, "--stats"];
        let output = with(&[&run, more].concat()).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let files = std::fs::read_dir(folder.join("cache/ixc")).unwrap().map(|entry| entry.unwrap().path());
        let of_model = |path: &std::path::PathBuf| {
            // The cache folder also contains the file with the user's secret, which is skipped.
            let facts: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).ok()?;
            facts["model"].as_str().is_some_and(|name| name.contains(".gguf ")).then_some(facts)
        };
        let facts = files.filter_map(|path| of_model(&path)).next().unwrap();
        facts["routing"]["evenness"].as_f64()
    };
    assert_eq!(evenness(&["--defer", "1"]), None);
    let learned = ["off", "previous", "router"].map(|choice| evenness(&["--prefetch", choice]).unwrap());
    assert!(learned.iter().all(|found| *found > 0.0 && (found / learned[0]).ln().abs() < 0.5), "{learned:?}");
}

#[test]
fn detokenize_restores_the_tokenized_text() {
    let model = demo_model();
    let text = "The borrow checker\n– naïve 🦀";
    let mut command = ixc(["tokenize"]);
    command.arg(&model).args([text, "--json"]);
    let ids: Json = serde_json::from_str(&stdout(command)).unwrap();
    let ids: Vec<u32> = ids["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let mut command = ixc(["detokenize"]);
    command.arg(&model).args([crate::support::list(&ids), "--json".into()]);
    let back: Json = serde_json::from_str(&stdout(command)).unwrap();
    assert_eq!(back["text"], text);
}

#[test]
fn closed_standard_output_is_no_error() {
    let mut command = ixc(["inspect", "--tensors"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((child.wait().unwrap().code(), &*said), (Some(0), ""));
}

/// Checks that a file with only a vocabulary is valid: its tokenizer works, but the file contains
/// no model.
#[test]
fn a_vocabulary_without_a_model_is_inspected() {
    let Some(tokenizers) = crate::support::shared("golden/tokenizers") else { return };
    let mut command = ixc(["inspect", "--json"]);
    command.arg(tokenizers.join("llama-spm.gguf"));
    let facts: Json = serde_json::from_str(&stdout(command)).unwrap();
    assert_eq!((&facts["supported"], &facts["tokenizer"]["supported"]), (&false.into(), &true.into()));
    assert!(facts["problems"][0].as_str().unwrap().contains("token_embd.weight"), "{facts}");
}

/// Checks that messages and log warnings are dropped without an error if standard error is closed.
#[test]
fn closed_standard_error_is_no_error() {
    let mut command = ixc(["run", "--raw", "-p", "The", "-n", "2", "--stats"]);
    let mut child = command.env("IXC_LOG", "debug").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{text}");
}

#[test]
fn partial_character_tokens_are_printed_as_bytes() {
    let mut command = ixc(["tokenize"]);
    command.arg(demo_model()).arg("界");
    let text = stdout(command);
    assert!(text.contains("\\xe7") && !text.contains('\u{fffd}'), "{text}");
}

#[test]
fn kernel_option_applies_only_to_kernel_stages() {
    assert_eq!(ixc(["dump", "--stage", "graph", "--kernel", "embed"]).output().unwrap().status.code(), Some(2));
    let kernels = stdout(ixc(["dump", "--stage", "kernel", "--kernel", "embed"]));
    assert_eq!(kernels.lines().filter(|line| line.starts_with("kernel ")).count(), 1, "{kernels}");
}

#[test]
fn graphs_and_tasks_are_drawn() {
    let drawn = |more: &[&str]| stdout(ixc([&["dump", "--target", "avx2", "--dot"], more].concat()));
    let nodes = |text: &str, of: &str| text.lines().filter(|line| line.contains(&format!("label = \"{of}"))).count();
    let (graph, fused) = (drawn(&[]), drawn(&["--stage", "fused"]));
    assert!(graph.starts_with("digraph {\n") && graph.ends_with("}\n"), "{graph}");
    assert_eq!(drawn(&["--stage", "graph"]), graph);
    let of_text = |stage: &str, op: &str| {
        let text = stdout(ixc(["dump", "--target", "avx2", "--stage", stage]));
        text.lines().filter(|line| line.contains(&format!(" = {op} "))).count()
    };
    assert_eq!(nodes(&graph, "matmul "), of_text("graph", "matmul"));
    assert_eq!(nodes(&fused, "linear.qkv "), of_text("fused", "linear.qkv"));
    assert!(nodes(&graph, "matmul ") > 0 && nodes(&fused, "linear.qkv ") > 0, "{graph}{fused}");
    let tasks = drawn(&["--after", "steps"]);
    assert_eq!(nodes(&tasks, "step 0: "), 1, "{tasks}");
    assert_eq!(drawn(&["--stage", "plan"]), tasks);
    for wrong in [&["--after", "arena"][..], &["--stage", "asm"], &["--stage", "kernel", "--kernel", "embed"]] {
        let output = ixc([&["dump", "--dot"], wrong].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", stderr(&output));
    }
}

#[test]
fn usage_error_shows_the_correct_usage() {
    let output = ixc(["tokenize"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("ixc tokenize MODEL TEXT"), "{}", stderr(&output));
}

#[test]
fn dumped_graphs_can_be_optimised_and_read_back() {
    let opt = |text: &str, passes: &[&str]| piped(ixc([&["opt", "-"], passes].concat()), text);
    let graph = stdout(ixc(["dump", "--stage", "graph"]));
    let fused = stdout(ixc(["dump", "--stage", "fused"]));
    assert_eq!(String::from_utf8(opt(&graph, &[]).stdout).unwrap(), graph);
    let passes = ["--passes", "canonicalise,fuse,pack,tile"];
    assert_eq!(String::from_utf8(opt(&graph, &passes).stdout).unwrap(), fused);
    let wrong = graph.replacen("= embed", "= embde", 1);
    let output = opt(&wrong, &[]);
    assert_eq!(output.status.code(), Some(65));
    let line = 1 + wrong.lines().position(|line| line.contains("embde")).unwrap();
    assert!(stderr(&output).contains(&format!("-:{line}:8: ")), "{}", stderr(&output));
    assert_eq!(opt(&graph, &["--passes", "no_such_pass"]).status.code(), Some(2));
    // If memory holds only a part of the experts, the graph and the plan load experts on demand.
    let memory = ["--expert-memory", "1MiB", "--predict", "2"];
    let explicit = stdout(ixc([&["dump", "--stage", "fused"][..], &memory].concat()));
    let residency = opt(&fused, &[&["--passes", "residency"][..], &memory].concat());
    // Returns the text after the line that names the last pass.
    let behind = |text: &str| text.split_once('\n').unwrap().1.to_owned();
    let residency = String::from_utf8(residency.stdout).unwrap();
    assert_eq!((behind(&residency), residency.lines().next()), (behind(&explicit), Some("; after residency")));
    assert!(explicit.contains("when = routed") && explicit.contains("when = predicted"), "{explicit}");
    let plan = stdout(ixc([&["dump", "--stage", "plan"][..], &memory].concat()));
    assert!(plan.contains("request experts 3") && plan.contains("predict experts 3"), "{plan}");
    assert_eq!(opt(&fused, &["--expert-memory", "much"]).status.code(), Some(2));
}

/// Checks that the next pass can read the text that a pass writes, and that tile sizes can be set.
#[test]
fn passes_resume_from_dumped_text() {
    let file = crate::support::scratch("passes").join("left");
    let opt = |text: &str, more: &[&str]| {
        std::fs::write(&file, text).unwrap();
        ixc(["opt"]).arg(&file).args(more).output().unwrap()
    };
    let after =
        |pass: &str, more: &[&str]| stdout(ixc([&["dump", "--target", "avx2", "--after", pass], more].concat()));
    let (tiled, tasks, plan) = (after("tile", &[]), after("lower", &[]), after("arena", &[]));
    let resumed = opt(&tiled, &["--model", "demo", "--target", "avx2", "--passes", "lower,steps,arena"]);
    assert_eq!(String::from_utf8(resumed.stdout).unwrap(), plan, "{}", String::from_utf8_lossy(&resumed.stderr));
    let resumed = opt(&tasks, &["--passes", "steps,arena"]);
    assert_eq!(String::from_utf8(resumed.stdout).unwrap(), plan, "{}", String::from_utf8_lossy(&resumed.stderr));
    assert!(tiled.contains("tile = \"rows=32 gemv<=5/5 gemm/96\", why = \""), "{tiled}");
    let asked = after("tile", &["--tile", "blk.*.attn_q.weight: rows=16", "--tile", "output.weight: rows=16"]);
    assert!(asked.contains("tile = \"rows=16 gemv<=5/5 gemm/96\", why = \"requested for"), "{asked}");
    let refused = |more: &[&str], says: &str| {
        let output = ixc([&["dump", "--target", "avx2", "--after", "tile"], more].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{more:?}: {}", stderr(&output));
    };
    refused(&["--tile", "rows=16"], "PATTERN: rows=N");
    refused(&["--tile", "nothing: rows=16"], "no weight of a product matches \"nothing\"");
    refused(&["--tile", "output.weight: rows=7"], "its candidates are rows=");
    refused(&["--tile", "output.weight: gemv<=5/5x7 gemm/96"], "gemm/");
    refused(&["--set", "tile.speed=1"], "no pass has an option \"tile.speed\"");
    let lost = opt(&tiled, &["--passes", "lower"]);
    assert!(lost.status.code() == Some(2) && stderr(&lost).contains("needs a model"), "{}", stderr(&lost));
    let odd = opt("{\"draft\": 1}", &[]);
    assert!(
        odd.status.code() == Some(65) && stderr(&odd).contains("not a text of tasks or a plan"),
        "{}",
        stderr(&odd)
    );
}

/// Checks that the README names all commands and no others, and that the options that it shows
/// exist.
#[test]
fn readme_names_existing_commands_and_options() {
    let readme = include_str!("../../README.md");
    let commands = commands();
    for command in &commands {
        assert!(
            readme.contains(&format!("`ixc {command} ")) || readme.contains(&format!("`ixc {command}`")),
            "{command}"
        );
    }
    // Collects the commands in code: between backticks, or in lines of a code block.
    let shown = readme.split('`').flat_map(str::lines).map(|line| line.trim_start_matches("cargo run --release -- "));
    let mut checked = 0;
    for line in shown.filter(|line| line.starts_with("ixc ") || line.starts_with("run -p")) {
        let mut words = line.trim_start_matches("ixc ").split_whitespace();
        let command = words.next().unwrap().to_owned();
        if command == "COMMAND" {
            continue;
        }
        assert!(commands.contains(&command), "{line}");
        let help = stdout(ixc([&*command, "--help"]));
        for flag in words.filter(|word| word.starts_with('-') && word.len() > 1) {
            assert!(help.contains(flag), "{line}: {flag}");
            checked += 1;
        }
    }
    assert!(checked >= 6, "{checked}");
    assert!(
        readme.contains("cargo test --workspace") && include_str!("../../.ci/run").contains("cargo test --workspace")
    );
}

#[test]
fn invalid_streaming_option_lists_valid_values() {
    for (flag, wrong, right) in [
        ("--prefetch", "given", "expected off, previous, frequency, router or auto"),
        ("--cache", "mru", "expected one of lru, slru, s3-fifo"),
        ("--prefetch-extra", "-1", "not in 0..=1024"),
    ] {
        for command in ["run", "bench", "logits"] {
            let output = ixc([command, &format!("{flag}={wrong}")]).output().unwrap();
            let message = stderr(&output);
            assert!(output.status.code() == Some(2) && message.contains(right), "{command} {flag}: {message}");
        }
    }
}
