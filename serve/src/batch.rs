//! Batch of requests in a file, answered like those of a server's clients, many at once. Each
//! answer is a line, which is written as soon as the answer is complete. These requests
//!
//! ```text
//! {"id": "a", "prompt": "The borrow checker", "max_tokens": 8}
//! {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
//! {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": […]}}
//! ```
//!
//! become, in the order in which they are answered,
//!
//! ```text
//! {"line": 2, "request": "6a0e0a0c", "response": {"status_code": 200, "body": {…}},
//!  "error": null, "crc32": "1c291ca3"}
//! {"line": 1, "request": "5d41402a", "id": "a", "response": {"status_code": 200, "body": {…}},
//!  "error": null, "crc32": "…"}
//! {"line": 3, "request": "9f86d081", "custom_id": "c",
//!  "response": {"status_code": 400, "body": {"error": {…}}}, "error": null, "crc32": "…"}
//! ```
//!
//! Each answer is one line; the example wraps it. `request` is the CRC-32 of the request's line,
//! which a resumed batch compares. `crc32` is the CRC-32 of the answer's text (`checksum`).
//!
//! Invariant: a line of the input gets one answer, whatever is wrong with it, and however often the
//! batch was interrupted.
//!
//! Invariant: memory holds twice as many requests as are computed at once, and a few bytes for each
//! earlier answer.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;

use crate::http::{Local, fields_of};
use ixc_files::open::open_append;
use ixc_files::{Kind, Place};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::Error;
pub use crate::error::batch::BatchError;
use crate::serving::{Host, Registry};
use ixc_compile::checksum::{add_checksum, remove_checksum};
use ixc_generate::expert_use::ExpertUse;

/// First bytes of each answer.
const BEGIN: &[u8] = b"{\"line\":";
/// A file of answers.
pub const KIND: Kind =
    Kind { name: "file of a batch's answers", is: |head| head.starts_with(BEGIN), streams: false, private: false };
/// Returns the max bytes of a line, the same as for a request's body.
fn max_line_bytes() -> u64 {
    Local::body_bytes() as u64
}

/// HTTP path of a batch's requests, with the names of some fields.
struct Endpoint {
    path: &'static str,
    /// Names of the field with the max number of tokens.
    limits: &'static [&'static str],
    /// Name of the field with stop texts.
    stop: &'static str,
}

const CHAT: Endpoint =
    Endpoint { path: "/v1/chat/completions", limits: &["max_completion_tokens", "max_tokens"], stop: "stop" };
const COMPLETION: Endpoint = Endpoint { path: "/v1/completions", limits: &["max_tokens"], stop: "stop" };
const ENDPOINTS: [&Endpoint; 5] = [
    &CHAT,
    &COMPLETION,
    &Endpoint { path: "/v1/responses", limits: &["max_output_tokens"], stop: "stop" },
    &Endpoint { path: "/v1/messages", limits: &["max_tokens"], stop: "stop_sequences" },
    &Endpoint { path: "/completion", limits: &["n_predict"], stop: "stop" },
];

/// Defaults for fields that a request leaves out.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// Default values by field name.
    pub fields: Map<String, Value>,
    /// Texts to stop at.
    pub stop: Vec<String>,
    /// Max number of tokens.
    pub limit: Option<usize>,
    /// Max number of tokens for a prompt that is completed without a chat template.
    pub text_limit: Option<usize>,
    /// Whether a prompt is a user's chat message.
    pub chats: bool,
    /// System message for prompts that become user messages.
    pub system: Option<String>,
}

/// A line of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Number, from 1.
    number: u64,
    /// The CRC-32 of the line's bytes.
    crc: u32,
    /// The bytes of the line, or their number if the line is too long.
    bytes: Result<Vec<u8>, u64>,
}

/// Lines of an input, without blank ones.
#[derive(Debug)]
pub struct Lines<R> {
    /// Name of the input in errors.
    path: PathBuf,
    input: R,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    /// Creates an iterator over the lines, from the first on.
    pub fn new(path: PathBuf, input: R) -> Lines<R> {
        Lines { path, input, number: 0 }
    }

