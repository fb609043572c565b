//! Decisions of `fuse` in a region. For each chosen node, they list the rejected nodes with their
//! additional cost. They also list the rules that nearly applied, with the position at which the
//! pattern failed.
//!
//! ```text
//! rms_norm     chosen: rms_norm       over rms_norm.quantise: ...
//! add          chosen: add            over residual_left: it needs the result of linear, but ...
//! ```
//!
//! This module is used only if decisions are recorded.

use std::collections::HashMap;

use egg::{ENodeOrVar, Id, Language, PatternAst, Var};
use ixc_ir::graph::{OpKind, WeightId};

use super::extract::{Choice, Loss};
use super::language::{Graph, Head, Node};
use super::rules::{RULES, Rule, pattern_of};
use crate::decision::{Decision, RejectedAlternative};

/// A decision in a region: the op, and a weight of the region that identifies the op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FusionDecision {
    pub(crate) op: &'static str,
    pub(crate) weight: Option<WeightId>,
    pub(crate) chosen: String,
    pub(crate) rejected: Vec<RejectedAlternative>,
}

impl FusionDecision {
    /// Returns the decision as [`Decision`]; `name` returns the name of a weight.
    pub(crate) fn decision(&self, name: impl Fn(WeightId) -> String) -> Decision {
        let name = self.weight.map_or_else(String::new, name);
        Decision::new(self.op, name, "fusion").chose(self.chosen.clone()).over_all(self.rejected.iter().cloned())
    }
}

/// Returns a decision for each used class of a region. It lists the nodes with a higher cost and
/// the rules that did not match.
pub(crate) fn decisions(graph: &Graph, choice: &Choice, losses: &[Loss]) -> Vec<FusionDecision> {
    let patterns: Vec<Pattern> =
        RULES.iter().map(|rule| Pattern { rule, from: pattern_of(rule.from), to: pattern_of(rule.to) }).collect();
    let mut decisions: Vec<FusionDecision> = Vec::new();
    for Loss { class, used, others } in losses {
        let Some(op) = op_of(graph, choice, used) else { continue };
        let mut rejected = Vec::new();
        for (node, more) in others {
            let Some(other) = op_of(graph, choice, node).filter(|other| *other != op) else { continue };
            let why = match more {
                Some(0) => "it has the same cost, and the first candidate wins".to_owned(),
                Some(more) => format!("its cost is {more} higher, where one pass over the rows costs 100"),
                None => "it would need its own result as an input".to_owned(),
            };
            let lost = RejectedAlternative::new(other.row().mnemonic, why);
            if !rejected.contains(&lost) {
                rejected.push(lost);
            }
        }
        if let Head::Op(kind) = used.head {
            rejected.extend(not_taken(graph, *class, kind, &patterns));
        }
        let weight = weight_of(graph, choice, used);
        let one = FusionDecision { op: op.row().mnemonic, weight, chosen: op.row().mnemonic.to_owned(), rejected };
        // Each result of an op with several results gives the same decision, which is recorded
        // once.
        if !one.rejected.is_empty() && !decisions.contains(&one) {
            decisions.push(one);
        }
    }
    decisions
}

/// Returns the op of a node. For a node that selects a result, returns the op with that result.
fn op_of(graph: &Graph, choice: &Choice, node: &Node) -> Option<OpKind> {
    match &node.head {
        Head::Op(kind) => Some(*kind),
        Head::Result(_) => match choice.get(&graph.find(*node.children.first()?)) {
            Some(Node { head: Head::Op(kind), .. }) => Some(*kind),
            // The class of the op has no chosen node, so any of its ops is taken.
            _ => graph[*node.children.first()?].nodes.iter().find_map(|node| match node.head {
                Head::Op(kind) => Some(kind),
                _ => None,
            }),
        },
        _ => None,
    }
}

/// Returns the weight that identifies an op: its own first weight. An op without a weight takes
/// that of the nearest op below it that has one.
fn weight_of(graph: &Graph, choice: &Choice, node: &Node) -> Option<WeightId> {
    let mut open = std::collections::VecDeque::from([node]);
    let mut seen = std::collections::HashSet::new();
    while let Some(node) = open.pop_front() {
        for &child in node.children() {
            let child = graph.find(child);
            match choice.get(&child) {
                Some(Node { head: Head::Weight(weight), .. }) => return Some(*weight),
                Some(below) if seen.insert(child) => open.push_back(below),
                _ => {}
            }
        }
    }
    None
}

