//! OpenAI's newer interface, `/v1/responses`. Responses are not stored, so features that need
//! earlier responses are missing.
//!
//! ```text
//! POST /v1/responses {"model": "m", "input": "Hi", "stream": true}
//! event: response.created             data: {"response": {"status": "in_progress", …}}
//! event: response.output_item.added   data: {"output_index": 0, "item": {"type": "message", …}}
//! event: response.content_part.added  data: {"output_index": 0, "content_index": 0, "part": {…}}
//! event: response.output_text.delta   data: {"output_index": 0, …, "delta": "Hello"}
//! event: response.output_text.done    …
//! event: response.completed           data: {"response": {"status": "completed", …}}
//! ```
//!
//! A request is converted to a request of `/v1/chat/completions`. An answer is a list of items.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::sse::{Event as Sse, KeepAlive};
use axum::response::{IntoResponse, Response};
use ixc_generate::generator::{End, Request};
use ixc_text::chat::{Delta, ToolCall};
use serde_json::{Map, Value, json};

use crate::http::answer::{Answer, AnswerOptions, AnswerPart, Answers, PING};
use crate::http::app::{App, RequestState};
use crate::http::conversation::{MAX_MESSAGES, conversation};
use crate::http::error::HttpError;
use crate::http::fields::Fields;
use crate::http::output_format;
use crate::http::request_fields::{self, Interface};
use crate::http::request_log::Usage;
use crate::http::response_tools::{INPUT, ResponseTools};
use crate::http::sampling::{self, includes_stop};
use crate::http::tools::Tools;