    /// Returns the next line. If a line is too long, at most the max bytes of a line are kept in
    /// memory.
    fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let (mut bytes, mut crc, max) = (Vec::new(), crc32fast::Hasher::new(), max_line_bytes());
            (&mut self.input).take(max + 1).read_until(b'\n', &mut bytes)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            self.number += 1;
            let is_whole = bytes.pop_if(|last| *last == b'\n').is_some();
            if self.number == 1 {
                let mark = bytes.len() - ixc_files::without_mark(&bytes).map_or(bytes.len(), <[u8]>::len);
                bytes.drain(..mark);
            }
            crc.update(&bytes);
            if bytes.len() as u64 <= max {
                if bytes.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(Line { number: self.number, crc: crc.finalize(), bytes: Ok(bytes) }));
            }
            let mut count = bytes.len() as u64;
            drop(bytes);
            let mut ends = is_whole;
            while !ends {
                let part = self.input.fill_buf()?;
                let end = part.iter().position(|byte| *byte == b'\n');
                let taken = end.unwrap_or(part.len());
                crc.update(&part[..taken]);
                count += taken as u64;
                ends = end.is_some() || part.is_empty();
                self.input.consume(taken + usize::from(end.is_some()));
            }
            return Ok(Some(Line { number: self.number, crc: crc.finalize(), bytes: Err(count) }));
        }
    }
}

