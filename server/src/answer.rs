//! An answer as it is made: text taken apart, and how it ends. The interfaces differ in how they say it.

use ixc_frontend::chat::{Delta, Parser, TextParameters};
use ixc_frontend::template::{Conversation, Json};
use ixc_runtime::sample::Settings;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::app::App;
use crate::error::HttpError;
use crate::model::{End, Event, Model, Request};

/// What comes next of an answer.
#[derive(Debug)]
pub(crate) enum Next {
    /// Something that is said.
    Deltas(Vec<Delta>),
    /// It ended.
    Ended(End),
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    /// Tokens of the prompt that did not have to be computed again.
    pub(crate) reused: usize,
    pub(crate) made: usize,
}

/// What is wanted of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Most tokens; as many as there is room for where `None`.
    pub(crate) limit: Option<usize>,
    pub(crate) sampling: Settings,
    /// Texts to stop at.
    pub(crate) stop: Vec<String>,
    /// Whether tokens that end an answer are never made.
    pub(crate) ignore_end: bool,
}

/// An answer that is being made.
pub(crate) struct Answer {
    events: UnboundedReceiver<Event>,
    /// What takes it apart; a completion is content.
    parser: Option<Parser>,
    /// How it ended, once that has come and what was held back before is to be said first.
    end: Option<End>,
    pub(crate) usage: Usage,
}

impl Answer {
    pub(crate) fn new(events: UnboundedReceiver<Event>, parser: Option<Parser>, prompt: usize) -> Answer {
        Answer { events, parser, end: None, usage: Usage { prompt, ..Usage::default() } }
    }

    /// Begins one to a conversation.
    pub(crate) async fn to_conversation<M: Model>(
        app: &App<M>,
        conversation: Conversation,
        wanted: Wanted,
    ) -> Result<Answer, HttpError> {
        let calls = conversation.messages.iter().map(|message| message.tool_calls.len()).sum();
        let tools: Vec<&str> = conversation.tools.iter().map(Json::as_str).collect();
        let parameters = TextParameters::of_tools(&format!("[{}]", tools.join(",")));
        let prompt = app.prompt(conversation).await?;
        let parser = prompt.parser.map(|parser| parser.numbered_from(calls).with_texts(parameters));
        let Wanted { limit, sampling, stop, ignore_end } = wanted;
        // Markers are special tokens in some vocabularies.
        let show_special = parser.is_some();
        let count = prompt.tokens.len();
        let (send, events) = unbounded_channel();
        app.model.start(Request { tokens: prompt.tokens, limit, sampling, stop, ignore_end, show_special }, send)?;
        Ok(Answer::new(events, parser, count))
    }

    /// What comes next; nothing behind the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Next>, HttpError> {
        loop {
            if let Some(end) = self.end.take() {
                return Ok(Some(Next::Ended(end)));
            }
            let deltas = match self.events.recv().await {
                None => return Ok(None),
                Some(Event::Begun { reused }) => {
                    self.usage.reused = reused;
                    continue;
                }
                Some(Event::Text { text, made }) => {
                    self.usage.made = made;
                    match &mut self.parser {
                        Some(parser) => parser.push(&text),
                        None => vec![Delta::Content(text)],
                    }
                }
                Some(Event::Ended { end, made }) => {
                    self.usage.made = made;
                    self.end = Some(end);
                    self.events.close();
                    self.parser.take().map(Parser::finish).unwrap_or_default()
                }
                Some(Event::Failed { message }) => return Err(HttpError::failed(message)),
            };
            let deltas: Vec<Delta> = deltas.into_iter().filter(|delta| !is_empty(delta)).collect();
            if !deltas.is_empty() {
                return Ok(Some(Next::Deltas(deltas)));
            }
        }
    }
}

fn is_empty(delta: &Delta) -> bool {
    match delta {
        Delta::Reasoning(text) | Delta::Content(text) => text.is_empty(),
        Delta::Call(_) => false,
    }
}