/// Answers a conversation.
pub(crate) async fn responses(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, HttpError> {
    let fields = app.fields(&body)?;
    drop(body);
    request_fields::refuse(Interface::Responses, &fields)?;
    let app = app.select_model(&fields).await?;
    let response_tools = ResponseTools::parse(&fields)?;
    let chat = chat_of(&fields, &response_tools)?;
    let tools = Tools::of_chat(&chat)?;
    let request = sampling::request(&app, &fields, "stop").await?;
    let options = AnswerOptions {
        includes_stop: includes_stop(&fields)?,
        single_call: !tools.allows_parallel,
        constraint: tools.constraint(output_format::of_chat(&chat)?)?,
        ..AnswerOptions::new(request)
    };
    let streamed = fields.flag("stream")?.unwrap_or(false);
    let frame = frame_of(&fields, &app, &options.request, &response_tools);
    let conversation = conversation(&chat, tools.prompt_tools, app.model.facts().template.as_deref())?;
    let answers = Answer::to_conversation(&app, conversation, options).await?;
    let items = Items { id: app.next_id(), frame, tools: response_tools, ..Items::default() };
    match streamed {
        true => Ok(stream_response(items, answers)),
        false => whole_response(items, answers).await.map(|object| Json(object).into_response()),
    }
}

/// Returns the members of a response that repeat its request.
fn frame_of(fields: &Fields, app: &RequestState, request: &Request, tools: &ResponseTools) -> Map<String, Value> {
    let Request { limit, sampling, .. } = request;
    let or = |name: &str, otherwise: Value| fields.get(name).cloned().unwrap_or(otherwise);
    let frame = json!({
        "object": "response", "created_at": crate::http::app::seconds_since_1970(), "model": app.model.facts().name, "error": null,
        "background": false, "instructions": or("instructions", Value::Null), "max_output_tokens": limit,
        "metadata": or("metadata", json!({})), "parallel_tool_calls": or("parallel_tool_calls", true.into()),
        "previous_response_id": null, "reasoning": or("reasoning", json!({"effort": null, "summary": null})), "store": false,
        "temperature": sampling.temperature, "text": or("text", json!({"format": {"type": "text"}})),
        "tool_choice": or("tool_choice", "auto".into()), "tools": tools.prompt_tools, "top_p": sampling.top_p,
        "truncation": "disabled", "user": or("user", Value::Null),
    });
    if let Value::Object(frame) = frame { frame } else { Map::new() }
}

/// Returns the request in the form of a chat completion.
fn chat_of(fields: &Fields, tools: &ResponseTools) -> Result<Fields, HttpError> {
    let mut chat = Map::new();
    let mut messages = Vec::new();
    if let Some(instructions) = fields.text("instructions")? {
        messages.push(json!({"role": "system", "content": instructions}));
    }
    match fields.get("input") {
        Some(Value::String(text)) => messages.push(json!({"role": "user", "content": text})),
        Some(Value::Array(items)) if items.len() > MAX_MESSAGES => {
            let wrong = format!("input has {} items, must have at most {MAX_MESSAGES}", items.len());
            return Err(HttpError::invalid(Some("input"), wrong));
        }
        Some(Value::Array(items)) => {
            for (i, item) in items.iter().enumerate() {
                let wrong = |what: &str| HttpError::invalid(Some("input"), format!("input[{i}]{what}"));
                add(item, &mut messages).map_err(|what| wrong(&what))?;
            }
        }
        _ => return Err(HttpError::invalid(Some("input"), "input must be a text, or a list of items")),
    }
    chat.insert("messages".to_owned(), messages.into());
    if fields.get("tools").is_some() {
        chat.insert("tools".to_owned(), tools.functions.clone().into());
    }
    let others = ["add_generation_prompt", "continue_final_message"];
    for name in ["tool_choice", "parallel_tool_calls", "chat_template_kwargs"].into_iter().chain(others) {
        chat.extend(fields.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    for (name, member, own) in [
        ("text", "format", "response_format"),
        ("text", "verbosity", "verbosity"),
        ("reasoning", "effort", "reasoning_effort"),
    ] {
        let Some(value) = fields.get(name) else { continue };
        if !value.is_object() {
            return Err(HttpError::invalid(Some(name), format!("{name} must be an object")));
        }
        chat.extend(value.get(member).map(|value| (own.to_owned(), value.clone())));
    }
    Ok(Fields::new(chat))
}

/// Adds an item of the input to a chat's messages.
fn add(item: &Value, messages: &mut Vec<Value>) -> Result<(), String> {
    // The assistant's reasoning, text and calls form one message.
    let assistant = |messages: &mut Vec<Value>, goes_on: fn(&Value) -> bool| {
        if !messages.last().is_some_and(|last| last["role"] == "assistant" && goes_on(last)) {
            messages.push(json!({"role": "assistant", "content": ""}));
        }
    };
    let last = |messages: &mut Vec<Value>, name: &str, value: Value| {
        if let Some(last) = messages.last_mut() {
            last[name] = value;
        }
    };
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let content =
                text_of(&item["content"]).ok_or(".content must be a text, or a list of parts that are texts")?;
            match item["role"].as_str() {
                Some("user") => messages.push(json!({"role": "user", "content": content})),
                Some(role @ ("system" | "developer")) => messages.push(json!({"role": role, "content": content})),
                Some("assistant") => {
                    assistant(messages, |last| last["content"] == "" && last.get("tool_calls").is_none());
                    last(messages, "content", content.into());
                }
                _ => return Err(".role must be user, assistant, system or developer".to_owned()),
            }
        }
        "reasoning" => {
            let text = text_of(&item["content"]).or_else(|| text_of(&item["summary"])).unwrap_or_default();
            assistant(messages, |_| false);
            last(messages, "reasoning_content", text.into());
        }
        kind @ ("function_call" | "custom_tool_call") => {
            let member = |name: &str| item[name].as_str().ok_or_else(|| format!(" has no {name}"));
            let arguments = match kind {
                "function_call" => item["arguments"].clone(),
                _ => json!({INPUT: member("input")?}).to_string().into(),
            };
            let function = json!({"name": member("name")?, "arguments": arguments});
            let call = json!({"id": member("call_id")?, "type": "function", "function": function});
            assistant(messages, |_| true);
            // The call is appended to the last message without copying it: all items of the input
            // may form one message.
            match messages.last_mut().and_then(|last| last.get_mut("tool_calls")?.as_array_mut()) {
                Some(calls) => calls.push(call),
                None => last(messages, "tool_calls", json!([call])),
            }
        }
        "function_call_output" | "custom_tool_call_output" => {
            let id = item["call_id"].as_str().ok_or(" has no call_id")?;
            let output = text_of(&item["output"]).ok_or(".output must be a text, or a list of parts that are texts")?;
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": output}));
        }
        other => return Err(format!(" is a {other}, which is not supported")),
    }
    Ok(())
}

/// Returns a text, or the joined text of parts that are all texts.
fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            parts.iter().map(|part| part["text"].as_str().or_else(|| part["refusal"].as_str())).collect()
        }
        _ => None,
    }
}

