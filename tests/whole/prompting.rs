//! How `ixc run` is asked, where its text ends, and what it says beside.

use std::path::Path;
use std::process::Output;

use crate::support::{demo_model, ixc, scratch, stderr, stdout};

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
fn a_prompt_may_stand_behind_the_model() {
    let model = demo_model();
    let model = model.to_str().unwrap();
    let expected = text(&run(&["-p", PROMPT]));
    assert_eq!(text(&run(&[model, PROMPT])), expected);
    let both = run(&[model, PROMPT, "-p", PROMPT]);
    assert_eq!(both.status.code(), Some(2), "{}", stderr(&both));
}

/// `-cnv` is no context of "nv", and `-sys` no seed of "ys".
#[test]
fn options_are_understood_as_llama_cli_spells_them() {
    let chat = text(&run(&["--chat", "--system", "Be brief.", "-p", "Hello"]));
    assert_eq!(text(&run(&["-cnv", "-sys", "Be brief.", "-p", "Hello"])), chat);
    assert_eq!(text(&run(&["-sys", "Be brief.", "-p", "Hello"])), chat);
    let plain = run(&["-no-cnv", "-p", PROMPT]);
    assert_eq!((text(&plain), stderr(&plain)), (text(&run(&["-p", PROMPT])), String::new()));
    let refused = run(&["-ngl", "99", "-p", PROMPT]);
    assert!(refused.status.code() == Some(2) && stderr(&refused).contains("no GPU"), "{}", stderr(&refused));
}

/// A prompt alone is gone on with, and one line says that there would be a template.
#[test]
fn a_plain_prompt_says_that_there_is_a_chat_template() {
    let plain = run(&["-p", PROMPT]);
    let said = stderr(&plain);
    assert!(said.lines().count() == 1 && said.contains("chat template") && said.contains("--chat"), "{said}");
    let quiet = run(&["-p", PROMPT, "--no-chat"]);
    assert_eq!((&quiet.stdout, stderr(&quiet)), (&plain.stdout, String::new()));
    assert_eq!(stderr(&run(&["-p", PROMPT, "--chat"])), "");
}

#[test]
fn text_ends_before_a_stop_string() {
    let all = text(&run(&["-p", PROMPT]));
    let words: Vec<&str> = all.split(' ').collect();
    // Several tokens long, and in the middle.
    let stop = words[words.len() / 2..words.len() / 2 + 2].join(" ");
    let expected = &all[..all.find(&stop).unwrap()];
    for option in ["-r", "--stop", "--reverse-prompt"] {
        let stopped = run(&["-p", PROMPT, option, &stop, option, "never comes up"]);
        assert_eq!(text(&stopped).trim_end_matches('\n'), expected.trim_end_matches('\n'), "{option} {stop:?}");
    }
    let not_found = run(&["-p", PROMPT, "--stop", "never comes up"]);
    assert_eq!(text(&not_found), all);
    assert_eq!(run(&["-p", PROMPT, "--stop", ""]).status.code(), Some(2));
}

#[test]
fn the_end_may_be_ignored() {
    let count = |more: &[&str]| {
        let output =
            ixc(["run", "--chat", "-p", "Hello", "-n", "400", "--temp", "0", "--stats"]).args(more).output().unwrap();
        let report = stderr(&output);
        let line = report.lines().find(|line| line.starts_with("decode ")).unwrap_or_else(|| panic!("{report}"));
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    // What is drawn then, the sampler's own tests say.
    assert_eq!(count(&["--ignore-eos"]), 399);
}

/// Packing weights when they are first needed is no waiting and no computing, and a plan that has them packed needs none.
#[test]
fn packing_has_a_line_of_its_own() {
    let folder = scratch("prompting_packing");
    let plan = folder.join("demo.ixp");
    let mut compile = ixc(["compile", "--target", "avx2"]);
    compile.arg(demo_model()).arg("-o").arg(&plan);
    stdout(compile);
    let report = |model: &Path| {
        let output =
            ixc(["run", "-p", PROMPT, "-n", "3", "--temp", "0", "-t", "1", "--stats", "--target", "avx2", "--emulate"])
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
