//! Wrong usage: every mistake gives exit status 2 and a message with the correct usage. Other
//! messages of the program are tested, too.

use std::fs;

use crate::support::measure::measured;
use crate::support::{demo_model, ixc, scratch, stderr, stdout};

#[test]
fn wrong_usage_has_one_exit_status() {
    for (arguments, says) in [
        (&["run", "-p", "x", "-t", "0"][..], "threads"),
        (&["run", "-p", "x", "-c", "0"], "context"),
        (&["run", "-p", "x", "--memory", "10"], "memory budget"),
        (&["run", "-p", "x", "--experts", "map", "--memory", "1GiB"], "control group"),
        (&["compile", "demo", "-o", "never.json", "--target", "dataflow:nope"], "wse3"),
        (&["simulate", "--target", "dataflow:nope"], "wse3"),
        (&["compile", "demo", "-o", "never.ixp", "--emit", "dataflow"], "dataflow:GRID"),
        (&["compile", "demo", "-o", "never.ixp", "--ctx", "8"], "dataflow:GRID"),
        (&["dump", "--stage", "graph", "--kernel", "x"], "--stage kernel"),
        (&["dump", "--stage", "asm", "--kernel", "nosuch"], "no kernel has the name"),
        (&["logits", "--tokens", "1", "-o", "never.npy", "--engine", "interpreter", "--defer", "1"], "--defer"),
        (&["bench", "--text", "x"], "--defer"),
        (&["plan", "--memory", "1MiB"], "memory budget"),
        (&["simulate", "--model", "demo"], "descriptor"),
        (&["run", "demo", "--model", "demo", "-p", "x", "--temp", "1001"], "temp"),
        (&["kernel", "bench", "demo"], "demo names no kernel; a model's kernels are MODEL:NAME"),
        (&["kernel", "list", "demo"], "`ixc help kernel list` shows how to list them"),
        (&["quantise", "demo", "never.gguf", "Q3_K_M"], "`ixc quantise MODEL Q3_K_M -o OUTPUT`"),
        (&["serve", "demo", "-ngl", "99"], "ixc has no -ngl: ixc does not use a GPU"),
    ] {
        let folder = scratch("usage");
        let output = ixc(arguments).current_dir(&folder).env("XDG_CACHE_HOME", &folder).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{arguments:?}: {}", stderr(&output));
        assert!(!folder.join("never.ixp").exists() && !folder.join("never.npy").exists(), "{arguments:?}");
    }
}

#[test]
fn help_is_a_command_and_foreign_commands_are_explained() {
    assert_eq!(stdout(ixc(["help"])), stdout(ixc(["--help"])));
    assert_eq!(stdout(ixc(["help", "run"])), stdout(ixc(["run", "--help"])));
    for (command, says) in [
        ("server", "`ixc serve MODEL`"),
        ("pull", "`hf download ORG/NAME"),
        ("chat", "`ixc run MODEL`"),
        ("list", "ixc keeps no models"),
        ("imatrix", "`ixc eval MODEL --text FILE --imatrix OUTPUT`"),
        ("perplexity", "`ixc eval MODEL --text FILE`"),
    ] {
        let output = ixc([command]).output().unwrap();
        let said = stderr(&output);
        assert!(output.status.code() == Some(2) && said.contains(says), "{said}");
        assert!(!said.contains("similar"), "{said}");
    }
    // A tip appears only if a command has a similar name.
    assert!(stderr(&ixc(["inspec"]).output().unwrap()).contains("'inspect'"));
    assert!(!stderr(&ixc(["sernel"]).output().unwrap()).contains("'kernel'"));
    let said = stderr(&ixc(["kernel", "nosuch"]).output().unwrap());
    assert!(said.contains("unrecognized subcommand 'nosuch'") && !said.contains("tip:"), "{said}");
    // A hint about `ls` as a command of other programs appears only if `ls` is the first word.
    let said = stderr(&ixc(["kernel", "ls"]).output().unwrap());
    assert!(said.contains("unrecognized subcommand 'ls'") && !said.contains("keeps no models"), "{said}");
}

