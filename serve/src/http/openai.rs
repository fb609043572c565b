//! OpenAI's interface: `/v1/chat/completions`, `/v1/completions`.
//!
//! ```text
//! POST /v1/chat/completions
//! {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": true}
//!
//! data: {"object": "chat.completion.chunk", "choices": [{"delta": {"role": "assistant"}, …}], …}
//! data: {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "Hello"}, …}], …}
//! data: [DONE]
//! ```
//!
//! Requests for features that do not exist are refused by name: no field that changes an answer is
//! ignored.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::sse::{Event as Sse, KeepAlive};
use axum::response::{IntoResponse, Response};
use ixc_generate::generator::{End, LogProbs};
use ixc_runtime::sample::TokenLogProb;
use ixc_text::chat::{Delta, ToolCall};
use serde_json::{Map, Value, json};

use crate::http::answer::{Answer, AnswerOptions, AnswerPart, Answers, PING};
use crate::http::app::{App, RequestState};
use crate::http::conversation::conversation;
use crate::http::error::HttpError;
use crate::http::fields::{Fields, NumberField};
use crate::http::output_format;
use crate::http::probabilities::{logarithm, text_of, token_object};
use crate::http::prompts::{prompts, requests_for};
use crate::http::request_fields::{self, Interface};
use crate::http::request_log::Usage;
use crate::http::sampling::{self, count, includes_stop, top_logprobs_of_chat};
use crate::http::tools::Tools;
use crate::serving::Host;

/// Default max tokens of a completion, as in OpenAI's interface.
const COMPLETION_TOKENS: usize = 16;

/// Answers a conversation.
pub(crate) async fn chat(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, HttpError> {
    let fields = app.fields(&body)?;
    drop(body);
    request_fields::refuse(Interface::Chat, &fields)?;
    let app = app.select_model(&fields).await?;
    let tools = Tools::of_chat(&fields)?;
    let constraint = tools.constraint(output_format::of_chat(&fields)?)?;
    let conversation = conversation(&fields, tools.prompt_tools, app.model.facts().template.as_deref())?;
    let format = ResponseFormat::parse(&fields, Kind::Chat)?;
    let mut request = sampling::request(&app, &fields, "stop").await?;
    request.top_logprobs = top_logprobs_of_chat(&fields)?;
    let options = AnswerOptions {
        includes_stop: includes_stop(&fields)?,
        single_call: !tools.allows_parallel,
        constraint,
        count: count(&fields)?,
        ..AnswerOptions::new(request)
    };
    // An answer takes long, so the memory of its request is freed first.
    drop(fields);
    respond(&app, format, Answer::to_conversation(&app, conversation, options).await?).await
}

/// Completes a text.
pub(crate) async fn completion(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, HttpError> {
    let mut fields = app.fields(&body)?;
    drop(body);
    request_fields::refuse(Interface::Completions, &fields)?;
    let app = app.select_model(&fields).await?;
    let format = ResponseFormat::parse(&fields, Kind::Completion)?;
    let limit = fields.limit()?.unwrap_or(Some(COMPLETION_TOKENS));
    let count = count(&fields)?;
    let prompts = prompts(&app, &mut fields, count).await?;
    let mut request = sampling::request(&app, &fields, "stop").await?;
    request.limit = limit;
    request.grammar = app.constrain(output_format::of_text(&fields)?).await?;
    request.top_logprobs = fields.number(&NumberField::LOGPROBS)?.map(|top| top as usize);
    let includes_stop = includes_stop(&fields)?;
    drop(fields);
    let answers = Answer::several(&app, &requests_for(&request, prompts), None, count)?;
    respond(&app, format, answers.including_stop(includes_stop)).await
}

/// Endpoint whose form an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Chat,
    Completion,
}

impl Kind {
    fn object(self, streamed: bool) -> &'static str {
        match (self, streamed) {
            (Kind::Chat, false) => "chat.completion",
            (Kind::Chat, true) => "chat.completion.chunk",
            (Kind::Completion, _) => "text_completion",
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Kind::Chat => "chatcmpl",
            Kind::Completion => "cmpl",
        }
    }
}

/// Format of a response.
#[derive(Clone, Debug)]
struct ResponseFormat {
    kind: Kind,
    streamed: bool,
    /// Whether a stream ends with the token counts.
    usage: bool,
}

