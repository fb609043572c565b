//! `ixc run` with a model file, a plan and the built-in model. The generated text is the one that
//! follows from the model's logits.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::{Golden, demo_model, ixc, list, piped, scratch, shared, stderr, stdout};
use ixc::ir::kernel::Kernel;
use ixc::ir::plan::Plan;
use ixc::runtime::file;
use ixc::targets::Target;
use serde_json::Value as Json;

/// Returns the text that `ixc detokenize` prints for token ids.
fn text(ids: &[u32]) -> String {
    let mut command = ixc(["detokenize", "--json"]);
    command.arg(demo_model()).arg(list(ids));
    let facts: Json = serde_json::from_str(&stdout(command)).unwrap();
    facts["text"].as_str().unwrap().to_owned()
}

/// Compiles the demo model and returns the plan's path.
fn plan(folder: &Path, arguments: &[&str]) -> std::path::PathBuf {
    let plan = folder.join("plan.ixp");
    let mut command = ixc(["compile"]);
    command.arg(demo_model()).arg("-o").arg(&plan).args(arguments);
    stdout(command);
    plan
}

#[test]
fn greedy_text_matches_the_golden_model() {
    let Some(golden) = shared("golden/demo") else { return };
    let model = Golden::read(&golden.join("expect/rustling-q4_k_m.json"));
    let greedy = model.tokens("greedy_tokens_f32");
    let (prompt, expected) = (text(&model.tokens("prompt_tokens")), text(&greedy) + "\n");
    let count = greedy.len().to_string();
    for target in ["native", "portable"] {
        for threads in ["1", "2"] {
            let arguments =
                ["run", "--raw", "-p", &prompt, "-n", &count, "--temp", "0", "--target", target, "-t", threads];
            assert_eq!(stdout(ixc(arguments)), expected, "{target}, {threads} threads");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn thread_pinning_changes_no_text_and_is_reported() {
    let arguments = ["run", "--raw", "-p", "The borrow checker", "-n", "24", "--temp", "0", "-t", "3"];
    let expected = stdout(ixc(arguments));
    let run = |pin: &str| {
        let output = ixc(arguments).args(["--pin", pin, "--stats"]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "--pin {pin}");
        String::from_utf8(output.stderr).unwrap()
    };
    let (on, off) = (run("on"), run("off"));
    assert!(on.contains("threads   bound to processors ") && !off.contains("threads   "), "{on}\n{off}");
    // The parts of memory in the report add up to all resident memory.
    let pages = |what: &str| {
        off.lines().any(|line| line.starts_with(&format!("pages     {what}: ")) && line.ends_with("in pages of 2 MiB"))
    };
    assert!(pages("activations") && pages("states"), "{off}");
    let auto = run("auto");
    assert!(
        auto.contains("threads   bound to processors ") || auto.contains("threads   not bound to processors: "),
        "{auto}"
    );
}

#[test]
fn greedy_text_is_equal_on_every_x86_target() {
    let arguments = ["run", "--raw", "-p", "The borrow checker", "-n", "16", "--temp", "0"];
    let native = stdout(ixc(arguments));
    for target in [Target::AVX2, Target::AVX512, Target::AMX] {
        let mut emulated = ixc(arguments);
        emulated.args(["--target", target.name(), "--emulate"]);
        assert_eq!(stdout(emulated), native, "{}", target.name());
        let output = ixc(arguments).args(["--target", target.name()]).output().unwrap();
        if target.missing().is_empty() {
            println!("{}: emulated and native", target.name());
            assert_eq!(output.stdout, native.as_bytes(), "{}", target.name());
        } else {
            println!("{}: emulated", target.name());
            let error = stderr(&output);
            assert_eq!(output.status.code(), Some(69), "{error}");
            assert!(error.contains("this machine lacks") && error.contains("--emulate"), "{error}");
        }
    }
    let portable = ixc(arguments).args(["--target", "portable", "--emulate"]).output().unwrap();
    assert_eq!(portable.status.code(), Some(2), "{}", stderr(&portable));
}

/// Checks that plans with packed weights, plans whose weights are packed when they are loaded, and
/// plans without packing give the same text.
#[test]
fn plans_with_or_without_packed_weights_give_equal_text() {
    let mut sizes = Vec::new();
    for target in ["avx512", "amx"] {
        let mut texts = Vec::new();
        for (name, how) in [("with", &[][..]), ("without", &["--no-weights"]), ("unpacked", &["--no-pack"])] {
            let folder = scratch(&format!("run_packed_{target}_{name}"));
            let plan = plan(&folder, &[&["--target", target][..], how].concat());
            sizes.push(fs::metadata(&plan).unwrap().len());
            let facts: Json =
                serde_json::from_str(&stdout(ixc(["inspect".as_ref(), plan.as_os_str(), "--json".as_ref()]))).unwrap();
            let formats = facts["formats"].as_array().unwrap();
            let packed = |format: &&Json| format["format"].as_str().unwrap().ends_with("_r16");
            assert_eq!(formats.iter().filter(packed).count() > 0, name != "unpacked", "{facts}");
            for format in formats.iter().filter(packed) {
                let in_place = format["stored"] == format["format"] && format["place"] == "plan";
                let at_load = format["stored"] != format["format"] && format["place"] == "model_file";
                assert!(if name == "with" { in_place } else { at_load }, "{format}");
            }
            let mut run = ixc(["run", "--raw", "-p", "The borrow checker", "-n", "8", "--temp", "0", "--emulate"]);
            run.arg(&plan);
            texts.push(stdout(run));
        }
        assert_eq!(texts[0], texts[1], "{target}");
        assert!(texts[2].len() > 8, "{target}");
    }
    // The demo model has some megabytes of weights.
    assert!(sizes[0] > 4 * sizes[1] && sizes[3] > 4 * sizes[4], "{sizes:?}");
}

#[test]
fn damaged_plan_weights_are_refused_unless_unchecked() {
    let folder = scratch("run_damaged_weights");
    let plan = plan(&folder, &["--target", "avx512"]);
    let mut bytes = fs::read(&plan).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&plan, &bytes).unwrap();
    let run = |more: &[&str]| {
        let mut run = ixc(["run", "--raw", "-p", "x", "-n", "1", "--temp", "0", "--emulate"]);
        run.args(more).arg(&plan).output().unwrap()
    };
    let refused = run(&[]);
    let error = stderr(&refused);
    assert_eq!(refused.status.code(), Some(65), "{error}");
    assert!(error.contains("weight \"") && error.contains("the file is damaged"), "{error}");
    assert_eq!(run(&["--no-check"]).status.code(), Some(0));
}

#[test]
fn prompt_and_model_may_come_from_any_source() {
    let folder = scratch("run_sources");
    let greedy = ["--temp", "0", "-n", "12"];
    let mut command = ixc(["run", "--raw", "-p", "The borrow checker"]);
    command.args(greedy);
    let expected = stdout(command);
    assert!(expected.len() > 12);

    // Standard input is tested with and without the newline that `echo` adds.
    for input in ["The borrow checker", "The borrow checker\n"] {
        let mut command = ixc(["run", "--raw"]);
        command.args(greedy);
        assert_eq!(piped(command, input).stdout, expected.as_bytes());
    }

    let file = folder.join("prompt.txt");
    fs::write(&file, "The borrow checker").unwrap();
    let mut command = ixc(["run", "--raw", "-f"]);
    command.arg(&file).args(greedy);
    assert_eq!(stdout(command), expected);

    let portable = scratch("run_sources_portable");
    for (model, target) in [
        (demo_model(), "native"),
        (plan(&folder, &[]), "native"),
        (plan(&portable, &["--target", "portable"]), "portable"),
    ] {
        let mut command = ixc(["run", "--raw", "-p", "The borrow checker", "--stats", "--target", target]);
        let output = command.arg(&model).args(greedy).output().unwrap();
        assert_eq!(output.stdout, expected.as_bytes(), "{}", stderr(&output));
        assert!(stderr(&output).contains("decode    11 tokens"), "{}", stderr(&output));
    }
}

#[test]
fn a_seed_makes_text_repeatable() {
    let run = |seed: &str| stdout(ixc(["run", "--raw", "-p", "A trait", "-n", "24", "--temp", "1", "--seed", seed]));
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn chat_reads_a_question_from_standard_input() {
    let mut command = ixc(["run", "--chat", "--system", "Be brief.", "-n", "8", "--temp", "0"]);
    command.stderr(Stdio::piped());
    let output = piped(command, "What is a trait?\n");
    assert!(output.status.success() && !output.stdout.is_empty(), "{}", stderr(&output));
}

/// Checks that templates that attack their renderer give only text or a typed error.
#[test]
fn hostile_templates_are_contained() {
    use ixc::model_files::gguf::Gguf;
    use ixc::text::template::{ChatTemplate, Conversation, Message};
    let Some(bad) = shared("bad-gguf") else { return };
    for name in ["range", "recur", "syntax", "raise", "include"] {
        let gguf = Gguf::open(&bad.join(format!("files/j_{name}.gguf"))).unwrap();
        let source: &str = gguf.metadata().read("tokenizer.chat_template").unwrap();
        let conversation = Conversation { messages: vec![Message::new("user", "hi")], ..Conversation::default() };
        let rendered = ChatTemplate::from_source(source)
            .and_then(|template| template.render_isolated(Path::new(env!("CARGO_BIN_EXE_ixc")), &conversation));
        let error = ixc::Error::from(rendered.unwrap_err());
        assert_eq!(error.class(), ixc::error::Class::Data, "{name}: {error}");
        println!("{name}: {error}");
    }
}

#[test]
fn invalid_runs_are_refused_with_a_reason() {
    let folder = scratch("run_errors");
    for (arguments, status, says) in [
        (&["-p", "x", "no-such.gguf"][..], 66, "no-such.gguf"),
        (&["-p", ""], 65, "prompt is empty"),
        (&["-p", "x", "--temp", "1001"], 2, "temp"),
        (&["-p", "x", "--ctx", "1000000"], 2, "context"),
        (&["-p", "x", "--memory", "10"], 2, "the memory budget of 10 B is too small"),
        (&["-p", "x", "-t", "0"], 2, "threads"),
        (&["-p", "x", "--target", "z80"], 2, "targets are native"),
    ] {
        let output = ixc(["run"]).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{arguments:?}: {}", stderr(&output));
    }
    let plan = plan(&folder, &["--target", "portable"]);
    let output = ixc(["run", "--raw", "-p", "x", "--target", "avx2"]).arg(&plan).output().unwrap();
    assert_eq!(output.status.code(), Some(65));
    assert!(stderr(&output).contains("compile the model for avx2"), "{}", stderr(&output));
    let output = ixc(["dump", "--stage", "graph"]).arg(&plan).output().unwrap();
    assert_eq!(output.status.code(), Some(65));
    assert!(stderr(&output).contains("is a plan"), "{}", stderr(&output));
    let output = piped(ixc(["run", "--chat"]), "\n");
    assert_eq!(output.status.code(), Some(65));
    assert!(stderr(&output).contains("prompt is empty"), "{}", stderr(&output));
}

/// Checks that a plan with a changed byte is refused. If its checksum is corrected, the plan is
/// refused or runs.
#[test]
fn damaged_plans_are_refused() {
    let folder = scratch("damaged_plans");
    let path = plan(&folder, &["--target", "portable"]);
    let good = fs::read(&path).unwrap();
    let mut state = 0x5eed_u64;
    println!("seed {state:#x}");
    for round in 0..24 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut bytes = good.clone();
        let at = (state >> 33) as usize % bytes.len();
        match round % 3 {
            0 => bytes[at] ^= 1 << (state >> 29 & 7),
            1 => bytes.truncate(at),
            _ => {
                let header = ixc::runtime::file::HEADER_BYTES;
                let at = at.max(header);
                bytes[at] ^= 1 << (state >> 29 & 7);
                bytes = ixc::runtime::file::seal(&bytes[header..]);
            }
        }
        fs::write(&path, &bytes).unwrap();
        let output = ixc(["run", "--raw", "-p", "x", "-n", "2", "--temp", "0"]).arg(&path).output().unwrap();
        let status = output.status.code();
        let sealed = round % 3 == 2;
        let expected = status == Some(65) || sealed && matches!(status, Some(0 | 66));
        assert!(expected, "round {round}: {}: {}", output.status, stderr(&output));
    }
}

#[test]
fn plans_are_inspected_and_every_stage_is_written() {
    let folder = scratch("emit");
    let path = plan(&folder, &["--emit", "graph,fused,plan,kernel,asm"]);
    let mut stages: Vec<_> =
        fs::read_dir(folder.join("plan.d")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    stages.sort();
    assert_eq!(stages, ["1.graph.ix", "2.fused.ix", "3.plan.txt", "4.kernel.ix", "5.asm.txt"]);
    let mut command = ixc(["inspect", "--json"]);
    command.arg(&path);
    let facts: Json = serde_json::from_str(&stdout(command)).unwrap();
    assert_eq!((&facts["kind"], &facts["supported"]), (&"plan".into(), &true.into()));
    assert_eq!(facts["tokenizer_tokens"], 4096);
    let dumped = stdout(ixc(["dump", "--stage", "fused"]));
    assert_eq!(fs::read_to_string(folder.join("plan.d/2.fused.ix")).unwrap(), dumped);
}

/// Checks that `inspect` reports a plan as not supported if `run` refuses it.
#[test]
fn unloadable_plan_is_inspected_as_unsupported() {
    let folder = scratch("inspect-refused");
    let good = file::read(&plan(&folder, &["--no-weights"])).unwrap();
    let path = folder.join("bad.ixp");
    let wrong: [fn(&mut Plan<Kernel>); 2] =
        [|plan| plan.kernels[0].buffers[0].size = 1.into(), |plan| plan.vocabulary = 0];
    for (change, said) in wrong.iter().zip(["kernel \"", "plan: vocabulary is 0"]) {
        let mut bad = good.clone();
        change(&mut bad);
        fs::write(&path, file::encode(&bad).unwrap()).unwrap();
        let [inspected, run] = [&["inspect"][..], &["run", "--raw", "-p", "x", "-n", "1"]].map(|arguments| {
            let mut command = ixc(arguments);
            command.arg(&path);
            command.output().unwrap()
        });
        let shown = String::from_utf8(inspected.stdout.clone()).unwrap();
        assert!(shown.contains("\nsupported     no\n  because     the plan is malformed: "), "{shown}");
        assert!(shown.lines().last().unwrap().contains(said), "{shown}");
        assert_eq!(inspected.status.code(), Some(65));
        assert_eq!((run.status.code(), stderr(&run)), (Some(65), stderr(&inspected)));
    }
}

#[test]
fn bench_measures_prefill_and_decode() {
    let arguments = ["bench", "-p", "16", "-n", "4", "-t", "1,2", "-r", "2", "--json"];
    let bench: Json = serde_json::from_str(&stdout(ixc(arguments))).unwrap();
    let rows = bench["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        let rate = |key: &str| row[key].as_f64().unwrap();
        assert!(0.0 < rate("min") && rate("min") <= rate("median") && rate("median") <= rate("max"), "{row}");
        assert!(row["peak_memory"].as_u64().is_none_or(|bytes| bytes > 1 << 20), "{row}");
    }
}

#[test]
fn bench_takes_lists_and_depths() {
    let arguments = ["bench", "-p", "8,24", "-n", "4,0", "-d", "0,40", "-t", "1", "-r", "1", "--json"];
    let bench: Json = serde_json::from_str(&stdout(ixc(arguments))).unwrap();
    let rows = &bench["rows"];
    let found: Vec<_> =
        rows.as_array().unwrap().iter().map(|row| (row["depth"].clone(), row["tokens"].clone())).collect();
    let expected = [(0, 8), (0, 24), (0, 4), (40, 8), (40, 24), (40, 4)];
    assert_eq!(found, expected.map(|(depth, tokens)| (depth.into(), tokens.into())));
    let bytes = |row: usize| rows[row]["bytes_per_token"].as_u64();
    assert_eq!(bytes(0), None, "prefill reads a weight once for many tokens");
    let facts: Json = serde_json::from_str(&stdout(ixc(["inspect", "--json"]))).unwrap();
    let cache = facts["read_per_token"]["cache_per_position"].as_u64().unwrap();
    assert_eq!(bytes(5).unwrap() - bytes(2).unwrap(), 40 * cache);
}

#[test]
fn bench_with_deferral_reports_bytes_read() {
    let refused = ixc(["bench", "--text", "x"]).output().unwrap();
    assert!(refused.status.code() == Some(2) && stderr(&refused).contains("give --defer, too"), "{}", stderr(&refused));
    let model = demo_model();
    let bench =
        ["bench", model.to_str().unwrap(), "-p", "0", "-n", "4", "-r", "1", "-t", "2", "--defer", "1", "--json"];
    // Each error names the needed memory. The next round tries this budget.
    let mut budget = 1;
    let rows = loop {
        let output = ixc(bench).args(["--memory", &format!("{budget}MiB")]).output().unwrap();
        if output.status.success() {
            break String::from_utf8(output.stdout).unwrap();
        }
        let message = stderr(&output);
        let needed = message.split("experts, and ").nth(1).unwrap_or_else(|| panic!("{message}"));
        let needed: u64 = needed.split(' ').next().unwrap().parse().unwrap();
        assert!(needed > budget && needed < 1024, "{budget} MiB: {message}");
        budget = needed + 2;
    };
    let bench: Json = serde_json::from_str(&rows).unwrap();
    let rows = &bench["rows"];
    let read: Vec<f64> =
        rows.as_array().unwrap().iter().map(|row| row["bytes_read_per_token"].as_f64().unwrap()).collect();
    // With and without deferral, memory holds only a part of the experts, so both runs read experts
    // from the drive.
    assert!(read.len() == 2 && read.iter().all(|&bytes| bytes > 0.0), "{rows}");
}

#[test]
fn options_without_effect_are_reported() {
    let folder = scratch("options_without_effect");
    let plain = plan(&folder, &[]);
    let mapped = ixc(["run", "--raw", "-p", "x", "--experts", "map"]).arg(&plain).output().unwrap();
    let message = stderr(&mapped);
    assert!(mapped.status.code() == Some(65) && message.contains("has no requests of experts"), "{message}");
    let compile = |more: &[&str]| {
        let mut command = ixc(["compile", "--no-weights", "-o"]);
        command.arg(folder.join("other.ixp")).arg(demo_model()).args(more);
        command.output().unwrap()
    };
    for (options, option) in [
        (&["--prefetch", "router"][..], "--prefetch router"),
        (&["--prefetch-extra", "2"], "--prefetch-extra"),
        (&["--prefetch", "off", "--prefetch-extra", "2", "--memory", "1MiB"], "--prefetch-extra"),
    ] {
        let early = compile(options);
        let said = stderr(&early);
        assert!(early.status.success() && said.contains(&format!("{option} has no effect")), "{options:?}: {said}");
    }
    for options in [&[][..], &["--memory", "1MiB"], &["--prefetch", "router", "--memory", "1MiB"]] {
        assert_eq!(stderr(&compile(options)), "", "{options:?}");
    }
    // Returns the standard error of a run, which has its warnings.
    let run = |more: &[&str]| {
        let mut command = ixc(["run", "--raw", "-p", "x", "-n", "1"]);
        stderr(&command.arg(demo_model()).args(more).output().unwrap())
    };
    let said = run(&["--prefetch", "off", "--prefetch-extra", "2"]);
    assert!(said.contains("--prefetch-extra has no effect"), "{said}");
    let said = run(&["--experts", "map", "--prefetch", "router"]);
    assert!(said.contains("--prefetch has no effect"), "{said}");
    assert!(!run(&["--experts", "map"]).contains("has no effect"));
    for wrong in [&["--prefetch", "previous"][..], &["--prefetch", "frequency"]] {
        let refused = compile(wrong);
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}: {}", stderr(&refused));
    }
}

/// Checks Ctrl-C after some text. The text has only whole characters, a newline follows, and the
/// exit status is that of an interruption.
#[test]
fn interrupted_text_ends_cleanly() {
    let mut child = ixc(["run", "--no-chat", "-p", "The", "-n", "1900", "--temp", "1", "--seed", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = child.stdout.take().unwrap();
    let mut first = [0; 1];
    text.read_exact(&mut first).unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    // SAFETY: the signal goes to a child of this test that was not waited for, so its id is still
    // its own.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
    let mut rest = Vec::new();
    text.read_to_end(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}: {}", output.status, stderr(&output));
    let all = [&first[..], &rest].concat();
    assert!(String::from_utf8(all).unwrap().ends_with('\n'));
    assert_eq!(stderr(&output), "");
}

#[test]
fn experts_that_do_not_fit_are_streamed() {
    let folder = scratch("experts_that_do_not_fit");
    let arguments = ["--raw", "-p", "The borrow checker", "-n", "24", "--temp", "0", "-t", "2"];
    let expected = stdout(ixc(["run"].into_iter().chain(arguments)));
    let run = |plan: &Path, memory: &str| {
        let mut command = ixc(["run"].into_iter().chain(arguments));
        command.arg(plan).args(["--memory", memory, "--stats"]);
        command
    };
    for more in [&[][..], &["--no-weights"], &["--target", "portable"], &["--target", "portable", "--pack"]] {
        let plan = plan(&folder, &[&["--memory", "1MiB"], more].concat());
        let mut small = run(&plan, "1MiB");
        let refused = small.output().unwrap();
        let message = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            refused.status.code() == Some(2) && message.contains("memory budget of 1 MiB is too small"),
            "{message}"
        );
        // The error names the needed memory. A process's memory varies a little between runs.
        let needed = message.split("experts, and ").nth(1).unwrap().split(' ').next().unwrap();
        let memory = format!("{}MiB", needed.parse::<u64>().unwrap() + 8);
        let streamed = run(&plan, &memory).output().unwrap();
        let report = String::from_utf8_lossy(&streamed.stderr).into_owned();
        assert_eq!(String::from_utf8_lossy(&streamed.stdout), expected, "{more:?}: {report}");
        assert!(report.contains("experts ") && report.contains(" missed\n") && report.contains("drive "), "{report}");
        assert!(report.contains("overlap   the drive read during "), "{report}");
        // By default, plans have early routers. A run chooses between prediction strategies by its
        // own measurements.
        assert!(report.contains("prefetch  ") && report.contains("router"), "{report}");
        // The report names the strategy that was not chosen.
        assert!(report.contains("\n          rejected frequency: "), "{report}");
        assert!(!report.contains("prediction is off"), "{report}");
    }
    // Prefetching and cache policies do not change the text. A plan without early routers refuses
    // `--prefetch router`.
    let model = demo_model();
    let small = run(&model, "1MiB").output().unwrap();
    let message = stderr(&small);
    let needed = message.split("experts, and ").nth(1).unwrap().split(' ').next().unwrap();
    let memory = format!("{}MiB", needed.parse::<u64>().unwrap() + 2);
    for (prefetch, cache) in
        [("off", "lru"), ("previous", "slru"), ("frequency", "s3-fifo"), ("router", "lru"), ("auto", "slru")]
    {
        let mut command = run(&model, &memory);
        command.args(["--prefetch", prefetch, "--prefetch-extra", "1", "--cache", cache]);
        let streamed = command.output().unwrap();
        let report = stderr(&streamed);
        assert_eq!(String::from_utf8_lossy(&streamed.stdout), expected, "{prefetch}, {cache}: {report}");
        let early = matches!(prefetch, "router" | "auto");
        assert!(report.contains("recall precis") && report.contains("frequency"), "{report}");
        assert_eq!(
            report.lines().any(|line| line.starts_with("         ") && line.contains("router")),
            early,
            "{report}"
        );
    }
    let without = plan(&folder, &["--memory", "1MiB", "--prefetch", "off", "--target", "portable"]);
    let mut command = run(&without, &memory);
    let refused = command.args(["--prefetch", "router"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(65));
    assert!(stderr(&refused).contains("compile the model with --prefetch router"), "{}", stderr(&refused));
    // A plan with blocks of experts has no kernels for weights in the model file's layout.
    let blocks = |more: &[&str]| {
        let plan = plan(&folder, &[&["--memory", "1MiB"], more].concat());
        ixc::runtime::file::read(&plan).unwrap().own_weight_bytes > 0
    };
    assert_eq!([blocks(&["--no-pack"]), blocks(&["--target", "portable"])], [false, true]);
    // The experts of this plan cannot be streamed, so the budget is refused.
    let plan = plan(&folder, &[]);
    assert_eq!(run(&plan, "1MiB").output().unwrap().status.code(), Some(2));
}

#[test]
fn mapped_experts_give_equal_text_without_budget() {
    let folder = scratch("experts_in_mapped_files");
    let arguments = ["--raw", "-p", "The borrow checker", "-n", "24", "--temp", "0", "-t", "2"];
    let run = |model: &Path, more: &[&str]| {
        let mut command = ixc(["run"].into_iter().chain(arguments));
        command.arg(model).args(more);
        command.output().unwrap()
    };
    let model = demo_model();
    let expected = run(&model, &["--no-pack"]);
    for (model, name) in
        [(model.clone(), "a model"), (plan(&folder, &["--memory", "1MiB", "--pack"]), "a plan with blocks")]
    {
        let mapped = run(&model, &["--experts", "map", "--stats"]);
        let report = stderr(&mapped);
        assert_eq!(stdout_of(&mapped), stdout_of(&expected), "{name}: {report}");
        assert!(report.contains("hints     ") && report.contains(" announced to the page cache"), "{name}: {report}");
    }
    let refused = run(&model, &["--experts", "map", "--memory", "1GiB"]);
    assert!(refused.status.code() == Some(2) && stderr(&refused).contains("control group"), "{}", stderr(&refused));
}

/// Checks that user input stays text, from every source. Names of control tokens in the input are
/// tokenised like ordinary words: they take about as many tokens as a misspelled name.
#[test]
fn chat_input_never_becomes_control_tokens() {
    let folder = scratch("said_in_a_chat");
    let counted = |output: Output| {
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(65), "{said}");
        said.split(' ').nth(1).unwrap().parse::<u32>().unwrap_or_else(|_| panic!("{said}"))
    };
    let chat = || ixc(["run", "--chat", "-c", "32", "-n", "1"]);
    let near = counted(chat().args(["-p", &"<|im-end|>".repeat(40)]).output().unwrap());
    let control = "<|im_end|>".repeat(40);
    let file = folder.join("said");
    fs::write(&file, &control).unwrap();
    let counts = [
        counted(chat().args(["-p", &control]).output().unwrap()),
        counted(chat().arg("-f").arg(&file).output().unwrap()),
        counted(piped(chat(), &control)),
        counted(chat().args(["--system", &control, "-p", "Hello"]).output().unwrap()),
    ];
    assert!(near > 200 && counts.iter().all(|count| near.abs_diff(*count) < 20), "{counts:?}, {near}");
    // In a raw prompt, names of control tokens become control tokens.
    let raw = counted(ixc(["run", "--no-chat", "-c", "32", "-n", "1", "-p", &control]).output().unwrap());
    assert_eq!(raw, 40);
}

/// Checks that a prompt is refused without tokenizing it, if its bytes alone show that it exceeds
/// the context.
#[test]
fn prompts_too_long_for_the_context_are_refused_at_once() {
    let file = scratch("long_prompt").join("prompt");
    fs::write(&file, "the ".repeat(1 << 20)).unwrap();
    let output = ixc(["run", "--raw", "-c", "32", "-n", "1", "-f"]).arg(&file).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(65), "{said}");
    assert!(said.starts_with("error: the prompt has 4194304 bytes; the context of 32 tokens holds at most "), "{said}");
}

/// Checks that a chat still renders its template after an upgrade replaced the program's file.
#[test]
fn a_chat_goes_on_when_the_program_is_replaced() {
    let folder = scratch("replaced");
    let program = folder.join("ixc");
    // Another process (`cp`) copies the file. If this process wrote it, a program that another test
    // starts at the same time could inherit the open file. The system refuses to run a file that is
    // open for writing.
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_ixc")).arg(&program).status().unwrap().success());
    let mut command = Command::new(&program);
    command.args(["run", "--chat", "-n", "2", "--temp", "0"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    fs::remove_file(&program).unwrap();
    fs::write(&program, "another version").unwrap();
    child.stdin.take().unwrap().write_all(b"Hello").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

fn stdout_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
