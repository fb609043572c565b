//! Text that cannot steer a terminal: names from files and models, with controls escaped.

use std::fmt;

/// Text from a file or a model, with everything escaped that a terminal would obey rather than
/// show.
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

/// Whether a terminal would obey this character: controls, those that reverse the direction of
/// writing, and other ends of lines.
pub fn is_terminal_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
