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
use ixc_text::chat::{Delta, ToolCall};
use serde_json::{Map, Value, json};

use crate::http::answer::{Answer, Answers, Next, PING, Usage, Wanted};
use crate::http::app::{App, Asked};
use crate::http::conversation::conversation;
use crate::http::error::HttpError;
use crate::http::fields::Fields;
use crate::http::forms;
use crate::http::probabilities::{logarithm, text_of, token_object};
use crate::http::prompts::prompts;
use crate::http::request_fields::{self, Interface};
use crate::http::tools::Tools;
use crate::http::wanted::{self, count, likeliest_of_chat, tells_stop};
use crate::model::{End, Likely};

/// Default max tokens of a completion, as in OpenAI's interface.
const COMPLETION_TOKENS: usize = 16;

/// Answers a conversation.
pub(crate) async fn chat(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, HttpError> {
    let fields = app.fields(&body)?;
    drop(body);
    request_fields::refuse(Interface::Chat, &fields)?;
    let app = app.of(&fields).await?;
    let tools = Tools::of_chat(&fields)?;
    let constraint = tools.constraint(forms::of_chat(&fields)?)?;
    let conversation = conversation(&fields, tools.told, app.model.facts().template.as_deref())?;
    let how = How::of(&fields, Kind::Chat)?;
    let mut request = wanted::request(&app, &fields, "stop").await?;
    request.generation.likeliest = likeliest_of_chat(&fields)?;
    let wanted = Wanted {
        request,
        tells_stop: tells_stop(&fields)?,
        one_call: !tools.parallel,
        constraint,
        count: count(&fields)?,
    };
    // An answer takes long, so the memory of its request is freed first.
    drop(fields);
    respond(&app, how, Answer::to_conversation(&app, conversation, wanted).await?).await
}

/// Completes a text.
pub(crate) async fn completion(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, HttpError> {
    let mut fields = app.fields(&body)?;
    drop(body);
    request_fields::refuse(Interface::Completions, &fields)?;
    let app = app.of(&fields).await?;
    let how = How::of(&fields, Kind::Completion)?;
    let limit = fields.limit()?.unwrap_or(Some(COMPLETION_TOKENS));
    let count = count(&fields)?;
    let prompts = prompts(&app, &mut fields, count).await?;
    let mut request = wanted::request(&app, &fields, "stop").await?;
    request.generation.limit = limit;
    request.generation.grammar = app.constrain(forms::of_text(&fields)?).await?;
    request.generation.likeliest = fields.number("logprobs")?.map(|likeliest| likeliest as usize);
    let tells_stop = tells_stop(&fields)?;
    drop(fields);
    let answers = Answer::several(&app, &request.to_each(prompts), None, count)?;
    respond(&app, how, answers.telling_stop(tells_stop)).await
}

/// Interface of an answer.
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

/// Form of an answer.
#[derive(Clone, Debug)]
struct How {
    kind: Kind,
    streamed: bool,
    /// Whether a stream ends with the token counts.
    usage: bool,
}

impl How {
    fn of(fields: &Fields, kind: Kind) -> Result<How, HttpError> {
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
        Ok(How { kind, streamed, usage })
    }
}

fn usage_object(usage: Usage) -> Value {
    let Usage { prompt, reused, made } = usage;
    json!({
        "prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": reused},
    })
}

fn finish_reason(end: &End, called: bool) -> &'static str {
    match end {
        End::Model | End::Stop(_) if called => "tool_calls",
        End::Model | End::Stop(_) => "stop",
        End::Limit | End::Context => "length",
    }
}

fn call_object(call: &ToolCall) -> Map<String, Value> {
    let function = json!({"name": call.name, "arguments": call.arguments});
    [("id", Value::from(&*call.id)), ("type", "function".into()), ("function", function)]
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}

/// Members of every object of an answer.
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

    /// Returns the probabilities of tokens; `offset` is the place of their text in the answer's
    /// text.
    fn logprobs(&self, likely: &[(Likely, Vec<Likely>)], offset: usize) -> Value {
        if likely.is_empty() {
            return Value::Null;
        }
        match self.kind {
            Kind::Chat => {
                let token = |token: &(Likely, Vec<Likely>)| token_object(token, false);
                json!({"content": likely.iter().map(token).collect::<Value>(), "refusal": null})
            }
            Kind::Completion => {
                let mut next = offset;
                let mut offsets = Vec::with_capacity(likely.len());
                for (token, _) in likely {
                    offsets.push(next);
                    next += text_of(token).chars().count();
                }
                let top = |(_, likeliest): &(Likely, Vec<Likely>)| -> Value {
                    likeliest.iter().map(|one| (text_of(one), logarithm(one))).collect::<Map<_, _>>().into()
                };
                json!({
                    "tokens": likely.iter().map(|(token, _)| text_of(token)).collect::<Vec<_>>(),
                    "token_logprobs": likely.iter().map(|(token, _)| logarithm(token)).collect::<Vec<_>>(),
                    "top_logprobs": likely.iter().map(top).collect::<Vec<_>>(), "text_offset": offsets,
                })
            }
        }
    }
}

