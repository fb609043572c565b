//! Reader of GBNF, the grammar language of llama.cpp, and its conversion to Lark.
//!
//! ```text
//! root ::= "[" item ("," item)* "]"        start: r0
//! item ::= [0-9]+ | root                   r0: /\x{5b}/ r1 (/\x{2c}/ r1)* /\x{5d}/
//!                                          r1: /[0-9]{1,}/ | r0
//! ```
//!
//! GBNF is defined over characters, while Lark has a lexer that takes the longest lexeme. Both
//! match the same texts if each lexeme is one character. Longer lexemes make masks 40 times faster,
//! so [`lexemes`] finds the parts that can safely be lexemes. If their safety is not certain, all
//! lexemes are single characters.

mod lexemes;
mod read;

use std::collections::BTreeSet;

use crate::GrammarError;

/// Set of characters, as sorted ranges that neither overlap nor are adjacent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Characters(Vec<(u32, u32)>);

/// Code points that are not characters: surrogates, which are halves of pairs in UTF-16.
const SURROGATES: (u32, u32) = (0xd800, 0xdfff);

impl Characters {
    fn new(mut ranges: Vec<(u32, u32)>) -> Characters {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = (*end).max(last),
                _ => merged.push((first, last)),
            }
        }
        Characters(merged)
    }

    /// Returns the complement of the set.
    fn complement(&self) -> Characters {
        let (mut others, mut next) = (Vec::new(), 0);
        for (first, last) in Characters::new(self.0.iter().copied().chain([SURROGATES]).collect()).0 {
            if next < first {
                others.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= char::MAX as u32 {
            others.push((next, char::MAX as u32));
        }
        Characters(others)
    }

    /// Returns whether the sets share a character. Reads both sets in one pass.
    fn intersects(&self, other: &Characters) -> bool {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some((first, last)), Some((begin, end))) = (a.peek(), b.peek()) {
            if first <= end && begin <= last {
                return true;
            }
            if last < end {
                a.next()
            } else {
                b.next()
            };
        }
        false
    }

    fn contains(&self, c: u32) -> bool {
        let next = self.0.partition_point(|(first, _)| *first <= c);
        next > 0 && c <= self.0[next - 1].1
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the set as a regular expression.
    fn regex(&self) -> String {
        let one = |c: u32| match char::from_u32(c) {
            Some(c) if c.is_ascii_alphanumeric() => c.to_string(),
            _ => format!("\\x{{{c:x}}}"),
        };
        match self.0.as_slice() {
            [(first, last)] if first == last => one(*first),
            ranges => {
                let mut text = "[".to_owned();
                for (first, last) in ranges {
                    text.push_str(&one(*first));
                    if first < last {
                        text.push('-');
                        text.push_str(&one(*last));
                    }
                }
                text + "]"
            }
        }
    }
}

/// Part of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    /// One character of a set.
    Characters(Characters),
    /// Another rule, given by its number.
    Rule(usize),
    /// A token, written in Lark's notation.
    Token(String),
    /// Parts in sequence. Without parts, it matches the empty text.
    Sequence(Vec<Node>),
    /// A choice between several parts.
    Choice(Vec<Node>),
    /// Repetition of a part, with the min and max number of repetitions.
    Repeat(Box<Node>, u32, Option<u32>),
}

impl Node {
    /// Returns the numbers of the rules that the node names.
    fn names(&self) -> BTreeSet<usize> {
        let (mut names, mut open) = (BTreeSet::new(), vec![self]);
        while let Some(node) = open.pop() {
            match node {
                Node::Characters(_) | Node::Token(_) => {}
                Node::Rule(number) => drop(names.insert(*number)),
                Node::Sequence(parts) | Node::Choice(parts) => open.extend(parts),
                Node::Repeat(inner, ..) => open.push(inner),
            }
        }
        names
    }

