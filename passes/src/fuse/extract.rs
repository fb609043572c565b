//! Extraction: chooses one node for every needed class, with the least total cost. A node with
//! several users counts once.
//!
//! egg's own extractor minimises the cost of trees, but a graph of matrix products is a DAG. A
//! quantised row that four projections read would count four times. This extractor is greedy on the
//! DAG. From the bottom up, each class takes the node with the cheapest *set* of nodes below it.
//! From the top down, a class then changes its node if that lowers the total cost. The bottom-up
//! step alone could fuse a residual into a projection whose plain result has another user. The
//! projection would then be computed twice. All loops follow the order of class ids, so the same
//! module gives the same result.

use std::collections::HashMap;

use egg::{Id, Language};
use ixc_ir::graph::OpKind;

use super::language::{Graph, Head, Node};

/// Returns the cost of a node, roughly in nanoseconds for a step of few rows. A pass over the rows
/// with its barrier costs 100, and a matrix product 1000. Writing a weight as floats costs more
/// than any other op. Of two forms with equal work, the one with fewer barriers is cheaper. An op
/// with several results must be cheaper than any single op that it replaces, because each result is
/// chosen separately.
fn cost(node: &Node) -> u64 {
    let Head::Op(kind) = &node.head else { return 0 };
    match kind {
        // Ops that only change shapes.
        OpKind::SplitHeads | OpKind::MergeHeads | OpKind::ExpertSplit => 0,
        OpKind::Embed | OpKind::TakeRows | OpKind::Route => 100,
        OpKind::ExpertCombine | OpKind::ExpertAddBias | OpKind::ExpertScale | OpKind::Gated => 100,
        OpKind::Add | OpKind::AddBias | OpKind::Mul | OpKind::ScaleHeads | OpKind::Unary(_) | OpKind::Rope => 100,
        OpKind::Slice | OpKind::Concat | OpKind::Temperature | OpKind::HeadsTemperature => 100,
        OpKind::Centre | OpKind::HeadsSum => 100,
        OpKind::Positions | OpKind::Ends => 0,
        OpKind::RouteListed => 100,
        OpKind::RouteGiven => 0,
        OpKind::RouteIdentities | OpKind::RouteOwned | OpKind::ExpertGroups => 100,
        OpKind::StreamWeights | OpKind::StreamInput | OpKind::StreamMix | OpKind::StreamAttend => 100,
        OpKind::RmsNorm | OpKind::RmsNormQuantise => 110,
        // Costs less than a `rope` alone, which needs split heads. The split is free only as part
        // of this op.
        OpKind::RopeHeads => 90,
        // Costs more than a second norm. Two norms run in parallel, but a quantisation waits for
        // its norm.
        OpKind::Quantise => 120,
        OpKind::Linear | OpKind::LinearHeads | OpKind::LinearSwiglu | OpKind::ExpertSwiglu | OpKind::ExpertDown => 1000,
        OpKind::LinearQkv => 600,
        OpKind::Matmul | OpKind::HeadsMatmul | OpKind::ExpertMatmul => 2000,
        OpKind::Dequantise => 100_000,
        // Ops with effects are never nodes.
        OpKind::Recurrent(_) | OpKind::StateBegin | OpKind::KvAppend | OpKind::Attention | OpKind::RopeAppend => 0,
        OpKind::AttentionEntries => 0,
        OpKind::ColumnSquares | OpKind::IndexTopK | OpKind::Ngram => 0,
        OpKind::ExpertSlots | OpKind::ExpertPrefetch | OpKind::ExpertWait | OpKind::ExpertEvict => 0,
        OpKind::RanksBegin | OpKind::AllReduce | OpKind::AllGather | OpKind::Send | OpKind::Recv => 0,
    }
}

/// Max rounds of the greedy choice. A region without cycles is final after the first round, and the
/// second confirms it. Only classes on a cycle could need more rounds. The only rule that makes a
/// cycle replaces `quantise x {format = f32}` by `x`.
const MAX_ROUNDS: usize = 8;

/// The chosen node of each class.
pub(crate) type Choice = HashMap<Id, Node>;