/// Request of a line, or the reason that it is invalid.
struct LineRequest {
    /// Id for the answer: the field's name and value.
    id: Option<(&'static str, Value)>,
    /// Endpoint and body.
    target: Result<(&'static Endpoint, Map<String, Value>), String>,
}

impl LineRequest {
    fn parse(line: &Line, defaults: &Defaults) -> LineRequest {
        let bytes = match &line.bytes {
            Ok(bytes) => bytes,
            Err(count) => {
                let wrong = format!("the line has {count} bytes; the limit is {}", max_line_bytes());
                return LineRequest { id: None, target: Err(wrong) };
            }
        };
        let mut fields = match fields_of(bytes) {
            Ok(fields) => fields,
            Err(wrong) => return LineRequest { id: None, target: Err(wrong) },
        };
        let id = ["custom_id", "id"].into_iter().find_map(|name| Some((name, fields.shift_remove(name)?)));
        match id {
            Some((name, Value::Array(_) | Value::Object(_) | Value::Bool(_))) => {
                LineRequest { id: None, target: Err(format!("{name} must be a text or a number")) }
            }
            id => LineRequest { id, target: target_of(fields, defaults) },
        }
    }
}

/// Returns the endpoint and the body of a line's request.
fn target_of(
    mut fields: Map<String, Value>,
    defaults: &Defaults,
) -> Result<(&'static Endpoint, Map<String, Value>), String> {
    let (endpoint, mut body, limit) = if fields.contains_key("url") || fields.contains_key("body") {
        let url = fields.get("url").and_then(Value::as_str).ok_or("url must be a text")?;
        let endpoint = ENDPOINTS.into_iter().find(|endpoint| endpoint.path == url);
        let endpoint = endpoint.ok_or_else(|| {
            let paths: Vec<&str> = ENDPOINTS.iter().map(|endpoint| endpoint.path).collect();
            format!("url is {url:?}; expected one of {}", paths.join(", "))
        })?;
        if fields.get("method").is_some_and(|method| method != "POST") {
            return Err("method must be POST".to_owned());
        }
        match fields.shift_remove("body") {
            Some(Value::Object(body)) => (endpoint, body, defaults.limit),
            _ => return Err("body must be an object".to_owned()),
        }
    } else if fields.contains_key("messages") {
        (&CHAT, fields, defaults.limit)
    } else if defaults.chats {
        let prompt = match fields.shift_remove("prompt") {
            Some(prompt @ Value::String(_)) => prompt,
            Some(_) => return Err("prompt must be a text, because it is the message of a user".to_owned()),
            None => return Err("the request has none of prompt, messages and body; give one of them".to_owned()),
        };
        let system = defaults.system.iter().map(|text| json!({"role": "system", "content": text}));
        let messages = system.chain([json!({"role": "user", "content": prompt})]).collect();
        fields.insert("messages".to_owned(), messages);
        (&CHAT, fields, defaults.limit)
    } else if fields.contains_key("prompt") {
        (&COMPLETION, fields, defaults.text_limit)
    } else {
        return Err("the request has none of prompt, messages and body; give one of them".to_owned());
    };
    if body.get("stream").is_some_and(|stream| *stream != false && !stream.is_null()) {
        return Err("stream must be false: answers of a batch cannot be streamed".to_owned());
    }
    let is_there = |body: &Map<String, Value>, name: &str| body.get(name).is_some_and(|value| !value.is_null());
    for (name, value) in &defaults.fields {
        if !is_there(&body, name) {
            body.insert(name.clone(), value.clone());
        }
    }
    if !defaults.stop.is_empty() && !is_there(&body, endpoint.stop) {
        body.insert(endpoint.stop.to_owned(), defaults.stop.clone().into());
    }
    if let Some(limit) = limit.filter(|_| !endpoint.limits.iter().any(|name| is_there(&body, name))) {
        body.insert(endpoint.limits[0].to_owned(), limit.into());
    }
    Ok((endpoint, body))
}

/// A line of the output.
#[derive(Serialize)]
struct Answer {
    line: u64,
    request: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom_id: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Value>,
    response: Value,
    error: Value,
}

impl Answer {
    fn new(line: &Line, id: Option<(&'static str, Value)>) -> Answer {
        let (custom_id, id) = match id {
            Some(("custom_id", id)) => (Some(id), None),
            Some((_, id)) => (None, Some(id)),
            None => (None, None),
        };
        Answer {
            line: line.number,
            request: format!("{:08x}", line.crc),
            custom_id,
            id,
            response: Value::Null,
            error: Value::Null,
        }
    }

    fn is_success(&self) -> bool {
        self.response["status_code"] == 200
    }
}

/// Fields of an answer that a later run reads.
#[derive(Deserialize)]
struct AnswerHead {
    line: u64,
    request: String,
}

/// File of answers, to which lines are appended.
#[derive(Debug)]
pub struct Answers {
    path: PathBuf,
    file: File,
    /// Answered lines of the input: the CRC-32 of each, and the position of its answer.
    answered_lines: HashMap<u64, (u32, u64)>,
}

impl Answers {
    /// Opens or creates the file of answers. Removes an incomplete last line; with `anew`, removes
    /// all answers.
    ///
    /// # Errors
    /// When another batch writes to the file, the file is of another kind, or it cannot be read or
    /// written.
    pub fn open(place: &Place, anew: bool) -> Result<Answers, Error> {
        let path = place.given_path().to_owned();
        let file = open_append(place.path()).map_err(Error::io(&path, "write"))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(BatchError::Busy { path }.into()),
            Err(TryLockError::Error(source)) => return Err(Error::io(&path, "lock it")(source)),
            Ok(()) => {}
        }
        if anew {
            file.set_len(0).map_err(Error::io(&path, "write"))?;
        }
        let (mut answered_lines, mut whole, mut number) = (HashMap::new(), 0, 0);
        let mut input = BufReader::new(&file);
        input.seek(SeekFrom::Start(0)).map_err(Error::io(&path, "read"))?;
        let mut line = Vec::new();
        loop {
            line.clear();
            // A line of the output has no max length: answers can be long.
            if input.read_until(b'\n', &mut line).map_err(Error::io(&path, "read"))? == 0 {
                break;
            }
            number += 1;
            let malformed = |problem: String| BatchError::Malformed { path: path.clone(), line: number, problem };
            if !line.ends_with(b"\n") {
                // Remove an answer that was interrupted, but refuse text that no batch has written.
                let common = line.len().min(BEGIN.len());
                if line[..common] != BEGIN[..common] {
                    return Err(
                        malformed("the answer does not begin with the number of a request's line".to_owned()).into()
                    );
                }
                break;
            }
            let text = std::str::from_utf8(&line).map_err(|error| malformed(error.to_string()))?;
            let text = remove_checksum(&[], text).map_err(|error| malformed(format!("it {error}")))?;
            let head: AnswerHead = serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
            let crc = u32::from_str_radix(&head.request, 16).map_err(|error| malformed(error.to_string()))?;
            if answered_lines.insert(head.line, (crc, number)).is_some() {
                return Err(malformed(format!("line {} is answered twice", head.line)).into());
            }
            whole += line.len() as u64;
        }
        file.set_len(whole).map_err(Error::io(&path, "write"))?;
        Ok(Answers { path, file, answered_lines })
    }

    /// Returns whether a line was answered.
    fn has(&self, line: &Line) -> Result<bool, Error> {
        match self.answered_lines.get(&line.number) {
            None => Ok(false),
            Some((crc, _)) if *crc == line.crc => Ok(true),
            Some((_, at)) => Err(BatchError::Other { path: self.path.clone(), line: *at, of: line.number }.into()),
        }
    }

    fn add(&mut self, answer: &Answer) -> Result<(), Error> {
        let written = serde_json::to_string(answer).map_err(io::Error::from);
        let written =
            written.and_then(|text| self.file.write_all(format!("{}\n", add_checksum(&[], &text)).as_bytes()));
        written.map_err(Error::io(&self.path, "write"))
    }
}

/// Progress of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Requests answered in this run.
    pub answered: u64,
    /// Answers that are errors.
    pub failed: u64,
    /// Requests that were answered in earlier runs.
    pub skipped: u64,
    /// Generated tokens.
    pub generated_tokens: u64,
    /// Whether the batch was stopped early.
    pub stopped: bool,
}

/// Answers all requests of an input that have no answer yet, several at a time, until the end or
/// `stop`. Calls `tell` with the progress after each answer. Ends the model's thread, and returns
/// its expert use.
///
/// # Errors
/// When the input cannot be read, the output cannot be written, or the output has answers to other
/// requests.
pub fn run<R: BufRead>(
    host: Host,
    mut lines: Lines<R>,
    answers: &mut Answers,
    defaults: &Defaults,
    stop: oneshot::Receiver<()>,
    mut tell: impl FnMut(Progress),
) -> Result<(Progress, Option<ExpertUse>), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(Error::io(std::path::Path::new("a thread"), "start"))?;
    // Twice as many requests as the model computes at once, so that waiting requests keep the
    // engine busy.
    let at_once = 2 * host.parallel();
    let host = Arc::new(host);
    let local = Local::new(Arc::new(Registry::one(Arc::clone(&host))));
    let result = runtime.block_on(async {
        let (mut progress, mut running, mut ended) = (Progress::default(), JoinSet::new(), false);
        let mut stop = std::pin::pin!(async {
            // If the sender of `stop` is dropped, the batch can no longer be stopped, so it
            // continues.
            if stop.await.is_err() {
                std::future::pending::<()>().await;
            }
        });
        loop {
            while !ended && running.len() < at_once {
                let Some(line) = lines.next().map_err(Error::io(&lines.path, "read"))? else {
                    ended = true;
                    break;
                };
                if answers.has(&line)? {
                    progress.skipped += 1;
                    continue;
                }
                let LineRequest { id, target } = LineRequest::parse(&line, defaults);
                let mut answer = Answer::new(&line, id);
                let local = local.clone();
                running.spawn(async move {
                    match target {
                        Ok((endpoint, body)) => {
                            let (status, body) = local.post(endpoint.path, &body).await;
                            answer.response = json!({"status_code": status, "body": body});
                        }
                        Err(wrong) => {
                            let message = format!("line {}: {wrong}", line.number);
                            answer.error = json!({"code": "invalid_request", "message": message});
                        }
                    }
                    answer
                });
            }
            let done = tokio::select! {
                done = running.join_next() => done,
                () = &mut stop => {
                    progress.stopped = true;
                    break;
                }
            };
            let Some(done) = done else { break };
            let answer = done.map_err(|error| BatchError::Ended { problem: error.to_string() })?;
            if answer.response["status_code"] == 503 {
                // The queue has room for all requests of the batch, so status 503 means that the
                // engine has ended.
                let problem = answer.response["body"]["error"]["message"].to_string();
                return Err(BatchError::Ended { problem }.into());
            }
            answers.add(&answer)?;
            progress.answered += 1;
            progress.failed += u64::from(!answer.is_success());
            progress.generated_tokens += generated_tokens(&answer.response["body"]);
            tell(progress);
        }
        // Requests without an answer are cancelled.
        running.shutdown().await;
        answers.file.sync_all().map_err(Error::io(&answers.path, "write"))?;
        Ok(progress)
    });
    drop((local, runtime));
    let expert_use = host.end();
    result.map(|progress| (progress, expert_use))
}

