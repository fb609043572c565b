//! Anthropic's interface: `/v1/messages`, `/v1/messages/count_tokens`.
//!
//! ```text
//! POST /v1/messages {"model": "m", "max_tokens": 100, "messages": […], "stream": true}
//! event: message_start        data: {"message": {"content": [], …}}
//! event: content_block_start  data: {"index": 0, "content_block": {"type": "text", "text": ""}}
//! event: content_block_delta  data: {"index": 0, "delta": {"type": "text_delta", "text": "Hello"}}
//! event: content_block_stop   data: {"index": 0}
//! event: message_delta        data: {"delta": {"stop_reason": "end_turn", …}, "usage": {…}}
//! event: message_stop         data: {}
//! ```
//!
//! Conversations are converted to the form of OpenAI's interface: tool results become separate
//! messages, and thinking blocks become reasoning.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::sse::{Event as Sse, KeepAlive};
use axum::response::{IntoResponse, Response};
use ixc_generate::generator::End;
use ixc_text::chat::{Delta, ToolCall, whole_arguments};
use ixc_text::template::{Conversation, Json as JsonText, Message};
use serde_json::{Value, json};

use crate::http::answer::{Answer, AnswerOptions, AnswerPart, Answers, PING};
use crate::http::app::App;
use crate::http::conversation::{MAX_MESSAGES, going_on};
use crate::http::error::HttpError;
use crate::http::fields::Fields;
use crate::http::output_format;
use crate::http::request_fields::{self, Interface};
use crate::http::request_log::Usage;
use crate::http::sampling::{self, includes_stop};
use crate::http::tools::{Tools, json_text};

