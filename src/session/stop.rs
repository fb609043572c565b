//! Stop strings: text that ends an answer wherever it comes up, and is not a part of it.
//!
//! ```
//! use ixc::session::StopStrings;
//!
//! let mut stop = StopStrings::new(["User:"]);
//! assert_eq!(stop.push("Good day. Us"), "Good day. "); // It may be the beginning.
//! assert_eq!(stop.push("ually"), "Usually");
//! assert_eq!((stop.push("\nUser: bye"), stop.stopped()), ("\n".into(), true));
//! assert_eq!(stop.finish(), "");
//! ```

use std::sync::Arc;

/// Looks for strings in text that comes piece by piece, and holds back what may be the beginning of one.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    strings: Arc<[String]>,
    held: String,
    /// Which was found.
    found: Option<usize>,
}

/// Makes a search for strings that several texts share. Empty strings never match.
impl From<Arc<[String]>> for StopStrings {
    fn from(strings: Arc<[String]>) -> StopStrings {
        match strings.iter().any(String::is_empty) {
            true => StopStrings::new(strings.iter()),
            false => StopStrings { strings, ..StopStrings::default() },
        }
    }
}

impl StopStrings {
    /// For these strings; empty ones are never found.
    pub fn new(strings: impl IntoIterator<Item = impl Into<String>>) -> StopStrings {
        let strings = strings.into_iter().map(Into::into).filter(|string: &String| !string.is_empty());
        StopStrings { strings: strings.collect(), ..StopStrings::default() }
    }

    /// The text that is certain to come before any of the strings, after this piece.
    pub fn push(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        self.held.push_str(text);
        let found =
            self.strings.iter().enumerate().filter_map(|(i, string)| Some((self.held.find(string.as_str())?, i)));
        if let Some((at, which)) = found.min() {
            self.found = Some(which);
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let begins = |at: &usize| self.strings.iter().any(|string| string.starts_with(&self.held[*at..]));
        let undecided = self.held.char_indices().map(|(at, _)| at).find(begins).unwrap_or(self.held.len());
        let rest = self.held.split_off(undecided);
        std::mem::replace(&mut self.held, rest)
    }

    /// Whether one of the strings was found.
    pub fn stopped(&self) -> bool {
        self.found.is_some()
    }

    /// The string that was found.
    pub fn found(&self) -> Option<&str> {
        self.strings.get(self.found?).map(String::as_str)
    }

    /// What was held back, where no more text comes; nothing after one of the strings.
    pub fn finish(self) -> String {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In whatever pieces text comes: what is before the first of the strings, and no more.
    #[test]
    fn pieces_do_not_matter() {
        for (strings, text, expected) in [
            (&["aab"][..], "aaab", "a"),
            (&["aab"], "aaaa", "aaaa"),
            (&["###", "\n\n"], "one\ntwo\n\nthree ###", "one\ntwo"),
            (&["é!", "!"], "né?é!", "né?"),
            (&["x"], "", ""),
            (&["", "no"], "yes", "yes"),
            (&[], "all", "all"),
        ] {
            let chars: Vec<char> = text.chars().collect();
            for size in 1..=chars.len().max(1) {
                let mut stop = StopStrings::new(strings.iter().copied());
                let mut found = String::new();
                for piece in chars.chunks(size) {
                    found += &stop.push(&String::from_iter(piece));
                    assert!(text.starts_with(&found));
                }
                assert_eq!(stop.stopped(), expected != text, "{strings:?} in {text:?}");
                found += &stop.finish();
                assert_eq!(found, expected, "{strings:?} in {text:?}, pieces of {size}");
            }
        }
    }
}
