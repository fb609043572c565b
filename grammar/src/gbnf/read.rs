//! Reader of GBNF, the grammar language of llama.cpp.

use std::collections::HashMap;

use super::{Characters, Node, Rules};
use crate::GrammarError;
use crate::error::MAX_DEPTH;

/// Max number of repetitions of a part, as in llama.cpp's own reader.
const MAX_REPEAT: u32 = 1000;
/// Max number of rules.
const MAX_RULES: usize = 4096;
/// Max number of repetition signs in a row.
const MAX_SIGNS: u32 = 8;

/// Reads the rules of a grammar. The root is the first rule of the result.
pub(super) fn rules(text: &str) -> Result<Rules, GrammarError> {
    let mut reader = Reader { rest: text, line: 1, names: HashMap::new(), rules: Vec::new(), used: Vec::new() };
    reader.number("root");
    reader.space(true);
    while !reader.rest.is_empty() {
        reader.rule()?;
        reader.space(true);
    }
    let missing = |number: usize| reader.names.iter().find(|(_, own)| **own == number).map(|(name, _)| *name);
    if reader.rules.len() > MAX_RULES {
        return reader.fail(format!("found {} rules; the limit is {MAX_RULES}", reader.rules.len()));
    }
    for (number, rule) in reader.rules.iter().enumerate() {
        if rule.is_none() {
            let line = reader.used.get(number).copied().unwrap_or(1);
            let message = format!("rule {} is used but not defined", missing(number).unwrap_or_default());
            return Err(GrammarError::Gbnf { line, message });
        }
    }
    let rules = Rules(reader.rules.into_iter().flatten().collect());
    // Repetition signs increase the nesting depth, too.
    match rules.0.iter().map(|rule| rule.depth(&[])).max() {
        Some(depth) if depth > MAX_DEPTH => Err(GrammarError::TooDeep { depth }),
        _ => Ok(rules),
    }
}

struct Reader<'t> {
    rest: &'t str,
    line: usize,
    names: HashMap<&'t str, usize>,
    rules: Vec<Option<Node>>,
    /// Number of the line that first names each rule.
    used: Vec<usize>,
}

impl<'t> Reader<'t> {
    fn fail<T>(&self, message: impl Into<String>) -> Result<T, GrammarError> {
        Err(GrammarError::Gbnf { line: self.line, message: message.into() })
    }

    /// Returns the number of a rule. Adds the rule if its name is new.
    fn number(&mut self, name: &'t str) -> usize {
        let next = self.names.len();
        let number = *self.names.entry(name).or_insert(next);
        if number == next {
            self.rules.push(None);
            self.used.push(self.line);
        }
        number
    }