/// Answers a conversation.
pub(crate) async fn messages(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, HttpError> {
    let fields = app.fields(&body)?;
    drop(body);
    request_fields::refuse(Interface::Messages, &fields)?;
    let app = app.select_model(&fields).await?;
    let tools = Tools::of_messages(&fields)?;
    let constraint = tools.constraint(output_format::of_messages(&fields)?)?;
    let conversation = conversation(&fields, tools.prompt_tools, Goal::Answer)?;
    if fields.limit()?.flatten().is_none_or(|limit| limit < 1) {
        return Err(HttpError::invalid(Some("max_tokens"), "max_tokens must be at least 1"));
    }
    let streamed = fields.flag("stream")?.unwrap_or(false);
    let request = sampling::request(&app, &fields, "stop_sequences").await?;
    let options = AnswerOptions {
        includes_stop: includes_stop(&fields)?,
        single_call: !tools.allows_parallel,
        constraint,
        ..AnswerOptions::new(request)
    };
    drop(fields);
    let answers = Answer::to_conversation(&app, conversation, options).await?;
    let (id, model) = (format!("msg_{}", app.next_id()), app.model.facts().name.clone());
    match streamed {
        true => Ok(stream_response(&id, &model, answers)),
        false => whole_response(&id, &model, answers).await.map(|object| Json(object).into_response()),
    }
}

/// Counts the tokens of a conversation.
pub(crate) async fn count_tokens(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, HttpError> {
    let fields = Fields::parse(&body)?;
    let app = app.select_model(&fields).await?;
    let tools = Tools::of_messages(&fields)?;
    let constraint = tools.constraint(output_format::of_messages(&fields)?)?;
    let prompt = app.prompt(conversation(&fields, tools.prompt_tools, Goal::Count)?, constraint).await?;
    Ok(Json(json!({"input_tokens": prompt.tokens.len()})))
}

/// Purpose for which a conversation is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goal {
    Answer,
    /// Token count; the conversation may end with calls whose results are missing.
    Count,
}

/// Reads the conversation of a request.
fn conversation(fields: &Fields, tools: Vec<JsonText>, goal: Goal) -> Result<Conversation, HttpError> {
    let Some(Value::Array(list)) = fields.get("messages") else {
        return Err(HttpError::invalid(Some("messages"), "messages must be a list"));
    };
    if list.is_empty() || list.len() > MAX_MESSAGES {
        let wrong = format!("messages has {} entries, must have 1 to {MAX_MESSAGES}", list.len());
        return Err(HttpError::invalid(Some("messages"), wrong));
    }
    let mut messages = Vec::new();
    if let Some(system) = fields.get("system") {
        let wrong = || HttpError::invalid(Some("system"), "system must be a text, or a list of parts that are texts");
        messages.push(Message::new("system", text_of(system).ok_or_else(wrong)?));
    }
    // Tool names by the id of each call: templates name the tool of a result.
    let mut tool_names = HashMap::new();
    for (i, message) in list.iter().enumerate() {
        let wrong = |what: &str| HttpError::invalid(Some("messages"), format!("messages[{i}]{what}"));
        let content = match message.get("content") {
            Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
            Some(Value::Array(blocks)) => blocks.clone(),
            _ => return Err(wrong(".content must be a text, or a list of blocks")),
        };
        match message["role"].as_str() {
            Some("user") => user_messages(&content, &tool_names, &mut messages).map_err(|what| wrong(&what))?,
            Some("assistant") => {
                messages.push(assistant_message(&content, &mut tool_names).map_err(|what| wrong(&what))?)
            }
            Some("system") => {
                let text = message.get("content").and_then(text_of);
                add_instructions(text.ok_or_else(|| wrong(".content must be text"))?, &mut messages);
            }
            _ => return Err(wrong(".role must be user, assistant or system")),
        }
    }
    let (enables_thinking, variables) = variables(fields)?;
    let calls = messages.last().is_some_and(|last| !last.tool_calls.is_empty());
    let (add_generation_prompt, continued) =
        if goal == Goal::Count && calls { (false, None) } else { going_on(fields, &messages)? };
    let first = list.last().map(|last| &last["content"][0]["type"]);
    let has_thinking = first.is_some_and(|kind| kind == "thinking" || kind == "redacted_thinking");
    if enables_thinking == Some(true) && continued.is_some() && !has_thinking {
        let wrong = "messages ends with an answer to continue, and thinking is enabled: begin that answer with a thinking block, or disable thinking";
        return Err(HttpError::invalid(Some("messages"), wrong));
    }
    Ok(Conversation { messages, add_generation_prompt, continued, tools, variables, ..Conversation::default() })
}

/// Variables of a template.
type Variables = Vec<(String, JsonText)>;

/// Returns whether the request turns thinking on or off, `None` if it does neither. Also returns
/// the variables of the template.
fn variables(fields: &Fields) -> Result<(Option<bool>, Variables), HttpError> {
    let object = |name: &'static str| match fields.get(name) {
        Some(value) if !value.is_object() => Err(HttpError::invalid(Some(name), format!("{name} must be an object"))),
        value => Ok(value),
    };
    // Templates turn thinking on and off, but cannot limit it, so `budget_tokens` has no effect.
    let enables_thinking = match object("thinking")?.map(|thinking| &thinking["type"]) {
        Some(kind) if kind == "disabled" || kind == "enabled" => Some(kind == "enabled"),
        _ => None,
    };
    let mut variables = Vec::new();
    if let Some(enables_thinking) = enables_thinking {
        variables.push(("enable_thinking".to_owned(), json_text(&json!(enables_thinking))?));
    }
    if let Some(effort) = object("output_config")?.and_then(|config| config.get("effort")).filter(|it| !it.is_null()) {
        variables.push(("reasoning_effort".to_owned(), json_text(effort)?));
    }
    if let Some(Value::Object(members)) = object("chat_template_kwargs")? {
        for (name, value) in members {
            variables.push((name.clone(), json_text(value)?));
        }
    }
    Ok((enables_thinking, variables))
}

/// Returns a text, or the joined text of blocks that are all texts.
fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(blocks) => {
            blocks.iter().map(|block| (block["type"] == "text").then(|| block["text"].as_str())?).collect()
        }
        _ => None,
    }
}

/// Adds a user's message, and the tool results before it.
fn user_messages(
    blocks: &[Value],
    tool_names: &HashMap<String, String>,
    messages: &mut Vec<Message>,
) -> Result<(), String> {
    let mut text = String::new();
    for (i, block) in blocks.iter().enumerate() {
        match block["type"].as_str() {
            Some("text") => text.push_str(block["text"].as_str().ok_or_else(|| format!(".content[{i}] has no text"))?),
            Some("tool_result") => {
                let id = block["tool_use_id"].as_str().ok_or_else(|| format!(".content[{i}] has no tool_use_id"))?;
                let content = match &block["content"] {
                    Value::Null => String::new(),
                    content => text_of(content)
                        .ok_or_else(|| format!(".content[{i}].content is not text; only text is supported"))?,
                };
                let (tool_call_id, name) = (Some(id.to_owned()), tool_names.get(id).cloned());
                messages.push(Message { tool_call_id, name, ..Message::new("tool", content) });
            }
            _ => {
                return Err(format!(
                    ".content[{i}] is neither text nor tool_result; other types of blocks are not supported"
                ));
            }
        }
    }
    // A message with only tool results adds no user message.
    if !text.is_empty() || !blocks.iter().any(|block| block["type"] == "tool_result") {
        messages.push(Message::new("user", text));
    }
    Ok(())
}

