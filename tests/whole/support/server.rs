//! A server as a child process, and a client that writes and reads raw bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::prometheus::Page;
use super::{ixc, target_without_tiles};

/// Returns the number of a prompt's tokens that a second request reuses from the demo model's
/// cache. These are whole chunks of 16 rows. At least the last 6 rows are computed again
/// (`Engine::min_rows`).
pub fn found_again(prompt: u64) -> u64 {
    prompt.saturating_sub(6) / 16 * 16
}

/// A server process, which is ended when this value is dropped.
pub struct Server {
    pub child: Child,
    address: String,
}

impl Server {
    /// Starts a server for the demo model, with additional arguments.
    pub fn start(arguments: &[&str]) -> Server {
        Server::for_model("demo", arguments)
    }

    /// Starts a server for a model.
    pub fn for_model(model: &str, arguments: &[&str]) -> Server {
        Server::start_with(&[&[model], arguments].concat())
    }

    /// Starts a server with these arguments.
    pub fn start_with(arguments: &[&str]) -> Server {
        let mut serve = ixc(["serve", "--port", "0", "-t", "2"]);
        // With tiles, rows of a step are rounded together, so less of a prompt could be reused.
        serve.env("IXC_TARGET", target_without_tiles().name());
        serve.args(arguments);
        Server::spawn(serve).expect("the server has ended")
    }

    /// Starts a server with this command. Returns `None` if it ends before it listens.
    pub fn spawn(mut serve: Command) -> Option<Server> {
        let mut child = serve.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("http://") {
            line.clear();
            if said.read_line(&mut line).unwrap() == 0 {
                child.wait().unwrap();
                return None;
            }
        }
        // Reads the rest of the server's output, so that its pipe never fills.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let address = line.split("http://").nth(1).unwrap().split(',').next().unwrap().trim().to_string();
        Some(Server { child, address })
    }

    /// Starts a server for the demo model that prints nothing. Its port was free just before.
    pub fn start_quietly(arguments: &[&str]) -> Server {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = ixc(["serve", "demo", "-q", "-t", "2", "--port", &port.to_string()]);
        let child = command.args(arguments).stderr(Stdio::null()).spawn().unwrap();
        let server = Server { child, address: format!("127.0.0.1:{port}") };
        // Until the model is loaded, the status is 503.
        let is_ready = |server: &Server| TcpStream::connect(&server.address).is_ok() && server.get("/health").0 == 200;
        server.until("the model", is_ready);
        server
    }

    /// Sends bytes on a new connection, and returns the connection.
    pub fn send(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    }

    /// Sends a request, and returns the connection without reading the answer.
    pub fn begin(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
        );
        self.send(&[head.as_bytes(), body.as_bytes()].concat())
    }

    /// Sends a request, and returns the status and the body of the answer.
    pub fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        answer(self.begin(method, path, headers, body))
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends a request, and returns the whole answer with its head, as text.
    pub fn raw(&self, method: &str, path: &str) -> String {
        let mut text = String::new();
        self.begin(method, path, "", "").read_to_string(&mut text).unwrap();
        text
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        self.ask("GET", path, "", "")
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.ask("POST", path, "", &body.to_string());
        (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    }

    /// Returns the value of one of the server's metrics.
    pub fn metric(&self, name: &str) -> f64 {
        self.metrics().sum(&format!("ixc:{name}"), &[])
    }

    /// Returns all metrics.
    pub fn metrics(&self) -> Page {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200, "{text}");
        Page::read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// Waits until a condition holds. `what` names the condition.
    pub fn until(&self, what: &str, is_so: impl Fn(&Server) -> bool) {
        let begin = Instant::now();
        while !is_so(self) {
            assert!(begin.elapsed() < Duration::from_secs(120), "{what} does not come");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Ends a server with SIGTERM, and waits for its end.
pub fn end(mut server: Server) {
    // SAFETY: the signal goes to a child of this test that was not waited for, so its id is still
    // its own.
    assert_eq!(unsafe { libc::kill(libc::pid_t::try_from(server.child.id()).unwrap(), libc::SIGTERM) }, 0);
    assert!(server.child.wait().unwrap().success());
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads an answer from a connection. Returns its status and its body, with chunks joined.
pub fn answer(mut stream: TcpStream) -> (u16, String) {
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

/// Returns the JSON objects in a stream of events. The stream must end correctly.
pub fn events(text: &str) -> Vec<Value> {
    let mut data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.pop(), Some("[DONE]"), "{text}");
    data.into_iter().map(|object| serde_json::from_str(object).unwrap()).collect()
}

/// Returns the body of a greedy completion request for this many tokens.
pub fn completion(prompt: &str, tokens: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0})
}

/// Prompts for tests: beginnings of texts.
pub const PROMPTS: [&str; 4] = ["The borrow checker", "A trait is", "Once upon a time there was", "fn main() {"];