impl ResponseFormat {
    fn parse(fields: &Fields, kind: Kind) -> Result<ResponseFormat, HttpError> {
        let streamed = fields.flag("stream")?.unwrap_or(false);
        const OPTIONS: &str = "stream_options";
        let usage = match fields.get(OPTIONS) {
            None => false,
            Some(_) if !streamed => {
                return Err(HttpError::invalid(Some(OPTIONS), format!("{OPTIONS} needs stream to be true")));
            }
            Some(Value::Object(options)) => options.get("include_usage").is_some_and(|usage| *usage == true),
            Some(_) => return Err(HttpError::invalid(Some(OPTIONS), format!("{OPTIONS} must be an object"))),
        };
        Ok(ResponseFormat { kind, streamed, usage })
    }
}

fn usage_object(usage: Usage) -> Value {
    let Usage { prompt, cached, generated } = usage;
    json!({
        "prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    })
}

fn finish_reason(end: &End, has_calls: bool) -> &'static str {
    match end {
        End::Limit | End::Context => "length",
        End::Token(_) | End::StopString(_) | End::Grammar | End::Stopped if has_calls => "tool_calls",
        End::Token(_) | End::StopString(_) | End::Grammar | End::Stopped => "stop",
    }
}

fn call_object(call: &ToolCall) -> Map<String, Value> {
    let function = json!({"name": call.name, "arguments": call.arguments});
    [("id", Value::from(&*call.id)), ("type", "function".into()), ("function", function)]
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}

/// Members that every object of an answer has.
struct Frame {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
}

impl Frame {
    fn object(&self, streamed: bool, choices: Value) -> Value {
        json!({
            "id": self.id, "object": self.kind.object(streamed), "created": self.created, "model": self.model,
            "system_fingerprint": null, "choices": choices,
        })
    }

    /// Returns a part of a streamed answer.
    fn chunk(&self, index: usize, content: Value, logprobs: Value, finish: Option<&str>) -> Value {
        let name = if self.kind == Kind::Chat { "delta" } else { "text" };
        self.object(true, json!([{"index": index, name: content, "logprobs": logprobs, "finish_reason": finish}]))
    }

    /// Returns the probabilities of tokens; `offset` is the position of their text in the answer's
    /// text.
    fn logprobs(&self, model: &Host, log_probs: &[LogProbs], offset: usize) -> Value {
        if log_probs.is_empty() {
            return Value::Null;
        }
        match self.kind {
            Kind::Chat => {
                let tokens: Value = log_probs.iter().map(|log_probs| token_object(model, log_probs, false)).collect();
                json!({"content": tokens, "refusal": null})
            }
            Kind::Completion => {
                let text = |token: &TokenLogProb| text_of(model, token.token);
                let mut next = offset;
                let mut offsets = Vec::with_capacity(log_probs.len());
                for LogProbs { token, .. } in log_probs {
                    offsets.push(next);
                    next += text(token).chars().count();
                }
                let top = |log_probs: &LogProbs| -> Value {
                    log_probs.top.iter().map(|token| (text(token), logarithm(token))).collect::<Map<_, _>>().into()
                };
                json!({
                    "tokens": log_probs.iter().map(|log_probs| text(&log_probs.token)).collect::<Vec<_>>(),
                    "token_logprobs": log_probs.iter().map(|log_probs| logarithm(&log_probs.token)).collect::<Vec<_>>(),
                    "top_logprobs": log_probs.iter().map(top).collect::<Vec<_>>(), "text_offset": offsets,
                })
            }
        }
    }
}

async fn respond(app: &RequestState, format: ResponseFormat, answers: Answers) -> Result<Response, HttpError> {
    let frame = Frame {
        kind: format.kind,
        id: format!("{}-{}", format.kind.prefix(), app.next_id()),
        created: crate::http::app::seconds_since_1970(),
        model: app.model.facts().name.clone(),
    };
    match format.streamed {
        true => Ok(stream_response(frame, format, answers)),
        false => whole_response(frame, answers).await.map(|object| Json(object).into_response()),
    }
}

/// Completed message.
#[derive(Clone, Default)]
struct Completion {
    message: ixc_text::chat::Answer,
    log_probs: Vec<LogProbs>,
    end: Option<End>,
}

/// Returns the whole answers.
async fn whole_response(frame: Frame, mut answers: Answers) -> Result<Value, HttpError> {
    let mut completions = vec![Completion::default(); answers.len()];
    while let Some((number, next)) = answers.next().await {
        let Completion { message, log_probs, end } = &mut completions[number];
        log_probs.extend(answers.take_log_probs(number));
        match next? {
            AnswerPart::Deltas(deltas) => message.extend(deltas),
            AnswerPart::Ended(reason) => *end = Some(reason),
        }
    }
    let mut choices = Vec::new();
    for (index, Completion { message, log_probs, end }) in completions.into_iter().enumerate() {
        let end = end.ok_or_else(|| HttpError::server_error("the answer was not finished"))?;
        let finish = finish_reason(&end, !message.calls.is_empty());
        let logprobs = frame.logprobs(answers.model(), &log_probs, 0);
        choices.push(match frame.kind {
            Kind::Chat => {
                let message = message_object(message);
                json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish})
            }
            Kind::Completion => {
                json!({"index": index, "text": message.content, "logprobs": logprobs, "finish_reason": finish})
            }
        });
    }
    let mut object = frame.object(false, choices.into());
    object["usage"] = usage_object(answers.usage());
    Ok(object)
}

