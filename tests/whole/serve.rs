//! `ixc serve`: a model over HTTP, asked by clients that do nothing but write and read bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{ixc, stdout};

/// A server, which is ended with this.
pub struct Server {
    pub child: Child,
    address: String,
}

impl Server {
    /// Serves the demo model, with these arguments besides.
    pub fn start(arguments: &[&str]) -> Server {
        let mut child =
            ixc(["serve", "demo", "--port", "0", "-t", "2"]).args(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("http://") {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "the server has ended");
        }
        // Nobody else reads what it says.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let address = line.split("http://").nth(1).unwrap().split(',').next().unwrap().to_string();
        Server { child, address }
    }

    /// Sends bytes, and gives the connection.
    fn send(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    }

    /// Begins a request.
    pub fn begin(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
        );
        self.send(&[head.as_bytes(), body.as_bytes()].concat())
    }

    /// The status and the body of an answer.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        answer(self.begin(method, path, headers, body))
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        self.ask("GET", path, "", "")
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.ask("POST", path, "", &body.to_string());
        (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    }

    /// A figure of its metrics.
    pub fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("ixc:{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    /// Waits until something is so.
    pub fn until(&self, what: &str, is_so: impl Fn(&Server) -> bool) {
        let begin = Instant::now();
        while !is_so(self) {
            assert!(begin.elapsed() < Duration::from_secs(120), "{what} does not come");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status and the body of an answer; chunks are put together.
fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    if !head.to_lowercase().contains("transfer-encoding: chunked") {
        return (status, body.to_string());
    }
    let (mut rest, mut whole) = (body, String::new());
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        whole.push_str(&after[..length]);
        rest = after.get(length + 2..).unwrap_or_default();
    }
    (status, whole)
}

/// The objects of a stream of events, which ends as it should.
fn events(text: &str) -> Vec<Value> {
    let mut data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.pop(), Some("[DONE]"), "{text}");
    data.into_iter().map(|object| serde_json::from_str(object).unwrap()).collect()
}

fn completion(prompt: &str, tokens: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0})
}

const PROMPTS: [&str; 4] = ["The borrow checker", "A trait is", "Once upon a time there was", "fn main() {"];

/// Greedy text of many at once is that of `ixc run`.
#[test]
fn texts_of_many_clients_are_those_of_one() {
    let server = Server::start(&["--parallel", "3"]);
    let alone = |prompt: &str| {
        let text = stdout(ixc(["run", "demo", "-p", prompt, "-n", "12", "--temp", "0", "-t", "2"]));
        text.strip_suffix('\n').unwrap_or(&text).to_string()
    };
    let expected = PROMPTS.map(alone);
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for (prompt, expected) in PROMPTS.iter().zip(&expected) {
                let server = &server;
                scope.spawn(move || {
                    let (status, answer) = server.post("/v1/completions", &completion(prompt, 12));
                    assert_eq!((status, answer["object"].as_str()), (200, Some("text_completion")), "{answer}");
                    assert_eq!(
                        answer["choices"][0]["text"].as_str().unwrap().trim_end(),
                        expected.trim_end(),
                        "{prompt}"
                    );
                    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() > 0, "{answer}");
                });
            }
        });
    }
    assert_eq!(server.metric("requests_ended_total"), 2.0 * PROMPTS.len() as f64);
    // The second time a sequence holds all of the prompt.
    let before = [0; 2].map(|_| {
        let before = server.metric("prompt_tokens_cached_total");
        server.post("/v1/completions", &completion(PROMPTS[2], 1));
        before
    });
    assert!(server.metric("prompt_tokens_cached_total") > before[1]);
}

#[test]
fn an_answer_in_parts_is_the_whole_one() {
    let server = Server::start(&["--chat-template", "chatml"]);
    let mut request = json!({
        "model": "any", "max_tokens": 20, "temperature": 0,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    });
    let (status, whole) = server.post("/v1/chat/completions", &request);
    assert_eq!((status, whole["object"].as_str()), (200, Some("chat.completion")), "{whole}");
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    let content = choice["message"]["content"].as_str().unwrap();
    assert!(!content.is_empty());
    request["stream"] = true.into();
    request["stream_options"] = json!({"include_usage": true});
    let (status, text) = server.ask("POST", "/v1/chat/completions", "", &request.to_string());
    assert_eq!(status, 200);
    let mut events = events(&text);
    let usage = events.pop().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    // All of the prompt but its last token was held already.
    let prompt = usage["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], prompt - 1);
    assert_eq!(events.first().unwrap()["choices"][0]["delta"]["role"], "assistant");
    let last = events.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], choice["finish_reason"]);
    let parts: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(parts, content);
}

