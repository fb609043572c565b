//! Display of an answer: the model's reasoning appears between two lines, and markers are removed.

use ixc_text::chat::{Answer, Delta, Parser};

/// Lines printed before and after the model's reasoning.
const REASONING_LINES: [&str; 2] = ["[Start thinking]\n", "\n[End thinking]\n\n"];

/// Text of an answer, prepared for display.
#[derive(Debug)]
pub struct DisplayedAnswer {
    /// `None` if the text is shown unchanged.
    parser: Option<Parser>,
    answer: Answer,
    thinks: bool,
}

impl DisplayedAnswer {
    /// Creates the text; `parser` splits an answer into its parts, if the model's chat format has
    /// any.
    pub fn new(parser: Option<Parser>) -> DisplayedAnswer {
        DisplayedAnswer { parser, answer: Answer::default(), thinks: false }
    }

    /// Whether names of control tokens are looked for in the text.
    pub fn reads_markers(&self) -> bool {
        self.parser.is_some()
    }

    /// Adds a delta, and returns the text to show for it.
    pub fn push(&mut self, text: &str) -> String {
        match &mut self.parser {
            Some(parser) => {
                let deltas = parser.push(text);
                self.push_deltas(deltas)
            }
            None => text.to_owned(),
        }
    }

    /// Returns the text to show at the end, and the complete answer if there is a parser.
    pub fn finish(mut self) -> (String, Option<Answer>) {
        let Some(parser) = self.parser.take() else { return (String::new(), None) };
        let mut text = self.push_deltas(parser.finish());
        self.ends_thought(&mut text);
        (text, Some(self.answer))
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
            let (rest, answer) = shown.finish();
            text += &rest;
            (text, answer.map(|answer| answer.content).unwrap_or_default())
        };
        let text = "[Start thinking]\nHm.\n[End thinking]\n\nYes.";
        assert_eq!(shown("", &["<th", "ink>\nHm", ".\n</think>", "\n\nYes."]), (text.into(), "Yes.".into()));
        assert_eq!(shown("<think>\n", &["Hm"]), ("[Start thinking]\nHm\n[End thinking]\n\n".into(), String::new()));
        let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        assert_eq!(shown("", &["Look", call]), ("Look\n[Call f {}]\n".into(), "Look".into()));
        let mut plain = DisplayedAnswer::new(None);
        assert_eq!((plain.push(" <think>"), plain.finish()), (" <think>".into(), (String::new(), None)));
    }
}
