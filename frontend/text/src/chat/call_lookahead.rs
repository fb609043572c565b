//! Lookahead for formats whose calls have no markers. It decides early whether a text that looks
//! like a tool call can still be a call.
//!
//! In such a format, a call names one of the request's tools early. In an object, the name is in
//! the first member, except for members of the usual wrapper. In Python's syntax, it is the first
//! word of a list. `{"answer": …` and `[1, 2` are therefore answers at that point, and streamed. A
//! text that names a tool is held back to its end.
//!
//! ```text
//! {"type": "function", "function": {"name": "look      can become a call of the tool look_up
//! {"name": "Paris"                                     cannot become a call: decided at `P`
//! ```

use super::grammar::Grammar;
use super::tools::TextParameters;

/// Prospect that a text becomes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prospect {
    /// The text may still become a call; no tool is named yet.
    Open,
    /// The text names a tool. Only its end decides whether it is a call.
    Named,
    /// The text cannot become a call. Its first bytes, of this number, prove it.
    None(usize),
}

/// Maximum length in bytes of an id before a call's name.
const MAX_ID: usize = 256;
/// Maximum length in bytes of a beginning that names no tool. Longer text is no call, because each
/// piece of an answer examines the beginning again.
const MAX_OPEN: usize = 4096;
/// Names of the members that a call may have: with its name, an id, the arguments, and (in a
/// wrapper) the whole call.
const NAMES: [&str; 2] = ["name", "tool_name"];
const IDS: [&str; 2] = ["id", "tool_call_id"];
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];
const CALL_MEMBER: &str = "function";
/// Name of the member that states a type. For calls, its value is [`KIND_OF_CALLS`].
const KIND: &str = "type";
const KIND_OF_CALLS: &str = "function";

/// Returns the prospect of a text in a format with this grammar. The text includes the first
/// bracket.
pub(super) fn call_prospect(grammar: &Grammar, text: &str, tools: &TextParameters) -> Prospect {
    let mut reader = Reader { text, at: 0, tools };
    let found = match grammar {
        Grammar::Objects => reader.list_or_object(),
        Grammar::Python => reader.python(),
        _ => Err(Prospect::Named),
    };
    match found.err().unwrap_or(Prospect::Open) {
        Prospect::Open if text.len() > MAX_OPEN => Prospect::None(text.len()),
        decided => decided,
    }
}

/// Reader that returns an error as soon as the prospect is decided.
struct Reader<'t> {
    text: &'t str,
    at: usize,
    tools: &'t TextParameters,
}

type Read<T> = Result<T, Prospect>;

