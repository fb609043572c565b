//! Lexical tokens of graph IR text.

use super::{Failure, ParseProblem, Parser};

/// A lexical token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'t> {
    /// A mnemonic, keyword, format, attribute name or `_`.
    Word(&'t str),
    /// A number, not yet parsed.
    Number(&'t str),
    /// `%name` or `%12`, without the sigil.
    Value(&'t str),
    /// `@name` or `@"name"`, unescaped.
    Symbol(String),
    /// `"text"`, unescaped.
    Text(String),
    /// The arrow `->`, or a single character.
    Mark(&'t str),
    /// The end of the text.
    End,
}

impl Token<'_> {
    pub(super) fn text(&self) -> String {
        match self {
            Token::Word(s) | Token::Number(s) | Token::Mark(s) => format!("'{}'", clip(s)),
            Token::Value(s) => format!("'%{}'", clip(s)),
            Token::Symbol(s) => format!("'@{}'", clip(s)),
            Token::Text(s) => format!("{:?}", clip(s)),
            Token::End => "the end of the text".to_string(),
        }
    }
}

/// Shortens hostile text for a message, to at most 40 characters.
pub(super) fn clip(s: &str) -> String {
    match s.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &s[..end]),
        None => s.to_string(),
    }
}

impl<'t> Parser<'t> {
    pub(super) fn word(&mut self, what: &str) -> Result<(usize, &'t str), Failure> {
        match self.next()? {
            (at, Token::Word(word)) => Ok((at, word)),
            (at, other) => Err(expected_error(at, what, &other)),
        }
    }

    pub(super) fn keyword(&mut self, keyword: &str) -> Result<(), Failure> {
        match self.word(keyword)? {
            (_, word) if word == keyword => Ok(()),
            (at, word) => Err(expected_error(at, keyword, &Token::Word(word))),
        }
    }

    pub(super) fn value(&mut self) -> Result<(usize, &'t str), Failure> {
        match self.next()? {
            (at, Token::Value(label)) => Ok((at, label)),
            (at, other) => Err(expected_error(at, "a value", &other)),
        }
    }

    pub(super) fn symbol(&mut self) -> Result<(usize, String), Failure> {
        match self.next()? {
            (at, Token::Symbol(name)) => Ok((at, name)),
            (at, other) => Err(expected_error(at, "a name with @", &other)),
        }
    }

    pub(super) fn string(&mut self) -> Result<String, Failure> {
        match self.next()? {
            (_, Token::Text(text)) => Ok(text),
            (at, other) => Err(expected_error(at, "text in quotes", &other)),
        }
    }

    pub(super) fn mark(&mut self, mark: &str) -> Result<(), Failure> {
        match self.next()? {
            (_, Token::Mark(found)) if found == mark => Ok(()),
            (at, other) => Err(expected_error(at, &format!("'{mark}'"), &other)),
        }
    }

    pub(super) fn peek(&mut self) -> Result<(usize, Token<'t>), Failure> {
        let before = self.at;
        let token = self.next();
        self.at = before;
        token
    }

    pub(super) fn peek_is(&mut self, mark: &str) -> Result<bool, Failure> {
        Ok(matches!(self.peek()?, (_, Token::Mark(found)) if found == mark))
    }

    pub(super) fn take(&mut self, mark: &str) -> Result<bool, Failure> {
        let taken = self.peek_is(mark)?;
        if taken {
            self.next()?;
        }
        Ok(taken)
    }

    /// Returns the next token and its byte offset.
    pub(super) fn next(&mut self) -> Result<(usize, Token<'t>), Failure> {
        let text: &'t str = self.text;
        loop {
            let rest = &text[self.at..];
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with(';') && !trimmed.starts_with("//") {
                break;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
        let at = self.at;
        let rest = &text[at..];
        let run = |from: usize, inside: fn(char) -> bool| {
            from + rest[from..].find(|c| !inside(c)).unwrap_or(rest.len() - from)
        };
        let (length, token) = match rest.chars().next() {
            None => (0, Token::End),
            Some('%') => {
                let end = run(1, is_name_char);
                if end == 1 {
                    return Err(expected_error(at, "a value's name", &Token::Mark("%")));
                }
                (end, Token::Value(&rest[1..end]))
            }
            Some('@') if rest[1..].starts_with('"') => {
                let (length, name) = self.read_quoted(at + 1)?;
                (1 + length, Token::Symbol(name))
            }
            Some('"') => {
                let (length, text) = self.read_quoted(at)?;
                (length, Token::Text(text))
            }
            Some('@') => {
                let end = run(1, is_name_char);
                if end == 1 {
                    return Err(expected_error(at, "a name", &Token::Mark("@")));
                }
                (end, Token::Symbol(rest[1..end].to_string()))
            }
            Some('-') if rest.starts_with("->") => (2, Token::Mark(&rest[..2])),
            Some(c) if c.is_ascii_digit() || c == '-' => {
                // A sign may follow the `e` of an exponent. Hexadecimal numbers have no exponent.
                let mut end = run(1, is_number_char);
                let hex = rest.starts_with("0x");
                if !hex && rest[..end].ends_with(['e', 'E']) && rest[end..].starts_with(['+', '-']) {
                    end = run(end + 1, is_number_char);
                }
                (end, Token::Number(&rest[..end]))
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let end = run(0, |c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
                (end, Token::Word(&rest[..end]))
            }
            Some(c) => (c.len_utf8(), Token::Mark(&rest[..c.len_utf8()])),
        };
        self.at += length;
        Ok((at, token))
    }

    /// Reads `"..."` at byte `at`. Returns its length in the text and the unescaped string.
    fn read_quoted(&self, at: usize) -> Result<(usize, String), Failure> {
        let body = at + 1;
        let bad = |offset: usize, what: &str| {
            let found = match self.text[body + offset..].chars().next() {
                Some(c) => format!("{c:?}"),
                None => "the end of the text".to_string(),
            };
            Failure { at: body + offset, problem: ParseProblem::Expected { expected: what.to_string(), found } }
        };
        let mut name = String::new();
        let mut chars = self.text[body..].char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => return Ok((1 + i + 1, name)),
                '\n' => return Err(bad(i, "'\"'")),
                '\\' => match chars.next() {
                    Some((_, c @ ('"' | '\\'))) => name.push(c),
                    Some((j, 'u')) => {
                        let escape = &self.text[body + j..];
                        let code = escape.strip_prefix("u{").and_then(|rest| rest.split_once('}'));
                        let c = code
                            .filter(|(hex, _)| hex.len() <= 6 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
                            .and_then(|(hex, _)| u32::from_str_radix(hex, 16).ok().map(|n| (hex.len(), n)))
                            .and_then(|(length, n)| char::from_u32(n).map(|c| (length, c)));
                        let Some((length, c)) = c else { return Err(bad(j, "u{HEX} of a character")) };
                        name.push(c);
                        // Skips `{`, the digits and `}`.
                        for _ in 0..length + 2 {
                            chars.next();
                        }
                    }
                    Some((j, _)) => return Err(bad(j, "'\"', '\\' or u{HEX}")),
                    None => break,
                },
                c => name.push(c),
            }
        }
        Err(bad(self.text.len() - body, "'\"'"))
    }
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$' | '-')
}

fn is_number_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '.'
}

pub(super) fn expected_error(at: usize, expected: &str, found: &Token<'_>) -> Failure {
    Failure { at, problem: ParseProblem::Expected { expected: expected.to_string(), found: found.text() } }
}
