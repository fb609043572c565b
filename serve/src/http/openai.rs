//! OpenAI's interface: `/v1/chat/completions`, `/v1/completions`, `/v1/models`.
//!
//! ```text
//! POST /v1/chat/completions {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": true}
//! data: {"object": "chat.completion.chunk", "choices": [{"delta": {"role": "assistant", "content": null}, …}], …}
//! data: {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "Hello"}, …}], …}
//! data: [DONE]
//! ```
//!
//! Requests for features that do not exist are refused by name: no field that changes an answer is
//! ignored.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::sse::{Event as Sse, KeepAlive};
use axum::response::{IntoResponse, Response};
use ixc_text::chat::{Delta, Part, ToolCall};
use ixc_text::template::{Conversation, Json as JsonText, Message};
use serde_json::{Map, Value, json};

use crate::http::answer::{Answer, Answers, Next, Usage, Wanted};
use crate::http::app::{App, Asked};
use crate::http::error::HttpError;
use crate::http::fields::Fields;
use crate::http::forms;
use crate::http::prompts::prompts;
use crate::http::request_fields::{self, Interface};
use crate::http::tools::{Tools, json_text};
use crate::http::wanted::{self, likeliest_of_chat, tells_stop};
use crate::model::{End, Likely};
use crate::serving::Listed;

/// Max messages of a conversation.
pub(crate) const MOST_MESSAGES: usize = 65_536;
/// Max letters of a message's role.
const MOST_ROLE_BYTES: usize = 64;
/// Interval of messages that keep an idle stream open.
pub(crate) const PING: Duration = Duration::from_secs(15);
/// Default max tokens of a completion, as in OpenAI's interface.
const COMPLETION_TOKENS: usize = 16;

/// Lists the models.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let data: Value = app.models.list().iter().map(|listed| model_object(&app, listed)).collect();
    Json(json!({"object": "list", "data": data}))
}

