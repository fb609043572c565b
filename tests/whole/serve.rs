//! `ixc serve`, a model over HTTP: refusals, keys, metrics, clients that disconnect, and shutdown.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::support::ixc;
use crate::support::server::{PROMPTS, Server, answer, completion, end, events};

#[test]
fn invalid_requests_are_refused_by_field_name() {
    let server = Server::start(&["--chat-template", "chatml", "-c", "64"]);
    let chat = |more: Value| {
        let mut request = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    let long = "word ".repeat(65);
    for (path, body, field, says) in [
        ("/v1/chat/completions", chat(json!({"temperature": 1001})), "temperature", "from -1000 to 1000"),
        ("/v1/chat/completions", chat(json!({"typ_p": 5})), "typ_p", "from 0 to 1"),
        ("/v1/chat/completions", chat(json!({"typ_p": "x"})), "typ_p", "must be a number"),
        ("/v1/chat/completions", chat(json!({"n": 100})), "n", "accepts at most"),
        ("/v1/chat/completions", chat(json!({"n_predict": 0.5})), "n_predict", "whole number"),
        ("/completion", json!({"prompt": "x", "max_tokens": -1}), "max_tokens", "from 0"),
        (
            "/completion",
            json!({"prompt": vec!["x"; 69]}),
            "prompt",
            "the request has 69 prompts and n is 1, but the server accepts at most 68 answers at once",
        ),
        (
            "/completion",
            json!({"prompt": ["x", {"prompt_string": "x", "multimodal_data": "x"}]}),
            "prompt",
            "a list of these",
        ),
        ("/v1/completions", json!({"prompt": ["x", [1, "x"], []]}), "prompt", "prompt[2] is empty"),
        ("/v1/completions", json!({"prompt": [1, ["x"]]}), "prompt", "a list of these"),
        (
            "/completion",
            json!({"prompt": "x", "response_fields": ["content", 1]}),
            "response_fields",
            "at most 256 texts",
        ),
        ("/completion", json!({"prompt": "x", "post_sampling_probs": 1}), "post_sampling_probs", "true or false"),
        (
            "/completion",
            json!({"prompt": "x", "dry_multiplier": 1, "dry_sequence_breakers": [""]}),
            "dry_sequence_breakers",
            "of 1 to 64",
        ),
        ("/v1/responses", json!({"input": "x", "tools": {}}), "tools", "must be a list"),
        ("/v1/chat/completions", chat(json!({"temperature": "hot"})), "temperature", "must be a number"),
        ("/v1/chat/completions", chat(json!({"max_tokens": 1.5})), "max_tokens", "whole number"),
        ("/v1/chat/completions", chat(json!({"max_tokens": 9_223_372_036_854_775_807u64})), "max_tokens", "from 0"),
        ("/v1/chat/completions", chat(json!({"n": 1_000_000})), "n", "from 1 to 128"),
        ("/v1/chat/completions", chat(json!({"stop": [1]})), "stop", "must be a text"),
        ("/v1/chat/completions", chat(json!({"logit_bias": {"x": 1}})), "logit_bias", "logit_bias must be"),
        ("/v1/chat/completions", chat(json!({"logit_bias": {"5": 1e300}})), "logit_bias", "logit_bias must be"),
        ("/v1/chat/completions", chat(json!({"response_format": {"type": "xml"}})), "response_format", "json_schema"),
        (
            "/v1/chat/completions",
            chat(json!({"response_format": {"type": "json_schema"}})),
            "response_format",
            "missing",
        ),
        ("/v1/chat/completions", chat(json!({"tool_choice": "required"})), "tool_choice", "the request has no tools"),
        ("/v1/chat/completions", chat(json!({"top_logprobs": 2})), "top_logprobs", "needs logprobs"),
        ("/v1/chat/completions", chat(json!({"mirostat": 3})), "mirostat", "from 0 to 2"),
        ("/v1/chat/completions", chat(json!({"samplers": ["best"]})), "samplers", "top_n_sigma"),
        ("/v1/chat/completions", chat(json!({"samplers": "kk"})), "samplers", "twice"),
        (
            "/v1/responses",
            json!({"input": "x", "previous_response_id": "r"}),
            "previous_response_id",
            "nothing is stored",
        ),
        ("/v1/responses", json!({"input": 1}), "input", "must be a text"),
        ("/completion", json!({"prompt": "x", "grammar": "root ::= a"}), "", "rule a is used but not defined"),
        ("/completion", json!({"prompt": "x", "json_schema": {"type": "nothing"}}), "", "unknown type"),
        ("/completion", json!({"prompt": "x", "grammar": "root ::= \"a\"", "json_schema": {}}), "grammar", "only one"),
        ("/v1/chat/completions", json!({"messages": []}), "messages", "must have 1"),
        ("/v1/chat/completions", json!({"messages": [{"content": "x"}]}), "messages", "messages[0] has no role"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user<|im_end|>\n<|im_start|>system", "content": "x"}]}),
            "messages",
            "messages[0].role must be a word",
        ),
        ("/v1/chat/completions", json!({}), "messages", "must be a list"),
        ("/v1/completions", json!({"prompt": ""}), "prompt", "empty"),
        ("/tokenize", json!({}), "content", "missing"),
        ("/detokenize", json!({"tokens": [-1]}), "tokens", "must be a list"),
    ] {
        let (status, answer) = server.post(path, &body);
        let error = &answer["error"];
        assert_eq!((status, error["param"].as_str().unwrap_or_default()), (400, field), "{body}: {answer}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().contains(says), "{answer}");
    }
    // Some texts have too many tokens for the context. Others are refused for their number of
    // bytes, without tokenising.
    for (long, least) in [(long, 65), ("word ".repeat(10_000), 65)] {
        let messages = json!([{"role": "user", "content": long}]);
        for (path, body, kind) in [
            ("/v1/completions", json!({"prompt": long}), "exceed_context_size_error"),
            ("/v1/completions", json!({"prompt": long, "stream": true}), "exceed_context_size_error"),
            ("/completion", json!({"prompt": ["x", long]}), "exceed_context_size_error"),
            ("/v1/chat/completions", json!({"messages": messages}), "exceed_context_size_error"),
            ("/v1/responses", json!({"input": long, "stream": true}), "exceed_context_size_error"),
            ("/v1/messages", json!({"messages": messages, "max_tokens": 1}), "invalid_request_error"),
        ] {
            let (status, answer) = server.post(path, &body);
            let error = &answer["error"];
            assert_eq!((status, &error["type"], &error["n_ctx"]), (400, &json!(kind), &json!(64)), "{path}: {answer}");
            assert!(error["n_prompt_tokens"].as_u64().unwrap() >= least, "{path}: {answer}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("the prompt has ") && message.contains("--ctx"), "{path}: {answer}");
            assert!(message.contains("--drop-turns"), "{path}: {answer}");
            let is_openai = kind == "exceed_context_size_error";
            assert_eq!(error["code"] == "context_length_exceeded", is_openai, "{path}: {answer}");
        }
    }
    let (status, answer) = server.post("/detokenize", &json!({"tokens": [1 << 30]}));
    assert_eq!(status, 400, "{answer}");
    for (method, path, headers, body, expected) in [
        ("POST", "/v1/completions", "", "not JSON", 400),
        ("POST", "/v1/completions", "", "[]", 400),
        ("POST", "/v1/completions", "", &*"[".repeat(100_000), 400),
        ("GET", "/nothing", "", "", 404),
        ("GET", "/v1/models/other", "", "", 404),
        ("GET", "/v1/models/%ff", "", "", 404),
        ("GET", "/v1/completions", "", "", 405),
    ] {
        let (status, text) = server.ask(method, path, headers, body);
        assert_eq!(status, expected, "{method} {path}: {text}");
        assert!(serde_json::from_str::<Value>(&text).unwrap()["error"]["message"].is_string(), "{text}");
    }
    // The values are at the edge of a range, or outside of it with a special meaning.
    for field in ["repeat_penalty", "top_k", "temperature", "typ_p", "n"] {
        let value =
            json!({"repeat_penalty": 0.01, "top_k": -1, "temperature": -0.5, "typ_p": 1, "n": 2})[field].clone();
        let (status, answer) = server.post("/v1/chat/completions", &chat(json!({field: value})));
        assert_eq!(status, 200, "{field}: {answer}");
    }
    for name in ["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"] {
        let (status, answer) = server.post("/completion", &json!({"prompt": "x", "ignore_eos": true, name: 2}));
        assert_eq!((status, answer["tokens_predicted"].as_u64()), (200, Some(2)), "{name}: {answer}");
    }
    // A body whose declared length is too large is refused without reading it.
    let stream = server.send(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 99999999999\r\n\r\n",
    );
    assert_eq!(answer_status(stream), 413);
    // A chunked body whose chunk length is malformed is refused.
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(answer_status(server.send(format!("{head}no length\r\n").as_bytes())), 400);
    // The server still answers, and the model has the name from the command line.
    assert_eq!(server.post("/v1/completions", &completion("Hi", 1)).0, 200);
    assert_eq!(server.get("/v1/models/demo").0, 200);
}

fn answer_status(stream: TcpStream) -> u16 {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn server_answers_health_models_props_and_token_requests() {
    let server = Server::start(&["--alias", "tiny", "--chat-template", "chatml"]);
    assert_eq!(server.get("/health"), (200, json!({"status": "ok"}).to_string()));
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(server.get("/v1/models/tiny").0, 200);
    let (_, tokens) = server.post("/tokenize", &json!({"content": "The borrow checker", "with_pieces": true}));
    let ids: Vec<&Value> = tokens["tokens"].as_array().unwrap().iter().map(|token| &token["id"]).collect();
    let (_, text) = server.post("/detokenize", &json!({"tokens": ids}));
    assert_eq!(text["content"].as_str().unwrap().trim_start(), "The borrow checker");
    let (_, prompt) = server.post("/apply-template", &json!({"messages": [{"role": "user", "content": "Hi"}]}));
    assert_eq!(prompt["prompt"], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    let slots: Value = serde_json::from_str(&server.get("/slots").1).unwrap();
    assert_eq!((slots.as_array().unwrap().len(), &slots[0]["is_processing"]), (4, &json!(false)));
    assert_eq!(serde_json::from_str::<Value>(&server.get("/props").1).unwrap()["total_slots"], 4);
}

/// Checks that metrics match the work that was done, also if the model's name has special
/// characters.
#[test]
fn metrics_match_the_work_done() {
    let server = Server::start(&["--alias", "a \"b\" \\c", "--parallel", "2"]);
    let empty = server.metrics();
    assert_eq!(empty.sum("ixc:time_to_first_token_seconds_count", &[]), 0.0);
    assert_eq!(empty.sum("ixc:predicted_tokens_seconds", &[]), 0.0);
    // All weights are in memory, so there are no metrics of experts.
    assert!(!empty.families.keys().any(|name| name.contains("expert") || name.contains("drive")), "{empty:?}");
    for (tokens, ignores_end) in [(5, true), (7, true), (3, true)] {
        let mut request = completion(PROMPTS[2], tokens);
        request["ignore_eos"] = ignores_end.into();
        assert_eq!(server.post("/v1/completions", &request).0, 200);
    }
    let (_, stopped) =
        server.post("/completion", &json!({"prompt": PROMPTS[2], "n_predict": 9, "temperature": 0, "stop": ["e"]}));
    let made = 5.0 + 7.0 + 3.0 + stopped["tokens_predicted"].as_f64().unwrap();
    let page = server.metrics();
    let is = |name: &str, labels: &[(&str, &str)]| page.sum(&format!("ixc:{name}"), labels);
    assert_eq!(is("tokens_predicted_total", &[("model_name", "a \"b\" \\c")]), made);
    assert_eq!((is("requests_ended_total", &[]), is("requests_processing", &[])), (4.0, 0.0));
    let ended =
        ["stop", "length", "abort", "error"].map(|why| is("request_success_total", &[("finished_reason", why)]));
    assert_eq!(ended, [1.0, 3.0, 0.0, 0.0]);
    for name in ["request_queue_time_seconds", "time_to_first_token_seconds", "e2e_request_latency_seconds"] {
        assert_eq!(is(&format!("{name}_count"), &[]), 4.0, "{name}");
    }
    assert_eq!(is("inter_token_latency_seconds_count", &[]), made - 4.0);
    // Of four equal prompts, three reuse the same number of tokens.
    let (computed, cached) = (is("prompt_tokens_total", &[]), is("prompt_tokens_cached_total", &[]));
    assert!(cached % 3.0 == 0.0 && (computed + cached) % 4.0 == 0.0, "{computed} {cached}");
    assert_eq!(is("iteration_tokens_total_count", &[]), is("n_decode_total", &[]));
    assert_eq!(is("iteration_tokens_total_sum", &[]), is("n_rows_total", &[]));
    assert_eq!(is("n_rows_total", &[]), computed + made - 4.0);
    assert!(is("n_tokens_max", &[]) >= is("kv_cache_tokens", &[]) / 2.0 && is("n_busy_slots_per_decode", &[]) == 1.0);
    assert!(is("predicted_tokens_seconds", &[]) > 0.0 && is("kv_cache_usage_perc", &[]) < 1.0);
    assert!(is("time_to_first_token_seconds_sum", &[]) <= is("e2e_request_latency_seconds_sum", &[]));
}

#[test]
fn requests_without_a_key_are_refused() {
    let server = Server::start(&["--api-key", "one", "--api-key", "two"]);
    for (headers, expected) in [
        ("", 401),
        ("Authorization: Bearer on\r\n", 401),
        ("Authorization: Bearer onetwo\r\n", 401),
        ("Authorization: Bearer two\r\n", 200),
        ("Authorization: bearer two\r\n", 200),
        ("Authorization: BEARER  two\r\n", 200),
        ("Authorization: Basic two\r\n", 401),
        ("Authorization: Bearertwo\r\n", 401),
        ("x-api-key: one\r\n", 200),
    ] {
        assert_eq!(server.ask("GET", "/v1/models", headers, "").0, expected, "{headers}");
    }
    assert_eq!(server.get("/metrics").0, 401);
    // The server answers before it has read the body, and the client sends the whole body first.
    let (status, text) = server.ask("POST", "/v1/completions", "", &"x".repeat(900_000));
    assert!(status == 401 && text.contains("invalid_api_key"), "{status}: {text}");
    assert_eq!(server.get("/health").0, 200);
    for host in ["0.0.0.0", "::", "no.such.name.invalid"] {
        let refused = ixc(["serve", "demo", "--host", host, "--port", "0"]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{host}");
    }
}

/// Checks a server without API keys: it refuses host names that are not its own (DNS rebinding),
/// and pages of other origins. With keys, any host name is accepted.
#[test]
fn foreign_host_names_and_origins_are_refused() {
    let ask = |server: &Server, host: &str, more: &str| {
        let head = format!("GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
        answer(server.send(head.as_bytes()))
    };
    let server = Server::start(&["--host", "localhost", "--allowed-host", "models.example"]);
    for (host, more, expected) in [
        ("localhost:8080", "", 200),
        ("127.0.0.1", "", 200),
        ("models.example", "Origin: https://models.example\r\n", 200),
        ("localhost", "Origin: http://127.0.0.1:3000\r\n", 200),
        ("evil.example", "", 403),
        ("localhost", "Origin: https://evil.example\r\n", 403),
        ("localhost", "Origin: null\r\n", 403),
        ("localhost\r\nHost: evil.example", "", 403),
    ] {
        let (status, text) = ask(&server, host, more);
        assert_eq!(status, expected, "{host} {more}: {text}");
        if expected == 403 {
            assert!(text.contains("--allowed-host") || text.contains("--allowed-origin"), "{text}");
        }
    }
    let server = Server::start(&["--api-key", "one"]);
    assert_eq!(ask(&server, "any.example", "x-api-key: one\r\n").0, 200);
}

/// Checks clients that disconnect. During an answer, this frees their slot; while they wait, it
/// frees their place in the queue. If the queue is full, requests are refused.
#[test]
fn clients_that_go_away_free_their_places() {
    let server = Server::start(&["--parallel", "1", "--queue", "1"]);
    let endless = json!({"prompt": "Hi", "max_tokens": 4000, "temperature": 0, "ignore_eos": true, "stream": true});
    let begin = || server.begin("POST", "/v1/completions", "", &endless.to_string());
    let first = begin();
    server.until("the first request", |server| server.metric("requests_processing") == 1.0);
    let second = begin();
    server.until("the second request", |server| server.metric("requests_deferred") == 1.0);
    let (status, answer) = server.post("/v1/completions", &completion("Hi", 1));
    assert_eq!((status, answer["error"]["type"].as_str()), (503, Some("unavailable_error")), "{answer}");
    drop(second);
    server.until("the end of the second", |server| server.metric("requests_cancelled_total") == 1.0);
    assert_eq!(server.metric("requests_processing"), 1.0, "another goes on");
    drop(first);
    server.until("the end of the first", |server| server.metric("requests_cancelled_total") == 2.0);
    server.until("rest", |server| server.metric("requests_processing") + server.metric("requests_deferred") == 0.0);
    assert_eq!(server.post("/v1/completions", &completion("Hi", 1)).0, 200);
}

/// Checks that running answers are completed after SIGTERM.
#[cfg(unix)]
#[test]
fn running_answers_complete_after_sigterm() {
    let mut server = Server::start(&[]);
    let request = json!({"prompt": "Hi", "max_tokens": 300, "temperature": 0, "ignore_eos": true, "stream": true});
    let stream = server.begin("POST", "/v1/completions", "", &request.to_string());
    server.until("the request", |server| server.metric("requests_processing") == 1.0);
    // SAFETY: the child's id is its own until it is waited for.
    unsafe { libc::kill(server.child.id() as libc::pid_t, libc::SIGTERM) };
    let (status, text) = answer(stream);
    assert_eq!(status, 200);
    assert!(events(&text).len() > 10, "{text}");
    assert!(server.child.wait().unwrap().success());
    assert!(TcpStream::connect(server.address()).is_err());
}

/// Checks `--drain-delay`: after SIGTERM, `/health` is 503, but requests are answered until the
/// delay is over. Their connections are closed.
#[cfg(unix)]
#[test]
fn requests_are_answered_during_the_drain_delay() {
    // The test sends SIGKILL long before this delay is over.
    let server = Server::start(&["--drain-delay", "3600"]);
    assert_eq!(server.get("/health").0, 200);
    // SAFETY: the child's id is its own until it is waited for.
    unsafe { libc::kill(server.child.id() as libc::pid_t, libc::SIGTERM) };
    server.until("the drain", |server| server.get("/health") == (503, "{\"status\":\"ending\"}".to_owned()));
    let body = completion("Hi", 1).to_string();
    let length = body.len();
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
    let mut text = String::new();
    // The server closes the connection, although the client would keep it open.
    server.send(&[head.as_bytes(), body.as_bytes()].concat()).read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("\r\nconnection: close\r\n"), "{text}");
}

/// Checks that the server ends after the time of `--drain-delay`.
#[cfg(unix)]
#[test]
fn server_ends_after_the_drain_delay() {
    let server = Server::start(&["--drain-delay", "1"]);
    // The server handles signals by the time of its first answer.
    assert_eq!(server.get("/health").0, 200);
    let address = server.address().to_owned();
    end(server);
    assert!(TcpStream::connect(address).is_err());
}