fn message_object(answer: ixc_text::chat::Answer) -> Value {
    let calls: Vec<_> = answer.calls.iter().map(call_object).collect();
    let content = if answer.content.is_empty() && !calls.is_empty() { Value::Null } else { answer.content.into() };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !answer.reasoning.is_empty() {
        message["reasoning_content"] = answer.reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}

/// Progress of a streamed answer.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// Number of calls so far.
    calls: usize,
    /// Number of characters of the tokens whose probabilities were returned so far.
    chars: usize,
}

/// Streamed answers, as they are generated.
struct Stream {
    frame: Frame,
    format: ResponseFormat,
    answers: Answers,
    /// Progress of each answer.
    progress: Vec<Progress>,
    /// Objects to send before the next event is requested.
    ready: VecDeque<String>,
    done: bool,
}

impl Stream {
    fn push(&mut self, index: usize, content: Value, logprobs: Value, finish: Option<&str>) {
        self.ready.push_back(self.frame.chunk(index, content, logprobs, finish).to_string());
    }

    fn add(&mut self, index: usize, part: AnswerPart) {
        let log_probs = self.answers.take_log_probs(index);
        let model = self.answers.model();
        let mut logprobs = self.frame.logprobs(model, &log_probs, self.progress[index].chars);
        let chars = |log_probs: &LogProbs| text_of(model, log_probs.token.token).chars().count();
        self.progress[index].chars += log_probs.iter().map(chars).sum::<usize>();
        match part {
            AnswerPart::Deltas(deltas) => {
                for delta in deltas {
                    let content = match (self.format.kind, delta) {
                        (Kind::Chat, Delta::Content(text)) => json!({"content": text}),
                        (Kind::Chat, Delta::Reasoning(text)) => json!({"reasoning_content": text}),
                        (Kind::Chat, Delta::Call(call)) => {
                            let mut object = call_object(&call);
                            object.insert("index".to_owned(), self.progress[index].calls.into());
                            self.progress[index].calls += 1;
                            json!({"tool_calls": [object]})
                        }
                        (Kind::Chat, Delta::Arguments(text)) => {
                            let last = self.progress[index].calls.saturating_sub(1);
                            json!({"tool_calls": [{"index": last, "function": {"arguments": text}}]})
                        }
                        (Kind::Completion, Delta::Content(text) | Delta::Reasoning(text)) => text.into(),
                        (Kind::Completion, Delta::Call(_) | Delta::Arguments(_)) => continue,
                    };
                    self.push(index, content, logprobs.take(), None);
                }
            }
            AnswerPart::Ended(end) => {
                let empty = if self.format.kind == Kind::Chat { json!({}) } else { "".into() };
                let finish = finish_reason(&end, self.progress[index].calls > 0);
                self.push(index, empty, logprobs.take(), Some(finish));
            }
        }
    }

    /// Adds the end of the stream.
    fn end(&mut self) {
        if self.format.usage {
            let mut object = self.frame.object(true, json!([]));
            object["usage"] = usage_object(self.answers.usage());
            self.ready.push_back(object.to_string());
        }
        self.ready.push_back("[DONE]".to_owned());
        self.done = true;
    }
}

/// Streams the answers as they are generated.
fn stream_response(frame: Frame, format: ResponseFormat, answers: Answers) -> Response {
    let progress = vec![Progress::default(); answers.len()];
    let mut begin = Stream { frame, format, answers, progress, ready: VecDeque::new(), done: false };
    if begin.format.kind == Kind::Chat {
        for index in 0..begin.answers.len() {
            begin.push(index, json!({"role": "assistant", "content": null}), Value::Null, None);
        }
    }
    let events = futures_util::stream::unfold(begin, |mut s| async move {
        while s.ready.is_empty() {
            if s.done {
                return None;
            }
            match s.answers.next().await {
                Some((index, Ok(part))) => s.add(index, part),
                Some((_, Err(error))) => {
                    s.ready.push_back(error.body().to_string());
                    s.done = true;
                }
                None => s.end(),
            }
        }
        let text = s.ready.pop_front()?;
        Some((Ok::<_, Infallible>(Sse::default().data(text)), s))
    });
    axum::response::sse::Sse::new(events).keep_alive(KeepAlive::new().interval(PING)).into_response()
}
