//! State of sequences in a server: saved and restored slots, the prompt cache across restarts, and
//! context shifts.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::server::{Server, end, found_again};
use crate::support::{ixc, scratch, stderr, stdout};

/// Returns a prompt that is longer than two pages of the prompt cache.
fn long(topic: &str) -> String {
    format!("{topic} {}", "A borrow checker looks at each reference, and at what it refers to. ".repeat(60))
}

fn ask(server: &Server, prompt: &str, tokens: usize) -> Value {
    let request = json!({"prompt": prompt, "n_predict": tokens, "temperature": 0});
    let (status, answer) = server.post("/completion", &request);
    assert_eq!(status, 200, "{answer}");
    answer
}

#[test]
fn restored_slot_has_the_saved_contents() {
    let folder = scratch("slots-saved");
    let path = folder.to_str().unwrap();
    let arguments = ["--parallel", "2", "-c", "2048", "--slot-save-path", path];
    let server = Server::start(&arguments);
    let first = ask(&server, &long("One."), 8);
    let slots = server.get("/slots").1;
    let slots: Value = serde_json::from_str(&slots).unwrap();
    let held = |slot: &Value| slot["n_cached"].as_u64().unwrap();
    let number = slots.as_array().unwrap().iter().position(|slot| held(slot) > 0).unwrap();
    let save = |number: usize, action: &str, name: &str| {
        server.post(&format!("/slots/{number}?action={action}"), &json!({"filename": name}))
    };
    let (status, saved) = save(number, "save", "one.ixs");
    assert_eq!((status, &saved["id_slot"], &saved["filename"]), (200, &json!(number), &json!("one.ixs")), "{saved}");
    assert_eq!(saved["n_saved"].as_u64(), Some(held(&slots[number])));
    let bytes = std::fs::metadata(folder.join("one.ixs")).unwrap().len();
    assert_eq!(saved["n_written"].as_u64(), Some(bytes));
    let (_, erased) = save(number, "erase", "");
    assert_eq!(erased["n_erased"], saved["n_saved"]);
    let (_, restored) = save(1 - number, "restore", "one.ixs");
    assert_eq!((&restored["n_restored"], &restored["n_read"]), (&saved["n_saved"], &saved["n_written"]), "{restored}");
    // The state of all tokens of the prompt except the last ones was restored.
    let again = ask(&server, &long("One."), 8);
    assert_eq!(again["content"], first["content"]);
    let tokens = again["tokens_evaluated"].as_u64().unwrap();
    assert_eq!(again["tokens_cached"].as_u64(), Some(found_again(tokens)));

    for (number, action, name, status) in [
        (0, "save", "../one.ixs", 400),
        (0, "save", "a/b", 400),
        (0, "save", "", 400),
        (0, "restore", "two.ixs", 400),
        (0, "double", "one.ixs", 400),
        (7, "save", "one.ixs", 404),
    ] {
        let (found, answer) = save(number, action, name);
        assert_eq!(found, status, "{action} {name}: {answer}");
    }
    // A file that is not a state is neither read nor overwritten.
    std::fs::write(folder.join("note"), "text").unwrap();
    assert_eq!([save(0, "restore", "note").0, save(1 - number, "save", "note").0], [400, 400]);
    assert_eq!(std::fs::read_to_string(folder.join("note")).unwrap(), "text");
    let without = Server::start(&[]);
    assert_eq!(without.post("/slots/0?action=save", &json!({"filename": "x"})).0, 501);
}

/// Returns the number of prompt tokens that were not computed again.
fn cached(server: &Server) -> u64 {
    server.metric("prompt_tokens_cached_total") as u64
}

#[test]
fn cached_prompt_prefix_survives_requests_and_restart() {
    let folder = scratch("slots-prompts");
    let path = folder.join("prompts");
    let arguments = ["--parallel", "1", "-c", "2048", "--prompt-cache", path.to_str().unwrap()];
    let server = Server::start(&arguments);
    let first = ask(&server, &long("One."), 8);
    let tokens = first["tokens_evaluated"].as_u64().unwrap();
    assert!(tokens > 600, "{tokens}");
    // Another prompt uses the server's only sequence.
    ask(&server, &long("Two."), 1);
    assert!(cached(&server) < 32);
    let again = ask(&server, &long("One."), 8);
    assert_eq!(again["content"], first["content"]);
    assert_eq!(again["tokens_cached"].as_u64(), Some(found_again(tokens)), "{again}");
    // If a prompt has another end, its common part is not computed again.
    let other = ask(&server, &(long("One.") + "Why?"), 1);
    assert!(other["tokens_cached"].as_u64().unwrap() >= found_again(tokens), "{other}");
    end(server);
    let files = |path: &Path| std::fs::read_dir(path).unwrap().count();
    assert!(files(&path) >= 4, "{}", files(&path));

    let server = Server::start(&arguments);
    for (topic, content) in [("Two.", None), ("One.", Some(&first["content"]))] {
        let again = ask(&server, &long(topic), 8);
        assert_eq!(
            again["tokens_cached"].as_u64().unwrap(),
            found_again(again["tokens_evaluated"].as_u64().unwrap()),
            "{again}"
        );
        assert!(content.is_none_or(|content| *content == again["content"]));
    }
    assert!(server.metric("prompt_cache_folder_bytes") > 0.0);
    end(server);

    // Damaged cache entries are detected, and their prompts computed again.
    for entry in std::fs::read_dir(&path).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none() {
            // A lock file without an extension marks the folder as used by a server.
            continue;
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2 + 4000;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    let server = Server::start(&arguments);
    assert_eq!(ask(&server, &long("One."), 8)["content"], first["content"]);
    end(server);

    // The size never exceeds the limit.
    let small = [&arguments[..], &["--prompt-cache-size", "100KiB", "--prompt-cache-memory", "100KiB"]].concat();
    let server = Server::start(&small);
    assert_eq!(ask(&server, &long("One."), 8)["content"], first["content"]);
    ask(&server, &long("Two."), 1);
    let kept = ["memory", "folder"].map(|place| server.metric(&format!("prompt_cache_{place}_bytes")));
    assert!(kept.iter().all(|bytes| *bytes <= 102_400.0), "{kept:?}");
    end(server);
    let bytes: u64 = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes <= 102_400, "{bytes}");
}

