//! Requests of web pages to `ixc serve`: preflights, origins, content types and host names. Limits
//! of connections are also tested.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::support::ixc;
use crate::support::server::Server;

/// Returns the status and the head of an answer. The head is in lower case.
fn head(server: &Server, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}");
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let head = text.split("\r\n\r\n").next().unwrap().to_lowercase();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head)
}

const BODY: &str = r#"{"prompt": "Hi", "max_tokens": 1}"#;
const JSON: &str = "Content-Type: application/json\r\n";

fn preflight(server: &Server, host: &str, origin: &str) -> (u16, String) {
    let headers = format!(
        "Host: {host}\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\
         Access-Control-Request-Headers: authorization,content-type,x-stainless-lang\r\nAccess-Control-Request-Private-Network: true\r\n"
    );
    head(server, "OPTIONS", "/v1/chat/completions", &headers, "")
}

#[test]
fn pages_of_admitted_origins_may_send_requests() {
    let open = Server::start(&["--allowed-host", "chat.example"]);
    let keyed = Server::start(&[
        "--api-key",
        "one",
        "--allowed-origin",
        "https://app.example",
        "--allowed-origin",
        "http://page.example:81",
    ]);
    for (server, origins) in [
        (&open, ["http://localhost:5173", "https://chat.example", "http://[::1]:3000"]),
        (&keyed, ["http://localhost:5173", "https://app.example", "http://page.example:81"]),
    ] {
        for origin in origins {
            let (status, answer) = preflight(server, "127.0.0.1:8080", origin);
            assert_eq!(status, 204, "{answer}");
            for line in [
                &*format!("access-control-allow-origin: {origin}"),
                "access-control-allow-methods: get, post, options",
                "access-control-allow-private-network: true",
                "access-control-max-age: 600",
                "vary: origin",
            ] {
                assert!(answer.lines().any(|found| found == line), "{line}: {answer}");
            }
            let allowed = answer.lines().find(|line| line.starts_with("access-control-allow-headers: ")).unwrap();
            for name in ["authorization", "content-type", "x-api-key", "anthropic-version", "x-stainless-lang"] {
                assert!(allowed.contains(name), "{allowed}");
            }
            // Answers, errors and streams have a CORS header with the page's origin.
            let own = format!("Host: localhost\r\nOrigin: {origin}\r\nAuthorization: Bearer one\r\n{JSON}");
            let streamed = BODY.replace('}', ", \"stream\": true}");
            for (method, path, body, status) in [
                ("POST", "/v1/completions", BODY, 200),
                ("POST", "/v1/completions", &*streamed, 200),
                ("POST", "/v1/completions", "{", 400),
                ("GET", "/nothing", "", 404),
                ("GET", "/health", "", 200),
            ] {
                let (found, answer) = head(server, method, path, &own, body);
                let named = format!("access-control-allow-origin: {origin}");
                assert!(found == status && answer.lines().any(|line| line == named), "{answer}");
            }
        }
    }
    let (status, answer) = head(&keyed, "GET", "/v1/models", "Host: localhost\r\nOrigin: http://localhost:1\r\n", "");
    assert!(status == 401 && answer.contains("access-control-allow-origin: http://localhost:1"), "{answer}");
    for server in [&open, &keyed] {
        for origin in ["https://evil.example", "http://203.0.113.9", "http://192.168.1.1", "chrome-extension://abc"] {
            let (status, answer) = preflight(server, "127.0.0.1:8080", origin);
            assert!(status == 403 && !answer.contains("access-control-"), "{answer}");
            let own = format!("Host: localhost\r\nOrigin: {origin}\r\nAuthorization: Bearer one\r\n{JSON}");
            let (status, answer) = head(server, "POST", "/v1/completions", &own, BODY);
            assert!(status == 403 && !answer.contains("access-control-"), "{answer}");
        }
    }
    // Requests of the server's own page are accepted, whatever address it was opened with.
    let own = format!("Host: 192.168.7.7:8080\r\nOrigin: http://192.168.7.7:8080\r\n{JSON}");
    assert_eq!(head(&open, "POST", "/v1/completions", &own, BODY).0, 200);
    let any = Server::start(&["--allowed-origin", "*"]);
    assert_eq!(preflight(&any, "localhost", "https://evil.example").0, 204);
    for wrong in ["app.example", "https://app.example/x", "https://*.example"] {
        let refused = ixc(["serve", "demo", "--port", "0", "--allowed-origin", wrong]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{wrong}");
    }
}

/// Checks that bodies of other content types are refused, because a page may send these without a
/// preflight. Programs may omit the content type.
#[test]
fn page_bodies_must_be_declared_as_json() {
    let server = Server::start(&[]);
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let text = "Content-Type: text/plain\r\n";
    let page = "Origin: http://localhost:3000\r\n";
    for (headers, status) in [
        (String::new(), 200),
        (form.to_owned(), 200),
        (text.to_owned(), 200),
        (format!("{page}{JSON}"), 200),
        (format!("{page}Content-Type: application/json; charset=utf-8\r\n"), 200),
        (page.to_owned(), 415),
        (format!("{page}{text}"), 415),
        (format!("Sec-Fetch-Site: cross-site\r\n{form}"), 415),
        (format!("Sec-Fetch-Site: same-origin\r\n{JSON}"), 200),
    ] {
        let headers = format!("Host: localhost\r\n{headers}");
        assert_eq!(head(&server, "POST", "/v1/completions", &headers, BODY).0, status, "{headers}");
    }
    // Requests without a body are checked in the same way.
    assert_eq!(head(&server, "POST", "/slots/0?action=erase", &format!("Host: localhost\r\n{page}"), "").0, 415);
}

/// Checks that host names are checked on an address that others can reach, if there is no key.
#[test]
fn host_names_are_checked_on_public_addresses() {
    let server = Server::start(&["--host", "0.0.0.0", "--no-api-key"]);
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for (headers, status) in [
        ("Host: evil.example\r\n".to_owned(), 403),
        ("Host: localhost\r\nOrigin: http://evil.example\r\n".to_owned(), 403),
        ("Host: 192.168.1.7:8080\r\nOrigin: http://192.168.1.8:8080\r\n".to_owned(), 403),
        ("Host: 192.168.1.7:8080\r\n".to_owned(), 200),
        (format!("Host: {}:8080\r\n", own.trim()), 200),
    ] {
        assert_eq!(head(&server, "GET", "/v1/models", &headers, "").0, status, "{headers}");
    }
}

/// Checks that idle connections of one client do not block other clients. They are closed if the
/// same client opens new ones.
#[test]
fn idle_connections_yield_to_new_ones() {
    let server = Server::start(&[]);
    let mut idle = Vec::new();
    for i in 0..450 {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        // The connections have sent nothing, half of a head, or half of a body, or have completed a
        // request before.
        let bytes = match i % 4 {
            0 => "",
            1 => "GET /health HTTP/1.1\r\nHost: localhost\r\nX: ",
            2 => "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
            _ => "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        };
        // The write may fail, since the server may have closed the connection to make room for a
        // new one.
        let _ = stream.write_all(bytes.as_bytes());
        idle.push(stream);
        if i % 100 == 99 {
            assert_eq!(server.get("/health").0, 200);
        }
    }
    let (status, answer) = server.post("/tokenize", &json!({"content": "Hi"}));
    assert_eq!(status, 200, "{answer}");
    drop(idle);
}

/// Checks that requests whose bodies arrive slowly do not block other requests.
#[test]
fn slow_bodies_keep_no_others_waiting() {
    let server = Server::start(&[]);
    let slow: Vec<TcpStream> = (0..12)
        .map(|i| {
            let length = if i % 2 == 0 {
                "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
            } else {
                "Content-Length: 33554432\r\n\r\n{"
            };
            let mut stream = TcpStream::connect(server.address()).unwrap();
            stream.write_all(format!("POST /tokenize HTTP/1.1\r\nHost: localhost\r\n{length}").as_bytes()).unwrap();
            stream
        })
        .collect();
    let (status, answer) =
        server.post("/tokenize", &json!({"content": "the ".repeat(400), "filler": "x".repeat(1 << 20)}));
    assert_eq!(status, 200, "{answer}");
    // The server has ended no slow request, so each can still be completed.
    for mut stream in slow {
        stream.set_nonblocking(true).unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }
}

/// Checks that a body may begin with a UTF-8 byte order mark. A UTF-16 mark is refused, and the
/// error names it.
#[test]
fn bodies_may_have_a_mark() {
    let server = Server::start(&[]);
    let (status, _) = server.ask("POST", "/v1/completions", "", &format!("\u{feff}{BODY}"));
    assert_eq!(status, 200);
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let body: Vec<u8> = [0xfeff].into_iter().chain(BODY.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), &body].concat()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let answer: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert!(
        text.starts_with("HTTP/1.1 400") && answer["error"]["message"].as_str().unwrap().contains("UTF-16"),
        "{text}"
    );
}
