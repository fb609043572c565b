//! `ixc serve` with several models. Models are chosen by name, loaded on request, and unloaded if
//! another model needs the memory.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::server::Server;
use crate::support::{demo_model, ixc, scratch, stderr};

/// Creates a folder with copies of the demo model under these names.
fn folder(name: &str, models: &[&str]) -> PathBuf {
    let folder = scratch(name);
    for model in models {
        fs::copy(demo_model(), folder.join(model)).unwrap();
    }
    folder
}

fn listed(server: &Server) -> Vec<Value> {
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    models["data"].as_array().unwrap().clone()
}

fn loaded(server: &Server) -> Vec<String> {
    let models = listed(server).into_iter().filter(|model| model["loaded"] == true);
    models.map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

fn ask(server: &Server, model: &str) -> (u16, Value) {
    let request = json!({"model": model, "prompt": "The borrow checker", "max_tokens": 4, "temperature": 0});
    server.post("/v1/completions", &request)
}

/// Returns the resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

#[test]
fn models_are_loaded_on_request() {
    let folder = folder("models_by_name", &["a.gguf", "b-00001-of-00001.gguf"]);
    let server = Server::start_with(&["--models-dir", folder.to_str().unwrap(), "-c", "256"]);
    let names: Vec<Value> = listed(&server).into_iter().map(|model| model["id"].clone()).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(loaded(&server).is_empty());
    assert_eq!(
        (server.get("/health").0, server.get("/slots").1, server.get("/metrics")),
        (200, "[]".into(), (200, String::new()))
    );
    let (status, b) = ask(&server, "b");
    assert_eq!((status, &b["model"]), (200, &json!("b")), "{b}");
    assert_eq!(loaded(&server), ["b"]);
    let (status, answer) = ask(&server, "c");
    let error = &answer["error"];
    assert_eq!(
        (status, &error["code"], &error["param"]),
        (404, &json!("model_not_found"), &json!("model")),
        "{answer}"
    );
    assert_eq!(error["message"], "there is no model \"c\"; the models are a, b");
    assert_eq!(server.post("/v1/completions", &json!({"model": 1, "prompt": "x"})).0, 400);
    // A request that names no model uses the first model. Copies of the same file give the same
    // answer.
    let (_, a) =
        server.post("/v1/completions", &json!({"prompt": "The borrow checker", "max_tokens": 4, "temperature": 0}));
    assert_eq!((&a["model"], &a["choices"]), (&json!("a"), &b["choices"]));
    assert_eq!(loaded(&server), ["a", "b"]);
    for (path, status) in [
        ("/slots?model=b", 200),
        ("/slots?model=c", 404),
        ("/props?model=b", 200),
        ("/v1/models/b", 200),
        ("/v1/models/c", 404),
    ] {
        assert_eq!(server.get(path).0, status, "{path}");
    }
    let page = server.metrics();
    for model in ["a", "b"] {
        assert_eq!(page.sum("ixc:requests_ended_total", &[("model_name", model)]), 1.0);
    }
}

/// Checks a budget for one of three models. An idle model is unloaded for another one; a model that
/// answers a request is not.
#[test]
fn models_share_a_budget() {
    let folder = folder("models_budget", &["a.gguf", "b.gguf", "c.gguf"]);
    let arguments = ["--models-dir", folder.to_str().unwrap(), "-c", "2048", "--parallel", "1"];
    let free = Server::start_with(&arguments);
    let process = resident(free.child.id());
    assert_eq!(ask(&free, "a").0, 200);
    let own = listed(&free)[0]["meta"]["memory"].as_u64().unwrap();
    drop(free);
    // The memory of the process without any model differs little between runs.
    let of = |models: u64| (process + models * own / 2).to_string();
    let budget = of(3);
    let server = Server::start_with(&[&arguments[..], &["--memory", &budget]].concat());
    for model in ["a", "b", "a", "c"] {
        let (status, answer) = ask(&server, model);
        assert_eq!((status, answer["model"].as_str()), (200, Some(model)), "{answer}");
        assert_eq!(loaded(&server), [model]);
    }
    let endless = json!({"model": "c", "prompt": "Hi", "max_tokens": 100_000, "ignore_eos": true, "stream": true});
    let stream = server.begin("POST", "/v1/completions", "", &endless.to_string());
    server.until("the request", |server| server.metric("requests_processing") == 1.0);
    // `c` answers until its context is full. On a fast machine, this ends before the other request
    // stops waiting for memory.
    let (status, answer) = ask(&server, "a");
    match status {
        503 => {
            assert_eq!(
                answer["error"]["message"],
                "there is no memory for model a while requests to c run; try again later"
            );
            assert_eq!(loaded(&server), ["c"]);
        }
        status => assert_eq!((status, loaded(&server)), (200, vec!["a".to_owned()]), "{answer}"),
    }
    drop(stream);
    assert_eq!(ask(&server, "b").0, 200);
    assert_eq!(loaded(&server), ["b"]);
    drop(server);

    // If the budget holds two models, the least recently used model is unloaded.
    let budget = of(5);
    let server = Server::start_with(&[&arguments[..], &["--memory", &budget]].concat());
    for (model, expected) in [("a", vec!["a"]), ("b", vec!["a", "b"]), ("a", vec!["a", "b"]), ("c", vec!["a", "c"])] {
        assert_eq!(ask(&server, model).0, 200);
        assert_eq!(loaded(&server), expected);
    }
}

#[test]
fn unloadable_models_are_reported() {
    let folder = folder("models_wrong", &["a.gguf"]);
    fs::write(folder.join("b.gguf"), "GGUF, or not").unwrap();
    fs::write(folder.join("notes.txt"), "no model").unwrap();
    let server = Server::start_with(&["--models-dir", folder.to_str().unwrap(), "-c", "256"]);
    assert_eq!(listed(&server).len(), 2);
    let (status, answer) = ask(&server, "b");
    assert_eq!((status, answer["error"]["type"].as_str()), (500, Some("server_error")), "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("model b cannot be loaded: b.gguf: "), "{answer}");
    assert!(!message.contains(folder.to_str().unwrap()) && !message.contains('/'), "{answer}");
    assert_eq!(ask(&server, "a").0, 200);
    let a = folder.join("a.gguf");
    let (a, none) = (a.to_str().unwrap(), folder.join("none.gguf"));
    let empty = scratch("models_none");
    for (arguments, status, says) in [
        (&[a, a][..], 2, "two models have the name a"),
        (&[a, none.to_str().unwrap()], 66, "none.gguf"),
        (&["demo", a, "--alias", "x"], 2, "--alias works with one model only"),
        (&["--models-dir", empty.to_str().unwrap()], 65, "has no models"),
        (&["--models-dir", a], 74, "look for models in"),
    ] {
        let output = ixc(["serve", "--port", "0"]).args(arguments).output().unwrap();
        let said = stderr(&output);
        assert!(output.status.code() == Some(status) && said.contains(says), "{arguments:?}: {said}");
    }
    assert!(Path::new(a).exists());
}

/// Checks a server with a chat model and an encoder. Each answers requests of its kind, with or
/// without its name, in either order.
#[test]
fn server_offers_encoder_and_chat_model_together() {
    let encoder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/encoders/models/bert.gguf");
    let encoder = encoder.to_str().unwrap();
    let alone = Server::for_model(encoder, &[]);
    // The golden model has no tokenizer, so requests have tokens.
    let texts = json!({"input": [[1, 2, 3], [4, 5]]});
    let (status, expected) = alone.post("/v1/embeddings", &texts);
    assert_eq!((status, &expected["model"]), (200, &json!("bert")), "{expected}");
    drop(alone);
    for models in [["demo", encoder], [encoder, "demo"]] {
        let server = Server::start_with(&[&models[..], &["--chat-template", "chatml", "-c", "128"]].concat());
        let (status, found) = server.post("/v1/embeddings", &texts);
        assert_eq!((status, &found["data"]), (200, &expected["data"]), "{found}");
        let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2});
        let (status, answer) = server.post("/v1/chat/completions", &chat);
        assert_eq!((status, &answer["model"]), (200, &json!("demo")), "{answer}");
        assert_eq!(loaded(&server).len(), 2);
        for (path, body, says) in [
            ("/v1/embeddings", json!({"model": "demo", "input": "x"}), "demo returns text, not embeddings"),
            (
                "/v1/completions",
                json!({"model": "bert", "prompt": "x"}),
                "bert returns embeddings (/v1/embeddings), not text",
            ),
            ("/completion", json!({"model": "bert", "prompt": "x"}), "bert returns embeddings"),
            (
                "/v1/messages",
                json!({"model": "bert", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}),
                "bert returns embeddings",
            ),
        ] {
            let (status, answer) = server.post(path, &body);
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(status == 400 && message.contains(says), "{path}: {answer}");
        }
    }
}