/// Kind of an open item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
}

impl Kind {
    /// Returns the prefix of the ids of items of this kind.
    fn prefix(self) -> &'static str {
        match self {
            Kind::Reasoning => "rs",
            Kind::Message => "msg",
        }
    }

    fn part_object(self, text: &str) -> Value {
        match self {
            Kind::Reasoning => json!({"type": "reasoning_text", "text": text}),
            Kind::Message => json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}),
        }
    }

    fn item(self, id: &str, content: Value, status: &str) -> Value {
        match self {
            Kind::Reasoning => {
                json!({"id": id, "type": "reasoning", "summary": [], "content": content, "status": status})
            }
            Kind::Message => {
                json!({"id": id, "type": "message", "role": "assistant", "content": content, "status": status})
            }
        }
    }
}

/// State of an answer: its sequence of items, and their events.
#[derive(Default)]
struct Items {
    id: String,
    /// Members of a response that repeat its request.
    frame: Map<String, Value>,
    /// Tools of the request.
    tools: ResponseTools,
    /// Complete items.
    done: Vec<Value>,
    /// The open item, and its text.
    open: Option<(Kind, String)>,
    /// The call that is open, with its arguments so far.
    call: Option<ToolCall>,
    ready: VecDeque<(&'static str, Value)>,
    sequence: u64,
    ended: bool,
}

impl Items {
    fn event(&mut self, name: &'static str, mut object: Value) {
        object["type"] = name.into();
        object["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        self.ready.push_back((name, object));
    }

    fn item_id(&self, prefix: &str) -> String {
        format!("{prefix}_{}-{}", self.id, self.done.len())
    }

    /// Ends the open item.
    fn close(&mut self, status: &str) {
        if let Some(call) = self.call.take() {
            self.close_call(&call, status);
        }
        let Some((kind, text)) = self.open.take() else { return };
        let (id, index) = (self.item_id(kind.prefix()), self.done.len());
        let at = |object: Value| {
            let mut object = object;
            (object["item_id"], object["output_index"], object["content_index"]) =
                (id.clone().into(), index.into(), 0.into());
            object
        };
        let (name, object) = match kind {
            Kind::Reasoning => ("response.reasoning_text.done", at(json!({"text": text}))),
            Kind::Message => ("response.output_text.done", at(json!({"text": text, "logprobs": []}))),
        };
        self.event(name, object);
        self.event("response.content_part.done", at(json!({"part": kind.part_object(&text)})));
        let item = kind.item(&id, json!([kind.part_object(&text)]), status);
        self.event("response.output_item.done", json!({"output_index": index, "item": item}));
        self.done.push(item);
    }

    fn text(&mut self, kind: Kind, text: &str) {
        let prefix = kind.prefix();
        if self.open.as_ref().is_none_or(|(open, _)| *open != kind) {
            self.close("completed");
            let (id, index) = (self.item_id(prefix), self.done.len());
            let item = kind.item(&id, json!([]), "in_progress");
            self.event("response.output_item.added", json!({"output_index": index, "item": item}));
            let part = json!({"item_id": id, "output_index": index, "content_index": 0, "part": kind.part_object("")});
            self.event("response.content_part.added", part);
            self.open = Some((kind, String::new()));
        }
        if let Some((_, all)) = &mut self.open {
            all.push_str(text);
        }
        let (id, index) = (self.item_id(prefix), self.done.len());
        let mut delta = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": text});
        let name = match kind {
            Kind::Reasoning => "response.reasoning_text.delta",
            Kind::Message => {
                delta["logprobs"] = json!([]);
                "response.output_text.delta"
            }
        };
        self.event(name, delta);
    }

    fn begin_call(&mut self, call: ToolCall) {
        self.close("completed");
        let id = self.item_id("fc");
        let item = self.tools.call_item(&id, &ToolCall { arguments: String::new(), ..call.clone() }, "in_progress");
        self.event("response.output_item.added", json!({"output_index": self.done.len(), "item": item}));
        let arguments = call.arguments.clone();
        self.call = Some(ToolCall { arguments: String::new(), ..call });
        self.arguments(&arguments);
    }

    fn arguments(&mut self, text: &str) {
        let Some(call) = self.call.as_mut().filter(|_| !text.is_empty()) else { return };
        call.arguments.push_str(text);
        // A custom tool gets the text, without the JSON around it.
        if !self.tools.is_custom(&call.name) {
            let delta = json!({"item_id": self.item_id("fc"), "output_index": self.done.len(), "delta": text});
            self.event("response.function_call_arguments.delta", delta);
        }
    }

    fn close_call(&mut self, call: &ToolCall, status: &str) {
        let (id, index) = (self.item_id("fc"), self.done.len());
        // The answer may end right after a complete call.
        let is_whole = serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments).is_ok();
        let item = self.tools.call_item(&id, call, if is_whole { "completed" } else { status });
        if self.tools.is_custom(&call.name) {
            let input = &item["input"];
            for (name, member) in
                [("response.custom_tool_call_input.delta", "delta"), ("response.custom_tool_call_input.done", "input")]
            {
                self.event(name, json!({"item_id": id, "output_index": index, member: input}));
            }
        } else {
            let done = json!({"item_id": id, "output_index": index, "name": call.name, "arguments": call.arguments});
            self.event("response.function_call_arguments.done", done);
        }
        self.event("response.output_item.done", json!({"output_index": index, "item": item}));
        self.done.push(item);
    }

    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Content(text) => self.text(Kind::Message, &text),
            Delta::Reasoning(text) => self.text(Kind::Reasoning, &text),
            Delta::Call(call) => self.begin_call(call),
            Delta::Arguments(text) => self.arguments(&text),
        }
    }

    /// Returns the response in its current state.
    fn response(&self, status: &str, usage: Option<Usage>) -> Value {
        let mut object = Value::Object(self.frame.clone());
        object["id"] = format!("resp_{}", self.id).into();
        object["status"] = status.into();
        object["output"] = self.done.clone().into();
        object["incomplete_details"] = match status {
            "incomplete" => json!({"reason": "max_output_tokens"}),
            _ => Value::Null,
        };
        object["usage"] = usage.map_or(Value::Null, |Usage { prompt, cached, generated }| {
            json!({
                "input_tokens": prompt, "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": generated, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + generated,
            })
        });
        object
    }

    /// Returns the response at its end.
    fn end(&mut self, end: &End, usage: Usage) -> Value {
        let (status, name) = match end {
            End::Limit | End::Context => ("incomplete", "response.incomplete"),
            End::Token(_) | End::StopString(_) | End::Grammar | End::Stopped => ("completed", "response.completed"),
        };
        // The open item gets the status of the answer; earlier items are complete.
        self.close(status);
        let response = self.response(status, Some(usage));
        self.event(name, json!({"response": response}));
        self.ended = true;
        response
    }
}

