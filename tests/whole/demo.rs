//! Checks that every command that takes a MODEL accepts `demo`, and uses the demo model if MODEL is
//! omitted.

use std::fs;

use crate::support::{demo_model, ixc, scratch, stderr, stdout};
use serde_json::Value as Json;

/// Returns two outputs of a command: with the name `demo`, and with the name omitted.
fn both(before: &[&str], after: &[&str]) -> [String; 2] {
    [&["demo"][..], &[]].map(|name| stdout(ixc([before, name, after].concat())))
}

#[test]
fn every_command_accepts_demo_or_no_model() {
    for (before, after) in [
        (&["run"][..], &["-p", "The borrow checker", "-n", "4", "--temp", "0"][..]),
        (&["inspect"], &["--json"]),
        (&["dump"], &["--stage", "graph"]),
        (&["tokenize"], &["-p", "The borrow checker"]),
        (&["detokenize"], &["1,2,3"]),
    ] {
        let [named, left_out] = both(before, after);
        assert_eq!(named, left_out, "{before:?}");
        assert!(!named.is_empty());
    }
    for command in ["bench", "simulate"] {
        let arguments: &[&str] = if command == "bench" { &["-p", "8", "-n", "0", "-r", "1"] } else { &[] };
        assert!(both(&[command], arguments).iter().all(|text| !text.is_empty()), "{command}");
    }
    // The demo model gives the same output if its file is named.
    let mut command = ixc(["tokenize"]);
    command.arg(demo_model()).arg("The borrow checker");
    assert_eq!(stdout(command), both(&["tokenize"], &["-p", "The borrow checker"])[1]);
}

#[test]
fn compile_and_logits_default_to_the_demo_model() {
    let folder = scratch("demo_compile");
    for (name, model) in [("named", &["demo"][..]), ("left_out", &[])] {
        let plan = folder.join(format!("{name}.ixp"));
        let mut command = ixc([&["compile", "-o"], &[plan.to_str().unwrap()][..], model].concat());
        command.current_dir(&folder);
        stdout(command);
        let out = folder.join(format!("{name}.npy"));
        stdout(ixc([&["logits", "--tokens", "1,2", "-o", out.to_str().unwrap()][..], model].concat()));
        let of_plan = folder.join("plan.npy");
        let mut command = ixc(["logits", "--tokens", "1,2", "-o"]);
        command.arg(&of_plan).arg(&plan);
        stdout(command);
        assert_eq!(fs::read(&out).unwrap(), fs::read(&of_plan).unwrap(), "{name}");
    }
    // The output file has the default name.
    let mut command = ixc(["compile"]);
    command.current_dir(&folder);
    let said = stdout(command);
    assert!(said.contains("demo.ixp") && said.contains("needs the model that is built in"), "{said}");
    assert!(folder.join("demo.ixp").is_file());
}

/// Regression test: the command once reported that the demo model, with its 16 experts in each
/// layer, has no experts.
#[test]
fn demo_model_is_planned_from_a_cached_file() {
    let folder = scratch("demo_plan");
    let plan = |more: &[&str]| {
        let mut command = ixc([&["plan", "-t", "1", "--json"], more].concat());
        command.env("XDG_CACHE_HOME", &folder);
        serde_json::from_str::<Json>(&stdout(command)).unwrap()
    };
    let facts = plan(&[]);
    assert_eq!(facts["experts"], 64);
    let models = || {
        let files = fs::read_dir(folder.join("ixc")).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|end| end == "gguf")).collect::<Vec<_>>()
    };
    let [model] = &models()[..] else { panic!("{:?}", models()) };
    assert_eq!(fs::read(model).unwrap(), fs::read(demo_model()).unwrap());
    // A cached file with other contents is replaced.
    fs::write(model, b"GGUF").unwrap();
    assert_eq!(plan(&["demo"])["experts"], 64);
    assert_eq!((models().len(), fs::metadata(model).unwrap().len()), (1, fs::metadata(demo_model()).unwrap().len()));
}

#[test]
fn single_text_argument_is_not_taken_as_a_model() {
    let refused = |arguments: &[&str]| {
        let output = ixc(arguments).output().unwrap();
        (output.status.code(), stderr(&output))
    };
    let (status, said) = refused(&["tokenize", "some text"]);
    assert!(status == Some(2) && said.contains("give a text after MODEL"), "{said}");
    assert_eq!(refused(&["tokenize", "demo", "text", "-p", "text"]).0, Some(2));
    let (status, said) = refused(&["detokenize"]);
    assert!(status == Some(2) && said.contains("IDS"), "{said}");
}

/// Checks that a command that needs the demo model as a file writes a temporary one, if the user's
/// own folder cannot be written.
#[test]
fn demo_model_uses_a_temporary_file_without_home() {
    let temporary = scratch("demo_no_home");
    let file = temporary.join("file");
    std::fs::write(&file, "").unwrap();
    // The home folder is a file, so not even root can create files in it.
    let homes = [file.join("home"), "relative".into()];
    for home in homes {
        let mut command = ixc(["plan", "--hit-rate", "0.5", "--memory", "200MiB"]);
        command.env("HOME", &home).env_remove("XDG_CACHE_HOME").env("TMPDIR", &temporary);
        let text = stdout(command);
        assert!(text.starts_with(temporary.to_str().unwrap()), "{text}");
    }
}
