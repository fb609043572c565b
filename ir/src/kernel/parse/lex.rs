//! Lexical tokens of kernel text: words, `%names`, numbers and symbols. Spaces, line ends and
//! comments between tokens are skipped.

use super::{ParseError, ParseProblem};

/// Maximum number of characters of the text that an error quotes.
const QUOTED: usize = 40;

/// A location in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line number, from 1.
    pub line: usize,
    /// Column number in characters, from 1.
    pub column: usize,
}

impl Default for Position {
    fn default() -> Position {
        Position { line: 1, column: 1 }
    }
}

impl Position {
    /// Returns an error at this location.
    pub fn error(self, problem: ParseProblem) -> ParseError {
        ParseError { line: self.line, column: self.column, problem }
    }
}

/// A lexical token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// A keyword, mnemonic, type or kernel name.
    Word(&'a str),
    /// The name after a `%`.
    Name(&'a str),
    /// A number as text.
    Number(&'a str),
    /// Punctuation mark.
    Symbol(&'static str),
    /// The end of the text.
    End,
}

impl std::fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cut = |text: &str| text.chars().take(QUOTED).collect::<String>();
        match self {
            Token::Word(text) | Token::Number(text) => write!(f, "`{}`", cut(text)),
            Token::Name(text) => write!(f, "`%{}`", cut(text)),
            Token::Symbol(text) => write!(f, "`{text}`"),
            Token::End => f.write_str("the end of the text"),
        }
    }
}

/// Punctuation marks. If one mark is the beginning of another, the longer mark comes first.
const SYMBOLS: [&str; 16] = ["..=", "..", "{", "}", "(", ")", "[", "]", ",", ":", "=", "+", "-", "*", "<", ">"];

/// Lexer, which reads a text token by token.
pub struct Lexer<'a> {
    rest: &'a str,
    /// Location of `rest`, the text after the current token.
    next: Position,
    /// The current token.
    pub token: Token<'a>,
    /// Location of the current token.
    pub position: Position,
}

impl<'a> Lexer<'a> {
    /// Returns a lexer at the first token of a text.
    pub fn new(text: &'a str) -> Result<Lexer<'a>, ParseError> {
        let start = Position::default();
        let mut lexer = Lexer { rest: text, next: start, token: Token::End, position: start };
        lexer.next()?;
        Ok(lexer)
    }

    /// Goes to the next token.
    pub fn next(&mut self) -> Result<(), ParseError> {
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.take(blank);
            if !self.rest.starts_with("//") && !self.rest.starts_with(';') {
                break;
            }
            let comment = self.rest.find('\n').unwrap_or(self.rest.len());
            self.take(comment);
        }
        self.position = self.next;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let word_end = |text: &str| text.find(|c| !is_word(c)).unwrap_or(text.len());
        self.token = match self.rest.chars().next() {
            None => Token::End,
            Some('%') => {
                let end = word_end(&self.rest[1..]);
                if end == 0 {
                    return Err(self.unexpected_error("a name or number after %"));
                }
                Token::Name(&self.take(1 + end)[1..])
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => Token::Word(self.take(word_end(self.rest))),
            Some(c) if c.is_ascii_digit() => Token::Number(self.take(number_end(self.rest))),
            Some(_) => match SYMBOLS.into_iter().find(|symbol| self.rest.starts_with(symbol)) {
                Some(symbol) => {
                    self.take(symbol.len());
                    Token::Symbol(symbol)
                }
                None => return Err(self.unexpected_error("a word, a %name, a number or punctuation")),
            },
        };
        Ok(())
    }

    fn unexpected_error(&self, expected: &str) -> ParseError {
        let found = format!("{:?}", self.rest.chars().next().unwrap_or(' '));
        self.next.error(ParseProblem::Expected { expected: expected.to_string(), found })
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        match taken.rfind('\n') {
            Some(last) => {
                self.next.line += taken.matches('\n').count();
                self.next.column = 1 + taken[last + 1..].chars().count();
            }
            None => self.next.column += taken.chars().count(),
        }
        self.rest = rest;
        taken
    }
}

/// Returns the length of a number. It consists of digits, letters (`0x`, `e`), a point with a digit
/// after it (`0..4` is a range), and the sign of an exponent.
fn number_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let hexadecimal = text.starts_with("0x");
    let at = |i: usize| bytes.get(i).copied().unwrap_or(b' ');
    (0..bytes.len())
        .find(|&i| {
            let sign_of_exponent = matches!(at(i), b'+' | b'-') && !hexadecimal && i > 0 && at(i - 1) == b'e';
            let point = at(i) == b'.' && at(i + 1).is_ascii_digit();
            !(at(i).is_ascii_alphanumeric() || sign_of_exponent || point)
        })
        .unwrap_or(bytes.len())
}
