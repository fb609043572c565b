//! Definitions and uses of the values of a function, as a graph of its ops for analyses.
//!
//! ```text
//! func @f(%x: f32[T, 4]) -> (f32[T, 4]) {
//!   %a = silu %x : f32[T, 4]         // op 0
//!   %b = mul %a, %a : f32[T, 4]      // op 1
//!   return %b
//! }
//! ```
//! This function has the edges `param -%x.0-> op 0 -%a.0-> op 1 -%b.0-> return`, and a second edge
//! `-%a.1->` from op 0 to op 1.
//!
//! The input is any function, also one that the verifier rejects. A value without a definition has
//! no edges. If a value has two definitions, the first counts. Positions of ops are indices of
//! [`Function::ops`] at the time of construction. Construction takes time in proportion to the
//! number of ops and operands.

use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::{Dfs, EdgeFiltered, EdgeRef, Reversed};

use super::op::Effect;
use super::view::OpView;
use super::{Function, ValueId};

/// A node of the graph: it defines or uses values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// An op, by its position in the function.
    Op(usize),
    /// A parameter of the function.
    Param(ValueId),
    /// The function's `return`.
    Return,
}

/// Use of a value by a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Value that the node uses.
    pub value: ValueId,
    /// Index of the op's operand, or of the function's result.
    pub operand: usize,
}

/// Definitions and uses of a function's values.
#[derive(Clone, Debug)]
pub struct DefUse {
    /// Nodes in this order: ops in the function's order, parameters, the return. Each use is an
    /// edge from the definition of the value.
    graph: DiGraph<Node, Use>,
    definitions: Vec<Option<NodeIndex>>,
    end: NodeIndex,
}

impl DefUse {
    /// Builds the graph of a function.
    pub fn from_function(function: &Function) -> DefUse {
        let mut graph = DiGraph::with_capacity(function.ops.len() + function.params.len() + 1, function.ops.len() * 2);
        let mut definitions = vec![None; function.values.len()];
        let mut define = |value: ValueId, node: NodeIndex| {
            if let Some(definition @ None) = definitions.get_mut(value.index()) {
                *definition = Some(node);
            }
        };
        for (at, op) in function.ops.iter().enumerate() {
            let node = graph.add_node(Node::Op(at));
            op.results.iter().for_each(|&result| define(result, node));
        }
        for &param in &function.params {
            define(param, graph.add_node(Node::Param(param)));
        }
        let end = graph.add_node(Node::Return);
        let mut found = DefUse { graph, definitions, end };
        for (at, op) in function.ops.iter().enumerate() {
            op.values().for_each(|(operand, value)| found.take(value, operand, NodeIndex::new(at)));
        }
        function.results.iter().enumerate().for_each(|(i, &value)| found.take(value, i, end));
        found
    }

    fn take(&mut self, value: ValueId, operand: usize, user: NodeIndex) {
        if let Some(definition) = self.node(value) {
            self.graph.add_edge(definition, user, Use { value, operand });
        }
    }

    fn node(&self, value: ValueId) -> Option<NodeIndex> {
        self.definitions.get(value.index()).copied().flatten()
    }

    /// Returns the graph. Each use is an edge from the definition of a value to the node that uses
    /// it.
    pub fn graph(&self) -> &DiGraph<Node, Use> {
        &self.graph
    }

    /// Returns the position of the op that defines a value. Returns `None` for a parameter, and for
    /// a value without a definition.
    pub fn definition(&self, value: ValueId) -> Option<usize> {
        match self.graph[self.node(value)?] {
            Node::Op(at) => Some(at),
            Node::Param(_) | Node::Return => None,
        }
    }

    /// Returns the typed view of the op that defines a value, or `None` if the op is of another
    /// kind.
    pub fn defining<V: OpView>(&self, function: &Function, value: ValueId) -> Option<V> {
        V::from_op(function.ops.get(self.definition(value)?)?)
    }

    /// Whether a value is a parameter of the function, or is defined by an op before position `at`.
    pub fn is_defined_before(&self, value: ValueId, at: usize) -> bool {
        match self.node(value).map(|node| self.graph[node]) {
            Some(Node::Op(definition)) => definition < at,
            Some(Node::Param(_)) => true,
            Some(Node::Return) | None => false,
        }
    }

    /// Returns the nodes that use a value, in order, each with the index of the operand. A node
    /// that uses the value twice appears twice.
    pub fn uses(&self, value: ValueId) -> Vec<(Node, usize)> {
        let edges = self.node(value).into_iter().flat_map(|node| self.graph.edges(node));
        let uses = edges.filter(|edge| edge.weight().value == value);
        let mut uses: Vec<_> = uses.map(|edge| (edge.target(), edge.weight().operand)).collect();
        uses.sort_unstable();
        uses.into_iter().map(|(node, operand)| (self.graph[node], operand)).collect()
    }

    /// Returns the positions of ops that use a value, in order, each once. Returns `None` if the
    /// function's return uses it too.
    pub fn users(&self, value: ValueId) -> Option<Vec<usize>> {
        let uses = self.uses(value).into_iter().map(|(node, _)| match node {
            Node::Op(at) => Some(at),
            Node::Param(_) | Node::Return => None,
        });
        let mut users = uses.collect::<Option<Vec<usize>>>()?;
        users.dedup();
        Some(users)
    }

