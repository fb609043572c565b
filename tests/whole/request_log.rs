//! The request log of `ixc serve`. It has one line for each request, whatever its outcome, as text
//! or as a JSON object.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::scratch;
use crate::support::server::{Server, end};

/// Starts a server that needs an API key and logs to a file.
fn logging(name: &str, more: &[&str]) -> (Server, PathBuf) {
    let file = scratch(name).join("serve.log");
    let arguments = [&["--api-key", "one", "--log-file", file.to_str().unwrap()], more].concat();
    (Server::start(&arguments), file)
}

fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Sends bytes, and reads the whole answer.
fn send(server: &Server, bytes: &[u8]) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(bytes).unwrap();
    let mut all = Vec::new();
    // After a refused head, the server may reset the connection.
    let _ = stream.read_to_end(&mut all);
}

const KEY: &str = "Authorization: Bearer one\r\n";

#[test]
fn each_request_is_logged_as_a_line() {
    let (server, file) = logging("log_text", &["--parallel", "1"]);
    let prompt = "The borrow checker ".repeat(16);
    let body = json!({"prompt": prompt, "max_tokens": 5, "temperature": 0, "ignore_eos": true}).to_string();
    let streamed = body.replace("\"max_tokens\"", "\"stream\":true,\"max_tokens\"");
    for (method, path, headers, body, status) in [
        ("GET", "/health", "", "", 200),
        ("POST", "/v1/completions", KEY, &*body, 200),
        ("POST", "/v1/completions", KEY, &streamed, 200),
        ("POST", "/v1/completions", "", &body, 401),
        ("POST", "/v1/completions", KEY, "{", 400),
        ("POST", "/v1/messages", KEY, "{", 400),
        ("GET", "/nothing%0a/\u{e4}?secret=1", KEY, "", 404),
        ("GET", "/v1/completions", KEY, "", 405),
        ("GET", "/v1/models", "Origin: http://evil.example\r\n", "", 403),
        ("POST", "/v1/completions", "Origin: http://localhost\r\nAuthorization: Bearer one\r\n", &body, 415),
    ] {
        assert_eq!(server.ask(method, path, headers, body).0, status, "{method} {path}");
    }
    send(&server, b"GET /\x1b[2J HTTP/1.1\r\n\r\n");
    // The server writes this line when the connection ends, which is after the answer.
    while !std::fs::read_to_string(&file).unwrap().contains("invalid URI") {
        std::thread::yield_now();
    }
    // The server's own page sends such requests for metrics.
    server.ask("GET", "/metrics", &format!("{KEY}X-Ixc-Watch: 1\r\n"), "");
    server.ask("GET", "/metrics", "X-Ixc-Watch: 1\r\n", "");
    end(server);
    let lines = lines(&file);
    let ends: Vec<&str> = lines.iter().map(|line| line.split_once(' ').unwrap().1.split_once(' ').unwrap().1).collect();
    let expected = [
        "GET /health 200 ",
        "POST /v1/completions 200 ",
        "POST /v1/completions 200 ",
        "POST /v1/completions 401 ",
        "POST /v1/completions 400 ",
        "POST /v1/messages 400 ",
        "GET /nothing%0a/\\u{e4} 404 ",
        "GET /v1/completions 405 ",
        "GET /v1/models 403 ",
        "POST /v1/completions 415 ",
        "- - 400 ",
        "GET /metrics 401 ",
    ];
    assert_eq!(ends.len(), expected.len(), "{lines:#?}");
    for (found, expected) in ends.iter().zip(expected) {
        assert!(found.starts_with(expected), "{expected}: {lines:#?}");
    }
    for (line, cached) in [(&lines[1], false), (&lines[2], true)] {
        let tokens = line.split_once("s, ").unwrap().1;
        let numbers: Vec<f64> =
            tokens.split(|c: char| !c.is_ascii_digit() && c != '.').filter_map(|word| word.parse().ok()).collect();
        // The line has the numbers of prompt tokens, cached tokens and generated tokens, and the
        // rate.
        assert!(numbers.len() == 4 && numbers[0] > 1.0 && numbers[2] == 5.0 && numbers[3] > 0.0, "{line}");
        assert_eq!(numbers[1] > 0.0, cached, "{line}");
    }
    assert!(
        lines[3].contains("API key") && lines[4].contains("not JSON") && lines[8].contains("evil.example"),
        "{lines:#?}"
    );
    assert!(lines.iter().all(|line| line.bytes().all(|byte| (b' '..=b'~').contains(&byte))), "{lines:#?}");
    assert!(lines.iter().all(|line| !line.contains("secret")), "{lines:#?}");
}

/// Checks lines as JSON objects. Some clients disconnect during an answer, or before it begins. An
/// existing log is appended to.
#[test]
fn request_log_can_be_json() {
    let (server, file) = logging("log_json", &["--log-format", "json", "--parallel", "1"]);
    let endless = |stream: bool| {
        let body =
            json!({"prompt": "Hi", "max_tokens": 100_000, "ignore_eos": true, "stream": stream, "temperature": 0});
        server.begin("POST", "/v1/completions", KEY, &body.to_string())
    };
    let metric = |server: &Server, name: &str| {
        let text = server.ask("GET", "/metrics", KEY, "").1;
        let page = crate::support::prometheus::Page::read(&text).unwrap();
        page.sum(&format!("ixc:{name}"), &[])
    };
    for (number, stream) in [true, false].into_iter().enumerate() {
        let client = endless(stream);
        server.until("the request", |server| metric(server, "requests_processing") == 1.0);
        drop(client);
        server.until("its end", |server| metric(server, "requests_cancelled_total") == (number + 1) as f64);
    }
    end(server);
    let lines: Vec<Value> = lines(&file).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let cut: Vec<&Value> = lines.iter().filter(|line| line["path"] == "/v1/completions").collect();
    assert_eq!(cut.len(), 2, "{lines:?}");
    for (line, status) in cut.iter().zip([200, 499]) {
        assert_eq!(
            (&line["status"], &line["client_left"], &line["model"]),
            (&json!(status), &json!(true), &json!("demo"))
        );
        assert!(line["prompt_tokens"].as_u64() > Some(0) && line["seconds"].as_f64() > Some(0.0), "{line}");
        assert!(line["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    }
    assert!(lines.iter().filter(|line| line["path"] == "/metrics").all(|line| line.get("client_left").is_none()));
    // The next server appends to the log.
    let before = fs::metadata(&file).unwrap().len();
    let server = Server::start(&["--log-format", "json", "--log-file", file.to_str().unwrap()]);
    server.get("/health");
    end(server);
    assert!(fs::metadata(&file).unwrap().len() > before);
    // With `-q`, nothing is logged.
    let quiet = scratch("log_quiet").join("serve.log");
    let server = Server::start_quietly(&["--log-file", quiet.to_str().unwrap()]);
    server.get("/health");
    end(server);
    assert_eq!(fs::read_to_string(&quiet).unwrap(), "");
}