#[test]
fn dump_without_a_stage_lists_them() {
    let output = ixc(["dump"]).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2));
    for stage in ["graph", "fused", "plan", "kernel", "asm"] {
        assert!(said.lines().any(|line| line.trim_start().starts_with(stage)), "{stage}: {said}");
    }
}

#[test]
fn options_default_to_environment_variables() {
    let with = |variables: &[(&str, &str)], more: &[&str]| {
        let mut command = ixc(["run", "-p", "The", "-n", "2", "--stats"]);
        let output = command.args(more).envs(variables.iter().copied()).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    let (status, said) = with(&[("IXC_THREADS", "1"), ("IXC_TARGET", "portable")], &[]);
    assert!(status == Some(0) && said.contains("1 thread") && said.contains("target portable"), "{said}");
    let (_, said) = with(&[("IXC_TARGET", "portable"), ("IXC_THREADS", "1")], &["-t", "2"]);
    assert!(said.contains("2 threads") && said.contains("target portable"), "what is given counts: {said}");
    for (variable, value, says) in [
        ("IXC_CTX", "0", "context"),
        ("IXC_MEMORY", "much", "--memory"),
        ("IXC_TARGET", "z80", "targets are native"),
        ("IXC_EXPERTS", "no", "--experts"),
        ("IXC_QUEUE_DEPTH", "0", "--queue-depth"),
    ] {
        let (status, said) = with(&[(variable, value)], &[]);
        assert!(status == Some(2) && said.contains(says), "{variable}: {said}");
    }
}

#[test]
fn log_filter_selects_messages_and_must_be_valid() {
    let run = |arguments: &[&str], filter: &str| {
        let mut command = ixc([&["run", "--no-chat", "-p", "The", "-n", "1"], arguments].concat());
        let output = command.env("IXC_LOG", filter).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    assert_eq!(run(&[], ""), (Some(0), String::new()));
    for refused in ["bogus===", "warn;debug", "[step]=debug", "ixc_runtime="] {
        let (status, said) = run(&[], refused);
        let expected = format!("IXC_LOG is {refused:?}, which is not a filter");
        assert!(status == Some(2) && said.contains(&expected), "{said}");
    }
    let dated = |line: &str| line.len() > 20 && line.as_bytes()[4] == b'-' && line.as_bytes()[10] == b'T';
    for said in [run(&[], " warn,, ixc_runtime=debug ").1, run(&["-vv"], "").1, run(&["-vv"], "warn").1] {
        assert!(said.lines().any(|line| dated(line) && line.contains("kernels ready")), "{said}");
    }
    // With `-q`, only the statistics and errors remain.
    let statistics = run(&["--stats", "-q"], "").1;
    assert!(statistics.contains("decode") && !statistics.contains("ixc: "), "{statistics}");
    assert!(run(&["--stats"], "").1.contains("decode"));
    assert_eq!(run(&["-q", "-v"], "").0, Some(2));
    let missing = ixc(["run", "-q", "none.gguf"]).output().unwrap();
    assert!(stderr(&missing).contains("none.gguf"), "errors are said");
}

#[test]
fn log_file_is_appended_and_other_files_are_refused() {
    let folder = scratch("log_file");
    let log = folder.join("ixc.log");
    let run = |log: &std::path::Path| {
        let mut command = ixc(["run", "--no-chat", "-p", "The", "-n", "1", "-vv", "--log-file"]);
        command.arg(log).output().unwrap()
    };
    let first = run(&log);
    assert!(first.status.success() && first.stderr.is_empty(), "{}", stderr(&first));
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.starts_with("20") && text.contains("kernels ready") && !text.contains('\u{1b}'), "{text}");
    run(&log);
    assert!(fs::read_to_string(&log).unwrap().starts_with(&text), "the second is appended");
    // A file of any other kind remains unchanged.
    let model = folder.join("model.gguf");
    fs::copy(demo_model(), &model).unwrap();
    for (other, status) in [(&model, 74), (&folder, 66)] {
        let refused = run(other);
        assert_eq!(refused.status.code(), Some(status), "{}", stderr(&refused));
    }
    assert_eq!(fs::read(&model).unwrap(), fs::read(demo_model()).unwrap());
}

/// Checks that the program prints one line and ends with a status if it gets no memory. There is no
/// signal, backtrace or hang.
#[test]
fn memory_exhaustion_is_an_error() {
    // The address space must have room for the program and the C library, too.
    let program = fs::metadata(env!("CARGO_BIN_EXE_ixc")).unwrap().len() >> 20;
    for mebibytes in [10, 20, 40, 50, 60, 90, 120, 160].map(|more| program + more) {
        let taken = measured(
            &ixc(["run", "--raw", "-p", "The", "-n", "2", "-t", "2", "--temp", "0"]),
            120,
            Some(mebibytes << 20),
        );
        let said = &taken.stderr;
        println!("{mebibytes} MiB: {:?}: {}", taken.code, said.trim());
        assert!(!said.contains("panicked") && !said.contains("backtrace"), "{mebibytes} MiB: {said}");
        assert!(matches!(taken.code, Some(0 | 1 | 74)), "{mebibytes} MiB: {:?}: {said}", taken.code);
        if matches!(taken.code, Some(1 | 74)) {
            assert!(said.starts_with("error: ") && said.trim_end().lines().count() <= 2, "{mebibytes} MiB: {said}");
        }
    }
}

/// Checks that the error for a misspelled file or option suggests the right name, and no names that
/// are not similar.
#[test]
fn misspelled_names_get_suggestions() {
    let folder = scratch("misspelled");
    fs::copy(demo_model(), folder.join("own.gguf")).unwrap();
    fs::create_dir(folder.join("models")).unwrap();
    fs::write(folder.join("models/plan.ixp"), "").unwrap();
    let said = |arguments: &[&str]| {
        let output = ixc(arguments).current_dir(&folder).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    for (typed, meant) in [
        ("own.gguff", "own.gguf"),
        ("./onw.gguf", "./own.gguf"),
        ("own", "own.gguf"),
        ("modles/plan.ixp", "models/plan.ixp"),
    ] {
        let (status, text) = said(&["inspect", typed]);
        assert_eq!(status, Some(66), "{typed}: {text}");
        assert!(text.trim_end().ends_with(&format!("; did you mean {meant}?")), "{typed}: {text}");
    }
    let (_, text) = said(&["inspect", "something-else.gguf"]);
    assert!(!text.contains("did you mean"), "{text}");
    assert!(said(&["run", "--promt", "x"]).1.contains("'--prompt'"));
    let (status, text) = said(&["run", "--nosuch"]);
    assert!(status == Some(2) && !text.contains("similar"), "{text}");
}

/// Checks that errors of clap and of this program have the same form, and that one option controls
/// their colours.
#[test]
fn error_colours_follow_one_option() {
    let red = |text: &str| text.contains("\u{1b}[") && text.contains("error:");
    for (arguments, expected) in [
        (&["run", "no-such.gguf", "--color", "always"][..], true),
        (&["run", "--no-such-option", "--color=always"], true),
        (&["run", "no-such.gguf"], false),
        (&["run", "no-such.gguf", "--color", "never"], false),
        (&["run", "--no-such-option", "--color=never"], false),
        (&["run", "--no-such-option"], false),
    ] {
        let text = stderr(&ixc(arguments).output().unwrap());
        assert_eq!(red(&text), expected, "{arguments:?}: {text:?}");
        assert!(expected || text.starts_with("error: "), "{arguments:?}: {text:?}");
    }
    assert_eq!(ixc(["run", "--color", "mauve"]).output().unwrap().status.code(), Some(2));
}

/// Checks the error for a weight's name in place of a kernel's name. It suggests the right options,
/// and only a few kernels.
#[test]
fn weight_name_given_as_kernel_suggests_op_options() {
    let output = ixc(["dump", "demo", "--stage", "asm", "--kernel", "blk.1.ffn_down"]).output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--op ffn_down --layer 1") && text.len() < 400, "{text}");
}