    /// Returns for each op whether it is live. An op is live if it has an effect, or if the return
    /// or a live op uses one of its results.
    pub fn live(&self, function: &Function) -> Vec<bool> {
        let effects = function.ops.iter().enumerate().filter(|(_, op)| op.kind.row().effect == Effect::State);
        let graph = Reversed(&self.graph);
        let mut walk = Dfs::new(graph, self.end);
        walk.stack.extend(effects.map(|(at, _)| NodeIndex::new(at)));
        let mut live = vec![false; function.ops.len()];
        while let Some(node) = walk.next(graph) {
            if let Node::Op(at) = self.graph[node] {
                live[at] = true;
            }
        }
        live
    }

    /// Returns the positions, in order, of the ops that compute `to` from `from` alone. Returns
    /// `None` if `to` does not depend on `from`, or depends on another parameter.
    pub fn between(&self, from: ValueId, to: ValueId) -> Option<Vec<usize>> {
        if from == to {
            return Some(Vec::new());
        }
        let defined = self.definition(from);
        let inside = EdgeFiltered::from_fn(&self.graph, |edge| edge.weight().value != from);
        let graph = Reversed(&inside);
        let mut walk = Dfs::new(graph, self.node(to)?);
        let (mut ops, mut met) = (Vec::new(), false);
        while let Some(node) = walk.next(graph) {
            let Node::Op(at) = self.graph[node] else { return None };
            // If an op before the definition of `from` has operands, the walk back from it would
            // end at a parameter. The search can therefore stop at this op.
            let takes = || self.graph.edges_directed(node, Direction::Incoming).next().is_some();
            if defined.is_some_and(|defined| at < defined) && takes() {
                return None;
            }
            met |= self.graph.edges_directed(node, Direction::Incoming).any(|edge| edge.weight().value == from);
            ops.push(at);
        }
        ops.sort_unstable();
        met.then_some(ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::parse::parse;
    use crate::graph::{Op, OpKind, Operand, Type, Unary};

    const TEXT: &str = "func @f(%x: f32[T, 4], %y: f32[T, 4]) -> (f32[T, 4]) {
  %a = silu %x
  %b = mul %a, %a
  %c = add %b, %y
  %d = add %b, %a
  return %d
}";

    fn function() -> Function {
        parse(TEXT).unwrap().functions.remove(0)
    }

    #[test]
    fn definitions_and_uses_are_found() {
        let def_use = DefUse::from_function(&function());
        let [x, y, a, b, c, d] = [0, 1, 2, 3, 4, 5].map(ValueId);
        assert_eq!([x, a, d].map(|value| def_use.definition(value)), [None, Some(0), Some(3)]);
        assert_eq!(def_use.uses(a), [(Node::Op(1), 0), (Node::Op(1), 1), (Node::Op(3), 1)]);
        assert_eq!(def_use.uses(d), [(Node::Return, 0)]);
        assert_eq!(
            [x, y, a, b, c].map(|value| def_use.users(value).unwrap()),
            [vec![0], vec![2], vec![1, 3], vec![2, 3], vec![]]
        );
        assert_eq!(def_use.users(d), None);
        assert!(def_use.is_defined_before(y, 0) && def_use.is_defined_before(a, 1) && !def_use.is_defined_before(a, 0));
    }

    #[test]
    fn only_needed_ops_are_live() {
        let mut function = function();
        assert_eq!(DefUse::from_function(&function).live(&function), [true, true, false, true]);
        // An op with an effect is live, even if its results are not used.
        function.ops[2].kind = OpKind::ExpertEvict;
        assert_eq!(DefUse::from_function(&function).live(&function), [true; 4]);
    }

    #[test]
    fn ops_between_two_values_are_found() {
        let def_use = DefUse::from_function(&function());
        let [x, y, a, b, c, d] = [0, 1, 2, 3, 4, 5].map(ValueId);
        assert_eq!(def_use.between(x, d), Some(vec![0, 1, 3]));
        assert_eq!(def_use.between(a, d), Some(vec![1, 3]));
        assert_eq!(def_use.between(a, a), Some(vec![]));
        // `c` also depends on another parameter, `y`. `c` does not depend on `d`, and `d` uses `a`
        // in addition to `b`.
        assert!([(x, c), (d, c), (b, d)].iter().all(|&(from, to)| def_use.between(from, to).is_none()));
        assert_eq!(def_use.between(y, x), None);
    }

    #[test]
    fn def_use_accepts_unverified_functions() {
        let mut function = Function::default();
        let x = function.add_value(None, Type::f32([]));
        let op = |operand: u32, result: u32| Op {
            kind: OpKind::Unary(Unary::Silu),
            operands: vec![Operand::Value(ValueId(operand))],
            attrs: Vec::new(),
            results: vec![ValueId(result)],
        };
        // The function has an op that uses its own result, a value with two definitions, and uses
        // of values that do not exist.
        function.ops = vec![op(0, 0), op(7, 0), op(0, 9)];
        function.results = vec![x, ValueId(9)];
        let def_use = DefUse::from_function(&function);
        assert_eq!(def_use.definition(x), Some(0));
        assert_eq!(def_use.uses(x), [(Node::Op(0), 0), (Node::Op(2), 0), (Node::Return, 0)]);
        assert_eq!((def_use.definition(ValueId(9)), def_use.uses(ValueId(7))), (None, vec![]));
        assert_eq!(def_use.live(&function), [true, false, false]);
        assert_eq!(def_use.between(ValueId(7), x), None);
    }
}