/// A rule with the patterns of its left and right side.
struct Pattern {
    rule: &'static Rule,
    from: PatternAst<Node>,
    to: PatternAst<Node>,
}

/// Returns the root of a rule's side, if it is an op.
fn root(ast: &PatternAst<Node>) -> Option<&Node> {
    match ast.as_ref().last() {
        Some(ENodeOrVar::ENode(node)) => Some(node),
        Some(ENodeOrVar::Var(_)) | None => None,
    }
}

/// Returns the rules whose left side begins with the op of a class but fails further down. Only
/// rules that matched the most positions are returned.
fn not_taken(graph: &Graph, class: Id, kind: OpKind, patterns: &[Pattern]) -> Vec<RejectedAlternative> {
    let mut furthest: Vec<(usize, RejectedAlternative)> = Vec::new();
    for Pattern { rule, from, to } in patterns {
        let (Some(left), Some(right)) = (root(from), root(to)) else { continue };
        // If the rule was applied, its result is already listed as a node with a higher cost.
        if left.head != Head::Op(kind) || graph[class].nodes.iter().any(|node| right.matches(node)) {
            continue;
        }
        let place = Id::from(from.as_ref().len() - 1);
        let (matched, why) = match holds(graph, from, place, class, &mut HashMap::new()) {
            Ok(matched) => (matched, "the result has another type, or the rule does not support its format".to_owned()),
            Err(ended) => ended,
        };
        // A rule that matches only the root was not close.
        if matched > 1 {
            furthest.push((matched, RejectedAlternative::new(format!("rule {}", rule.name), why)));
        }
    }
    let most = furthest.iter().map(|(matched, _)| *matched).max();
    furthest.into_iter().filter(|(matched, _)| Some(*matched) == most).map(|(_, rejected)| rejected).collect()
}

/// Returns the number of positions of a pattern that match a class. On failure, returns the number
/// of positions that matched before the failure, and the reason.
fn holds(
    graph: &Graph,
    ast: &PatternAst<Node>,
    place: Id,
    class: Id,
    bound: &mut HashMap<Var, Id>,
) -> Result<usize, (usize, String)> {
    let class = graph.find(class);
    let wanted = match &ast[place] {
        ENodeOrVar::Var(var) => {
            let known = *bound.entry(*var).or_insert(class);
            return if known == class {
                Ok(0)
            } else {
                Err((0, "the rule needs the same value in two places, but finds two different values".to_owned()))
            };
        }
        ENodeOrVar::ENode(node) => node,
    };
    let mut best: Option<(usize, String)> = None;
    for node in graph[class].nodes.iter().filter(|node| wanted.matches(node)) {
        let mut bound_here = bound.clone();
        let mut matched = 1;
        let mut failed = None;
        for (&below, &child) in wanted.children().iter().zip(node.children()) {
            match holds(graph, ast, below, child, &mut bound_here) {
                Ok(more) => matched += more,
                Err((more, why)) => {
                    matched += more;
                    failed.get_or_insert(why);
                }
            }
        }
        match failed {
            None => {
                *bound = bound_here;
                return Ok(matched);
            }
            Some(why) if best.as_ref().is_none_or(|(most, _)| matched > *most) => best = Some((matched, why)),
            Some(_) => {}
        }
    }
    Err(best.unwrap_or_else(|| {
        (0, format!("the rule needs {}, but finds {}", description(&wanted.head), describe_nodes(graph, class)))
    }))
}

fn description(head: &Head) -> String {
    match head {
        Head::Leaf(_) => "a value from outside the region".to_owned(),
        Head::Weight(_) => "a weight".to_owned(),
        Head::Absent => "no operand".to_owned(),
        Head::Attr(attr) => attr.attr().to_string(),
        Head::Op(kind) => format!("the result of {}", kind.row().mnemonic),
        Head::Result(_) => "one of several results".to_owned(),
        Head::Activation => "the activation format of a weight".to_owned(),
        Head::Attend => "the inputs of an attention".to_owned(),
    }
}

/// Returns a description of the nodes of a class, each once.
fn describe_nodes(graph: &Graph, class: Id) -> String {
    let mut all: Vec<String> = graph[class].nodes.iter().map(|node| description(&node.head)).collect();
    all.sort_unstable();
    all.dedup();
    all.join(" or ")
}