/// Returns one model.
pub(crate) async fn model(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, HttpError> {
    let wrong = match name {
        Ok(Path(name)) => match app.models.list().iter().find(|listed| listed.name == name) {
            Some(listed) => return Ok(Json(model_object(&app, listed))),
            None => format!("there is no model {name:?}; /v1/models lists them"),
        },
        Err(_) => "the name of the model is not UTF-8; /v1/models lists the models".to_owned(),
    };
    Err(HttpError::invalid(Some("model"), wrong).with_status(StatusCode::NOT_FOUND, "invalid_request_error"))
}

/// Returns a model as an object; some members exist only once it is loaded.
fn model_object(app: &App, listed: &Listed) -> Value {
    let Listed { name, model, memory } = listed;
    let facts = model.as_ref().map(|model| model.facts());
    let meta = facts.map(|facts| {
        let mut meta = json!({
            "architecture": facts.architecture, "n_ctx": facts.context, "n_ctx_train": facts.trained_context,
            "n_vocab": facts.vocabulary, "size": facts.bytes, "memory": memory,
        });
        if let Some(dimensions) = facts.dimensions {
            meta["n_embd"] = dimensions.into();
        }
        meta
    });
    json!({
        "id": name, "object": "model", "created": facts.map_or(app.started(), |facts| facts.created), "owned_by": "ixc",
        "loaded": facts.is_some(), "meta": meta,
    })
}

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

/// Returns the requested number of answers to each prompt.
pub(crate) fn count(fields: &Fields) -> Result<u32, HttpError> {
    Ok(fields.number("n")?.map_or(1, |count| count as u32))
}

/// Reads the conversation of a request, for this template.
pub(crate) fn conversation(
    fields: &Fields,
    tools: Vec<JsonText>,
    template: Option<&str>,
) -> Result<Conversation, HttpError> {
    let Some(Value::Array(list)) = fields.get("messages") else {
        return Err(HttpError::invalid(Some("messages"), "messages must be a list"));
    };
    if list.is_empty() || list.len() > MOST_MESSAGES {
        let wrong = format!("messages has {} entries, must have 1 to {MOST_MESSAGES}", list.len());
        return Err(HttpError::invalid(Some("messages"), wrong));
    }
    let messages = list.iter().enumerate().map(|(i, message)| self::message(i, message, template.unwrap_or_default()));
    let messages = messages.collect::<Result<Vec<Message>, HttpError>>()?;
    let variables = variables(fields)?;
    let (add_generation_prompt, continued) = going_on(fields, &messages)?;
    // The model may produce the texts of special tokens.
    Ok(Conversation { messages, add_generation_prompt, continued, tools, variables, ..Conversation::default() })
}

/// Returns whether the template begins a message of the assistant, and the part of the last message
/// that the answer continues. By default a last message of the assistant is continued, as in
/// llama-server.
pub(crate) fn going_on(fields: &Fields, messages: &[Message]) -> Result<(bool, Option<Part>), HttpError> {
    const NAME: &str = "continue_final_message";
    let wrong = |what: &str| HttpError::invalid(Some(NAME), format!("{NAME}{what}"));
    let begins = fields.flag("add_generation_prompt")?;
    let (last, others) = match messages {
        [others @ .., last] if last.role == ASSISTANT => (Some(last), others),
        others => (None, others),
    };
    let (is_wanted, part) = match fields.get(NAME) {
        None => (None, None),
        Some(Value::Bool(is_wanted)) => (Some(*is_wanted), None),
        Some(Value::String(part)) if part == "content" => (Some(true), Some(Part::Content)),
        Some(Value::String(part)) if part == "reasoning_content" => (Some(true), Some(Part::Reasoning)),
        Some(_) => return Err(wrong(" must be true, false, \"content\" or \"reasoning_content\"")),
    };
    if !is_wanted.unwrap_or(last.is_some() && begins != Some(true)) {
        return Ok((begins.unwrap_or(true), None));
    }
    let Some(last) = last else { return Err(wrong(" needs a last message of the assistant")) };
    if begins == Some(true) {
        return Err(wrong(
            " and add_generation_prompt cannot both be true: the first continues the last message, the second begins a new one",
        ));
    }
    let or = "; or set add_generation_prompt to true for a new message";
    let unclear =
        |what: &str| Err(HttpError::invalid(Some("messages"), format!("messages[{}] {what}{or}", others.len())));
    if is_wanted.is_none() && others.last().is_some_and(|before| before.role == ASSISTANT) {
        return unclear(
            "and the message before it are both from the assistant: set continue_final_message to true to continue it",
        );
    }
    if !last.tool_calls.is_empty() {
        return unclear("calls tools and cannot be continued: the results must follow in messages with the role tool");
    }
    let has_reasoning = last.reasoning.as_ref().is_some_and(|reasoning| !reasoning.is_empty());
    let part = part.unwrap_or(if has_reasoning && last.content.is_empty() { Part::Reasoning } else { Part::Content });
    if part == Part::Reasoning && !last.content.is_empty() {
        return Err(wrong(" is reasoning_content, but the last message has content after its reasoning"));
    }
    Ok((false, Some(part)))
}

/// Template variables of some models. Variables that the client names explicitly take precedence.
fn variables(fields: &Fields) -> Result<Vec<(String, JsonText)>, HttpError> {
    let mut variables = Vec::new();
    for name in ["reasoning_effort", "verbosity"] {
        let Some(value) = fields.text(name)? else { continue };
        if name == "reasoning_effort" && value == "none" {
            variables.push(("enable_thinking".to_owned(), json_text(&false.into())?));
        }
        variables.push((name.to_owned(), json_text(&value.into())?));
    }
    const KWARGS: &str = "chat_template_kwargs";
    match fields.get(KWARGS) {
        None => {}
        Some(Value::Object(members)) => {
            for (name, value) in members {
                variables.push((name.clone(), json_text(value)?));
            }
        }
        Some(_) => return Err(HttpError::invalid(Some(KWARGS), format!("{KWARGS} must be an object"))),
    }
    Ok(variables)
}

/// Roles that conversations have in every interface.
const ROLES: [&str; 4] = ["system", "user", ASSISTANT, "tool"];
/// Role of the model.
const ASSISTANT: &str = "assistant";

/// Returns a role in the form of a template. A template silently drops messages whose role it does
/// not name, unless it names no role and writes any. Returns `None` if the message would be
/// dropped.
fn role_for(role: String, template: &str) -> Option<String> {
    let names = |role: &str| ["'", "\""].iter().any(|quote| template.contains(&[quote, role, quote].concat()));
    match &*role {
        known if ROLES.contains(&known) || names(known) => Some(role),
        // Name of the role in OpenAI's newer models.
        "developer" => Some("system".to_owned()),
        _ => (!ROLES.iter().any(|role| names(role))).then_some(role),
    }
}

/// Reads a message for a template.
fn message(i: usize, value: &Value, template: &str) -> Result<Message, HttpError> {
    let wrong = |what: &str| HttpError::invalid(Some("messages"), format!("messages[{i}]{what}"));
    let Some(members) = value.as_object() else { return Err(wrong(" must be an object")) };
    let text = |name: &str| match members.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong(&format!(".{name} must be a text"))),
    };
    let role = text("role")?.ok_or_else(|| wrong(" has no role"))?;
    // Templates write the role as their own text, so names of control tokens in it would become
    // those tokens.
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if role.is_empty() || role.len() > MOST_ROLE_BYTES || !role.bytes().all(is_word) {
        return Err(wrong(&format!(".role must be a word of at most {MOST_ROLE_BYTES} letters")));
    }
    let Some(role) = role_for(role, template) else {
        return Err(wrong(&format!(
            ".role is not supported by the model's template; supported are {}",
            ROLES.join(", ")
        )));
    };
    for name in ["function_call", "audio"] {
        if members.get(name).is_some_and(|value| !value.is_null()) {
            return Err(wrong(&format!(".{name} is not supported")));
        }
    }
    let mut content = match members.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let parts: Option<Vec<&str>> = parts.iter().map(part).collect();
            parts.ok_or_else(|| wrong(".content has a part that is not text; only text is supported"))?.concat()
        }
        Some(_) => return Err(wrong(".content must be a text, or a list of parts")),
    };
    if let (true, Some(refusal)) = (content.is_empty(), text("refusal")?) {
        content = refusal;
    }
    let tool_calls = match members.get("tool_calls") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(calls)) => {
            let calls = calls.iter().map(call).collect::<Option<_>>();
            calls.ok_or_else(|| wrong(".tool_calls has one without a function"))?
        }
        Some(_) => return Err(wrong(".tool_calls must be a list")),
    };
    let reasoning = match text("reasoning_content")? {
        Some(reasoning) => Some(reasoning),
        None => text("reasoning")?,
    };
    Ok(Message { role, content, reasoning, tool_calls, tool_call_id: text("tool_call_id")?, name: text("name")? })
}