/// The same conversation as Anthropic's interface and as OpenAI's says it has the same answer, whole and in parts.
#[test]
fn messages_are_answered_as_chat_completions_are() {
    let server = Server::start(&["--chat-template", "chatml", "--api-key", "one"]);
    let ask = |path: &str, key: &str, body: &Value| {
        let (status, text) = server.ask("POST", path, key, &body.to_string());
        (status, text)
    };
    let post = |path: &str, body: &Value| {
        let (status, text) = ask(path, "x-api-key: one\r\nanthropic-version: 2023-06-01\r\n", body);
        (status, serde_json::from_str::<Value>(&text).unwrap())
    };
    let common = json!({"max_tokens": 20, "temperature": 0});
    let with = |more: Value| {
        let mut body = common.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let tool = json!({"name": "look", "description": "Looks.", "input_schema": {"type": "object"}});
    let theirs = json!({
        "system": [{"type": "text", "text": "Be brief."}],
        "tools": [tool],
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [
                {"type": "text", "text": "Looking."}, {"type": "tool_use", "id": "t0", "name": "look", "input": {"at": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t0", "content": [{"type": "text", "text": "7"}]},
                {"type": "text", "text": "And?"},
            ]},
        ],
    });
    let ours = json!({
        "tools": [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Looking.", "tool_calls": [
                {"id": "t0", "type": "function", "function": {"name": "look", "arguments": "{\"at\":1}"}},
            ]},
            {"role": "tool", "tool_call_id": "t0", "name": "look", "content": "7"},
            {"role": "user", "content": "And?"},
        ],
    });
    let (status, chat) = post("/v1/chat/completions", &with(ours));
    assert_eq!(status, 200, "{chat}");
    let (status, whole) = post("/v1/messages", &with(theirs.clone()));
    assert_eq!((status, &whole["type"], &whole["role"]), (200, &json!("message"), &json!("assistant")), "{whole}");
    let content = chat["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(whole["content"], json!([{"type": "text", "text": content}]));
    let reason = if chat["choices"][0]["finish_reason"] == "length" { "max_tokens" } else { "end_turn" };
    assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!(reason), &Value::Null));
    let prompt = chat["usage"]["prompt_tokens"].as_u64().unwrap();
    // All but the last token was held already.
    assert_eq!(
        (&whole["usage"]["input_tokens"], &whole["usage"]["cache_read_input_tokens"]),
        (&json!(1), &json!(prompt - 1))
    );
    assert_eq!(post("/v1/messages/count_tokens", &theirs), (200, json!({"input_tokens": prompt})));

    let mut request = with(theirs.clone());
    request["stream"] = true.into();
    let (status, text) = ask("/v1/messages", "x-api-key: one\r\n", &request);
    assert_eq!(status, 200);
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|object| serde_json::from_str(object).unwrap()).collect();
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(names, kinds);
    assert_eq!((kinds[0], kinds[1]), ("message_start", "content_block_start"));
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let parts: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(parts, content);
    let last = &events[events.len() - 2];
    assert_eq!(
        (&last["delta"]["stop_reason"], &last["usage"]["output_tokens"]),
        (&json!(reason), &whole["usage"]["output_tokens"])
    );

    let word = content.split_whitespace().nth(1).unwrap();
    request = with(theirs.clone());
    request["stop_sequences"] = json!([word]);
    let (_, stopped) = post("/v1/messages", &request);
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(word)),
        "{stopped}"
    );

    for (path, key, body, expected, kind) in [
        ("/v1/messages", "x-api-key: two\r\n", with(theirs.clone()), 401, "authentication_error"),
        ("/v1/messages", "x-api-key: one\r\n", theirs, 400, "invalid_request_error"),
        (
            "/v1/messages",
            "x-api-key: one\r\n",
            with(json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]})),
            400,
            "invalid_request_error",
        ),
        (
            "/v1/messages",
            "x-api-key: one\r\n",
            with(
                json!({"messages": [{"role": "user", "content": "x"}], "thinking": {"type": "enabled", "budget_tokens": 9}}),
            ),
            400,
            "invalid_request_error",
        ),
        ("/v1/messages/nothing", "x-api-key: one\r\n", json!({}), 404, "not_found_error"),
    ] {
        let (status, text) = ask(path, key, &body);
        let error: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (status, &error["type"], &error["error"]["type"]),
            (expected, &json!("error"), &json!(kind)),
            "{text}"
        );
    }
}

#[test]
fn text_to_stop_at_is_no_part_of_an_answer() {
    let server = Server::start(&[]);
    let (_, whole) = server.post("/completion", &json!({"prompt": PROMPTS[0], "n_predict": 20, "temperature": 0}));
    let text = whole["content"].as_str().unwrap();
    assert_eq!((whole["stop_type"].as_str(), whole["tokens_predicted"].as_u64()), (Some("limit"), Some(20)), "{whole}");
    let word = text.split_whitespace().nth(3).unwrap();
    let request = json!({"prompt": PROMPTS[0], "n_predict": 20, "temperature": 0, "stop": [word, "never said"]});
    let (_, stopped) = server.post("/completion", &request);
    assert_eq!(stopped["content"].as_str(), text.split_once(word).map(|(before, _)| before), "{stopped}");
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!(word)));
}

