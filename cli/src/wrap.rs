//! Line wrapping for terminals: a word that does not fit begins the next line.
//!
//! ```text
//! drive      0.53 GB/s with 16 concurrent reads; 2.10 ms for an expert
//!            alone, 1.1 MiB
//! ```
//!
//! The continuation of a report's line is indented to the column at which the line's text begins.
//! That column follows the last gap of two spaces in the first third of the line. The continuation
//! of a model's line keeps the line's indentation, and lines of code blocks are not wrapped. Lines
//! to pipes and files are not wrapped: only [`terminal`](super::terminal) wraps.

use unicode_width::UnicodeWidthChar;

/// Min columns. Lines on narrower terminals are left to the terminal.
const MIN_WIDTH: usize = 20;
/// Columns of a tab.
const TAB: usize = 8;
/// Fence that begins and ends a block of code.
const FENCE: &str = "```";

/// Kind of a text, which decides the indentation of continuation lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// A command's report: lines of columns, with labels.
    Report,
    /// Text of a model. It arrives in pieces that may end within a word.
    Prose,
    /// Text for programs, which is not wrapped.
    Verbatim,
}

/// Wrapper of a text for a terminal.
#[derive(Debug)]
pub struct Wrapper {
    width: usize,
    /// Column of the next character.
    column: usize,
    /// Column of the line's continuation.
    hang: usize,
    /// Whether the line so far has only blanks.
    is_begin: bool,
    /// Blanks before the word.
    gap: String,
    /// Pending word, whose end has not been added yet.
    word: String,
    word_width: usize,
    /// Whether the text is code, between two fences.
    is_code: bool,
    /// Whether the output is inside a word that is wider than a line. The terminal breaks such a
    /// word.
    is_long: bool,
}

impl Wrapper {
    /// Creates a wrapper for a width.
    pub fn new(width: usize) -> Wrapper {
        Wrapper {
            width,
            column: 0,
            hang: 0,
            is_begin: true,
            gap: String::new(),
            word: String::new(),
            word_width: 0,
            is_code: false,
            is_long: false,
        }
    }

    /// Adds text, and writes all complete words to `out`.
    pub fn push(&mut self, text: &str, kind: Text, out: &mut String) {
        for c in text.chars() {
            match c {
                '\n' => {
                    self.place(kind, out);
                    out.push_str(&std::mem::take(&mut self.gap));
                    out.push('\n');
                    (self.column, self.hang, self.is_begin, self.is_long) = (0, 0, true, false);
                }
                ' ' | '\t' => {
                    self.place(kind, out);
                    self.gap.push(c);
                    self.is_long = false;
                }
                c => {
                    let width = c.width().unwrap_or(0);
                    self.word.push(c);
                    self.word_width += width;
                    // Text in scripts without spaces may break between any two characters.
                    if width > 1 || self.word_width >= self.width {
                        let is_long = self.word_width >= self.width;
                        self.place(kind, out);
                        self.is_long |= is_long;
                    }
                }
            }
        }
    }

    /// Writes the pending word.
    pub fn finish(&mut self, kind: Text, out: &mut String) {
        self.place(kind, out);
        out.push_str(&std::mem::take(&mut self.gap));
    }

    /// Writes the pending word at the end of the line, or at the beginning of the next line.
    fn place(&mut self, kind: Text, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let gap = self.gap.chars().fold(self.column, |at, c| if c == '\t' { (at / TAB + 1) * TAB } else { at + 1 });
        let (word, word_width) = (std::mem::take(&mut self.word), std::mem::take(&mut self.word_width));
        if std::mem::take(&mut self.is_begin) {
            self.hang = if kind == Text::Prose { gap } else { gap + 2 };
            if word.starts_with(FENCE) {
                self.is_code = !self.is_code;
            }
        } else if kind == Text::Report && self.gap.len() > 1 && gap <= self.width / 3 {
            self.hang = gap;
        }
        let may_wrap = self.width >= MIN_WIDTH && kind != Text::Verbatim && !(kind == Text::Prose && self.is_code);
        // The last column stays empty, since some terminals begin a new line when it is written.
        if may_wrap && gap + word_width >= self.width && self.column > self.hang && !self.is_long {
            self.gap.clear();
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', self.hang));
            self.column = self.hang + word_width;
        } else {
            out.push_str(&std::mem::take(&mut self.gap));
            self.column = gap + word_width;
        }
        out.push_str(&word);
    }
}

/// Wraps a whole report to a width.
pub fn wrap(text: &str, width: usize) -> String {
    let (mut wrapper, mut out) = (Wrapper::new(width), String::new());
    wrapper.push(text, Text::Report, &mut out);
    wrapper.finish(Text::Report, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the wrapped text, added in parts of the given size.
    fn in_parts(text: &str, kind: Text, width: usize, part: usize) -> String {
        let (mut wrapper, mut out) = (Wrapper::new(width), String::new());
        let characters: Vec<char> = text.chars().collect();
        characters.chunks(part).for_each(|part| wrapper.push(&part.iter().collect::<String>(), kind, &mut out));
        wrapper.finish(kind, &mut out);
        out
    }

    #[test]
    fn wrapped_lines_are_indented_below_their_text() {
        let text = "drive      a line that is longer than it may be\n  one two three four five six seven\nshort\n";
        let expected = "drive      a line that is longer\n           than it may be\n  one two three four five six\n    seven\nshort\n";
        for part in 1..=text.len() {
            assert_eq!(in_parts(text, Text::Report, 34, part), expected, "in parts of {part}");
        }
        assert_eq!(wrap(text, 0), text);
        assert_eq!(in_parts(text, Text::Verbatim, 34, 3), text);
    }

    #[test]
    fn prose_is_wrapped_at_words_and_code_is_not() {
        let text = "The borrow checker checks borrows.\n\n```\nlet a_line = that_is + much_longer;\n```\n  - so it is done here\n";
        let expected = "The borrow checker\nchecks borrows.\n\n```\nlet a_line = that_is + much_longer;\n```\n  - so it is done\n  here\n";
        for part in 1..=7 {
            assert_eq!(in_parts(text, Text::Prose, 20, part), expected, "in parts of {part}");
        }
        // Each of these characters takes two columns, and there are no spaces.
        assert_eq!(in_parts("漢字漢字漢字漢字漢字漢字", Text::Prose, 20, 1), "漢字漢字漢字漢字漢\n字漢字");
        let word = "x".repeat(50);
        assert_eq!(in_parts(&word, Text::Prose, 20, 7), word);
    }
}