/// Adds a system message within a conversation, as Claude Code sends it. The text becomes a part of
/// the message before it, or a user message after an answer. Many templates accept a system message
/// only at the beginning.
fn add_instructions(text: String, messages: &mut Vec<Message>) {
    match messages.last_mut().filter(|last| last.role == "user" || last.role == "system") {
        Some(last) => {
            last.content.push_str("\n\n");
            last.content.push_str(&text);
        }
        None => messages.push(Message::new("user", text)),
    }
}

/// Reads a message of the assistant.
fn assistant_message(blocks: &[Value], tool_names: &mut HashMap<String, String>) -> Result<Message, String> {
    let (mut message, mut reasoning) = (Message::new("assistant", ""), String::new());
    for (i, block) in blocks.iter().enumerate() {
        let member = |name: &str| block[name].as_str().ok_or_else(|| format!(".content[{i}] has no {name}"));
        match block["type"].as_str() {
            Some("text") => message.content.push_str(member("text")?),
            Some("thinking") => reasoning.push_str(member("thinking")?),
            // The text of this block is encrypted, so it is ignored.
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let (id, name) = (member("id")?.to_owned(), member("name")?.to_owned());
                let arguments = match &block["input"] {
                    Value::Object(_) => block["input"].to_string(),
                    // A call without arguments gets an empty object, as clients expect.
                    Value::Null => "{}".to_owned(),
                    Value::String(text) if text.trim().is_empty() => "{}".to_owned(),
                    _ => return Err(format!(".content[{i}].input must be an object")),
                };
                tool_names.insert(id.clone(), name.clone());
                message.tool_calls.push(ToolCall { id, name, arguments });
            }
            _ => {
                return Err(format!(
                    ".content[{i}] is neither text, thinking nor tool_use; other types of blocks are not supported"
                ));
            }
        }
    }
    message.reasoning = (!reasoning.is_empty()).then_some(reasoning);
    Ok(message)
}

/// Returns the token counts; cached tokens are counted separately.
fn usage_object(usage: Usage) -> Value {
    let Usage { prompt, cached, generated } = usage;
    json!({
        "input_tokens": prompt.saturating_sub(cached), "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached,
        "output_tokens": generated,
    })
}

/// Returns why an answer ended, and the stop text that it ended at.
fn stop_reason(end: &End, has_calls: bool) -> (&'static str, Option<&str>) {
    match end {
        End::StopString(text) => ("stop_sequence", Some(text)),
        End::Limit | End::Context => ("max_tokens", None),
        End::Token(_) | End::Grammar | End::Stopped if has_calls => ("tool_use", None),
        End::Token(_) | End::Grammar | End::Stopped => ("end_turn", None),
    }
}

fn message_object(id: &str, model: &str, content: Vec<Value>, usage: Usage) -> Value {
    json!({
        "id": id, "type": "message", "role": "assistant", "model": model, "content": content, "stop_reason": null,
        "stop_sequence": null, "usage": usage_object(usage),
    })
}

/// Returns a call as a block; the parser guarantees that its arguments are an object.
fn call_block(call: &ToolCall, input: Value) -> Value {
    json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
}

/// Returns the whole answer.
async fn whole_response(id: &str, model: &str, mut answers: Answers) -> Result<Value, HttpError> {
    let (mut answer, mut end) = (ixc_text::chat::Answer::default(), None);
    while let Some(next) = answers.next_of_one().await? {
        match next {
            AnswerPart::Deltas(deltas) => answer.extend(deltas),
            AnswerPart::Ended(reason) => end = Some(reason),
        }
    }
    let end = end.ok_or_else(|| HttpError::server_error("the answer was not finished"))?;
    let mut content = Vec::new();
    if !answer.reasoning.is_empty() {
        content.push(json!({"type": "thinking", "thinking": answer.reasoning, "signature": ""}));
    }
    if !answer.content.is_empty() || answer.calls.is_empty() {
        content.push(json!({"type": "text", "text": answer.content}));
    }
    for call in &answer.calls {
        // A truncated call keeps only its complete arguments.
        let whole = whole_arguments(&call.arguments);
        let input = serde_json::from_str(whole.as_deref().unwrap_or(&call.arguments));
        let input = input.ok().filter(Value::is_object).unwrap_or_else(|| json!({}));
        content.push(call_block(call, input));
    }
    let mut object = message_object(id, model, content, answers.usage());
    let (reason, text) = stop_reason(&end, !answer.calls.is_empty());
    (object["stop_reason"], object["stop_sequence"]) = (reason.into(), text.into());
    Ok(object)
}

