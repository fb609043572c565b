//! Automata of lexemes. They determine which characters can continue a text.

use std::collections::{BTreeSet, HashSet};

use super::WorkLimit;
use crate::gbnf::{Characters, Node, Rules};

/// Max positions of a lexeme's automaton, and max states of its deterministic form. Beyond these
/// limits, every character of the lexeme is assumed to continue it.
pub(super) const MAX_POSITIONS: usize = 1024;
const MAX_STATES: usize = 1024;

/// Glushkov's automaton of a regular part. It has a position for each set of characters in the
/// part.
#[derive(Debug, Default)]
pub(super) struct Automaton {
    classes: Vec<Characters>,
    pub first: Vec<usize>,
    follow: Vec<BTreeSet<usize>>,
    last: BTreeSet<usize>,
}

/// First and last positions of a part.
struct Fragment {
    first: Vec<usize>,
    last: Vec<usize>,
    nullable: bool,
}

impl Automaton {
    /// Builds the automaton; returns `None` if it would be too large or take too much work.
    pub(super) fn build(node: &Node, rules: &Rules, work: &WorkLimit) -> Option<Automaton> {
        let mut automaton = Automaton::default();
        let Fragment { first, last, .. } = automaton.add(node, rules, work)?;
        (automaton.first, automaton.last) = (first, last.into_iter().collect());
        Some(automaton)
    }

    fn add(&mut self, node: &Node, rules: &Rules, work: &WorkLimit) -> Option<Fragment> {
        work.add(1)?;
        Some(match node {
            Node::Characters(set) => {
                let position = self.classes.len();
                if position >= MAX_POSITIONS {
                    return None;
                }
                self.classes.push(set.clone());
                self.follow.push(BTreeSet::new());
                Fragment { first: vec![position], last: vec![position], nullable: false }
            }
            Node::Rule(number) => self.add(&rules.0[*number], rules, work)?,
            Node::Token(_) => return None,
            Node::Sequence(parts) => {
                let mut whole = Fragment { first: Vec::new(), last: Vec::new(), nullable: true };
                for part in parts {
                    let next = self.add(part, rules, work)?;
                    whole = self.join(whole, next, work)?;
                }
                whole
            }
            Node::Choice(parts) => {
                let mut whole = Fragment { first: Vec::new(), last: Vec::new(), nullable: false };
                for part in parts {
                    let next = self.add(part, rules, work)?;
                    work.add(next.first.len() + next.last.len())?;
                    whole.first.extend(next.first);
                    whole.last.extend(next.last);
                    whole.nullable |= next.nullable;
                }
                whole
            }
            Node::Repeat(inner, min, max) => {
                let (mut whole, before) =
                    (Fragment { first: Vec::new(), last: Vec::new(), nullable: true }, self.classes.len());
                for _ in 0..*min {
                    let next = self.add(inner, rules, work)?;
                    whole = self.join(whole, next, work)?;
                    // The part matches only the empty text, regardless of the number of
                    // repetitions.
                    if self.classes.len() == before {
                        return Some(whole);
                    }
                }
                match max {
                    None => {
                        let mut next = self.add(inner, rules, work)?;
                        self.link(&next.last, &next.first, work)?;
                        next.nullable = true;
                        self.join(whole, next, work)?
                    }
                    Some(max) => {
                        for _ in *min..*max {
                            let mut next = self.add(inner, rules, work)?;
                            next.nullable = true;
                            whole = self.join(whole, next, work)?;
                            if self.classes.len() == before {
                                return Some(whole);
                            }
                        }
                        whole
                    }
                }
            }
        })
    }

    fn link(&mut self, from: &[usize], to: &[usize], work: &WorkLimit) -> Option<()> {
        work.add(from.len().saturating_mul(to.len()))?;
        for position in from {
            self.follow[*position].extend(to);
        }
        Some(())
    }

    fn join(&mut self, a: Fragment, b: Fragment, work: &WorkLimit) -> Option<Fragment> {
        self.link(&a.last, &b.first, work)?;
        work.add(a.last.len() + b.first.len())?;
        let mut first = a.first;
        if a.nullable {
            first.extend(&b.first);
        }
        let mut last = b.last;
        if b.nullable {
            last.extend(a.last);
        }
        Some(Fragment { first, last, nullable: a.nullable && b.nullable })
    }

    pub(super) fn union<'p>(&self, positions: impl IntoIterator<Item = &'p usize>) -> Characters {
        Characters::new(positions.into_iter().flat_map(|position| self.classes[*position].0.iter().copied()).collect())
    }

    /// Returns the characters that can continue a matched text. Returns `None` if the deterministic
    /// automaton is too large or takes too much work.
    pub(super) fn continuations(&self, work: &WorkLimit) -> Option<Characters> {
        let mut found: BTreeSet<usize> = BTreeSet::new();
        let mut seen: HashSet<Vec<usize>> = HashSet::new();
        let mut open: Vec<BTreeSet<usize>> = vec![self.first.iter().copied().collect()];
        // A state is the set of positions that may be read next. Each state is expanded by every
        // character.
        while let Some(next) = open.pop() {
            let mut bounds: BTreeSet<u32> = BTreeSet::new();
            for (first, last) in next.iter().flat_map(|position| &self.classes[*position].0) {
                work.add(1)?;
                bounds.extend([*first, last + 1]);
            }
            work.add(bounds.len().saturating_mul(next.len()))?;
            for c in bounds {
                let read: Vec<usize> =
                    next.iter().filter(|position| self.classes[**position].contains(c)).copied().collect();
                if read.is_empty() || seen.contains(&read) {
                    continue;
                }
                if seen.len() == MAX_STATES {
                    return None;
                }
                work.add(read.iter().map(|position| self.follow[*position].len()).sum())?;
                let follow: BTreeSet<usize> =
                    read.iter().flat_map(|position| &self.follow[*position]).copied().collect();
                if read.iter().any(|position| self.last.contains(position)) {
                    found.extend(&follow);
                }
                seen.insert(read);
                open.push(follow);
            }
        }
        Some(self.union(&found))
    }
}
