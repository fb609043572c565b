//! Display of an answer: the model's reasoning appears between two lines, and markers are removed.

use ixc_generate::answer::AnswerText;
use ixc_generate::generator::End;
use ixc_text::chat::{Answer, Delta, Parser};

/// Lines printed before and after the model's reasoning.
const REASONING_LINES: [&str; 2] = ["[Start thinking]\n", "\n[End thinking]\n\n"];

/// Text of an answer, prepared for display.
#[derive(Debug)]
pub struct DisplayedAnswer {
    text: AnswerText,
    answer: Answer,
    thinks: bool,
}

impl DisplayedAnswer {
    /// Creates an empty answer. `parser` separates the reasoning from the content, if the model's
    /// chat format marks both. Without a parser, the text is shown unchanged.
    pub fn new(parser: Option<Parser>) -> DisplayedAnswer {
        DisplayedAnswer { text: AnswerText::new(parser), answer: Answer::default(), thinks: false }
    }

    /// Returns whether the parser needs the names of control tokens in the text.
    pub fn reads_markers(&self) -> bool {
        self.text.reads_markers()
    }

    /// Adds generated text, and returns the text to show for it.
    pub fn push(&mut self, text: &str) -> String {
        let deltas = self.text.push(text);
        self.push_deltas(deltas)
    }

    /// Ends the answer. Returns the text that is still to be shown, and the complete answer.
    pub fn finish(mut self, end: &End) -> (String, Answer) {
        let deltas = self.text.end(end);
        let mut text = self.push_deltas(deltas);
        self.ends_thought(&mut text);
        (text, self.answer)
    }

    fn push_deltas(&mut self, deltas: Vec<Delta>) -> String {
        let mut text = String::new();
        for delta in deltas {
            match &delta {
                Delta::Reasoning(thought) => {
                    if !std::mem::replace(&mut self.thinks, true) {
                        text.push_str(REASONING_LINES[0]);
                    }
                    text.push_str(thought);
                }
                Delta::Content(said) => {
                    self.ends_thought(&mut text);
                    text.push_str(said);
                }
                Delta::Call(call) => {
                    self.ends_thought(&mut text);
                    text.push_str(&format!("\n[Call {} {}]\n", call.name, call.arguments));
                }
                Delta::Arguments(more) => text.push_str(more),
            }
            self.answer.extend([delta]);
        }
        text
    }

    fn ends_thought(&mut self, text: &mut String) {
        if std::mem::take(&mut self.thinks) {
            text.push_str(REASONING_LINES[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use ixc_text::chat::format_of;

    use super::*;

    #[test]
    fn thoughts_are_printed_between_separator_lines() {
        let shown = |prompt: &str, pieces: &[&str]| {
            let mut shown = DisplayedAnswer::new(Some(Parser::new(format_of("<tool_call><think>"), prompt)));
            let mut text: String = pieces.iter().map(|piece| shown.push(piece)).collect();
            let (rest, answer) = shown.finish(&End::Token(0));
            text += &rest;
            (text, answer.content)
        };
        let text = "[Start thinking]\nHm.\n[End thinking]\n\nYes.";
        assert_eq!(shown("", &["<th", "ink>\nHm", ".\n</think>", "\n\nYes."]), (text.into(), "Yes.".into()));
        assert_eq!(shown("<think>\n", &["Hm"]), ("[Start thinking]\nHm\n[End thinking]\n\n".into(), String::new()));
        let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        assert_eq!(shown("", &["Look", call]), ("Look\n[Call f {}]\n".into(), "Look".into()));
        let mut plain = DisplayedAnswer::new(None);
        assert_eq!(plain.push(" <think>"), " <think>");
        let (rest, answer) = plain.finish(&End::Limit);
        assert_eq!((&*rest, &*answer.content), ("", " <think>"));
    }

    #[test]
    fn end_of_a_begun_call_is_that_of_all_interfaces() {
        let ends = [End::Token(2), End::StopString("x".into()), End::Grammar, End::Limit, End::Context, End::Stopped];
        let parser = || Some(Parser::new(format_of("<tool_call>"), ""));
        for end in ends {
            let (mut text, mut expected) = (AnswerText::new(parser()), Answer::default());
            let mut shown = DisplayedAnswer::new(parser());
            let mut printed = String::new();
            for piece in ["Wait. ", "<tool_call>{\"na"] {
                expected.extend(text.push(piece));
                printed += &shown.push(piece);
            }
            expected.extend(text.end(&end));
            let (rest, answer) = shown.finish(&end);
            assert_eq!((printed + &rest, &answer), (expected.content.clone(), &expected), "{end:?}");
        }
    }
}
