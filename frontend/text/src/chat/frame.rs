//! Text around an answer whose form is required: the reasoning before it, and the markers of a call
//! around the call's arguments.
//!
//! ```
//! use ixc_text::chat::{format_of, Frame, Word};
//! let format = format_of("... <tool_call> ... <think>");
//! let Frame { before, after, .. } = format.call_frame("look").unwrap();
//! assert_eq!(before[1], Word::Text("\n{\"name\": \"look\", \"arguments\": ".into()));
//! assert_eq!(after[0], "}\n");
//! ```

use super::format::{Format, Move, State};
use super::grammar::{FUNCTIONS, Grammar, Id};
use super::json;

/// Part of the text that precedes a call's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Fixed text.
    Text(String),
    /// Number of the call in the conversation. The model writes it.
    Number,
}

/// Text around the JSON arguments of a call. Each marker is a separate element, because it may be a
/// token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Text before the first call.
    pub open: Vec<String>,
    /// Text of a call before its arguments.
    pub before: Vec<Word>,
    /// Text of a call after its arguments.
    pub after: Vec<String>,
    /// Text after the last call.
    pub close: Vec<String>,
    /// Whether further calls can follow the first.
    pub several: bool,
}

/// Markers of reasoning in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thinking {
    /// Whether the answer begins inside reasoning.
    pub begun: bool,
    /// Marker that begins reasoning.
    pub open: &'static str,
    /// Marker that ends reasoning.
    pub close: &'static str,
}

impl Format {
    fn marker(&self, is_it: impl Fn(&Move) -> bool) -> Option<&'static str> {
        self.moves.iter().find(|of| is_it(of)).map(|of| of.marker)
    }

    /// Returns whether each message of the format has a header, which states its recipient and
    /// channel.
    pub fn has_headers(&self) -> bool {
        self.moves.iter().any(|of| of.to == State::Header)
    }

    /// Returns whether the format has markers for reasoning.
    pub fn has_reasoning(&self) -> bool {
        self.has_headers() || self.moves.iter().any(|of| of.to == State::Reasoning)
    }

    /// Returns the markers of reasoning in an answer to this prompt; `None` if the format has none.
    pub fn thinking(&self, prompt: &str) -> Option<Thinking> {
        let open = self.marker(|of| of.from.contains(&State::Content) && of.to == State::Reasoning)?;
        let close = self.marker(|of| of.from.contains(&State::Reasoning) && of.to == State::Content)?;
        Some(Thinking { begun: self.begin(prompt) == State::Reasoning, open, close })
    }

    /// Returns the text around a call of the tool `name`. `None` if the format has no calls, or if
    /// their arguments are not JSON.
    pub fn call_frame(&self, name: &str) -> Option<Frame> {
        let section = self.marker(|of| of.from.contains(&State::Content) && of.to == State::Section);
        let from = if section.is_some() { State::Section } else { State::Content };
        let open = self.marker(|of| of.from.contains(&from) && of.to == State::Call)?;
        let close = self.marker(|of| of.from.contains(&State::Call) && of.to == from);
        let end = section.and_then(|_| self.marker(|of| of.from.contains(&State::Section) && of.to == State::Content));
        let text = |text: &str| Word::Text(text.to_owned());
        let (before, after) = match self.call {
            Grammar::Objects => {
                (vec![text(&format!("\n{{\"name\": {}, \"arguments\": ", json::string(name)))], "}\n".to_owned())
            }
            // The format's marker is itself the first bracket of the call's object. Llama has the
            // member `parameters` for arguments.
            Grammar::Bare(Grammar::Objects) if open == "{" => {
                (vec![text(&format!("\"name\": {}, \"parameters\": ", json::string(name)))], "}".to_owned())
            }
            Grammar::Bare(Grammar::Objects) if open.ends_with('[') => {
                (vec![text(&format!("{{\"name\": {}, \"arguments\": ", json::string(name)))], "}]".to_owned())
            }
            Grammar::Named { separator, id: Id::Whole } => {
                (vec![text(&format!("{FUNCTIONS}{name}:")), Word::Number, text(separator)], String::new())
            }
            Grammar::Named { separator, id: Id::Numbered | Id::After { .. } } => {
                (vec![text(name), text(separator)], String::new())
            }
            Grammar::Fenced { separator } => {
                (vec![text("function"), text(separator), text(&format!("{name}\n```json\n"))], "\n```".to_owned())
            }
            _ => return None,
        };
        let texts = |marker: Option<&str>| marker.map(str::to_owned).into_iter();
        let after = Some(after).filter(|after| !after.is_empty());
        Some(Frame {
            open: texts(section).collect(),
            before: [text(open)].into_iter().chain(before).collect(),
            after: after.into_iter().chain(texts(close)).collect(),
            close: texts(end).collect(),
            // Without an end marker, the parser could not separate a second call from the first.
            several: close.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::Word;
    use crate::chat::format::FORMATS;
    use crate::chat::{Answer, Parser, TextParameters};

    fn of_word(word: &Word) -> &str {
        match word {
            Word::Text(text) => text,
            Word::Number => "0",
        }
    }

    /// Tests that a call built from its frame is parsed as the same call.
    #[test]
    fn calls_built_from_frames_are_parsed() {
        let mut count = 0;
        for format in FORMATS {
            let Some(frame) = format.call_frame("look_up") else { continue };
            let before: String = frame.before.iter().map(of_word).collect();
            let one = [before, "{\"at\": [1, 2]}".to_owned(), frame.after.concat()].concat();
            let times = if frame.several { 2 } else { 1 };
            let text = [frame.open.concat(), one.repeat(times), frame.close.concat()].concat();
            let tools = TextParameters::of_tools(r#"[{"function": {"name": "look_up"}}]"#);
            let mut parser = Parser::new(format, "").with_texts(tools);
            let mut answer = Answer::default();
            answer.extend(parser.push(&text));
            answer.extend(parser.finish());
            assert_eq!((answer.calls.len(), answer.content.trim()), (times, ""), "{}: {text}", format.name);
            for call in &answer.calls {
                assert_eq!((&*call.name, &*call.arguments), ("look_up", "{\"at\": [1, 2]}"), "{}", format.name);
            }
            // The ids must differ even if the model writes the same number twice.
            let ids: HashSet<&str> = answer.calls.iter().map(|call| &*call.id).collect();
            assert_eq!(ids.len(), times, "{}: {:?}", format.name, answer.calls);
            count += 1;
        }
        assert_eq!(count, 20);
    }
}
