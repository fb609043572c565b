//! Requests that are designed to take a server's memory and time. Each fails without affecting
//! other requests.

use std::io::Read;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::scratch;
use crate::support::server::{Server, end};

/// Max memory of a request: this number of bytes for each byte of its body, and a constant.
const PER_BYTE: u64 = 20;
const BESIDES: u64 = 24 << 20;

/// Returns a number from the status of a server's process, in bytes.
fn memory(server: &Server, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().split(' ').next().unwrap().parse::<u64>().unwrap() << 10
}

/// Returns request bodies with lists of about `bytes` bytes, with all kinds of values.
fn lists(bytes: usize) -> Vec<(&'static str, String)> {
    let of = |value: &str| format!("[{}]", vec![value; bytes / (value.len() + 1)].join(","));
    vec![
        ("short texts", of("\"x\"")),
        ("texts", of("\"what is a trait\"")),
        ("short numbers", of("1")),
        ("numbers", of("31999")),
        ("empty lists", of("[]")),
        ("lists", of("[1]")),
        ("empty objects", of("{}")),
        ("objects", of("{\"a\":0}")),
        ("a number and texts", format!("[1,{}", &of("\"x\"")[1..])),
        ("messages", of("{\"role\":\"user\",\"content\":\"Hi\"}")),
        ("tools", of("{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}")),
        ("one text", format!("\"{}\"", "x".repeat(bytes))),
        ("one text of escapes", format!("\"{}\"", "\\u0001".repeat(bytes / 6))),
        ("one text of spaces", format!("\"{}\"", " ".repeat(bytes))),
    ]
}

#[test]
fn request_memory_is_at_most_twenty_times_its_size() {
    let server = Server::start(&["-c", "512", "--chat-template", "chatml"]);
    let text = json!([{"role": "user", "content": "Hi"}]).to_string();
    let fields: [(&str, &[&str]); 8] = [
        ("/v1/completions", &["prompt", "stop", "logit_bias", "user"]),
        ("/completion", &["prompt", "stop", "json_schema", "samplers", "response_fields"]),
        ("/v1/chat/completions", &["messages", "tools", "stop", "response_format", "chat_template_kwargs"]),
        ("/v1/responses", &["input", "tools", "metadata"]),
        ("/v1/messages", &["messages", "tools", "system"]),
        ("/tokenize", &["content"]),
        ("/detokenize", &["tokens"]),
        ("/v1/embeddings", &["input"]),
    ];
    for (path, names) in fields {
        for name in names {
            for (kind, list) in lists(1 << 20) {
                let mut body = format!("{{\"max_tokens\":1,\"{name}\":{list}");
                let needed = [("prompt", "\"x\""), ("messages", &text), ("input", "\"x\""), ("content", "\"x\"")];
                for (needed, value) in needed.into_iter().filter(|(needed, _)| needed != name) {
                    body += &format!(",\"{needed}\":{value}");
                }
                body += ",\"with_pieces\":true}";
                let before = memory(&server, "VmRSS");
                // Resets the peak memory of the process.
                std::fs::write(format!("/proc/{}/clear_refs", server.child.id()), "5").unwrap();
                let (status, answer) = server.ask("POST", path, "", &body);
                let taken = memory(&server, "VmHWM").saturating_sub(before);
                let most = PER_BYTE * body.len() as u64 + BESIDES;
                println!("{path} {name}, {kind}: {status}, {} MiB", taken >> 20);
                assert!(taken <= most, "{path}, {name} of {kind}: {taken} bytes for {}: {answer:.200}", body.len());
                assert!([200, 400, 501].contains(&status), "{path}, {name} of {kind}: {status} {answer:.200}");
            }
        }
    }
    end(server);
}

/// Checks that a body with many prompts and the longest settings is refused before any prompt is
/// copied.
#[test]
fn prompt_count_is_checked_before_copying() {
    let server = Server::start(&["-c", "512"]);
    let biases: Vec<Value> = (0..1024).map(|token| json!([token % 500, 1])).collect();
    for path in ["/v1/completions", "/completion"] {
        let request = json!({"prompt": vec!["x"; 20_000], "stop": vec!["x".repeat(1024); 16], "logit_bias": biases});
        let body = request.to_string();
        let before = memory(&server, "VmRSS");
        let (status, answer) = server.ask("POST", path, "", &body);
        assert_eq!(status, 400, "{answer}");
        assert!(answer.contains("the request has 20000 prompts and n is 1"), "{answer}");
        let taken = memory(&server, "VmHWM").saturating_sub(before);
        assert!(taken <= PER_BYTE * body.len() as u64 + BESIDES, "{path}: {taken}");
    }
    end(server);
}

/// A grammar with which a text has exponentially many parses.
const AMBIGUOUS: &str = "root ::= s\ns ::= s s | s s s | \"a\" | \"b\" | [a-z ]";

#[test]
fn an_answer_does_not_wait_for_anothers_grammar() {
    let server = Server::start(&["-c", "2048", "--parallel", "2"]);
    let slow = json!({"prompt": "x", "n_predict": 2000, "grammar": AMBIGUOUS}).to_string();
    let mut slow = server.begin("POST", "/completion", "", &slow);
    server.until("the slow one is worked on", |server| server.metric("requests_processing") > 0.0);
    let other = json!({"prompt": "a", "n_predict": 50, "ignore_eos": true});
    let (status, answer) = server.post("/completion", &other);
    assert_eq!((status, &answer["tokens_predicted"]), (200, &json!(50)), "{answer}");
    // The slow request exceeds its time budget, and gets the error about that.
    let mut told = String::new();
    slow.read_to_string(&mut told).unwrap();
    assert!(told.starts_with("HTTP/1.1 400") && told.contains("the grammar takes too long"), "{told}");
    let (status, answer) = server.post("/completion", &other);
    assert_eq!(status, 200, "{answer}");
    end(server);
}