/// Returns the number of tokens generated for an answer of any endpoint.
fn generated_tokens(body: &Value) -> u64 {
    let usage = &body["usage"];
    let counts = [&usage["completion_tokens"], &usage["output_tokens"], &body["tokens_predicted"]];
    counts.into_iter().find_map(Value::as_u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Vec<Line> {
        let mut lines = Lines::new(PathBuf::new(), BufReader::with_capacity(16, text));
        std::iter::from_fn(|| lines.next().unwrap()).collect()
    }

    #[test]
    fn batch_lines_are_numbered_by_position_and_limited() {
        let found = lines(b"{}\n\n  \n{\"a\": 1}\r\nlast");
        let shown: Vec<_> = found.iter().map(|line| (line.number, line.bytes.as_deref().unwrap())).collect();
        assert_eq!(shown, [(1, &b"{}"[..]), (4, b"{\"a\": 1}\r"), (5, b"last")]);
        let max = max_line_bytes() as usize;
        for over in [1, 2, 100] {
            let text = [&b"x\n"[..], &vec![b'y'; max + over], b"\nz\n", &vec![b'y'; max]].concat();
            let found = lines(&text);
            assert_eq!(found.iter().map(|line| line.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
            assert_eq!(found[1].bytes, Err((max + over) as u64));
            assert_eq!(found[1].crc, crc32fast::hash(&text[2..2 + max + over]));
            assert!(found[2].bytes.as_deref() == Ok(b"z") && found[3].bytes.is_ok());
        }
    }

    #[test]
    fn batch_lines_become_requests_with_defaults() {
        let fields = json!({"temperature": 0.5}).as_object().unwrap().clone();
        let defaults = Defaults { fields, limit: Some(7), text_limit: Some(9), ..Defaults::default() };
        let chats = Defaults { chats: true, system: Some("s".into()), ..defaults.clone() };
        let of = |text: &str, defaults: &Defaults| {
            let line = Line { number: 1, crc: 0, bytes: Ok(text.as_bytes().to_vec()) };
            let LineRequest { id, target } = LineRequest::parse(&line, defaults);
            (id.map(|(_, id)| id), target.map(|(endpoint, body)| (endpoint.path, Value::Object(body))))
        };
        let temperature = json!(0.5);
        for (text, defaults, id, path, body) in [
            (
                r#"{"id": 3, "prompt": "x"}"#,
                &defaults,
                Some(json!(3)),
                "/v1/completions",
                json!({"prompt": "x", "temperature": temperature, "max_tokens": 9}),
            ),
            (
                r#"{"prompt": "x", "max_tokens": 1, "temperature": null}"#,
                &chats,
                None,
                "/v1/chat/completions",
                json!({"max_tokens": 1, "temperature": temperature, "messages": [
                    {"role": "system", "content": "s"}, {"role": "user", "content": "x"},
                ]}),
            ),
            (
                r#"{"custom_id": "c", "method": "POST", "url": "/v1/messages", "body": {"temperature": 1, "stream": false}}"#,
                &chats,
                Some(json!("c")),
                "/v1/messages",
                json!({"temperature": 1, "stream": false, "max_tokens": 7}),
            ),
        ] {
            assert_eq!(of(text, defaults), (id, Ok((path, body))));
        }
        for (text, says) in [
            ("[1]", "must be an object"),
            ("{", "not JSON"),
            ("{}", "none of prompt"),
            (r#"{"prompt": "x", "stream": true}"#, "stream must be false"),
            (r#"{"id": [1], "prompt": "x"}"#, "id must be"),
            (r#"{"url": "/metrics", "body": {}}"#, "/v1/chat/completions"),
            (r#"{"url": "/completion", "body": 1}"#, "body must be"),
            (r#"{"url": "/completion", "method": "GET", "body": {}}"#, "POST"),
        ] {
            let (_, wrong) = of(text, &defaults);
            assert!(wrong.as_ref().is_err_and(|wrong| wrong.contains(says)), "{text}: {wrong:?}");
        }
        assert!(of(r#"{"prompt": [1]}"#, &chats).1.is_err());
    }
}