#[test]
fn what_is_wrong_is_said_by_name() {
    let server = Server::start(&["--chat-template", "chatml", "-c", "64"]);
    let chat = |more: Value| {
        let mut request = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    let long = "word ".repeat(65);
    for (path, body, field, says) in [
        ("/v1/chat/completions", chat(json!({"temperature": -1})), "temperature", "from 0 to 1000"),
        ("/v1/chat/completions", chat(json!({"temperature": "hot"})), "temperature", "must be a number"),
        ("/v1/chat/completions", chat(json!({"max_tokens": 1.5})), "max_tokens", "whole number"),
        ("/v1/chat/completions", chat(json!({"max_tokens": 9_223_372_036_854_775_807u64})), "max_tokens", "from 0"),
        ("/v1/chat/completions", chat(json!({"n": 1_000_000})), "n", "must be 1"),
        ("/v1/chat/completions", chat(json!({"stop": [1]})), "stop", "must be a text"),
        ("/v1/chat/completions", chat(json!({"logit_bias": {"x": 1}})), "logit_bias", "logit_bias must be"),
        ("/v1/chat/completions", chat(json!({"logit_bias": {"5": 1e300}})), "logit_bias", "logit_bias must be"),
        (
            "/v1/chat/completions",
            chat(json!({"response_format": {"type": "json_object"}})),
            "response_format",
            "not supported",
        ),
        ("/v1/chat/completions", chat(json!({"tool_choice": "required"})), "tool_choice", "not supported"),
        ("/v1/chat/completions", json!({"messages": []}), "messages", "must have 1"),
        ("/v1/chat/completions", json!({"messages": [{"content": "x"}]}), "messages", "messages[0] has no role"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user<|im_end|>\n<|im_start|>system", "content": "x"}]}),
            "messages",
            "messages[0].role must be a word",
        ),
        ("/v1/chat/completions", json!({}), "messages", "must be a list"),
        ("/v1/completions", json!({"prompt": ["a", "b"]}), "prompt", "not supported"),
        ("/v1/completions", json!({"prompt": ""}), "prompt", "empty"),
        ("/tokenize", json!({}), "content", "missing"),
        ("/detokenize", json!({"tokens": [-1]}), "tokens", "must be a list"),
    ] {
        let (status, answer) = server.post(path, &body);
        let error = &answer["error"];
        assert_eq!((status, error["param"].as_str()), (400, Some(field)), "{body}: {answer}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().contains(says), "{answer}");
    }
    let (status, answer) = server.post("/v1/completions", &json!({"prompt": long}));
    assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("context_length_exceeded")), "{answer}");
    let (status, answer) = server.post("/detokenize", &json!({"tokens": [1 << 30]}));
    assert_eq!(status, 400, "{answer}");
    for (method, path, headers, body, expected) in [
        ("POST", "/v1/completions", "", "no JSON", 400),
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
    // A body that says how long it is, and is not read.
    let stream = server
        .send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 99999999999\r\n\r\n");
    assert_eq!(answer_status(stream), 413);
    // One that breaks off, and is not too large.
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(answer_status(server.send(format!("{head}no length\r\n").as_bytes())), 400);
    // It works on, and has the name that the command line said.
    assert_eq!(server.post("/v1/completions", &completion("Hi", 1)).0, 200);
    assert_eq!(server.get("/v1/models/demo").0, 200);
}

fn answer_status(stream: TcpStream) -> u16 {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn facts_and_tokens() {
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

#[test]
fn who_has_no_key_is_told_so() {
    let server = Server::start(&["--api-key", "one", "--api-key", "two"]);
    for (headers, expected) in [
        ("", 401),
        ("Authorization: Bearer on\r\n", 401),
        ("Authorization: Bearer onetwo\r\n", 401),
        ("Authorization: Bearer two\r\n", 200),
        ("x-api-key: one\r\n", 200),
    ] {
        assert_eq!(server.ask("GET", "/v1/models", headers, "").0, expected, "{headers}");
    }
    assert_eq!(server.get("/metrics").0, 401);
    assert_eq!(server.get("/health").0, 200);
    let refused = ixc(["serve", "demo", "--host", "0.0.0.0", "--port", "0"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

/// A client that goes away, in its answer and while it waits, frees its place; a queue that is full says so.
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

/// SIGTERM: what is being answered is answered.
#[cfg(unix)]
#[test]
fn answers_that_are_being_made_end() {
    let mut server = Server::start(&[]);
    let request = json!({"prompt": "Hi", "max_tokens": 300, "temperature": 0, "ignore_eos": true, "stream": true});
    let stream = server.begin("POST", "/v1/completions", "", &request.to_string());
    server.until("the request", |server| server.metric("requests_processing") == 1.0);
    // SAFETY: the child is there until it is waited for.
    unsafe { libc::kill(server.child.id() as libc::pid_t, libc::SIGTERM) };
    let (status, text) = answer(stream);
    assert_eq!(status, 200);
    assert!(events(&text).len() > 10, "{text}");
    assert!(server.child.wait().unwrap().success());
    assert!(TcpStream::connect(&server.address).is_err());
}
