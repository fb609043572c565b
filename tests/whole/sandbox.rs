//! Servers in a sandbox. They give the same answers as servers without a sandbox, and their
//! processes are limited. `sandbox/tests/rules.rs` tries the actions that the limits forbid.

use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::server::{Server, completion, end};
use crate::support::{ixc, scratch, stdout, target_without_tiles};

/// Returns which sandbox features this kernel supports.
fn support() -> Value {
    let facts = stdout(ixc(["doctor", "--json", "--no-bandwidth"]));
    serde_json::from_str::<Value>(&facts).unwrap()["sandbox"].clone()
}

/// Returns a field of a server's status.
fn status(server: &Server, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    text.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim().to_owned()
}

/// Returns answers of a server that need the engine, a template, a grammar, a saved sequence and
/// statistics.
fn answers(arguments: &[&str], folder: &str) -> Vec<Value> {
    let slots = scratch(&format!("sandbox-slots-{folder}"));
    // The server creates the folder, which only its user can read.
    let cache = scratch(&format!("sandbox-cache-{folder}")).join("cache");
    let log = slots.join("log");
    let folders = ["--slot-save-path", slots.to_str().unwrap(), "--prompt-cache", cache.to_str().unwrap()];
    let rest = ["--parallel", "1", "--log-file", log.to_str().unwrap()];
    let server = Server::start(&[&folders, arguments, &rest].concat());
    let text = |body: &Value, path: &str, field: &str| {
        let (status, answer) = server.post(path, body);
        assert_eq!(status, 200, "{answer}");
        answer.pointer(field).unwrap_or_else(|| panic!("{answer}")).clone()
    };
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0});
    let object = json!({"prompt": "A user: ", "n_predict": 8, "temperature": 0, "json_schema": {"type": "object"}});
    let answers = vec![
        text(&completion("The borrow checker", 16), "/v1/completions", "/choices/0/text"),
        text(&chat, "/v1/chat/completions", "/choices/0/message/content"),
        text(&object, "/completion", "/content"),
        text(&json!({"filename": "one.ixs"}), "/slots/0?action=save", "/n_saved"),
        text(&json!({"filename": "one.ixs"}), "/slots/0?action=restore", "/n_restored"),
        server.get("/metrics").0.into(),
    ];
    end(server);
    assert!(fs::read_dir(cache).unwrap().count() > 1, "the prompt cache is written at the end");
    // The server generated all code before the sandbox forbade it.
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("/v1/completions") && !log.contains("WARN"), "{log}");
    answers
}

#[test]
fn sandbox_changes_no_answer() {
    if !support()["missing"].as_array().unwrap().is_empty() {
        println!("NOT RUN: this kernel lacks parts of the sandbox");
        return;
    }
    assert_eq!(answers(&["--sandbox", "on"], "on"), answers(&["--sandbox", "off"], "off"));
}

#[test]
fn sandbox_has_four_filters() {
    if support()["seccomp"] != json!(true) {
        println!("NOT RUN: this kernel has no seccomp");
        return;
    }
    // A container may already have its own filters.
    let filters = |arguments: &[&str]| status(&Server::start(arguments), "Seccomp_filters:").parse::<u32>().unwrap();
    // The sandbox is on by default.
    assert_eq!(filters(&[]), filters(&["--sandbox", "off"]) + 4);
    assert_eq!(status(&Server::start(&[]), "NoNewPrivs:"), "1");
}

#[test]
fn models_on_request_are_loaded_in_the_sandbox() {
    let folder = scratch("sandbox-models");
    let (one, other) = (folder.join("one.gguf"), folder.join("other.gguf"));
    fs::copy(crate::support::demo_model(), &one).unwrap();
    fs::copy(crate::support::demo_model(), &other).unwrap();
    // The plan is in another folder than its model.
    let plan = scratch("sandbox-plans").join("plan.ixp");
    let mut compile = ixc(["compile", "--no-weights", "-o"]);
    compile.arg(&plan).arg(crate::support::demo_model()).args(["--target", target_without_tiles().name()]);
    stdout(compile);
    let log = folder.join("requests.log");
    let server = Server::for_model(
        one.to_str().unwrap(),
        &[other.to_str().unwrap(), plan.to_str().unwrap(), "--sandbox", "auto", "--log-file", log.to_str().unwrap()],
    );
    for model in ["one", "other", "plan"] {
        let mut request = completion("The borrow checker", 4);
        request["model"] = model.into();
        let (status, answer) = server.post("/v1/completions", &request);
        assert_eq!(status, 200, "{answer}");
    }
    assert!(fs::read_to_string(log).unwrap().contains("/v1/completions"));
    // The folder has no file of this name. The server detects this before it needs the launcher of
    // helpers.
    let absent = ixc(["serve", "--sandbox", "on", "absent.gguf"]).stderr(Stdio::null()).status().unwrap();
    assert_eq!(absent.code(), Some(66));
}