    /// Returns the node's nesting depth. `rules` has the depths of the rules that the node names.
    fn depth(&self, rules: &[usize]) -> usize {
        let (mut max, mut open) = (0, vec![(self, 1)]);
        while let Some((node, depth)) = open.pop() {
            max = max.max(depth);
            match node {
                Node::Characters(_) | Node::Token(_) => {}
                Node::Rule(number) => max = max.max(depth + rules.get(*number).copied().unwrap_or(0)),
                Node::Sequence(parts) | Node::Choice(parts) => open.extend(parts.iter().map(|part| (part, depth + 1))),
                Node::Repeat(inner, ..) => open.push((inner, depth + 1)),
            }
        }
        max
    }
}

impl Node {
    /// Returns whether the node matches any text. `rules` has the result for each rule.
    fn ends(&self, rules: &[bool]) -> bool {
        match self {
            Node::Characters(set) => !set.is_empty(),
            Node::Token(_) => true,
            Node::Rule(number) => rules[*number],
            Node::Sequence(parts) => parts.iter().all(|part| part.ends(rules)),
            Node::Choice(parts) => parts.iter().any(|part| part.ends(rules)),
            Node::Repeat(inner, min, _) => *min == 0 || inner.ends(rules),
        }
    }

    /// Returns the node without the choices that match no text. Returns `None` if nothing remains.
    fn with_ends(self, rules: &[bool]) -> Option<Node> {
        if !self.ends(rules) {
            return None;
        }
        let all = |parts: Vec<Node>| parts.into_iter().filter_map(|part| part.with_ends(rules)).collect::<Vec<_>>();
        Some(match self {
            Node::Sequence(parts) => Node::Sequence(all(parts)),
            Node::Choice(parts) => Node::Choice(all(parts)),
            Node::Repeat(inner, min, max) => match inner.with_ends(rules) {
                Some(inner) => Node::Repeat(Box::new(inner), min, max),
                None => Node::Sequence(Vec::new()),
            },
            other => other,
        })
    }
}

/// Rules of a grammar that was read. The first rule is the root.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rules(Vec<Node>);

/// Converts a GBNF grammar to Lark.
///
/// # Errors
/// [`GrammarError::Gbnf`] with the line of invalid GBNF. [`GrammarError::TooDeep`] or
/// [`GrammarError::TooLarge`] if the grammar exceeds a limit.
pub fn to_lark(gbnf: &str) -> Result<String, GrammarError> {
    let rules = read::rules(gbnf)?.with_ends().ok_or(GrammarError::Empty)?;
    Ok(format!("start: r0\n{}", lexemes::lark(&rules)?))
}

