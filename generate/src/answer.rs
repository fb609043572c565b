//! Text of an answer, split into content, reasoning and tool calls. All interfaces use this module.
//!
//! Input: the generated text, in pieces, and the reason of its end. Without a parser, all text is
//! content.
//!
//! # Incomplete calls
//!
//! If the answer ends in text that may be the beginning of a tool call, the reason of the end
//! decides about this text:
//!
//! | end | incomplete call |
//! | --- | --- |
//! | [`End::Token`], [`End::Grammar`] | becomes content: the model's text is complete |
//! | [`End::StopString`], [`End::Limit`], [`End::Context`] | is dropped: it is not complete |
//! | [`End::Stopped`] | is dropped, too |
//!
//! Arguments of a call that were returned before the end stay in the answer.
//!
//! ```
//! use ixc_generate::answer::AnswerText;
//! use ixc_generate::generator::End;
//! use ixc_text::chat::{Delta, Parser, format_of};
//!
//! let parser = Parser::new(format_of("<tool_call>"), "");
//! let mut cut = AnswerText::new(Some(parser));
//! assert_eq!(cut.push("Wait. <tool_call>{\"na"), [Delta::Content("Wait.".into())]);
//! let mut whole = cut.clone();
//! assert!(cut.end(&End::Limit).is_empty());
//! assert_eq!(whole.end(&End::Token(2)), [Delta::Content(" <tool_call>{\"na".into())]);
//! ```

use ixc_text::chat::{Delta, Parser};

use crate::generator::End;

/// Splitter of an answer's text.
///
/// Invariant: no text of a returned delta is empty.
#[derive(Clone, Debug, Default)]
pub struct AnswerText {
    /// Parser of the answer; `None` without a parser, and after the end of the answer.
    parser: Option<Parser>,
}

impl AnswerText {
    /// Creates a splitter. Without a parser, all text is content.
    pub fn new(parser: Option<Parser>) -> AnswerText {
        AnswerText { parser }
    }

    /// Returns whether the text must include the names of control tokens, because markers may be
    /// among them: see [`Request::show_special`](crate::generator::Request::show_special).
    pub fn reads_markers(&self) -> bool {
        self.parser.is_some()
    }

    /// Splits the text of an event.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        let deltas = match &mut self.parser {
            Some(parser) => parser.push(text),
            None => vec![Delta::Content(text.to_owned())],
        };
        without_empty(deltas)
    }

    /// Ends the answer. Returns the withheld text that the table of this module keeps. Text of
    /// later calls of [`AnswerText::push`] would be content.
    pub fn end(&mut self, end: &End) -> Vec<Delta> {
        let Some(parser) = self.parser.take() else { return Vec::new() };
        without_empty(match end {
            End::Token(_) | End::Grammar => parser.finish(),
            End::StopString(_) | End::Limit | End::Context | End::Stopped => parser.finish_cut(),
        })
    }
}

/// Removes deltas without text.
fn without_empty(mut deltas: Vec<Delta>) -> Vec<Delta> {
    deltas.retain(|delta| match delta {
        Delta::Reasoning(text) | Delta::Content(text) | Delta::Arguments(text) => !text.is_empty(),
        Delta::Call(_) => true,
    });
    deltas
}

#[cfg(test)]
mod tests {
    use ixc_text::chat::{Answer, format_of};

    use super::*;

    /// Returns the content and the arguments of calls of an answer with this end.
    fn answer(pieces: &[&str], end: &End) -> (String, Vec<String>) {
        let mut text = AnswerText::new(Some(Parser::new(format_of("<tool_call>"), "")));
        let mut answer = Answer::default();
        pieces.iter().for_each(|piece| answer.extend(text.push(piece)));
        answer.extend(text.end(end));
        (answer.content, answer.calls.into_iter().map(|call| call.arguments).collect())
    }

    #[test]
    fn only_the_models_own_end_makes_a_begun_call_content() {
        let own = [End::Token(2), End::Grammar];
        let cuts = [End::StopString("\n".into()), End::Limit, End::Context, End::Stopped];
        for end in own.iter().chain(&cuts) {
            let whole = own.contains(end);
            // The marker, or the call after it, is incomplete.
            for rest in [" <tool_", " <tool_call>", " <tool_call>{\"na"] {
                let expected = if whole { format!("Wait.{rest}") } else { "Wait.".to_owned() };
                // White space before an incomplete marker may remain.
                let (content, calls) = answer(&["Wait.", rest], end);
                assert_eq!((content.trim_end(), calls), (&*expected, Vec::new()), "{end:?}, {rest}");
            }
            // Arguments that have begun stay in either case. The reason of the end does not affect
            // other text.
            let call = "<tool_call>{\"name\": \"f\", \"arguments\": {\"at\": \"Ro";
            assert_eq!(answer(&[call], end).0, if whole { call } else { "" }, "{end:?}");
            assert_eq!(answer(&["Yes. ", ""], end), ("Yes. ".into(), Vec::new()), "{end:?}");
        }
    }

    #[test]
    fn text_without_a_parser_is_content() {
        let mut text = AnswerText::new(None);
        assert_eq!(text.push(" <tool_call>"), [Delta::Content(" <tool_call>".into())]);
        assert_eq!((text.push(""), text.end(&End::Limit)), (Vec::new(), Vec::new()));
    }
}
