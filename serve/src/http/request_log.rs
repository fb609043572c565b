//! The request log: one line for each request, written when its answer has ended.
//!
//! ```text
//! 2026-11-28T13:34:12.123Z 127.0.0.1:51432 POST /v1/chat/completions 200 1.520s, 117 tokens in …
//! 2026-11-28T13:34:13.001Z 127.0.0.1:51440 GET /nothing 404 0.000s: there is no /nothing
//! 2026-11-28T13:34:15.730Z 127.0.0.1:51444 POST /completion 499 0.810s, client left
//! ```
//!
//! Each request has one [`Record`]. The task that answers the request gets the record from
//! [`current`] and adds properties. [`Line`] writes the record when the answer ends for any reason.
//!
//! Invariant: no byte of a request controls a terminal or begins a line.
//! Invariant: a stalled reader of the log does not delay answers. Lines are dropped and counted
//! instead.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::extract::Request;
use axum::http::{Method, StatusCode};
use serde_json::{Map, Value, json};

/// Max lines that wait for the writer. If a terminal is stopped (Ctrl-S), further lines are
/// dropped.
const QUEUED_LINES: usize = 4096;
/// Time limit for writing the last lines when the server ends.
const LAST: Duration = Duration::from_secs(1);
/// Max characters of a path or an error in a line.
const MAX_CHARACTERS: usize = 200;
/// Status of a request whose client left before its answer began, as in nginx.
const CLIENT_LEFT: u16 = 499;

/// Header of the page's frequent requests for metrics. Such a request is logged only if it fails.
const WATCH: &str = "x-ixc-watch";

/// Format of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One line of text for each request.
    Text,
    /// One JSON object for each request.
    Json,
}

/// The request log. A separate thread writes the lines.
#[derive(Debug)]
pub struct RequestLog {
    format: LogFormat,
    /// `None` while the log is dropped.
    lines: Option<SyncSender<String>>,
    /// Number of dropped lines.
    lost: AtomicU64,
    /// Channel that closes when the writer thread has ended.
    thread_end: Mutex<Receiver<()>>,
}

impl RequestLog {
    /// Starts the writer.
    ///
    /// # Errors
    /// When the system refuses the thread.
    pub fn new(format: LogFormat, mut out: impl Write + Send + 'static) -> io::Result<RequestLog> {
        let (lines, incoming) = sync_channel::<String>(QUEUED_LINES);
        let (end, thread_end) = sync_channel::<()>(0);
        let write = move || {
            // The channel closes when this thread ends.
            let _end = end;
            // Write errors are ignored: the server continues without its log.
            incoming.iter().for_each(|line| drop(out.write_all(line.as_bytes()).and_then(|()| out.flush())));
        };
        std::thread::Builder::new().name("request log".into()).spawn(write)?;
        Ok(RequestLog { format, lines: Some(lines), lost: AtomicU64::new(0), thread_end: Mutex::new(thread_end) })
    }

    /// Writes the line of a malformed head, or of a refused connection.
    pub(crate) fn write_refusal(&self, client: SocketAddr, status: StatusCode, why: &str) {
        let record = Record { client: Some(client), ..Record::new("-", "-") };
        record.fail(why);
        self.write(&record, status.as_u16(), false);
    }

    fn write(&self, record: &Record, status: u16, client_left: bool) {
        let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let mut line = match self.format {
            LogFormat::Text => record.text(&now, status, client_left),
            LogFormat::Json => record.object(&now, status, client_left).to_string(),
        };
        line.push('\n');
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            line.insert_str(0, &self.lost_line(&now, lost));
        }
        match self.lines.as_ref().map(|lines| lines.try_send(line)) {
            None | Some(Ok(())) => {}
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) => {
                self.lost.fetch_add(lost + 1, Ordering::Relaxed);
            }
        }
    }

    fn lost_line(&self, now: &str, lost: u64) -> String {
        match self.format {
            LogFormat::Text => format!("{now} {lost} lines of this log were lost: it was not read\n"),
            LogFormat::Json => format!("{}\n", json!({"time": now, "lost_lines": lost})),
        }
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        self.lines = None;
        let thread_end = self.thread_end.get_mut().unwrap_or_else(PoisonError::into_inner);
        if thread_end.recv_timeout(LAST) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the last lines of the request log were not written");
        }
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    /// Tokens of the prompt that were reused from a cache.
    pub(crate) cached: usize,
    pub(crate) generated: usize,
}

/// Tokens of a request, and the time from the first generated token to the last.
#[derive(Clone, Copy, Debug)]
struct TimedUsage {
    usage: Usage,
    generation_time: Duration,
}

impl TimedUsage {
    /// Returns the generated tokens per second, if at least two tokens give an interval.
    fn rate(&self) -> Option<f64> {
        let (tokens, seconds) = (self.usage.generated, self.generation_time.as_secs_f64());
        (tokens > 1 && seconds > 0.0).then(|| (tokens - 1) as f64 / seconds)
    }
}

/// Properties of a request that handlers add.
#[derive(Debug, Default)]
struct HandlerFacts {
    model: Option<String>,
    usage: Option<TimedUsage>,
    error: Option<String>,
}

/// Properties of a request for the log.
#[derive(Debug)]
pub(crate) struct Record {
    begin: Instant,
    client: Option<SocketAddr>,
    method: String,
    path: String,
    facts: Mutex<HandlerFacts>,
}