struct Candidates {
    /// Nodes of each class, each with the class indices of its children and its cost.
    nodes: Vec<Vec<(Node, Vec<usize>, u64)>>,
    ids: Vec<Id>,
    index: HashMap<Id, usize>,
}

impl Candidates {
    fn new(graph: &Graph) -> Candidates {
        let mut ids: Vec<Id> = graph.classes().map(|class| class.id).collect();
        ids.sort_unstable();
        let index: HashMap<Id, usize> = ids.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        let nodes = ids
            .iter()
            .enumerate()
            .map(|(i, &id)| {
                let mut nodes: Vec<Node> = graph[id].nodes.clone();
                nodes.sort_unstable();
                let nodes = nodes.into_iter().map(|node| {
                    let children = node.children().iter().map(|&c| index[&graph.find(c)]).collect::<Vec<_>>();
                    let cost = cost(&node);
                    (node, children, cost)
                });
                // Excludes nodes that have their own class as a child, such as `x` as `quantise x
                // {format = f32}`.
                nodes.filter(|(_, children, _)| !children.contains(&i)).collect()
            })
            .collect();
        Candidates { nodes, ids, index }
    }

    /// Returns the classes in an order in which the classes of children come first, except on
    /// cycles.
    fn order(&self) -> Vec<usize> {
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut seen = vec![false; self.nodes.len()];
        for root in 0..self.nodes.len() {
            let mut stack = vec![(root, false)];
            while let Some((class, done)) = stack.pop() {
                if done {
                    order.push(class);
                } else if !std::mem::replace(&mut seen[class], true) {
                    stack.push((class, true));
                    let children = self.nodes[class].iter().flat_map(|(_, children, _)| children);
                    stack.extend(children.filter(|&&c| !seen[c]).map(|&c| (c, false)));
                }
            }
        }
        order
    }

    /// Returns the greedy choice from the bottom up: for each class, the index of its chosen node.
    fn greedy(&self) -> Vec<Option<usize>> {
        let mut choice: Vec<Option<usize>> = vec![None; self.nodes.len()];
        let mut below: Vec<Set> = vec![Set::default(); self.nodes.len()];
        let order = self.order();
        for _ in 0..MAX_ROUNDS {
            let mut changed = false;
            for &class in &order {
                let mut best: Option<(u64, usize, Set)> = None;
                for (i, (_, children, own)) in self.nodes[class].iter().enumerate() {
                    if children.iter().any(|&c| choice[c].is_none() || below[c].contains(class)) {
                        continue;
                    }
                    let mut set = Set::default();
                    children.iter().for_each(|&c| set.add_all(&below[c]));
                    let below = set.iter().filter_map(|c| choice[c].map(|n| self.nodes[c][n].2)).sum::<u64>();
                    let total = own.saturating_add(below);
                    if best.as_ref().is_none_or(|(least, ..)| total < *least) {
                        set.add(class);
                        best = Some((total, i, set));
                    }
                }
                if let Some((_, i, set)) = best {
                    changed |= choice[class] != Some(i);
                    (choice[class], below[class]) = (Some(i), set);
                }
            }
            if !changed {
                break;
            }
        }
        choice
    }