#[test]
fn context_shift_continues_requests_only_on_request() {
    let arguments = ["--parallel", "1", "-c", "64"];
    let server = Server::start(&arguments);
    let answer = ask(&server, "The borrow checker", 100);
    assert_eq!(answer["truncated"], true, "{answer}");
    // Two simultaneous requests give the texts of single requests.
    let server = Server::start(&["--parallel", "2", "-c", "64", "--context-shift"]);
    std::thread::scope(|scope| {
        let both = [60, 100].map(|tokens| {
            scope.spawn({
                let server = &server;
                move || ask(server, "The borrow checker", tokens)
            })
        });
        for (answer, tokens) in both.into_iter().zip([60, 100]) {
            assert_eq!(answer.join().unwrap()["tokens_predicted"], json!(tokens));
        }
    });
    let answer = ask(&server, "The borrow checker", 100);
    assert_eq!((&answer["truncated"], &answer["tokens_predicted"]), (&json!(false), &json!(100)), "{answer}");
    let alone = |more: &[&str]| {
        let all = [
            &["run", "demo", "--raw", "-p", "The borrow checker", "-n", "100", "--temp", "0", "-t", "2", "-c", "64"],
            more,
        ];
        stdout(ixc(all.concat()))
    };
    assert_eq!(alone(&["--context-shift"]).trim_end(), answer["content"].as_str().unwrap().trim_end());
    assert!(alone(&[]).len() < alone(&["--context-shift"]).len());
}

#[test]
fn oldest_turns_are_dropped_on_request() {
    let arguments = ["--parallel", "1", "-c", "128", "--chat-template", "chatml"];
    let turn = |role: &str| json!({"role": role, "content": "What is a trait, and what is it good for in a language?"});
    let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
    (0..8).for_each(|_| messages.extend([turn("user"), turn("assistant")]));
    messages.push(turn("user"));
    let request = json!({"messages": messages, "max_tokens": 4});
    assert_eq!(Server::start(&arguments).post("/v1/chat/completions", &request).0, 400);
    let server = Server::start(&[&arguments[..], &["--drop-turns"]].concat());
    let (status, answer) = server.post("/v1/chat/completions", &request);
    assert_eq!(status, 200, "{answer}");
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() <= 96, "{answer}");
    let prompt = server.post("/apply-template", &request).1["prompt"].to_string();
    assert!(prompt.contains("Be brief.") && prompt.matches("user").count() < 9, "{prompt}");
}

/// Checks that a text generated in two runs, with a saved state between them, equals the text of
/// one run. The sampler continues with the same random numbers.
#[test]
fn saved_run_continues_like_one_run() {
    let folder = scratch("slots-run");
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (state, later) = (at("state"), at("later"));
    let run = |arguments: &[&str]| stdout(ixc([&["run", "demo", "--raw", "-t", "2"], arguments].concat()));
    let whole = run(&["-p", "The borrow checker", "-n", "24", "--seed", "5", "--temp", "1.2"]);
    let first = run(&["-p", "The borrow checker", "-n", "10", "--seed", "5", "--temp", "1.2", "--save-state", &state]);
    let rest = run(&["-n", "14", "--temp", "1.2", "--load-state", &state, "--save-state", &later]);
    assert_eq!(first.trim_end_matches('\n').to_owned() + rest.trim_end_matches('\n'), whole.trim_end_matches('\n'));
    assert!(!run(&["-p", " and", "-n", "4", "--load-state", &later]).is_empty());
    // The saved state must not replace an input, or a file of another kind.
    let note = at("note");
    std::fs::write(&note, "text").unwrap();
    let says = |arguments: &[&str]| {
        stderr(&ixc([&["run", "demo", "-t", "2", "-n", "1"], arguments].concat()).output().unwrap())
    };
    assert!(says(&["--load-state", &state, "--save-state", &state]).contains("is the input file"));
    assert!(says(&["-p", "x", "--save-state", &note]).contains("is not a saved state"));
    assert!(says(&["-p", "x", "--load-state", &note]).contains("is not a saved state"));
    assert!(says(&["-p", "x", "--load-state", &at("nothing")]).contains("cannot open"));
    assert!(says(&["-p", "x", "--load-state", &state, "-c", "8"]).contains("the context has only 8"));
    assert!(says(&["-p", "x", "--load-state", &state, "--kv", "q8_0"]).contains("another plan"));
}
