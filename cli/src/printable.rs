//! Text that cannot control a terminal: names from files and models, with controls escaped.

use std::fmt;

/// Text from a file or a model. Displays it with terminal controls escaped.
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\n' => f.write_str("\\n"),
            c if is_terminal_control(c) => write!(f, "{}", c.escape_unicode()),
            c => fmt::Write::write_char(f, c),
        })
    }
}

/// Returns whether a character controls a terminal: control characters, marks of the writing
/// direction, and other line ends.
pub fn is_terminal_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
