//! What a model says in a chat, taken apart: its reasoning, its answer, and the tools that it calls.
//!
//! A model writes one text, with markers in it that it was trained on. [`mod@format`] has a row for each such format, found by what the chat
//! template contains; a [`Parser`] takes the text in whatever pieces it comes and gives [`Delta`]s. Any chopping of a text gives the same
//! answer. Whatever the text, parsing takes time and memory in proportion to it, and loses none of it but markers and the white space next to
//! them: what looks like a call and is none comes back as content.
//!
//! | file | what it owns |
//! | --- | --- |
//! | `format` | the formats: one row each |
//! | `parser` | the machine that follows a row's markers |
//! | `markers` | finding the next marker, and the beginning of one at the end of a piece |
//! | `frame` | what stands around a call that an answer must be |
//! | `grammar` | how a call says its name and arguments: one function for each grammar |
//! | `python` | calls in Python's words |
//! | `json` | members of JSON as they were written, and writing them |
//! | `streaming` | calls as they are written, before their ends |
//! | `reading` | what comes of a text that may end too early |
//! | `tools` | which parameters are texts, which names tools can have |
//!
//! ```
//! use ixc_text::chat::{self, Answer, Parser};
//! let template = "... <tool_call>\n{\"name\": ...}\n</tool_call> ... <think> ...";
//! let mut parser = Parser::new(chat::format_of(template), "<|im_start|>assistant\n<think>\n");
//! let mut answer = Answer::default();
//! for piece in ["It rai", "ns.</th", "ink>\n\nLook:\n<tool_call>{\"name\": \"look\", \"argum", "ents\": {\"at\": 1}}</tool_call>"] {
//!     answer.extend(parser.push(piece));
//! }
//! answer.extend(parser.finish());
//! assert_eq!((&*answer.reasoning, &*answer.content), ("It rains.", "Look:"));
//! assert_eq!((&*answer.calls[0].name, &*answer.calls[0].arguments), ("look", "{\"at\": 1}"));
//! ```

use serde::{Deserialize, Serialize};

pub mod format;
mod frame;
mod grammar;
pub(crate) mod json;
mod markers;
mod outlook;
mod parser;
mod python;
mod reading;
mod streaming;
mod tools;

pub use format::{Format, format_of};
pub use frame::{Frame, Thinking, Word};
pub use grammar::is_name;
pub use json::whole_arguments;
pub use parser::Parser;
pub use tools::TextParameters;

/// A tool that the model wants called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// What the result will name: the format's own, or what the parser was told that ids begin with and a number. No two calls have one.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments: a JSON object, as the model wrote it where it wrote JSON. A call that was cut
    /// off has the beginning of one.
    pub arguments: String,
}

/// A part of what an assistant says, which text goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// What it says to the user.
    Content,
    /// What it thinks before.
    Reasoning,
}

/// What a further piece of text adds to the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text of the reasoning.
    Reasoning(String),
    /// Text of the answer.
    Content(String),
    /// A call, with its arguments so far.
    Call(ToolCall),
    /// More arguments of the last call.
    Arguments(String),
}

/// An answer so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// What the model thought.
    pub reasoning: String,
    /// What it says to the user.
    pub content: String,
    /// What it wants called, in order.
    pub calls: Vec<ToolCall>,
}

impl Extend<Delta> for Answer {
    fn extend<T: IntoIterator<Item = Delta>>(&mut self, deltas: T) {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => self.reasoning.push_str(&text),
                Delta::Content(text) => self.content.push_str(&text),
                Delta::Call(call) => self.calls.push(call),
                Delta::Arguments(text) => {
                    if let Some(last) = self.calls.last_mut() {
                        last.arguments.push_str(&text);
                    }
                }
            }
        }
    }
}