/// Returns the first line that a server prints.
fn start_line(arguments: &[&str]) -> String {
    let mut child =
        ixc(["serve", "--port", "0", "-t", "2"]).args(arguments).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let line = lines.find_map(|line| line.ok().filter(|line| line.contains("http://"))).unwrap();
    let next = lines.next().unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(next.starts_with("ixc: open http://127.0.0.1:") && next.ends_with(" in a browser to chat"), "{next}");
    line
}

/// Checks the default context. It is the model's context length if memory allows it; otherwise, it
/// is a half or a quarter of that. The server's first line prints both lengths.
#[test]
fn the_context_is_as_long_as_memory_allows() {
    use crate::support::made::{BASE, ModelParameters};
    let long = scratch("models_context").join("long.gguf");
    let context = 65_536;
    fs::write(&long, ModelParameters { context, ..BASE }.file()).unwrap();
    let long = long.to_str().unwrap();
    let all = start_line(&[long, "--parallel", "1"]);
    assert!(all.contains("in contexts of 65536 tokens (the model's maximum), "), "{all}");
    let asked = start_line(&[long, "-c", "512"]);
    assert!(asked.contains("in contexts of 512 tokens (--ctx), "), "{asked}");
    // The budget has memory for at least one context of this length, and for less than four.
    let part = start_line(&[long, "--parallel", "256", "--memory", "1500MiB"]);
    let found = part.split("in contexts of ").nth(1).unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
    assert!([4096, 8192, 16_384, 32_768].contains(&found), "{part}");
    assert!(
        part.contains(" tokens (limited by memory; the model's maximum is 65536; --ctx sets another length), "),
        "{part}"
    );
}