    /// Skips white space and comments. Skips line ends as well if `newlines` is set.
    fn space(&mut self, newlines: bool) {
        loop {
            let Some(c) = self.rest.chars().next() else { return };
            match c {
                '\n' if !newlines => return,
                '\n' => self.line += 1,
                ' ' | '\t' | '\r' => {}
                '#' => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                    continue;
                }
                _ => return,
            }
            self.rest = &self.rest[1..];
        }
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.rest.strip_prefix(text);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn name(&mut self) -> Option<&'t str> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        Some(name).filter(|name| !name.is_empty())
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let Some(name) = self.name() else {
            return self.fail(format!("found {:?}; expected the name of a rule", excerpt(self.rest)));
        };
        let number = self.number(name);
        self.space(false);
        if !self.eat("::=") {
            return self.fail(format!("expected ::= after the rule name {name}"));
        }
        if self.rules[number].is_some() {
            return self.fail(format!("rule {name} is defined twice; rename or remove one"));
        }
        self.space(true);
        let node = self.choice(false)?;
        if !self.rest.is_empty() && !self.rest.starts_with('\n') {
            return self.fail(format!("found {:?}; expected the end of the rule", excerpt(self.rest)));
        }
        self.rules[number] = Some(node);
        Ok(())
    }

    fn choice(&mut self, nested: bool) -> Result<Node, GrammarError> {
        let mut all = vec![self.sequence(nested)?];
        while self.eat("|") {
            self.space(true);
            all.push(self.sequence(nested)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Node::Choice(all) })
    }

    fn sequence(&mut self, nested: bool) -> Result<Node, GrammarError> {
        let (mut all, mut signs): (Vec<Node>, u32) = (Vec::new(), 0);
        while let Some(c) = self.rest.chars().next() {
            // This is the part to which a following repetition sign applies.
            let whole = match c {
                '"' => Node::Sequence(self.text()?),
                '[' => self.characters()?,
                '.' => {
                    self.eat(".");
                    Node::Characters(Characters::default().complement())
                }
                '(' => {
                    self.eat("(");
                    self.space(true);
                    let inner = self.choice(true)?;
                    if !self.eat(")") {
                        return self.fail("a group has no closing )");
                    }
                    inner
                }
                '<' => self.token()?,
                '*' | '+' | '?' | '{' => match all.pop() {
                    Some(_) if signs == MAX_SIGNS => {
                        return self.fail(format!(
                            "one part has more than {MAX_SIGNS} repetition signs; use a group or {{n,m}}"
                        ));
                    }
                    Some(last) => {
                        signs += 1;
                        all.push(self.repetition(last)?);
                        self.space(nested);
                        continue;
                    }
                    None => {
                        return self.fail(
                            "a repetition sign has nothing to repeat; expected a text, a rule or a group before it",
                        );
                    }
                },
                _ => match self.name() {
                    Some(name) => Node::Rule(self.number(name)),
                    None => break,
                },
            };
            signs = 0;
            all.push(whole);
            self.space(nested);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Node::Sequence(all) })
    }

    fn repetition(&mut self, node: Node) -> Result<Node, GrammarError> {
        let (min, max) = match self.rest.as_bytes()[0] {
            b'*' => (0, None),
            b'+' => (1, None),
            b'?' => (0, Some(1)),
            _ => {
                let Some((inside, _)) = self.rest[1..].split_once('}') else {
                    return self.fail("a repetition has no closing }");
                };
                let number = |text: &str| text.trim().parse::<u32>().ok();
                let found = match inside.split_once(',') {
                    None => number(inside).map(|count| (count, Some(count))),
                    Some((min, "")) => number(min).map(|min| (min, None)),
                    Some((min, max)) => number(min).zip(number(max)).map(|(min, max)| (min, Some(max))),
                };
                let Some((min, max)) = found else {
                    return self.fail(format!(
                        "{{{}}} is not a repetition; expected {{n}}, {{n,}} or {{n,m}}",
                        excerpt(inside)
                    ));
                };
                if max.is_some_and(|max| max < min) {
                    return self.fail(format!(
                        "a repetition of {min} to {}; expected the smaller number first",
                        max.unwrap_or_default()
                    ));
                }
                if min.max(max.unwrap_or(0)) > MAX_REPEAT {
                    return self.fail(format!("a repetition has a number above {MAX_REPEAT}"));
                }
                self.rest = &self.rest[inside.len() + 1..];
                (min, max)
            }
        };
        self.rest = &self.rest[1..];
        Ok(Node::Repeat(Box::new(node), min, max))
    }

    fn text(&mut self) -> Result<Vec<Node>, GrammarError> {
        self.eat("\"");
        let mut all = Vec::new();
        while !self.eat("\"") {
            let Some(c) = self.character()? else { return self.fail("a text has no closing quote") };
            all.push(Node::Characters(Characters(vec![(c, c)])));
        }
        Ok(all)
    }

    fn characters(&mut self) -> Result<Node, GrammarError> {
        self.eat("[");
        let negated = self.eat("^");
        let mut ranges = Vec::new();
        while !self.eat("]") {
            let no_end = "a set of characters has no closing ]";
            let Some(first) = self.character()? else { return self.fail(no_end) };
            let mut last = first;
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.eat("-");
                let Some(end) = self.character()? else { return self.fail(no_end) };
                last = end;
            }
            if last < first {
                let shown = |c| char::from_u32(c).unwrap_or(char::REPLACEMENT_CHARACTER);
                return self.fail(format!(
                    "{}-{} is not a range; expected the first character before the last",
                    shown(first),
                    shown(last)
                ));
            }
            ranges.push((first, last));
        }
        let set = Characters::new(ranges);
        let set = if negated { set.complement() } else { set };
        if set.is_empty() {
            return self.fail("this set of characters is empty; expected at least one character");
        }
        Ok(Node::Characters(set))
    }

    /// Reads a character or an escape.
    fn character(&mut self) -> Result<Option<u32>, GrammarError> {
        let Some(c) = self.rest.chars().next() else { return Ok(None) };
        if c == '\n' {
            self.line += 1;
        }
        self.rest = &self.rest[c.len_utf8()..];
        if c != '\\' {
            return Ok(Some(c.into()));
        }
        let Some(kind) = self.rest.chars().next() else { return Ok(None) };
        self.rest = &self.rest[kind.len_utf8()..];
        let digits = match kind {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            'n' => return Ok(Some('\n'.into())),
            'r' => return Ok(Some('\r'.into())),
            't' => return Ok(Some('\t'.into())),
            '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(Some(kind.into())),
            _ => return self.fail(format!("\\{kind} is not an escape sequence")),
        };
        let found = self.rest.get(..digits).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        match found.filter(|found| char::from_u32(*found).is_some()) {
            Some(found) => {
                self.rest = &self.rest[digits..];
                Ok(Some(found))
            }
            None => self.fail(format!("\\{kind} must be followed by {digits} hexadecimal digits of a character")),
        }
    }

    /// Reads a token, written as `<[1000]>` or `<name>`.
    fn token(&mut self) -> Result<Node, GrammarError> {
        let is_part = |c: char| !c.is_whitespace() && c != '<' && c != '>';
        match self.rest.split_once('>') {
            Some((name, rest)) if name.len() > 1 && name[1..].chars().all(is_part) => {
                self.rest = rest;
                Ok(Node::Token(format!("{name}>")))
            }
            _ => self.fail("a token is malformed; expected <name> or <[number]>"),
        }
    }
}

/// Returns the beginning of a text, for error messages.
fn excerpt(text: &str) -> String {
    text.chars().take_while(|c| !c.is_whitespace()).take(20).collect()
}