impl Rules {
    /// Removes the choices whose recursion never ends.
    ///
    /// Returns `None` if the root matches no text.
    fn with_ends(self) -> Option<Rules> {
        let mut ends = vec![false; self.0.len()];
        // Most rules name rules after them, so a pass from the last rule to the first finds most
        // results.
        let (mut before, mut now) = (0, 1);
        while before != now {
            for number in (0..ends.len()).rev() {
                ends[number] = ends[number] || self.0[number].ends(&ends);
            }
            (before, now) = (now, 1 + ends.iter().filter(|ends| **ends).count());
        }
        ends.first().filter(|ends| **ends)?;
        // The remaining rules name no rule whose recursion never ends.
        let without = |node: Node| node.with_ends(&ends).unwrap_or(Node::Sequence(Vec::new()));
        Some(Rules(self.0.into_iter().map(without).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn character_sets_merge_and_complement_ranges() {
        let set = |ranges: &[(u32, u32)]| Characters::new(ranges.to_vec());
        assert_eq!(set(&[(5, 9), (1, 2), (3, 3), (8, 12)]).0, [(1, 3), (5, 12)]);
        assert_eq!(set(&[]).complement().0, [(0, 0xd7ff), (0xe000, 0x10ffff)]);
        assert_eq!(set(&[(0, 0x10ffff)]).complement().0, []);
        assert_eq!(set(&[(10, 20)]).complement().complement(), set(&[(10, 20)]));
        assert!(set(&[(1, 3)]).intersects(&set(&[(3, 4)])) && !set(&[(1, 3)]).intersects(&set(&[(4, 4)])));
        assert!(set(&[(1, 2), (9, 9)]).intersects(&set(&[(4, 5), (7, 20)])) && !set(&[]).intersects(&set(&[(4, 4)])));
        let has = |c| set(&[(2, 3), (7, 7)]).contains(c);
        assert_eq!((0..9).filter(|c| has(*c)).collect::<Vec<u32>>(), [2, 3, 7]);
        assert_eq!(set(&[(97, 122), (48, 57), (93, 93)]).regex(), "[0-9\\x{5d}a-z]");
    }

    #[test]
    fn invalid_grammar_is_refused_with_its_line() {
        for (gbnf, line, what) in [
            ("", 1, "rule root is used but not defined"),
            ("a ::= \"x\"", 1, "rule root is used but not defined"),
            ("root ::= a\n\n", 1, "rule a is used but not defined"),
            ("root ::= \"x", 1, "a text has no closing quote"),
            ("root ::= [a", 1, "a set of characters has no closing ]"),
            ("root ::= (\"a\" | \"b\"\n", 2, "a group has no closing )"),
            ("root ::= \"a\"\nroot ::= \"b\"", 2, "rule root is defined twice; rename or remove one"),
            ("root = \"a\"", 1, "expected ::= after the rule name root"),
            ("root ::= *", 1, "a repetition sign has nothing to repeat; expected a text, a rule or a group before it"),
            ("root ::= \"a\"{3,2}", 1, "a repetition of 3 to 2; expected the smaller number first"),
            ("root ::= \"a\"{2000}", 1, "a repetition has a number above 1000"),
            ("root ::= \"\\q\"", 1, "\\q is not an escape sequence"),
            ("root ::= [z-a]", 1, "z-a is not a range; expected the first character before the last"),
            ("root ::= \"a\" )", 1, "found \")\"; expected the end of the rule"),
            ("root ::= !<[3]>", 1, "found \"!<[3]>\"; expected the end of the rule"),
        ] {
            let error = to_lark(gbnf).unwrap_err();
            let GrammarError::Gbnf { line: found, message } = &error else { panic!("{error}") };
            assert_eq!((*found, message.starts_with(what)), (line, true), "{gbnf:?}: {error}");
        }
    }

    #[test]
    fn lexemes_are_as_long_as_safe() {
        let lark = |gbnf: &str| to_lark(gbnf).unwrap();
        // The whole grammar is one lexeme.
        assert_eq!(lark("root ::= \"yes\" | \"no\" [0-9]?"), "start: r0\nr0: /(?:yes|no(?:[0-9]){0,1})/\n");
        // The rule `d` is not recursive, so it becomes a part of that lexeme.
        assert_eq!(lark("root ::= d d\nd ::= [0-9]"), "start: r0\nr0: /[0-9][0-9]/\n");
        // This grammar has a list in a list. White space after a number is a part of the number's
        // lexeme. White space after a bracket may be empty, so it is optional, because no lexeme
        // can be empty.
        let list = "root ::= \"[\" ws (num | root)? \"]\"\nnum ::= [0-9]+ ws\nws ::= [ \\n]*";
        let expected = "start: r0\nr0: (/\\x{5b}/ (/(?:[\\x{a}\\x{20}]){1,}/)? \
                        ((/(?:[0-9]){1,}(?:[\\x{a}\\x{20}]){0,}/ | r0))? /\\x{5d}/)\n";
        assert_eq!(lark(list), expected);
        // If a lexeme took as many a's as possible, none would remain for the part with b. The
        // grammar therefore uses single characters.
        let found = lark("root ::= [a]+ (\"a\" root \"b\")?");
        assert!(!found.contains("{1,}/") && found.contains("(/a/)+"), "{found}");
    }
}