tokio::task_local! {
    static CURRENT: Arc<Record>;
}

/// Returns the record of the request that this task answers, if there is a log.
pub(crate) fn current() -> Option<Arc<Record>> {
    CURRENT.try_with(Arc::clone).ok()
}

impl Record {
    fn new(method: &str, path: &str) -> Record {
        let (client, facts) = (None, Mutex::default());
        Record { begin: Instant::now(), client, method: printable(method), path: printable(path), facts }
    }

    /// Adds the name of the model that answers.
    pub(crate) fn set_model(&self, name: &str) {
        self.facts().model = Some(name.to_owned());
    }

    /// Adds the tokens of the request, and the time from the first generated token to the last.
    pub(crate) fn set_usage(&self, usage: Usage, generation_time: Duration) {
        self.facts().usage = Some(TimedUsage { usage, generation_time });
    }

    /// Adds the reason why the answer is missing or incomplete. The first reason is kept.
    pub(crate) fn fail(&self, why: &str) {
        self.facts().error.get_or_insert_with(|| why.to_owned());
    }

    fn facts(&self) -> std::sync::MutexGuard<'_, HandlerFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> String {
        self.client.map_or_else(|| "-".to_owned(), |client| client.to_string())
    }

    fn text(&self, now: &str, status: u16, client_left: bool) -> String {
        let (Record { method, path, begin, .. }, facts) = (self, self.facts());
        let seconds = begin.elapsed().as_secs_f64();
        let mut line = format!("{now} {} {method} {path} {status} {seconds:.3}s", self.client());
        if let Some(timed) = facts.usage {
            let Usage { prompt, cached, generated } = timed.usage;
            line += &format!(", {prompt} tokens in ({cached} cached), {generated} out");
            if let Some(rate) = timed.rate() {
                line += &format!(", {rate:.1} tokens/s");
            }
        }
        if client_left {
            line += ", client left";
        }
        if let Some(error) = &facts.error {
            line += &format!(": {}", printable(error));
        }
        line
    }

    fn object(&self, now: &str, status: u16, client_left: bool) -> Value {
        let (Record { method, path, begin, .. }, facts) = (self, self.facts());
        let round_to = |number: f64, digits: f64| Value::from((number * digits).round() / digits);
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| drop(object.insert(name.to_owned(), value));
        put("time", now.into());
        put("client", self.client().into());
        put("method", method.as_str().into());
        put("path", path.as_str().into());
        put("status", status.into());
        put("seconds", round_to(begin.elapsed().as_secs_f64(), 1e6));
        if let Some(model) = &facts.model {
            put("model", printable(model).into());
        }
        if let Some(timed) = facts.usage {
            put("prompt_tokens", timed.usage.prompt.into());
            put("cached_tokens", timed.usage.cached.into());
            put("completion_tokens", timed.usage.generated.into());
            if let Some(rate) = timed.rate() {
                put("tokens_per_second", round_to(rate, 1e3));
            }
        }
        if client_left {
            put("client_left", true.into());
        }
        if let Some(error) = &facts.error {
            put("error", printable(error).into());
        }
        object.into()
    }
}

/// Log line. It is written when it is dropped, with the properties known at that time.
#[derive(Debug)]
pub(crate) struct Line {
    log: Arc<RequestLog>,
    record: Arc<Record>,
    /// HTTP status; `None` before the answer begins.
    status: Option<StatusCode>,
    /// Whether the client received the whole answer.
    is_whole: bool,
    /// Whether a successful answer is not logged.
    is_silent: bool,
}

impl Line {
    /// Creates the log line of a request.
    pub(crate) fn new(log: &Arc<RequestLog>, request: &Request, client: Option<SocketAddr>) -> Line {
        let record = Record { client, ..Record::new(request.method().as_str(), request.uri().path()) };
        let (is_head, is_silent) = (request.method() == Method::HEAD, request.headers().contains_key(WATCH));
        Line { log: Arc::clone(log), record: Arc::new(record), status: None, is_whole: is_head, is_silent }
    }

    /// Runs the handler of the request. It gets the record from [`current`].
    pub(crate) async fn scope<T>(&self, answer: impl Future<Output = T>) -> T {
        CURRENT.scope(Arc::clone(&self.record), answer).await
    }

    /// Records the beginning of an answer, and its error if there is one.
    pub(crate) fn begin(&mut self, status: StatusCode, error: Option<&str>) {
        self.status = Some(status);
        error.into_iter().for_each(|error| self.record.fail(error));
    }

    /// Records that the client received the whole answer.
    pub(crate) fn end(&mut self) {
        self.is_whole = true;
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let client_left = self.status.is_none() || !self.is_whole;
        if self.is_silent && self.status.is_some_and(|status| status.is_success()) {
            return;
        }
        self.log.write(&self.record, self.status.map_or(CLIENT_LEFT, |status| status.as_u16()), client_left);
    }
}

/// Escapes and shortens a text of a request for a line.
fn printable(text: &str) -> String {
    let mut shown = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == MAX_CHARACTERS {
            shown.push_str("...");
            break;
        }
        match c {
            ' '..='~' => shown.push(c),
            c => shown.extend(c.escape_default()),
        }
    }
    shown
}
