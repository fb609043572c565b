//! Prompts of `ixc run`, the end of its text, and its other output.

use std::path::Path;
use std::process::Output;

use crate::support::{demo_model, ixc, piped, scratch, stderr, stdout};

const PROMPT: &str = "The borrow checker";

fn run(arguments: &[&str]) -> Output {
    let mut command = ixc(["run", "--temp", "0", "-t", "1", "-n", "24"]);
    command.args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn prompt_may_follow_the_model_argument() {
    let model = demo_model();
    let model = model.to_str().unwrap();
    let expected = text(&run(&["-p", PROMPT]));
    assert_eq!(text(&run(&[model, PROMPT])), expected);
    let both = run(&[model, PROMPT, "-p", PROMPT]);
    assert_eq!(both.status.code(), Some(2), "{}", stderr(&both));
}

/// Checks that `-cnv` is not read as a context of "nv", and `-sys` is not read as a seed of "ys".
#[test]
fn options_are_understood_as_llama_cli_spells_them() {
    let chat = text(&run(&["--chat", "--system", "Be brief.", "-p", "Hello"]));
    assert_eq!(text(&run(&["-cnv", "-sys", "Be brief.", "-p", "Hello"])), chat);
    assert_eq!(text(&run(&["-sys", "Be brief.", "-p", "Hello"])), chat);
    let plain = run(&["-no-cnv", "-p", PROMPT]);
    assert_eq!((text(&plain), stderr(&plain)), (text(&run(&["--raw", "-p", PROMPT])), String::new()));
    let refused = run(&["-ngl", "99", "-p", PROMPT]);
    assert!(
        refused.status.code() == Some(2) && stderr(&refused).contains("does not use a GPU"),
        "{}",
        stderr(&refused)
    );
}

/// Checks that a model with a chat template answers a prompt from any source, and continues it with
/// `--raw`. Only the text is printed.
#[test]
fn chat_template_applies_unless_raw_is_given() {
    let answer = text(&run(&["--chat", "-p", PROMPT]));
    let continued = text(&run(&["--raw", "-p", PROMPT]));
    assert_ne!(answer, continued);
    let file = scratch("prompting_answers").join("prompt.txt");
    std::fs::write(&file, PROMPT).unwrap();
    let file = file.to_str().unwrap();
    for arguments in [&["-p", PROMPT][..], &["demo", PROMPT], &["-f", file]] {
        let output = run(arguments);
        assert_eq!((text(&output), stderr(&output)), (answer.clone(), String::new()), "{arguments:?}");
        for raw in ["--raw", "--no-chat", "--no-conversation"] {
            let output = run(&[arguments, &[raw]].concat());
            assert_eq!((text(&output), stderr(&output)), (continued.clone(), String::new()), "{arguments:?} {raw}");
        }
    }
    for (more, expected) in [(&[][..], &answer), (&["--raw"], &continued)] {
        let mut command = ixc(["run", "--temp", "0", "-t", "1", "-n", "24"]);
        command.args(more);
        assert_eq!(text(&piped(command, PROMPT)), *expected, "{more:?}");
    }
    // Both names of one option may occur together, because a script may add one of the names.
    assert_eq!(text(&run(&["--raw", "--no-chat", "-p", PROMPT])), continued);
    assert_eq!(run(&["--raw", "--chat", "-p", PROMPT]).status.code(), Some(2));
}

/// Checks that a model without a template continues a prompt. A saved text is continued with any
/// model.
#[test]
fn prompt_is_continued_without_template_or_after_saved_text() {
    let folder = scratch("prompting_base");
    let mut bytes = std::fs::read(demo_model()).unwrap();
    // The key is replaced by one of the same length, because another length would move all bytes
    // after it.
    let key = b"tokenizer.chat_template";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
    bytes[at..at + key.len()].copy_from_slice(b"tokenizer.chat_tEMPLATE");
    let base = folder.join("base.gguf");
    std::fs::write(&base, bytes).unwrap();
    let continued = text(&run(&["--raw", "-p", PROMPT]));
    let output = run(&[base.to_str().unwrap(), PROMPT]);
    assert_eq!((text(&output), stderr(&output)), (continued, String::new()));

    let state = folder.join("state.ixs");
    let state = state.to_str().unwrap();
    run(&["--raw", "-p", PROMPT, "--save-state", state]);
    let output = run(&["--load-state", state, "-p", " is"]);
    assert_eq!(text(&output), text(&run(&["--load-state", state, "-p", " is", "--raw"])));
}

#[test]
fn text_ends_before_a_stop_string() {
    let all = text(&run(&["--raw", "-p", PROMPT]));
    let words: Vec<&str> = all.split(' ').collect();
    // The stop text has several tokens, and is from the middle of the text.
    let stop = words[words.len() / 2..words.len() / 2 + 2].join(" ");
    let expected = &all[..all.find(&stop).unwrap()];
    for option in ["-r", "--stop", "--reverse-prompt"] {
        let stopped = run(&["--raw", "-p", PROMPT, option, &stop, option, "never comes up"]);
        assert_eq!(text(&stopped).trim_end_matches('\n'), expected.trim_end_matches('\n'), "{option} {stop:?}");
    }
    let not_found = run(&["--raw", "-p", PROMPT, "--stop", "never comes up"]);
    assert_eq!(text(&not_found), all);
    assert_eq!(run(&["-p", PROMPT, "--stop", ""]).status.code(), Some(2));
}

#[test]
fn end_tokens_can_be_ignored() {
    let count = |more: &[&str]| {
        let output =
            ixc(["run", "--chat", "-p", "Hello", "-n", "400", "--temp", "0", "--stats"]).args(more).output().unwrap();
        let report = stderr(&output);
        let line = report.lines().find(|line| line.starts_with("decode ")).unwrap_or_else(|| panic!("{report}"));
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    // Only the number of tokens is checked here; tests of the sampler check the tokens.
    assert_eq!(count(&["--ignore-eos"]), 399);
}

/// Checks the reported times: packing weights at first use counts neither as waiting nor as
/// computing. A plan with packed weights needs no packing.
#[test]
fn packing_time_is_reported_separately() {
    let folder = scratch("prompting_packing");
    let plan = folder.join("demo.ixp");
    let mut compile = ixc(["compile", "--target", "avx2"]);
    compile.arg(demo_model()).arg("-o").arg(&plan);
    stdout(compile);
    let report = |model: &Path| {
        let output = ixc([
            "run",
            "--raw",
            "-p",
            PROMPT,
            "-n",
            "3",
            "--temp",
            "0",
            "-t",
            "1",
            "--stats",
            "--target",
            "avx2",
            "--emulate",
        ])
        .arg(model)
        .output()
        .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let lines = |report: &str, start: &str| report.lines().filter(|line| line.starts_with(start)).count();
    let from_model = report(&demo_model());
    assert_eq!(lines(&from_model, "packing   "), 1, "{from_model}");
    assert!(from_model.contains(" without packing"), "{from_model}");
    let from_plan = report(&plan);
    assert_eq!(lines(&from_plan, "packing   "), 0, "{from_plan}");
    assert!(!from_plan.contains("packing"), "{from_plan}");
    assert!(from_plan.contains("decode    2 tokens in ") && from_plan.contains(", 1 thread, "), "{from_plan}");
}