    /// Returns the total cost of the roots under a choice, and the classes that they use. Returns
    /// `None` if the choice has a cycle or a class without a node.
    fn total(&self, choice: &[Option<usize>], roots: &[usize]) -> Option<(u64, Vec<usize>)> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; self.nodes.len()];
        let (mut total, mut used) = (0u64, Vec::new());
        let mut stack: Vec<(usize, bool)> = roots.iter().map(|&root| (root, false)).collect();
        while let Some((class, leave)) = stack.pop() {
            if leave {
                marks[class] = Mark::Done;
                continue;
            }
            match marks[class] {
                Mark::Done => {}
                Mark::Open => return None,
                Mark::New => {
                    marks[class] = Mark::Open;
                    let (_, children, own) = &self.nodes[class][choice[class]?];
                    total = total.saturating_add(*own);
                    used.push(class);
                    stack.push((class, true));
                    for &child in children {
                        match marks[child] {
                            Mark::New => stack.push((child, false)),
                            Mark::Open => return None,
                            Mark::Done => {}
                        }
                    }
                }
            }
        }
        Some((total, used))
    }

    /// Changes the node of single classes while that lowers the total cost.
    fn improve(&self, mut choice: Vec<Option<usize>>, roots: &[usize]) -> Vec<Option<usize>> {
        let Some((mut least, mut used)) = self.total(&choice, roots) else { return choice };
        loop {
            let before = least;
            used.sort_unstable();
            for class in used.clone() {
                for i in 0..self.nodes[class].len() {
                    let old = choice[class].replace(i);
                    match self.total(&choice, roots) {
                        Some((total, _)) if total < least => least = total,
                        _ => choice[class] = old,
                    }
                }
            }
            if least == before {
                return choice;
            }
            used = self.total(&choice, roots).map_or_else(Vec::new, |(_, used)| used);
        }
    }
}

impl Candidates {
    /// For every used class, returns the cost difference of each node that was not chosen.
    fn losses(&self, mut choice: Vec<Option<usize>>, roots: &[usize]) -> Vec<Loss> {
        let Some((least, mut used)) = self.total(&choice, roots) else { return Vec::new() };
        used.sort_unstable();
        let mut losses = Vec::new();
        for class in used {
            let Some(chosen) = choice[class] else { continue };
            let mut others = Vec::new();
            for other in (0..self.nodes[class].len()).filter(|other| *other != chosen) {
                choice[class] = Some(other);
                let total = self.total(&choice, roots).map(|(total, _)| total.saturating_sub(least));
                others.push((self.nodes[class][other].0.clone(), total));
            }
            choice[class] = Some(chosen);
            losses.push(Loss { class: self.ids[class], used: self.nodes[class][chosen].0.clone(), others });
        }
        losses
    }
}

/// A set of class indices.
#[derive(Clone, Debug, Default)]
struct Set(Vec<u64>);

impl Set {
    fn add(&mut self, class: usize) {
        let word = class / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (class % 64);
    }

    fn add_all(&mut self, other: &Set) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }

    fn contains(&self, class: usize) -> bool {
        self.0.get(class / 64).is_some_and(|word| word & (1 << (class % 64)) != 0)
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(i, &word)| {
            std::iter::successors((word != 0).then_some(word), |w| {
                let rest = w & (w - 1);
                (rest != 0).then_some(rest)
            })
            .map(move |w| i * 64 + w.trailing_zeros() as usize)
        })
    }
}

/// A used class with its chosen node and its other nodes. Each other node has the increase in total
/// cost that it would cause, or `None` if it needs its own class.
pub(crate) struct Loss {
    pub(crate) class: Id,
    pub(crate) used: Node,
    pub(crate) others: Vec<(Node, Option<u64>)>,
}

/// Returns the chosen nodes of `roots` and all classes below them. Also returns the rejected nodes
/// if `records_decisions` is set.
pub(crate) fn extract(graph: &Graph, roots: &[Id], records_decisions: bool) -> (Choice, Vec<Loss>) {
    let candidates = Candidates::new(graph);
    let mut roots: Vec<usize> = roots.iter().map(|&root| candidates.index[&graph.find(root)]).collect();
    roots.sort_unstable();
    roots.dedup();
    let choice = candidates.improve(candidates.greedy(), &roots);
    let losses = if records_decisions { candidates.losses(choice.clone(), &roots) } else { Vec::new() };
    let chosen = choice
        .iter()
        .enumerate()
        .filter_map(|(class, node)| node.map(|i| (candidates.ids[class], candidates.nodes[class][i].0.clone())));
    (chosen.collect(), losses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_set_returns_the_added_classes() {
        let mut set = Set::default();
        for class in [0, 5, 63, 64, 200] {
            set.add(class);
        }
        let mut other = Set::default();
        other.add(6);
        other.add_all(&set);
        assert_eq!(other.iter().collect::<Vec<_>>(), [0, 5, 6, 63, 64, 200]);
        assert!(other.contains(200) && !other.contains(201));
    }
}
