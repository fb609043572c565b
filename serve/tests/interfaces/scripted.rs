//! A model that writes a text, whatever it is asked: a test sees how interfaces take it apart, and
//! what they made of the request.

use std::sync::{Arc, Mutex};

use ixc_grammar::Matcher;
use ixc_runtime::sample::Breakers;
use ixc_text::chat::{Parser, TextParameters, format_of};
use ixc_text::template::{ChatTemplate, Conversation, Json};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use ixc_serve::http::Local;
use ixc_serve::model::{
    Constraint, EmbeddingRequest, Embeddings, End, Event, ExpertsAction, Facts, Model, One, Prompt, Refusal, Request,
    SlotAction, SlotDone, Status,
};

/// Writes its text, a character at a time.
pub struct Scripted {
    facts: Facts,
    text: Mutex<(String, End)>,
    /// The last prompt, and what was asked of the answer.
    asked: Mutex<(String, Option<Constraint>, Option<Request>)>,
}

impl Scripted {
    /// With this template.
    pub fn new(template: &str) -> Arc<Scripted> {
        let template = Some(template.to_owned());
        let facts = Facts { name: "scripted".into(), context: 1 << 20, parallel: 4, template, ..Facts::default() };
        let text = Mutex::new((String::new(), End::Model));
        Arc::new(Scripted { facts, text, asked: Mutex::new((String::new(), None, None)) })
    }

    /// Posts a request, to which the model writes a text that ends so. Gives the status and the
    /// answer; a stream as its text.
    pub fn post(self: &Arc<Self>, path: &'static str, body: &Value, text: &str, end: End) -> (u16, Value) {
        *self.text.lock().unwrap() = (text.to_owned(), end);
        let local = Local::new(Arc::new(One(Arc::clone(self))));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(local.post(path, body.as_object().unwrap()))
    }

    /// The text of the last prompt.
    pub fn prompt(&self) -> String {
        self.asked.lock().unwrap().0.clone()
    }

    /// The constraint of the last answer.
    pub fn constraint(&self) -> Option<Constraint> {
        self.asked.lock().unwrap().1.clone()
    }

    /// The last request.
    pub fn request(&self) -> Request {
        self.asked.lock().unwrap().2.clone().unwrap()
    }
}

/// The objects of a stream of events.
pub fn events(stream: &Value) -> Vec<Value> {
    let lines = stream.as_str().unwrap().lines().filter_map(|line| line.strip_prefix("data: "));
    lines.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

impl Model for Scripted {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn encode(&self, text: &str, _: bool, _: bool) -> Result<Vec<u32>, Refusal> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, Refusal> {
        Ok(tokens.iter().filter_map(|&token| char::from_u32(token)).collect())
    }

    fn prompt(&self, conversation: &Conversation, constraint: Option<&Constraint>) -> Result<Prompt, Refusal> {
        let source = self.facts.template.as_deref().unwrap_or_default();
        let rendered = ChatTemplate::from_source(source).and_then(|template| template.render(conversation));
        let text = rendered.map_err(|error| Refusal::Invalid { message: error.to_string() })?;
        let tools = TextParameters::of_each(conversation.tools.iter().map(Json::as_str));
        let parser = Parser::new(format_of(source), &text).with_texts(tools);
        let parser = if conversation.tools.is_empty() { parser.without_calls() } else { parser };
        *self.asked.lock().unwrap() = (text.clone(), constraint.cloned(), None);
        let tokens = self.encode(&text, false, false)?;
        Ok(Prompt { tokens, text, parser: Some(parser), begun: None })
    }

    fn constrain(
        &self,
        constraint: &Constraint,
        _: Option<&Prompt>,
        _: &(dyn Fn() -> bool + Sync),
    ) -> Result<Matcher, Refusal> {
        let message = format!("a scripted model follows nothing: {constraint:?}");
        Err(Refusal::Unsupported { message, remedy: None })
    }

    fn breakers(&self, _: Option<&[String]>) -> Result<Arc<Breakers>, Refusal> {
        Ok(Arc::default())
    }

    fn start(&self, request: Request, events: UnboundedSender<Event>) -> Result<(), Refusal> {
        self.asked.lock().unwrap().2 = Some(request);
        let (text, end) = self.text.lock().unwrap().clone();
        let send = |event| drop(events.send(event));
        send(Event::Begun { reused: 0 });
        let mut made = 0;
        for c in text.chars() {
            made += 1;
            send(Event::Text { text: c.into(), made });
        }
        send(Event::Ended { end, made });
        Ok(())
    }

    fn slot(&self, _: usize, _: SlotAction, _: oneshot::Sender<Result<SlotDone, Refusal>>) -> Result<(), Refusal> {
        Err(Refusal::Ending)
    }

    fn embed(&self, _: EmbeddingRequest, _: oneshot::Sender<Result<Embeddings, Refusal>>) -> Result<(), Refusal> {
        Err(Refusal::Ending)
    }

    fn experts(&self, _: ExpertsAction, _: oneshot::Sender<Result<Value, Refusal>>) -> Result<(), Refusal> {
        Err(Refusal::Ending)
    }

    fn status(&self) -> Status {
        Status::default()
    }
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