/// Checks that grammars that crash their compiler process do not end the server.
#[test]
fn hostile_grammars_end_their_requests_alone() {
    let server = Server::start(&["-c", "256"]);
    let nested = |open: &str, close: &str, depth: usize| [open.repeat(depth), "a".into(), close.repeat(depth)].concat();
    let rules: Vec<String> = (0..20_000).map(|i| format!("a{i} ::= a{} \"x\" | \"y\"", i + 1)).collect();
    let chain = format!("root ::= a0\n{}\na20000 ::= \"z\"", rules.join("\n"));
    let lark = |text: &str| json!({"grammar": format!("%llguidance {{}}\n{text}")});
    let schema = |schema: Value| json!({"json_schema": schema});
    let mut deep = json!({"type": "string"});
    for _ in 0..60 {
        deep = json!({"type": "object", "properties": {"a": deep}, "required": ["a"]});
    }
    for mut request in [
        schema(json!({"const": i64::MIN})),
        schema(json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MIN})),
        schema(json!({"enum": [i64::MIN, 0]})),
        schema(json!({"type": "number", "minimum": -1e308, "maximum": 1e308})),
        schema(json!({"type": "integer", "multipleOf": u64::MAX})),
        schema(json!({"type": "string", "pattern": nested("(", ")*", 250)})),
        schema(json!({"type": "string", "pattern": "(a{1,999}){1,999}"})),
        schema(json!({"type": "string", "maxLength": u64::MAX})),
        schema(json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1_000_000_000})),
        schema(json!({"$ref": "#"})),
        schema(deep),
        json!({"grammar": chain}),
        json!({"grammar": nested("root ::= (", ")", 1)}),
        json!({"grammar": format!("root ::= {}", nested("(", ")", 250))}),
        json!({"grammar": "root ::= root"}),
        json!({"grammar": "root ::= \"a\"{1,1000000000}"}),
        lark(&format!("start: /{}/", "a?".repeat(5000))),
        lark(&format!("start: /{}/", "(a|b)".repeat(20_000))),
        lark(&format!("start: /{}x/", "x".repeat(200_000))),
        lark("start: start start | start"),
    ] {
        request["prompt"] = "x".into();
        request["n_predict"] = 2.into();
        let (status, answer) = server.post("/completion", &request);
        println!("{status} {:.100}", answer.to_string());
        assert!([200, 400].contains(&status), "{:.200}: {status} {answer}", request.to_string());
        assert!(!answer.to_string().contains("backtrace"), "{answer}");
    }
    assert_eq!(server.get("/health").0, 200);
    end(server);
}

#[test]
fn slot_is_unchanged_after_a_failed_restore() {
    let folder = scratch("hostile-slots");
    let server = Server::start(&["-c", "256", "--parallel", "1", "--slot-save-path", folder.to_str().unwrap()]);
    let request = json!({"prompt": "The borrow checker ".repeat(8), "n_predict": 4, "temperature": 0});
    server.post("/completion", &request);
    let act = |action: &str, name: &str| {
        let (status, answer) = server.post(&format!("/slots/0?action={action}"), &json!({"filename": name}));
        (status, answer.to_string())
    };
    let held = || serde_json::from_str::<Value>(&server.get("/slots").1).unwrap()[0]["n_cached"].as_u64().unwrap();
    let before = held();
    assert_eq!(act("save", "good.ixs").0, 200);
    let good = std::fs::read(folder.join("good.ixs")).unwrap();
    std::fs::write(folder.join("secret"), "root:x:0:0").unwrap();
    std::os::unix::fs::symlink(folder.join("secret"), folder.join("link.ixs")).unwrap();
    std::os::unix::fs::symlink(folder.join("good.ixs"), folder.join("good-link.ixs")).unwrap();
    let damaged = [&good[..good.len() - 9], &[good[good.len() - 9] ^ 1], &good[good.len() - 8..]].concat();
    std::fs::write(folder.join("damaged.ixs"), damaged).unwrap();
    std::fs::write(folder.join("short.ixs"), &good[..good.len() / 2]).unwrap();
    for name in ["secret", "link.ixs", "good-link.ixs", "damaged.ixs", "short.ixs", "none.ixs"] {
        let (status, answer) = act("restore", name);
        assert_eq!(status, 400, "{name}: {answer}");
        assert!(answer.contains(name) && !answer.contains(folder.to_str().unwrap()), "{answer}");
        assert!(!answer.contains("72, 6f") && !answer.contains("root:"), "{answer}");
        assert_eq!(held(), before, "{name}: {answer}");
    }
    let (status, answer) = act("save", "secret");
    assert!(status == 400 && !answer.contains(folder.to_str().unwrap()), "{status} {answer}");
    assert!(Path::new(&folder.join("secret")).is_file());
    assert_eq!(act("restore", "good.ixs").0, 200);
    // After the hostile requests, the same request gives the same text from the slot as before.
    let (_, again) = server.post("/completion", &request);
    assert!(again["tokens_cached"].as_u64().unwrap() > 0, "{again}");
    end(server);
}
