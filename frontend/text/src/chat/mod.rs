//! Parses a model's output in a chat into its reasoning, its answer, and its tool calls.
//!
//! A model writes one text with markers from its training. [`mod@format`] has a row for each such
//! format, selected by the chat template. A [`Parser`] takes the text in pieces of any size and
//! returns [`Delta`]s. The answer does not depend on the pieces. Parsing takes time and memory in
//! proportion to the text. It loses only markers and the white space next to them: text that only
//! looks like a call is returned as content.
//!
//! | file | what it owns |
//! | --- | --- |
//! | `format` | the formats, one row each |
//! | `parser` | parser that follows a row's markers |
//! | `markers` | search for the next marker, and for the beginning of one at the end of a piece |
//! | `frame` | text around a call that is required |
//! | `grammar` | grammars of a call's name and arguments, one function each |
//! | `python` | calls in Python's syntax |
//! | `json` | members of JSON in their original form, and a writer |
//! | `streaming` | calls while they are written |
//! | `reading` | result of reading a text that may end too early |
//! | `tools` | parameters that are strings, valid names of tools |
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

mod call;
mod call_lookahead;
pub mod format;
mod frame;
mod grammar;
pub(crate) mod json;
mod markers;
mod parser;
mod python;
mod reading;
mod streaming;
mod tools;

pub use call::is_name;
pub use format::{Format, format_of};
pub use frame::{Frame, Thinking, Word};
pub use json::whole_arguments;
pub use parser::Parser;
pub use tools::TextParameters;

/// A tool call of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Id that the result will name: the format's own, or the parser's prefix and a number. Ids of
    /// calls differ.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments: a JSON object, unchanged if the model wrote JSON. A call that was cut off has the
    /// beginning of one.
    pub arguments: String,
}

/// Part of an assistant's message, to which further text belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// Text for the user.
    Content,
    /// Reasoning before the text.
    Reasoning,
}

/// Addition of a further piece of text to the answer.
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
    /// Reasoning of the model.
    pub reasoning: String,
    /// Text for the user.
    pub content: String,
    /// Tool calls, in order.
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
