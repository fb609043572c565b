//! Regular rules of a grammar, and their regular expressions.

use std::collections::BTreeSet;

use super::WorkLimit;
use crate::error::MAX_DEPTH;
use crate::gbnf::{Node, Rules};

/// Max bytes of a lexeme's regular expression, which contains the expressions of the rules that it
/// names.
const MAX_LEXEME: usize = 1 << 18;
/// Work counted for a byte of an expression, because the byte stays in memory.
const TEXT_WORK: usize = 2;

/// Regular expressions of rules, and whether the rules can be empty.
pub(super) struct Regular {
    /// Regular expression of each rule, or `None` if the rule is not regular.
    pub texts: Vec<Option<String>>,
    /// Whether each rule can be empty.
    pub nullable: Vec<bool>,
}

impl Regular {
    /// Finds the regular rules. A rule is treated as not regular if it takes too much work, or
    /// nests too deeply when written out.
    pub(super) fn from_rules(rules: &Rules, work: &WorkLimit) -> Regular {
        let count = rules.0.len();
        let mut regular = Regular { texts: vec![None; count], nullable: vec![false; count] };
        // Each rule is processed after all rules that it names. Recursive rules are therefore never
        // processed, so they have no expression.
        let names: Vec<BTreeSet<usize>> = rules.0.iter().map(Node::names).collect();
        let mut named_by: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (number, names) in names.iter().enumerate() {
            names.iter().for_each(|name| named_by[*name].push(number));
        }
        let mut missing: Vec<usize> = names.iter().map(BTreeSet::len).collect();
        let mut depths = vec![0; count];
        let mut ready: Vec<usize> = (0..count).filter(|number| missing[*number] == 0).collect();
        while let Some(number) = ready.pop() {
            let node = &rules.0[number];
            depths[number] = node.depth(&depths);
            if depths[number] > MAX_DEPTH {
                continue;
            }
            let Some(text) = regular.text(node, work) else { continue };
            let Some(nullable) = regular.is_nullable(node, work) else { continue };
            (regular.texts[number], regular.nullable[number]) = (Some(text), nullable);
            for &user in &named_by[number] {
                missing[user] -= 1;
                if missing[user] == 0 {
                    ready.push(user);
                }
            }
        }
        regular
    }

    /// Returns a part's regular expression. Returns `None` if the part is not regular, is too long
    /// or takes too much work.
    pub(super) fn text(&self, node: &Node, work: &WorkLimit) -> Option<String> {
        let text = match node {
            Node::Characters(set) => set.regex(),
            Node::Rule(number) => self.texts[*number].clone()?,
            Node::Token(_) => return None,
            // This text is not empty. Many uses of an empty part therefore also reach the length
            // limit.
            Node::Sequence(parts) if parts.is_empty() => "(?:)".to_owned(),
            Node::Sequence(parts) => {
                let mut whole = String::new();
                for part in parts {
                    whole.push_str(&self.text(part, work)?);
                    if whole.len() > MAX_LEXEME {
                        return None;
                    }
                }
                whole
            }
            Node::Choice(parts) => {
                let mut whole = "(?:".to_owned();
                for (i, part) in parts.iter().enumerate() {
                    if i > 0 {
                        whole.push('|');
                    }
                    whole.push_str(&self.text(part, work)?);
                    if whole.len() > MAX_LEXEME {
                        return None;
                    }
                }
                whole + ")"
            }
            Node::Repeat(inner, min, max) => {
                let max = max.map_or(String::new(), |max| max.to_string());
                format!("(?:{}){{{min},{max}}}", self.text(inner, work)?)
            }
        };
        work.add(1 + TEXT_WORK * text.len())?;
        (text.len() <= MAX_LEXEME).then_some(text)
    }

    /// Returns whether a regular part can be empty, or `None` if this takes too much work.
    pub(super) fn is_nullable(&self, node: &Node, work: &WorkLimit) -> Option<bool> {
        work.add(1)?;
        Some(match node {
            Node::Characters(_) | Node::Token(_) => false,
            Node::Rule(number) => self.nullable[*number],
            Node::Sequence(parts) => {
                for part in parts {
                    if !self.is_nullable(part, work)? {
                        return Some(false);
                    }
                }
                true
            }
            Node::Choice(parts) => {
                for part in parts {
                    if self.is_nullable(part, work)? {
                        return Some(true);
                    }
                }
                false
            }
            Node::Repeat(inner, min, _) => *min == 0 || self.is_nullable(inner, work)?,
        })
    }

    /// Returns whether a part names a token or a rule that is not regular.
    pub(super) fn is_recursive(&self, node: &Node, work: &WorkLimit) -> Option<bool> {
        work.add(1)?;
        Some(match node {
            Node::Characters(_) => false,
            Node::Rule(number) => self.texts[*number].is_none(),
            Node::Token(_) => true,
            Node::Sequence(parts) | Node::Choice(parts) => {
                for part in parts {
                    if self.is_recursive(part, work)? {
                        return Some(true);
                    }
                }
                false
            }
            Node::Repeat(inner, ..) => self.is_recursive(inner, work)?,
        })
    }
}