/// Returns the text of a part of a message's content.
fn part(part: &Value) -> Option<&str> {
    match part["type"].as_str() {
        // Clients also send the names of the newer interface here.
        Some("text" | "input_text" | "output_text") => part["text"].as_str(),
        Some("refusal") => part["refusal"].as_str(),
        None => part.as_str(),
        Some(_) => None,
    }
}

/// Reads a call of a message. For a call without arguments, clients send nothing, an empty text or
/// `null`.
fn call(call: &Value) -> Option<ToolCall> {
    let function = call.get("function")?;
    let arguments = match &function["arguments"] {
        Value::String(text) if matches!(text.trim(), "" | "null") => "{}".to_owned(),
        Value::String(text) => text.clone(),
        Value::Null => "{}".to_owned(),
        other => other.to_string(),
    };
    let id = call["id"].as_str().unwrap_or_default().to_owned();
    Some(ToolCall { id, name: function["name"].as_str()?.to_owned(), arguments })
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

/// Returns the text of a token; parts of characters are replaced.
fn text_of(likely: &Likely) -> String {
    String::from_utf8_lossy(&likely.bytes).into_owned()
}

/// Logarithm of a probability of 0: JSON has no infinity, and OpenAI's interface uses this number.
const LEAST_LOGARITHM: f32 = -9999.0;

fn logarithm(likely: &Likely) -> Value {
    likely.log_probability.max(LEAST_LOGARITHM).into()
}

/// Returns a token with its probability: a logarithm, or a probability after the samplers.
fn likely_object(likely: &Likely, as_probability: bool) -> Value {
    let (name, value) = match as_probability {
        true => ("prob", f64::from(likely.log_probability).exp().into()),
        false => ("logprob", logarithm(likely)),
    };
    json!({"id": likely.token, "token": text_of(likely), name: value, "bytes": likely.bytes})
}

/// Returns a token of an answer with the likeliest ones in its place.
pub(crate) fn token_object((token, likeliest): &(Likely, Vec<Likely>), as_probability: bool) -> Value {
    let mut object = likely_object(token, as_probability);
    let name = if as_probability { "top_probs" } else { "top_logprobs" };
    object[name] = likeliest.iter().map(|one| likely_object(one, as_probability)).collect();
    object
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_message_is_continued_or_answered_as_requested() {
        let user = || Message::new("user", "x");
        let said = |content: &str, reasoning: &str| Message {
            reasoning: Some(reasoning.to_owned()),
            ..Message::new("assistant", content)
        };
        let calls = vec![ToolCall { id: "a".into(), name: "f".into(), arguments: "{}".into() }];
        let called = Message { tool_calls: calls, ..said("", "") };
        let of = |fields: Value, messages: &[Message]| {
            let fields = Fields::of(fields.to_string().as_bytes()).unwrap();
            going_on(&fields, messages).map_err(|error| error.message().to_owned())
        };
        let (add, next) = ("add_generation_prompt", "continue_final_message");
        let (content, reasoning) = (Ok((false, Some(Part::Content))), Ok((false, Some(Part::Reasoning))));
        for (fields, last, expected) in [
            (json!({}), user(), Ok((true, None))),
            (json!({add: false}), user(), Ok((false, None))),
            (json!({next: false}), user(), Ok((true, None))),
            (json!({}), said("a", ""), content.clone()),
            (json!({}), said("a", "b"), content.clone()),
            (json!({}), said("", ""), content.clone()),
            (json!({}), said("", "b"), reasoning.clone()),
            (json!({add: false}), said("a", ""), content.clone()),
            (json!({next: true, add: false}), said("a", ""), content.clone()),
            (json!({next: "content"}), said("", "b"), content.clone()),
            (json!({next: "reasoning_content"}), said("", ""), reasoning.clone()),
            (json!({add: true}), said("a", ""), Ok((true, None))),
            (json!({next: false}), said("a", ""), Ok((true, None))),
            (json!({next: false, add: false}), said("a", ""), Ok((false, None))),
            (json!({add: true}), called.clone(), Ok((true, None))),
        ] {
            assert_eq!(of(fields.clone(), &[user(), last.clone()]), expected, "{fields} {last:?}");
        }
        let two = [said("a", ""), said("b", "")];
        assert_eq!(of(json!({next: true}), &two), content);
        for (fields, messages, says) in [
            (
                json!({add: true, next: true}),
                &[said("a", "")][..],
                "the first continues the last message, the second begins",
            ),
            (json!({next: true}), &[user()], "needs a last message of the assistant"),
            (json!({next: 1}), &[user()], "must be true, false, \"content\" or"),
            (json!({next: "reasoning_content"}), &[said("a", "b")], "has content after its reasoning"),
            (json!({}), &two, "messages[1] and the message before it are both from the assistant"),
            (json!({}), &[user(), called.clone()], "messages[1] calls tools"),
            (json!({next: true}), &[called], "must follow in messages with the role tool"),
        ] {
            let error = of(fields.clone(), messages).unwrap_err();
            assert!(error.contains(says), "{fields}: {error}");
        }
    }

    #[test]
    fn roles_missing_in_the_template_are_mapped_or_refused() {
        let of = |role: &str, template: &str| role_for(role.to_owned(), template);
        let all = "{% for m in messages %}{{ m.role }}{% endfor %}";
        let some = "{% if m.role == 'user' or m.role == \"assistant\" %}";
        let more = "{% if m.role == 'user' %}{% elif m.role in [\"system\", 'developer'] or m.role == 'ipython' %}";
        for template in [all, some, more] {
            ROLES.iter().for_each(|role| assert_eq!(of(role, template).as_deref(), Some(*role)));
        }
        assert_eq!(
            [all, some, more].map(|of_one| of("developer", of_one)),
            ["system", "system", "developer"].map(|role| Some(role.to_owned()))
        );
        assert_eq!([all, some, more].map(|of_one| of("ipython", of_one).is_some()), [true, false, true]);
    }
}