/// Returns an event whose object also contains the event's name, as `type`.
fn event(name: &'static str, mut object: Value) -> (&'static str, Value) {
    object["type"] = name.into();
    (name, object)
}

/// Kind of a block, used at its start and in its deltas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Text,
    Thinking,
    Call,
}

/// State of a streamed answer, which is a sequence of blocks.
struct Blocks {
    /// The open block.
    open: Option<Block>,
    /// Number of blocks so far.
    count: usize,
    calls: usize,
    ready: VecDeque<(&'static str, Value)>,
}

impl Blocks {
    fn close(&mut self) {
        if self.open.take().is_some() {
            self.ready.push_back(event("content_block_stop", json!({"index": self.count - 1})));
        }
    }

    fn start(&mut self, block: Value) {
        self.ready.push_back(event("content_block_start", json!({"index": self.count, "content_block": block})));
        self.count += 1;
    }

    fn delta(&mut self, delta: Value) {
        self.ready.push_back(event("content_block_delta", json!({"index": self.count - 1, "delta": delta})));
    }

    /// Adds text to a block of its kind.
    fn text(&mut self, block: Block, text: &str) {
        let (name, of) = match block {
            Block::Thinking => ("thinking", "thinking_delta"),
            Block::Text | Block::Call => ("text", "text_delta"),
        };
        if self.open != Some(block) {
            self.close();
            let mut begin = json!({"type": name, name: ""});
            if block == Block::Thinking {
                begin["signature"] = "".into();
            }
            self.start(begin);
            self.open = Some(block);
        }
        self.delta(json!({"type": of, name: text}));
    }

    fn arguments(&mut self, text: &str) {
        if !text.is_empty() {
            self.delta(json!({"type": "input_json_delta", "partial_json": text}));
        }
    }

    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Content(text) => self.text(Block::Text, &text),
            Delta::Reasoning(text) => self.text(Block::Thinking, &text),
            Delta::Call(call) => {
                self.close();
                self.start(call_block(&call, json!({})));
                self.open = Some(Block::Call);
                self.calls += 1;
                self.arguments(&call.arguments);
            }
            Delta::Arguments(text) => self.arguments(&text),
        }
    }

    fn end(&mut self, end: &End, usage: Usage) {
        self.close();
        let (reason, text) = stop_reason(end, self.calls > 0);
        let delta = json!({"stop_reason": reason, "stop_sequence": text});
        self.ready.push_back(event("message_delta", json!({"delta": delta, "usage": usage_object(usage)})));
        self.ready.push_back(event("message_stop", json!({})));
    }
}

/// Streams the answer as it is generated.
fn stream_response(id: &str, model: &str, answers: Answers) -> Response {
    let start = event("message_start", json!({"message": message_object(id, model, Vec::new(), answers.usage())}));
    let blocks = Blocks { open: None, count: 0, calls: 0, ready: VecDeque::from([start]) };
    let events =
        futures_util::stream::unfold((blocks, answers, false), |(mut blocks, mut answers, mut done)| async move {
            while blocks.ready.is_empty() {
                if done {
                    return None;
                }
                let next = answers.next_of_one().await;
                match next.and_then(|next| next.ok_or_else(|| HttpError::server_error("the answer was not finished"))) {
                    Ok(AnswerPart::Deltas(deltas)) => deltas.into_iter().for_each(|delta| blocks.add(delta)),
                    Ok(AnswerPart::Ended(end)) => {
                        blocks.end(&end, answers.usage());
                        done = true;
                    }
                    Err(error) => {
                        blocks.ready.push_back(("error", error.anthropic_body()));
                        done = true;
                    }
                }
            }
            let (name, object) = blocks.ready.pop_front()?;
            Some((Ok::<_, Infallible>(Sse::default().event(name).data(object.to_string())), (blocks, answers, done)))
        });
    axum::response::sse::Sse::new(events).keep_alive(KeepAlive::new().interval(PING)).into_response()
}
