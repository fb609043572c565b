//! A headless browser, driven by its DevTools protocol over a WebSocket.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::scratch;

/// Max time to wait for an expected event.
const PATIENCE: Duration = Duration::from_secs(120);

/// A browser with one page, which ends when this is dropped.
pub struct Browser {
    child: Child,
    socket: TcpStream,
    calls: u64,
    /// Error messages of the browser about the page: script errors, and content that the page's
    /// policy refused.
    pub complaints: Vec<String>,
}

impl Browser {
    /// Starts the browser with an empty profile.
    pub fn start(program: &Path, name: &str) -> Browser {
        let profile = scratch(name);
        let mut command = Command::new(program);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        command.args(["--disable-background-networking", "--hide-scrollbars", "--remote-debugging-port=0"]);
        command.arg(format!("--user-data-dir={}", profile.display())).arg("about:blank");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("ws://") {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "the browser has ended");
        }
        // Reads the rest of the browser's output, so that its pipe never fills.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let address = line.split("ws://").nth(1).unwrap().split('/').next().unwrap().to_owned();
        let begin = Instant::now();
        let page = loop {
            let pages: Value = serde_json::from_str(&get(&address, "/json/list")).unwrap();
            let page = pages.as_array().unwrap().iter().find(|page| page["type"] == "page").cloned();
            match page {
                Some(page) => break page,
                None => assert!(begin.elapsed() < PATIENCE, "the browser has no page"),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let path = page["webSocketDebuggerUrl"].as_str().unwrap().split_once(&address).unwrap().1.to_owned();
        let mut socket = TcpStream::connect(&address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        // The WebSocket key can be constant, since there is no proxy between this client and the
        // browser.
        let upgrade = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        socket.write_all(upgrade.as_bytes()).unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(byte(&mut socket));
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        let mut browser = Browser { child, socket, calls: 0, complaints: Vec::new() };
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        browser
    }

    /// Calls a method and returns its result.
    #[track_caller]
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let id = self.calls;
        self.send(&json!({"id": id, "method": method, "params": parameters}).to_string());
        loop {
            let mut message: Value = serde_json::from_str(&self.receive()).unwrap();
            if message["id"] == id {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].take();
            }
            let said = &message["params"];
            match message["method"].as_str() {
                Some("Runtime.exceptionThrown") => self.complaints.push(said["exceptionDetails"].to_string()),
                // Log entries about requests that the server refused, and entries with advice, are
                // not errors of the page.
                Some("Log.entryAdded") if said["entry"]["source"] != "network" && said["entry"]["level"] == "error" => {
                    self.complaints.push(said["entry"].to_string());
                }
                _ => {}
            }
        }
    }

    /// Returns the value of a JavaScript expression. A promise is awaited.
    #[track_caller]
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut result = self.call("Runtime.evaluate", parameters);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].take()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn until(&mut self, expression: &str) {
        let begin = Instant::now();
        while self.evaluate(expression) != true {
            let text = || "document.body.innerText".to_owned();
            assert!(begin.elapsed() < PATIENCE, "{expression} does not come: {}", self.evaluate(&text()));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Opens a page, or reloads the current one. In about one of fifty cases, the browser ignores a
    /// navigation from a URL with an anchor to the same URL without it. This function then repeats
    /// the navigation.
    #[track_caller]
    pub fn open(&mut self, address: &str) {
        let begin = Instant::now();
        loop {
            let result = self.call("Page.navigate", json!({"url": address}));
            assert!(result.get("errorText").is_none(), "{result}");
            let told = Instant::now();
            while told.elapsed() < PATIENCE / 12 {
                // A loaded document has a new loader id. A navigation within a document has none.
                let frame = self.call("Page.getFrameTree", json!({}))["frameTree"]["frame"].take();
                let there = result.get("loaderId").is_none_or(|loader| *loader == frame["loaderId"]);
                if there
                    && self.evaluate(&format!(
                        "document.readyState === 'complete' && location.href === {}",
                        json!(address)
                    )) == true
                {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "{address} does not come: {}",
                self.evaluate("location.href + ' ' + document.body.innerText")
            );
        }
    }

    /// Sets the size of the window, and light or dark colours.
    pub fn resize(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Writes a screenshot to a file.
    pub fn picture(&mut self, path: &Path) {
        let picture = self.call("Page.captureScreenshot", json!({"format": "png"}));
        fs::write(path, of_base64(picture["data"].as_str().unwrap())).unwrap();
    }

    /// Sends a text as one WebSocket frame (RFC 6455), with a mask of zeros.
    fn send(&mut self, text: &str) {
        let mut frame = vec![0x81];
        match text.len() {
            short @ ..126 => frame.push(0x80 | short as u8),
            middle @ ..65536 => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&(middle as u16).to_be_bytes());
            }
            long => {
                frame.push(0x80 | 127);
                frame.extend_from_slice(&(long as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(text.as_bytes());
        self.socket.write_all(&frame).unwrap();
    }

    /// Receives the next text, which may have several frames.
    fn receive(&mut self) -> String {
        let mut text = Vec::new();
        loop {
            let (head, length) = (byte(&mut self.socket), byte(&mut self.socket));
            let mut wide = [0; 8];
            let length = match length {
                126 => {
                    self.socket.read_exact(&mut wide[6..]).unwrap();
                    u64::from_be_bytes(wide)
                }
                127 => {
                    self.socket.read_exact(&mut wide).unwrap();
                    u64::from_be_bytes(wide)
                }
                short => short.into(),
            };
            let mut part = vec![0; length as usize];
            self.socket.read_exact(&mut part).unwrap();
            // Pings need no answer here. The only other frames are texts and their continuations.
            if head & 0x0f <= 1 {
                text.extend_from_slice(&part);
                if head & 0x80 != 0 {
                    return String::from_utf8(text).unwrap();
                }
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn byte(socket: &mut TcpStream) -> u8 {
    let mut byte = [0];
    socket.read_exact(&mut byte).unwrap();
    byte[0]
}

/// Returns the body of an answer to a GET.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let (mut head, mut stream) = (String::new(), BufReader::new(stream));
    let mut length = 0;
    loop {
        head.clear();
        stream.read_line(&mut head).unwrap();
        match head.to_lowercase().strip_prefix("content-length:") {
            Some(found) => length = found.trim().parse().unwrap(),
            None if head.trim().is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

/// Decodes base64 (RFC 4648).
fn of_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("{other} is no digit of base64"),
    };
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        bits = bits << 6 | u32::from(digit(byte));
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