/// Returns the whole answer.
async fn whole_response(mut items: Items, mut answers: Answers) -> Result<Value, HttpError> {
    while let Some(next) = answers.next_of_one().await? {
        match next {
            AnswerPart::Deltas(deltas) => deltas.into_iter().for_each(|delta| items.add(delta)),
            AnswerPart::Ended(end) => return Ok(items.end(&end, answers.usage())),
        }
    }
    Err(HttpError::server_error("the answer was not finished"))
}

/// Streams the answer as it is generated.
fn stream_response(mut items: Items, answers: Answers) -> Response {
    let response = items.response("in_progress", None);
    items.event("response.created", json!({"response": response}));
    items.event("response.in_progress", json!({"response": response}));
    let events = futures_util::stream::unfold((items, answers), |(mut items, mut answers)| async move {
        while items.ready.is_empty() {
            if items.ended {
                return None;
            }
            let next = answers.next_of_one().await;
            match next.and_then(|next| next.ok_or_else(|| HttpError::server_error("the answer was not finished"))) {
                Ok(AnswerPart::Deltas(deltas)) => deltas.into_iter().for_each(|delta| items.add(delta)),
                Ok(AnswerPart::Ended(end)) => drop(items.end(&end, answers.usage())),
                Err(error) => {
                    let mut object = items.response("failed", None);
                    object["error"] = json!({"code": "server_error", "message": error.body()["error"]["message"]});
                    items.event("response.failed", json!({"response": object}));
                    items.ended = true;
                }
            }
        }
        let (name, object) = items.ready.pop_front()?;
        Some((Ok::<_, Infallible>(Sse::default().event(name).data(object.to_string())), (items, answers)))
    });
    axum::response::sse::Sse::new(events).keep_alive(KeepAlive::new().interval(PING)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(input: Value) -> Result<Fields, HttpError> {
        chat_of(&Fields::new(Map::from_iter([("input".to_owned(), input)])), &ResponseTools::default())
    }

    #[test]
    fn adjacent_function_calls_form_one_message() {
        let call =
            |i: usize| json!({"type": "function_call", "call_id": format!("c{i}"), "name": "f", "arguments": "{}"});
        let said = json!({"role": "user", "content": "x"});
        let chat = chat((0..3).map(call).chain([said, call(3)]).collect()).unwrap();
        let messages = chat.get("messages").unwrap();
        let ids = |i: usize| -> Vec<&str> {
            messages[i]["tool_calls"].as_array().unwrap().iter().filter_map(|call| call["id"].as_str()).collect()
        };
        assert_eq!((ids(0), ids(2)), (vec!["c0", "c1", "c2"], vec!["c3"]));
    }

    #[test]
    fn item_count_is_limited_before_items_are_checked() {
        // None of the items is valid, but the limit on their number is checked first.
        let body = chat(vec![json!(1); MAX_MESSAGES + 1].into()).unwrap_err().body();
        assert_eq!(body["error"]["message"], "input has 65537 items, must have at most 65536");
    }

    #[test]
    fn truncated_response_items_are_marked_incomplete() {
        let statuses_after = |end: End| {
            let mut items = Items::default();
            items.add(Delta::Reasoning("Hm.".to_owned()));
            items.add(Delta::Content("Yes".to_owned()));
            let response = items.end(&end, Usage::default());
            let done = |(name, object): &(&str, Value)| {
                (*name == "response.output_item.done").then(|| object["item"]["status"].clone())
            };
            let event_statuses: Vec<Value> = items.ready.iter().filter_map(done).collect();
            let statuses: Vec<Value> =
                response["output"].as_array().unwrap().iter().map(|item| item["status"].clone()).collect();
            assert_eq!(event_statuses, statuses);
            statuses
        };
        assert_eq!(statuses_after(End::Token(0)), ["completed", "completed"]);
        assert_eq!(statuses_after(End::Limit), ["completed", "incomplete"]);
        assert_eq!(statuses_after(End::Context), ["completed", "incomplete"]);
    }
}
