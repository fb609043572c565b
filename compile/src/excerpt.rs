//! An error in a text, shown with its position: `file:line:column:`, which editors understand, then
//! the line, and a caret under the column.
//!
//! ```
//! use std::path::Path;
//! use ixc_compile::excerpt::Excerpt;
//!
//! let text = "func @f() -> () {\n  %1 = spin\n}";
//! let error = ixc_ir::graph::parse::parse(text).unwrap_err();
//! let shown = Excerpt::new(Path::new("f.ix"), text, error.line, error.column, &error.problem).to_string();
//! assert_eq!(shown, "f.ix:2:8: there is no op spin\n    %1 = spin\n         ^");
//! ```

use std::fmt;
use std::path::{Path, PathBuf};

/// Max columns of a long line that are shown before the column of the error.
const BEFORE: usize = 60;
/// Max columns of a long line that are shown in total.
const SHOWN: usize = 120;

/// Error in the text of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// File with the error.
    pub path: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Description of the problem at this line.
    pub problem: String,
    /// Text of the line, or of its part near the column, and the number of characters before the
    /// column in this text.
    source: Option<(String, usize)>,
}

impl Excerpt {
    /// Creates an excerpt for `problem` at a position in `text`, the contents of `path`.
    pub fn new(path: &Path, text: &str, line: usize, column: usize, problem: &dyn fmt::Display) -> Excerpt {
        let skipped = column.saturating_sub(1 + BEFORE);
        // The text is untrusted: control characters are shown as spaces.
        let visible = |c: char| if c.is_control() { ' ' } else { c };
        let source = text.lines().nth(line.saturating_sub(1));
        let source = source.map(|line| line.chars().skip(skipped).take(SHOWN).map(visible).collect());
        let source = source.map(|source| (source, skipped));
        Excerpt { path: path.to_owned(), line, column, problem: problem.to_string(), source }
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.path.display(), self.line, self.column, self.problem)?;
        let Some((source, skipped)) = &self.source else { return Ok(()) };
        write!(f, "\n  {source}\n  {:indent$}^", "", indent = self.column.saturating_sub(1 + skipped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_of_a_long_line_surrounds_the_column() {
        let text = format!("short\n{}X{}", "a".repeat(200), "\u{1b}".repeat(200));
        let shown = Excerpt::new(Path::new("k.ix"), &text, 2, 201, &"no X").to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "k.ix:2:201: no X");
        assert_eq!(lines[1], format!("  {}X{}", "a".repeat(60), " ".repeat(59)));
        assert_eq!(lines[2], format!("  {}^", " ".repeat(60)));
        // After the last line there is no line to show.
        assert_eq!(Excerpt::new(Path::new("k.ix"), "a\n", 2, 1, &"ends").to_string(), "k.ix:2:1: ends");
    }
}
