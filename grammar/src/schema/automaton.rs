//! Comma-separated lists as grammar rules, written from an automaton. The automaton determines
//! which parts may follow which parts.
//!
//! ```text
//! {"a": 1, "b": 2}, both optional      n0: A a1 | n1     a1: "," n1 | "}"
//!                                      n1: B a2          a2: "}"
//! ```
//!
//! Each rule includes the closing bracket. A row of the parser therefore has few items for each
//! part that may follow.

use std::fmt::Write;

/// A part that repeats, and the min and max number of its repetitions.
#[derive(Clone, Debug)]
pub(super) struct Repeat {
    pub part: String,
    pub min: u64,
    pub max: Option<u64>,
}

/// Position in a list, between two parts.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// Whether the list may end at this node, after the repeated part.
    pub may_end: bool,
    /// Part that repeats at this node, before any of its other parts.
    pub repeat: Option<Repeat>,
    /// Parts that may follow, each with the node after it.
    pub edges: Vec<(String, usize)>,
    /// Another node, whose parts may also follow here.
    pub alternative_node: Option<usize>,
}

/// Brackets that enclose a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brackets {
    open: &'static str,
    close: &'static str,
}

impl Brackets {
    pub const ARRAY: Brackets = Brackets { open: "[", close: "]" };
    pub const OBJECT: Brackets = Brackets { open: "{", close: "}" };
}

/// Automaton of a list. The list begins at the first node.
#[derive(Clone, Debug, Default)]
pub(super) struct Automaton {
    pub nodes: Vec<Node>,
}

impl Automaton {
    /// Returns, for each node, whether the list can end after at least one more part.
    fn reachable_ends(&self) -> Vec<bool> {
        let mut reaches_end = vec![false; self.nodes.len()];
        loop {
            let mut is_changed = false;
            for at in (0..self.nodes.len()).rev() {
                let node = &self.nodes[at];
                let leads = |to: usize| self.nodes[to].may_end || reaches_end[to];
                let now = node.edges.iter().any(|(_, to)| leads(*to))
                    || node.alternative_node.is_some_and(|alternative_node| reaches_end[alternative_node]);
                is_changed |= now != reaches_end[at];
                reaches_end[at] |= now;
            }
            if !is_changed {
                return reaches_end;
            }
        }
    }

    /// Writes the rules, with names that begin with `prefix`. Returns a fragment that names the
    /// first rule, or `None` if no list is possible.
    pub fn write(&self, prefix: &str, brackets: Brackets, lark: &mut String) -> Option<String> {
        let Brackets { open, close } = brackets;
        let reaches_end = self.reachable_ends();
        let start = self.nodes.first()?;
        if !start.may_end && !reaches_end[0] {
            return None;
        }
        let (mut todo, mut seen) = (vec![(0, true)], vec![[false; 2]; self.nodes.len()]);
        let mut first = Vec::new();
        if let Some(repeat) = &start.repeat {
            first.push(format!("{} {prefix}a0", repeat.part));
            todo.push((0, false));
        }
        if start.may_end && start.repeat.as_ref().is_none_or(|repeat| repeat.min == 0) {
            first.push(format!("{close:?}"));
        }
        if reaches_end[0] {
            first.push(format!("{prefix}n0"));
        }
        while let Some((at, is_next)) = todo.pop() {
            if std::mem::replace(&mut seen[at][usize::from(is_next)], true) {
                continue;
            }
            let node = &self.nodes[at];
            if !is_next {
                let repeat = node.repeat.as_ref().map(|repeat| {
                    // The first part is written before this rule, so it already counts as one
                    // repetition.
                    let less = u64::from(at == 0);
                    super::automaton::repeat(
                        &format!("\",\" {}", repeat.part),
                        repeat.min.saturating_sub(less),
                        repeat.max.map(|max| max.saturating_sub(less)),
                    )
                });
                let mut all = Vec::new();
                all.extend(node.may_end.then(|| format!("{close:?}")));
                all.extend(reaches_end[at].then(|| format!("\",\" {prefix}n{at}")));
                todo.extend(reaches_end[at].then_some((at, true)));
                let _ = writeln!(lark, "{prefix}a{at}: {} ({})", repeat.unwrap_or_default(), all.join(" | "));
                continue;
            }
            if !reaches_end[at] {
                continue;
            }
            let mut all = Vec::new();
            for (part, to) in &node.edges {
                if self.nodes[*to].may_end || reaches_end[*to] {
                    all.push(format!("{part} {prefix}a{to}"));
                    todo.push((*to, false));
                }
            }
            if let Some(alternative_node) =
                node.alternative_node.filter(|alternative_node| reaches_end[*alternative_node])
            {
                all.push(format!("{prefix}n{alternative_node}"));
                todo.push((alternative_node, true));
            }
            let _ = writeln!(lark, "{prefix}n{at}: {}", all.join(" | "));
        }
        Some(format!("{open:?} ({})", first.join(" | ")))
    }
}

/// Returns a fragment that is repeated `min` to `max` times.
pub(super) fn repeat(fragment: &str, min: u64, max: Option<u64>) -> String {
    // No answer has as many parts as this limit, so a higher bound has no effect.
    let max = max.filter(|max| *max < 1_000_000_000);
    match (min, max) {
        (_, Some(0)) => String::new(),
        (0, None) => format!("({fragment})*"),
        (min, None) => format!("({fragment}){{{min}}} ({fragment})*"),
        (min, Some(max)) if min == max => format!("({fragment}){{{min}}}"),
        (min, Some(max)) => format!("({fragment}){{{min},{max}}}"),
    }
}

/// Returns a list of equal parts with commas between them. It has at least `min` and at most `max`
/// parts.
pub(super) fn list(part: &str, min: u64, max: Option<u64>, brackets: Brackets) -> String {
    let Brackets { open, close } = brackets;
    if max == Some(0) {
        return format!("{open:?} {close:?}");
    }
    let more = repeat(&format!("\",\" {part}"), min.saturating_sub(1), max.map(|max| max - 1));
    match min {
        0 => format!("{open:?} ({part} {more})? {close:?}"),
        _ => format!("{open:?} {part} {more} {close:?}"),
    }
}
