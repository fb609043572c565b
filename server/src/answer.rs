//! An answer as it is made: text taken apart, and how it ends. The interfaces differ in how they say it.

use ixc_frontend::chat::{Delta, Parser};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::error::HttpError;
use crate::model::{End, Event};

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
