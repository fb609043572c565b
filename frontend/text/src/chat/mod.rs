//! Parser that splits a model's output in a chat into reasoning, answer and tool calls.
//!
//! A model writes one text, with the markers that it was trained on. [`mod@format`] has a row for
//! each format of such text; the chat template selects the row. A [`Parser`] takes the text in
//! pieces of any size, and returns [`Delta`]s. The result does not depend on how the text is
//! divided. Parsing takes time and memory in proportion to the text. It drops only markers and the
//! white space next to them: text that only looks like a call is returned as content.
//!
//! | file | what it owns |
//! | --- | --- |
//! | `format` | table of formats |
//! | `parser` | parser that follows the markers of a format |
//! | `markers` | search for the next marker, or for its beginning at the end of a piece |
//! | `frame` | text around a call that a request requires |
//! | `grammar` | grammars of a call's text, one function each |
//! | `python` | calls in Python's syntax |
//! | `json` | JSON whose original text is kept |
//! | `streaming` | deltas of calls while the model writes them |
//! | `reading` | result of reading a text that may be incomplete |
//! | `tools` | types of parameters, from the schemas of tools |
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

/// Tool call in an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Id that the tool's result will state: the id that the model wrote, or the parser's prefix
    /// and a number. All calls of a conversation have different ids.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments as a JSON object, unchanged if the model wrote JSON. If the call was cut off, they
    /// are the beginning of such an object.
    pub arguments: String,
}

/// Part of an assistant's message that further text belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// Text for the user.
    Content,
    /// Reasoning before the text for the user.
    Reasoning,
}

/// Addition to the answer, from one piece of the model's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Further text of the reasoning.
    Reasoning(String),
    /// Further text for the user.
    Content(String),
    /// New call, with the arguments written so far.
    Call(ToolCall),
    /// Further arguments of the last call.
    Arguments(String),
}

/// Answer of a model so far.
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