async fn respond(app: &Asked, how: How, answers: Answers) -> Result<Response, HttpError> {
    let frame = Frame {
        kind: how.kind,
        id: format!("{}-{}", how.kind.prefix(), app.next_id()),
        created: crate::http::app::seconds_since_1970(),
        model: app.model.facts().name.clone(),
    };
    match how.streamed {
        true => Ok(stream(frame, how, answers)),
        false => whole(frame, answers).await.map(|object| Json(object).into_response()),
    }
}

/// Returns the whole answers.
async fn whole(frame: Frame, mut answers: Answers) -> Result<Value, HttpError> {
    let mut said = vec![(ixc_text::chat::Answer::default(), Vec::new(), None); answers.len()];
    while let Some((number, next)) = answers.next().await {
        let likely = answers.take_likely(number);
        let (said, all, end) = &mut said[number];
        all.extend(likely);
        match next? {
            Next::Deltas(deltas) => said.extend(deltas),
            Next::Ended(why) => *end = Some(why),
        }
    }
    let mut choices = Vec::new();
    for (index, (said, likely, end)) in said.into_iter().enumerate() {
        let end = end.ok_or_else(|| HttpError::failed("the answer was not finished"))?;
        let finish = finish_reason(&end, !said.calls.is_empty());
        let logprobs = frame.logprobs(&likely, 0);
        choices.push(match frame.kind {
            Kind::Chat => {
                let message = message_object(said);
                json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish})
            }
            Kind::Completion => {
                json!({"index": index, "text": said.content, "logprobs": logprobs, "finish_reason": finish})
            }
        });
    }
    let mut object = frame.object(false, choices.into());
    object["usage"] = usage_object(answers.usage());
    Ok(object)
}

fn message_object(said: ixc_text::chat::Answer) -> Value {
    let calls: Vec<_> = said.calls.iter().map(call_object).collect();
    let content = if said.content.is_empty() && !calls.is_empty() { Value::Null } else { said.content.into() };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !said.reasoning.is_empty() {
        message["reasoning_content"] = said.reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}

/// Streamed answers, as they are generated.
struct Stream {
    frame: Frame,
    how: How,
    answers: Answers,
    /// For each answer, its number of calls so far, and of characters of its tokens.
    said: Vec<(usize, usize)>,
    /// Objects to send before the next event is requested.
    ready: VecDeque<String>,
    done: bool,
}

impl Stream {
    fn push(&mut self, index: usize, content: Value, logprobs: Value, finish: Option<&str>) {
        self.ready.push_back(self.frame.chunk(index, content, logprobs, finish).to_string());
    }

    fn add(&mut self, index: usize, next: Next) {
        let likely = self.answers.take_likely(index);
        let mut logprobs = self.frame.logprobs(&likely, self.said[index].1);
        self.said[index].1 += likely.iter().map(|(token, _)| text_of(token).chars().count()).sum::<usize>();
        match next {
            Next::Deltas(deltas) => {
                for delta in deltas {
                    let content = match (self.how.kind, delta) {
                        (Kind::Chat, Delta::Content(text)) => json!({"content": text}),
                        (Kind::Chat, Delta::Reasoning(text)) => json!({"reasoning_content": text}),
                        (Kind::Chat, Delta::Call(call)) => {
                            let mut object = call_object(&call);
                            object.insert("index".to_owned(), self.said[index].0.into());
                            self.said[index].0 += 1;
                            json!({"tool_calls": [object]})
                        }
                        (Kind::Chat, Delta::Arguments(text)) => {
                            let last = self.said[index].0.saturating_sub(1);
                            json!({"tool_calls": [{"index": last, "function": {"arguments": text}}]})
                        }
                        (Kind::Completion, Delta::Content(text) | Delta::Reasoning(text)) => text.into(),
                        (Kind::Completion, Delta::Call(_) | Delta::Arguments(_)) => continue,
                    };
                    self.push(index, content, logprobs.take(), None);
                }
            }
            Next::Ended(end) => {
                let empty = if self.how.kind == Kind::Chat { json!({}) } else { "".into() };
                let finish = finish_reason(&end, self.said[index].0 > 0);
                self.push(index, empty, logprobs.take(), Some(finish));
            }
        }
    }

    /// Adds the end of the stream.
    fn end(&mut self) {
        if self.how.usage {
            let mut object = self.frame.object(true, json!([]));
            object["usage"] = usage_object(self.answers.usage());
            self.ready.push_back(object.to_string());
        }
        self.ready.push_back("[DONE]".to_owned());
        self.done = true;
    }
}

/// Streams the answers as they are generated.
fn stream(frame: Frame, how: How, answers: Answers) -> Response {
    let said = vec![(0, 0); answers.len()];
    let mut begin = Stream { frame, how, answers, said, ready: VecDeque::new(), done: false };
    if begin.how.kind == Kind::Chat {
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
                Some((index, Ok(next))) => s.add(index, next),
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
