//! Reader of calls in Python's syntax, with literals as values: `[f(a="x", b=[1, True]), g()]`. The
//! calls may instead be on separate lines.

use super::call::{MAX_DEPTH, ParsedCall, parsed_call};
use super::json;
use super::reading::Reading;

/// Reads a list of calls.
pub(super) fn calls(text: &str) -> Reading<Vec<ParsedCall>> {
    // MiniCPM3 writes calls in a code block, which is removed here.
    let text = text.trim();
    let text = text.strip_prefix("```python").map_or(text, |code| code.strip_suffix("```").unwrap_or(code)).trim();
    let mut reader = Reader { rest: text };
    let calls = if text.starts_with('[') { reader.list() } else { reader.lines() };
    match calls {
        Ok(calls) if reader.rest.trim().is_empty() && !calls.is_empty() => Reading::Whole(calls),
        Err(Stop::Ended) => Reading::Unfinished,
        Ok(_) | Err(Stop::Wrong) => Reading::Wrong,
    }
}

/// Converts a Python literal to JSON; `None` if the text is not exactly one literal.
pub(super) fn literal(text: &str) -> Option<String> {
    // The added comma marks the end of a number or word.
    let text = format!("{text},");
    let mut reader = Reader { rest: &text };
    let value = reader.value(MAX_DEPTH).ok()?;
    (reader.rest.trim() == ",").then_some(value)
}

/// Reason why reading stopped.
enum Stop {
    Ended,
    Wrong,
}

struct Reader<'t> {
    rest: &'t str,
}

impl Reader<'_> {
    fn list(&mut self) -> Result<Vec<ParsedCall>, Stop> {
        self.needs("[")?;
        let mut calls = Vec::new();
        while !self.takes("]") {
            if !calls.is_empty() {
                self.needs(",")?;
            }
            calls.push(self.call()?);
        }
        Ok(calls)
    }

    fn lines(&mut self) -> Result<Vec<ParsedCall>, Stop> {
        let mut calls = vec![self.call()?];
        while !self.rest.trim().is_empty() {
            calls.push(self.call()?);
        }
        Ok(calls)
    }

    fn call(&mut self) -> Result<ParsedCall, Stop> {
        let name = self.until('(')?.to_owned();
        let mut members: Vec<(String, String)> = Vec::new();
        while !self.takes(")") {
            if !members.is_empty() {
                self.needs(",")?;
            }
            let key = self.until('=')?.to_owned();
            members.push((key, self.value(MAX_DEPTH)?));
        }
        let arguments = json::object(members.iter().map(|(key, value)| (&**key, value.clone())));
        match parsed_call(None, &name, arguments) {
            Reading::Whole(call) => Ok(call),
            Reading::Unfinished | Reading::Wrong => Err(Stop::Wrong),
        }
    }

    /// Skips white space, and the word `word` after it. Returns whether the word was there.
    fn takes(&mut self, word: &str) -> bool {
        let after = self.rest.trim_start().strip_prefix(word);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn needs(&mut self, word: &str) -> Result<(), Stop> {
        if self.takes(word) {
            return Ok(());
        }
        Err(if self.rest.trim().is_empty() { Stop::Ended } else { Stop::Wrong })
    }

    /// Reads a name and the character `end` after it.
    fn until(&mut self, end: char) -> Result<&str, Stop> {
        let rest = self.rest.trim_start();
        let length = rest.find(|c: char| !c.is_alphanumeric() && !"_-.:".contains(c)).ok_or(Stop::Ended)?;
        let (name, after) = rest.split_at(length);
        self.rest = after.trim_start().strip_prefix(end).ok_or(Stop::Wrong)?;
        Ok(name)
    }

    /// Reads a literal, and converts it to JSON.
    fn value(&mut self, depth: usize) -> Result<String, Stop> {
        if depth == 0 {
            return Err(Stop::Wrong);
        }
        for quote in ["\"", "'"] {
            if self.takes(quote) {
                return self.text(quote).map(|text| json::string(&text));
            }
        }
        let is_object = self.takes("{");
        if is_object || self.takes("[") {
            let (open, close) = if is_object { ("{", "}") } else { ("[", "]") };
            let mut parts = Vec::new();
            while !self.takes(close) {
                if !parts.is_empty() {
                    self.needs(",")?;
                    // Python allows a comma after the last element.
                    if self.takes(close) {
                        break;
                    }
                }
                let mut part = self.value(depth - 1)?;
                if is_object {
                    if !part.starts_with('"') {
                        return Err(Stop::Wrong);
                    }
                    self.needs(":")?;
                    part = format!("{part}: {}", self.value(depth - 1)?);
                }
                parts.push(part);
            }
            return Ok([open, &parts.join(", "), close].concat());
        }
        let rest = self.rest.trim_start();
        let end = rest.find([',', ')', ']', '}', ':']).ok_or(Stop::Ended)?;
        let (word, after) = rest.split_at(end);
        self.rest = after;
        match word.trim() {
            "True" => Ok("true".to_owned()),
            "False" => Ok("false".to_owned()),
            "None" => Ok("null".to_owned()),
            word if json::is_value(word) => Ok(word.to_owned()),
            _ => Err(Stop::Wrong),
        }
    }

    /// Reads the text up to the closing quotation mark.
    fn text(&mut self, quote: &str) -> Result<String, Stop> {
        let mut text = String::new();
        loop {
            let at = self.rest.find(['\\', '"', '\'']).ok_or(Stop::Ended)?;
            text.push_str(&self.rest[..at]);
            let mut chars = self.rest[at..].chars();
            let c = chars.next().ok_or(Stop::Ended)?;
            if c != '\\' {
                self.rest = chars.as_str();
                if quote.starts_with(c) {
                    return Ok(text);
                }
                text.push(c);
                continue;
            }
            match chars.next().ok_or(Stop::Ended)? {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                c @ ('\\' | '"' | '\'') => text.push(c),
                c @ ('x' | 'u' | 'U') => {
                    let length = match c {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let digits =
                        chars.as_str().get(..length).filter(|digits| digits.bytes().all(|c| c.is_ascii_hexdigit()));
                    let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).and_then(char::from_u32);
                    match code {
                        Some(code) => {
                            text.push(code);
                            self.rest = &chars.as_str()[length..];
                            continue;
                        }
                        None => text.extend(['\\', c]),
                    }
                }
                // As in Python, a backslash before any other character stays in the text.
                c => text.extend(['\\', c]),
            }
            self.rest = chars.as_str();
        }
    }
}
