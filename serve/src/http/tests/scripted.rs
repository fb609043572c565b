//! Host whose thread writes a given text in answer to any request. Tests check how interfaces split
//! the text, and which request reached the thread.

use std::sync::Arc;

use ixc_generate::generator::{End, Request};
use serde_json::{Value, json};

use crate::http::Local;
use crate::serving::scripted::{Script, host};
use crate::serving::{Host, Registry};

/// Host that writes a text, one character at a time.
pub struct Scripted {
    host: Arc<Host>,
    script: Arc<Script>,
}

impl Scripted {
    /// Creates a host with this template.
    pub fn new(template: &str) -> Scripted {
        let script = Script::new();
        Scripted { host: Arc::new(host(template, Arc::clone(&script))), script }
    }

    /// Posts a request; the model's answer is `text`, with the reason `end` for its end. Returns
    /// the status and the answer. A stream is returned as a JSON string.
    pub fn post(&self, path: &'static str, body: &Value, text: &str, end: End) -> (u16, Value) {
        self.script.set(text, end);
        let local = Local::new(Arc::new(Registry::one(Arc::clone(&self.host))));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(local.post(path, body.as_object().unwrap()))
    }

    /// Returns the text of the last prompt.
    pub fn prompt(&self) -> String {
        self.host.decode(&self.request().tokens).unwrap()
    }

    /// Returns the last request.
    pub fn request(&self) -> Request {
        self.script.request().unwrap()
    }

    /// Returns whether the grammar of the last request allows a text as the whole answer.
    pub fn allows(&self, text: &str) -> bool {
        let mut grammar = self.request().grammar.unwrap();
        let tokens = self.host.encode(text, false, false).unwrap();
        tokens.iter().all(|token| grammar.accept(*token).is_ok()) && grammar.may_end()
    }
}

/// Returns the objects of a stream of events.
pub fn events(stream: &Value) -> Vec<Value> {
    let lines = stream.as_str().unwrap().lines().filter_map(|line| line.strip_prefix("data: "));
    lines.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// An answer of any interface: text, calls as name and arguments, and its end.
#[derive(Debug, Default, PartialEq)]
pub struct Said {
    pub content: String,
    pub calls: Vec<(String, String)>,
    pub end: String,
}

impl Said {
    /// Reads a whole answer.
    pub fn of_whole(path: &str, answer: &Value) -> Said {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mut said = Said::default();
        match path {
            "/v1/chat/completions" => {
                let choice = &answer["choices"][0];
                said.content = text(&choice["message"]["content"]);
                let calls = list(&choice["message"]["tool_calls"]);
                let call = |call: &Value| (text(&call["function"]["name"]), text(&call["function"]["arguments"]));
                said.calls = calls.iter().map(call).collect();
                said.end = text(&choice["finish_reason"]);
            }
            "/v1/messages" => {
                for block in list(&answer["content"]) {
                    match block["type"].as_str() {
                        Some("text") => said.content += &text(&block["text"]),
                        Some("tool_use") => said.calls.push((text(&block["name"]), block["input"].to_string())),
                        _ => {}
                    }
                }
                said.end = text(&answer["stop_reason"]);
            }
            _ => {
                for item in list(&answer["output"]) {
                    match item["type"].as_str() {
                        Some("message") => said.content += &text(&item["content"][0]["text"]),
                        Some("function_call") => said.calls.push((text(&item["name"]), text(&item["arguments"]))),
                        _ => {}
                    }
                }
                said.end = text(&answer["status"]);
            }
        }
        said
    }

    /// Reads a stream as clients do, and counts the pieces of its arguments.
    pub fn of_stream(path: &str, stream: &Value) -> (Said, usize) {
        let (mut said, mut pieces) = (Said::default(), 0);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for event in events(stream) {
            let mut argument = |said: &mut Said, value: &Value| {
                if let (Some(more), Some(last)) = (value.as_str().filter(|it| !it.is_empty()), said.calls.last_mut()) {
                    last.1.push_str(more);
                    pieces += 1;
                }
            };
            match path {
                "/v1/chat/completions" => {
                    let choice = &event["choices"][0];
                    said.content += &text(&choice["delta"]["content"]);
                    for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                        let function = &call["function"];
                        if function["name"].is_string() {
                            assert!(call["id"].is_string() && call["type"] == "function", "{call}");
                            said.calls.push((text(&function["name"]), String::new()));
                        }
                        assert_eq!(call["index"], said.calls.len() - 1, "{call}");
                        argument(&mut said, &function["arguments"]);
                    }
                    said.end += &text(&choice["finish_reason"]);
                }
                "/v1/messages" => {
                    said.content += &text(&event["delta"]["text"]);
                    if event["content_block"]["type"] == "tool_use" {
                        assert_eq!(event["content_block"]["input"], json!({}));
                        said.calls.push((text(&event["content_block"]["name"]), String::new()));
                    }
                    argument(&mut said, &event["delta"]["partial_json"]);
                    said.end += &text(&event["delta"]["stop_reason"]);
                }
                _ => match event["type"].as_str() {
                    Some("response.output_text.delta") => said.content += &text(&event["delta"]),
                    Some("response.output_item.added") if event["item"]["type"] == "function_call" => {
                        assert_eq!(event["item"]["arguments"], "");
                        said.calls.push((text(&event["item"]["name"]), String::new()));
                    }
                    Some("response.function_call_arguments.delta") => argument(&mut said, &event["delta"]),
                    Some("response.function_call_arguments.done") => {
                        assert_eq!(event["arguments"].as_str(), said.calls.last().map(|(_, text)| &**text));
                    }
                    Some("response.completed" | "response.incomplete") => {
                        said.end = text(&event["response"]["status"]);
                        assert_eq!(Said::of_whole(path, &event["response"]), said);
                    }
                    _ => {}
                },
            }
        }
        (said, pieces)
    }
}