impl Reader<'_> {
    /// Skips white space. Returns the next character.
    fn next(&mut self) -> Read<char> {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed.chars().next().ok_or(Prospect::Open)
    }

    /// Returns [`Prospect::None`]; the next character proves it.
    fn no_call<T>(&self) -> Read<T> {
        let next = self.text[self.at..].chars().next().map_or(0, char::len_utf8);
        Err(Prospect::None(self.at + next))
    }

    fn needs(&mut self, expected: char) -> Read<()> {
        if self.next()? != expected {
            return self.no_call();
        }
        self.at += expected.len_utf8();
        Ok(())
    }

    /// Reads a string; `may_be` must accept each of its prefixes. Escapes are not decoded.
    fn string(&mut self, may_be: impl Fn(&str) -> bool) -> Read<&str> {
        self.needs('"')?;
        let from = self.at;
        for c in self.text[from..].chars() {
            match c {
                '"' => {
                    self.at += 1;
                    return Ok(&self.text[from..self.at - 1]);
                }
                '\\' => return Err(Prospect::Named),
                _ => {}
            }
            let end = self.at + c.len_utf8();
            if !may_be(&self.text[from..end]) {
                return self.no_call();
            }
            self.at = end;
        }
        Err(Prospect::Open)
    }

    /// Reads the whole name of a tool.
    fn tool(&mut self) -> Read<()> {
        let tools = self.tools;
        let is_tool = tools.has_tool(self.string(|name| tools.may_be_tool(name))?);
        Err(if is_tool { Prospect::Named } else { Prospect::None(self.at) })
    }

    fn list_or_object(&mut self) -> Read<()> {
        if self.next()? == '[' {
            self.at += 1;
        }
        self.object()
    }

    fn object(&mut self) -> Read<()> {
        self.needs('{')?;
        let mut is_inner = false;
        loop {
            let keys = || NAMES.into_iter().chain(IDS).chain(ARGUMENTS).chain([CALL_MEMBER, KIND]);
            let key = self.string(|key| keys().any(|known| known.starts_with(key)))?.to_owned();
            if !keys().any(|known| known == key) {
                return Err(Prospect::None(self.at));
            }
            self.needs(':')?;
            match &*key {
                KIND => {
                    if self.string(|kind| KIND_OF_CALLS.starts_with(kind))? != KIND_OF_CALLS {
                        return Err(Prospect::None(self.at));
                    }
                }
                // A wrapper contains the call itself, so a wrapper in a wrapper is no call.
                CALL_MEMBER if is_inner => return Err(Prospect::None(self.at)),
                CALL_MEMBER => {
                    self.needs('{')?;
                    is_inner = true;
                    continue;
                }
                key if NAMES.contains(&key) => return self.tool(),
                // If arguments precede the name, the text is nearly always a call: answers seldom
                // begin so.
                key if ARGUMENTS.contains(&key) => return Err(Prospect::Named),
                _ => self.id()?,
            }
            self.needs(',')?;
        }
    }

    /// Reads an id: a string of limited length, a number, or a word.
    fn id(&mut self) -> Read<()> {
        if self.next()? == '"' {
            return self.string(|id| id.len() <= MAX_ID).map(|_| ());
        }
        let rest = &self.text[self.at..];
        let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c)).ok_or(Prospect::Open)?;
        if length == 0 || length > MAX_ID {
            return self.no_call();
        }
        self.at += length;
        Ok(())
    }

    /// Reads the first call of a list in Python's syntax.
    fn python(&mut self) -> Read<()> {
        self.needs('[')?;
        self.next()?;
        let from = self.at;
        for c in self.text[from..].chars() {
            if c == '(' || c.is_whitespace() {
                break;
            }
            let end = self.at + c.len_utf8();
            if !self.tools.may_be_tool(&self.text[from..end]) {
                return self.no_call();
            }
            self.at = end;
        }
        let is_tool = self.tools.has_tool(&self.text[from..self.at]);
        if self.at < self.text.len() && !is_tool {
            return self.no_call();
        }
        self.needs('(')?;
        Err(Prospect::Named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that a decision is final: no continuation of a text changes it.
    #[test]
    fn texts_that_cannot_become_calls_are_decided_early() {
        let tools = TextParameters::of_tools(r#"[{"function": {"name": "look_up"}}, {"function": {"name": "look"}}]"#);
        let python = ["[look(", "[ look_up (", "[look", "[lo", "["];
        let objects = [
            "{\"name\": \"look\"",
            "[{\"type\": \"function\", \"function\": {\"name\": \"look_up\"",
            "{\"id\": 7, \"tool_name\": \"look\"",
            "{\"id\": \"a\", \"name\":\"look_up\"",
            "{\"parameters\"   :",
            "{\"n\\u0061me\"",
        ];
        for (grammar, texts) in [(Grammar::Python, &python[..]), (Grammar::Objects, &objects)] {
            for text in texts {
                let whole = call_prospect(&grammar, text, &tools);
                assert!(!matches!(whole, Prospect::None(_)), "{text}: {whole:?}");
                for (at, _) in text.char_indices() {
                    assert!(
                        !matches!(call_prospect(&grammar, &text[..at], &tools), Prospect::None(_)),
                        "{text} to {at}"
                    );
                }
            }
        }
        for (grammar, text, seen) in [
            (Grammar::Objects, "{\"answer\": 1}", "{\"an"),
            (Grammar::Objects, "{\"name\": \"Paris\"}", "{\"name\": \"P"),
            (Grammar::Objects, "{\"name\": \"loo\"}", "{\"name\": \"loo\""),
            (Grammar::Objects, "{\"type\": \"object\"}", "{\"type\": \"o"),
            (Grammar::Objects, "{\"id\": 7}", "{\"id\": 7}"),
            (Grammar::Objects, "{\"function\": \"sine\"}", "{\"function\": \""),
            (Grammar::Objects, "{\"function\": {\"function\": {\"name\": \"look\"}}}", "{\"function\": {\"function\":"),
            (Grammar::Objects, "{}", "{}"),
            (Grammar::Objects, "[1, 2]", "[1"),
            (Grammar::Objects, "[[]]", "[["),
            (Grammar::Python, "[1, 2]", "[1"),
            (Grammar::Python, "[]", "[]"),
            (Grammar::Python, "[look, up]", "[look,"),
            (Grammar::Python, "[loo (", "[loo "),
            (Grammar::Python, "[look é", "[look é"),
        ] {
            assert_eq!(call_prospect(&grammar, text, &tools), Prospect::None(seen.len()), "{text}");
            assert_eq!(call_prospect(&grammar, seen, &tools), Prospect::None(seen.len()), "{seen}");
            let before = &seen[..seen.char_indices().last().unwrap().0];
            assert_eq!(call_prospect(&grammar, before, &tools), Prospect::Open, "{before}");
        }
    }

    /// Tests that endless nesting and endless white space are neither held back nor read
    /// repeatedly.
    #[test]
    fn endless_nesting_and_whitespace_is_no_call() {
        let tools = TextParameters::of_tools(r#"[{"function": {"name": "look"}}]"#);
        for text in ["{\"function\":".repeat(100_000), format!("{{{}", " ".repeat(100_000))] {
            assert!(matches!(call_prospect(&Grammar::Objects, &text, &tools), Prospect::None(_)));
        }
    }
}
