//! The e-graph of one region: runs the rules on the region's pure ops until they find nothing new,
//! and returns the cheapest DAG as ops.
//!
//! Needs: a region as a function ([`super::region`]), whose leaves are parameters and results of
//! ops with effects. Leaves: a function with the same parameters and results. It has the same ops
//! with effects in the same order. A pure op is directly before the first op that needs it. The
//! result does not depend on names of values, and a value that remains keeps its name.
//!
//! Limits on nodes and rounds end a run that grows too far. There is no limit on time: the same
//! region must give the same result. A run that hits a limit uses the best result so far; [`Run`]
//! gives the reason why a run ended.

use std::collections::HashMap;
use std::time::Duration;

use egg::{Id, Rewrite, Runner, SimpleScheduler, StopReason};
use ixc_ir::graph::op::Effect;
use ixc_ir::graph::{Attr, Function, Module, Op, OpView, Operand, ValueId, view};

use super::extract::{self, Choice};
use super::fusion_decisions::{self, FusionDecision};
use super::language::{self, AttrKey, Graph, Head, Node, Types};
use crate::error::PassError;

/// egg requires a time limit. No run reaches this limit.
const NO_TIME_LIMIT: Duration = Duration::from_secs(u32::MAX as u64);
/// Maximum number of nodes at the end of a run, as a multiple of the nodes at its start. The number
/// of nodes at most doubles for the ops of a frontend. Each op is the root of few rules, and a rule
/// adds at most three nodes.
const GROWTH: usize = 16;

/// Statistics of a run of egg.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Number of nodes before the first rule was applied.
    pub(crate) nodes_before: usize,
    /// Nodes at the end of the run.
    pub(crate) nodes: usize,
    /// Number of rounds in which rules were applied.
    pub(crate) rounds: usize,
    /// Reason why the run ended.
    pub(crate) reason: StopReason,
}

/// Fuses a function of `module`. Also returns the rejected alternatives if `records_decisions` is
/// set.
///
/// # Errors
/// The function uses a value before it is defined.
pub(crate) fn fuse(
    module: &Module,
    function: &Function,
    rewrites: &[Rewrite<Node, Types>],
    rounds: usize,
    records_decisions: bool,
) -> Result<(Function, Run, Vec<FusionDecision>), PassError> {
    let mut region = Region::new(module, function)?;
    let mut graph = std::mem::replace(&mut region.graph, Graph::new(Types::new(module, &Function::default())));
    graph.rebuild();
    let nodes_before = graph.total_size();
    let runner = Runner::<Node, Types>::new(Types::new(module, &Function::default()))
        .with_egraph(graph)
        .with_scheduler(SimpleScheduler)
        .with_node_limit(nodes_before.saturating_mul(GROWTH))
        .with_iter_limit(rounds)
        .with_time_limit(NO_TIME_LIMIT);
    // A mock clock, because no time limit applies, and the real clock would calibrate itself for up
    // to 200 ms first.
    let runner = quanta::with_clock(&quanta::Clock::mock().0, || runner.run(rewrites));
    for iteration in &runner.iterations {
        for (rule, count) in &iteration.applied {
            tracing::trace!(%rule, count, "applied");
        }
    }
    let run = Run {
        nodes_before,
        nodes: runner.egraph.total_size(),
        rounds: runner.iterations.len(),
        reason: runner.stop_reason.clone().unwrap_or(StopReason::Saturated),
    };
    tracing::debug!(nodes_before, nodes = run.nodes, rounds = run.rounds, reason = ?run.reason, "egg stopped");
    region.graph = runner.egraph;
    let roots: Vec<Id> = region.roots();
    let (choice, losses) = extract::extract(&region.graph, &roots, records_decisions);
    let decisions =
        if records_decisions { fusion_decisions::decisions(&region.graph, &choice, &losses) } else { Vec::new() };
    Ok((Writer::new(&region, function, choice).write()?, run, decisions))
}

/// A function's pure ops as an e-graph.
struct Region<'a> {
    function: &'a Function,
    graph: Graph,
    /// E-class of each value; `None` if the value is not defined yet.
    values: Vec<Option<Id>>,
}

impl<'a> Region<'a> {
    fn new(module: &Module, function: &'a Function) -> Result<Region<'a>, PassError> {
        let graph = Graph::new(Types::new(module, function));
        let mut region = Region { function, graph, values: vec![None; function.values.len()] };
        for &param in &function.params {
            region.leaf(param);
        }
        // The append that returned each token. An attention on this token reads the append's keys
        // and values.
        let mut appends: HashMap<ValueId, view::KvAppend> = HashMap::new();
        for op in &function.ops {
            match op.kind.row().effect {
                Effect::State => {
                    region.attend(op, &appends)?;
                    op.results.iter().for_each(|&result| region.leaf(result));
                    if let Some(append) = view::KvAppend::from_op(op) {
                        appends.extend(op.results.iter().map(|&token| (token, append)));
                    }
                }
                Effect::Pure => region.op(op)?,
            }
        }
        Ok(region)
    }

    fn leaf(&mut self, value: ValueId) {
        let node = Node::new(Head::Leaf(value), Vec::new());
        self.values[value.index()] = Some(self.graph.add(node));
    }

    fn operand(&mut self, operand: Operand) -> Result<Id, PassError> {
        match operand {
            Operand::Value(value) => self
                .values
                .get(value.index())
                .copied()
                .flatten()
                .ok_or(PassError::Undefined { function: self.function.name.clone(), value: value.0 }),
            Operand::Weight(weight) => Ok(self.graph.add(Node::new(Head::Weight(weight), Vec::new()))),
            Operand::State(_) => unreachable!("only ops with effects take states"),
            Operand::Absent => Ok(self.graph.add(Node::new(Head::Absent, Vec::new()))),
        }
    }

    fn op(&mut self, op: &Op) -> Result<(), PassError> {
        let mut children = Vec::with_capacity(op.operands.len() + op.attrs.len());
        for &operand in &op.operands {
            children.push(self.operand(operand)?);
        }
        for attr in &op.attrs {
            children.push(self.graph.add(Node::new(Head::Attr(AttrKey::from_attr(attr)), Vec::new())));
        }
        let id = self.graph.add(Node::new(Head::Op(op.kind), children));
        if let [result] = op.results[..] {
            self.values[result.index()] = Some(id);
        } else {
            for (i, &result) in op.results.iter().enumerate() {
                self.values[result.index()] = Some(self.graph.add(Node::new(Head::Result(i), vec![id])));
            }
        }
        Ok(())
    }

    /// Adds an `attend` node for an attention: its queries, and the keys and values of the append
    /// that returned its token.
    fn attend(&mut self, op: &Op, appends: &HashMap<ValueId, view::KvAppend>) -> Result<(), PassError> {
        let Some(attention) = view::Attention::from_op(op) else { return Ok(()) };
        if let Some(append) = appends.get(&attention.kv) {
            let operands = [attention.q, append.k, append.v].map(Operand::Value);
            let children = operands.into_iter().map(|operand| self.operand(operand)).collect::<Result<_, _>>()?;
            self.graph.add(Node::new(Head::Attend, children));
        }
        Ok(())
    }

    /// Returns the classes that must be computed: operands of ops with effects, and the results.
    fn roots(&self) -> Vec<Id> {
        let state = self.function.ops.iter().filter(|op| op.kind.row().effect == Effect::State);
        let operands = state.flat_map(|op| op.values().map(|(_, value)| value));
        let values = operands.chain(self.function.results.iter().copied());
        values.filter_map(|value| self.values[value.index()]).collect()
    }
}

/// Writes the chosen nodes as a function.
struct Writer<'a> {
    region: &'a Region<'a>,
    choice: Choice,
    out: Function,
    /// Value, operand or attribute written for each class.
    done: HashMap<Id, Written>,
    /// Name of each class's value in the original function.
    names: HashMap<Id, &'a str>,
}

#[derive(Clone)]
enum Written {
    Values(Vec<ValueId>),
    Operand(Operand),
    Attr(Attr),
}

/// Returns a node's children in the order in which they are written. The residual comes first. For
/// example, a shared expert's result is computed before the routed experts of the layer.
fn in_order(node: &Node) -> impl DoubleEndedIterator<Item = Id> {
    let operands = match &node.head {
        Head::Op(kind) => kind.row().operands,
        _ => &[],
    };
    let residual = operands.iter().position(|operand| operand.name == "residual");
    let first = residual.map(|residual| node.children[residual]);
    first.into_iter().chain(node.children.iter().copied())
}

impl<'a> Writer<'a> {
    fn new(region: &'a Region<'a>, function: &'a Function, choice: Choice) -> Writer<'a> {
        let mut names = HashMap::new();
        for (value, id) in function.values.iter().zip(&region.values) {
            if let (Some(name), Some(id)) = (&value.name, id) {
                names.entry(region.graph.find(*id)).or_insert(name.as_str());
            }
        }
        let out = Function { name: function.name.clone(), ..Function::default() };
        Writer { region, choice, out, done: HashMap::new(), names }
    }

    fn write(mut self) -> Result<Function, PassError> {
        let function = self.region.function;
        for &param in &function.params {
            let data = &function.values[param.index()];
            let value = self.out.add_value(data.name.as_deref(), data.ty.clone());
            self.out.params.push(value);
            self.define(param, value);
        }
        // An op without values as operands has no fixed place. It is written directly before the op
        // that takes its token, so that its place does not depend on the regions.
        let mut begun: Vec<&Op> = Vec::new();
        for op in function.ops.iter().filter(|op| op.kind.row().effect == Effect::State) {
            if !op.operands.iter().any(|operand| matches!(operand, Operand::Value(_))) {
                begun.push(op);
                continue;
            }
            for &operand in &op.operands {
                let defined_here = |begun: &&Op| begun.results.iter().any(|&result| Operand::Value(result) == operand);
                if !begun.iter().any(defined_here) {
                    self.operand(operand)?;
                }
            }
            let takes = |begun: &Op| begun.results.iter().any(|&result| op.operands.contains(&Operand::Value(result)));
            for first in begun.extract_if(.., |begun| takes(begun)) {
                self.effect(first)?;
            }
            self.effect(op)?;
        }
        begun.into_iter().try_for_each(|op| self.effect(op))?;
        for &result in &function.results {
            match self.operand(Operand::Value(result))? {
                Operand::Value(value) => self.out.results.push(value),
                Operand::Weight(_) | Operand::State(_) | Operand::Absent => return Err(self.undefined_error(result)),
            }
        }
        Ok(self.out)
    }

    /// Writes an op with effects.
    fn effect(&mut self, op: &Op) -> Result<(), PassError> {
        let function = self.region.function;
        let operands = op.operands.iter().map(|&operand| self.operand(operand)).collect::<Result<_, _>>()?;
        let types = op.results.iter().map(|&result| function.ty(result).clone()).collect();
        let results = self.out.push(op.kind, operands, op.attrs.clone(), types);
        for (&old, new) in op.results.iter().zip(results) {
            self.out.values[new.index()].name.clone_from(&function.values[old.index()].name);
            self.define(old, new);
        }
        Ok(())
    }

    fn define(&mut self, old: ValueId, new: ValueId) {
        if let Some(id) = self.region.values[old.index()] {
            self.done.insert(self.region.graph.find(id), Written::Values(vec![new]));
        }
    }

    fn undefined_error(&self, value: ValueId) -> PassError {
        PassError::Undefined { function: self.out.name.clone(), value: value.0 }
    }

    fn operand(&mut self, operand: Operand) -> Result<Operand, PassError> {
        let Operand::Value(value) = operand else { return Ok(operand) };
        let id = self.region.values.get(value.index()).copied().flatten().ok_or_else(|| self.undefined_error(value))?;
        match self.class(self.region.graph.find(id)) {
            Some(Written::Values(values)) if values.len() == 1 => Ok(Operand::Value(values[0])),
            _ => Err(self.undefined_error(value)),
        }
    }

    /// Writes a class and all classes that it needs. Returns `None` if one is missing, or if a
    /// class needs itself.
    fn class(&mut self, root: Id) -> Option<Written> {
        let mut stack = vec![(root, false)];
        let mut open = std::collections::HashSet::new();
        while let Some((id, ready)) = stack.pop() {
            if self.done.contains_key(&id) {
                continue;
            }
            let node = self.choice.get(&id)?.clone();
            if ready {
                let written = self.node(id, &node)?;
                self.done.insert(id, written);
            } else {
                if !open.insert(id) {
                    return None;
                }
                stack.push((id, true));
                let children = in_order(&node).rev().map(|child| self.region.graph.find(child));
                stack.extend(children.filter(|child| !self.done.contains_key(child)).map(|child| (child, false)));
            }
        }
        self.done.get(&root).cloned()
    }

    /// Writes a node whose children are written.
    fn node(&mut self, id: Id, node: &Node) -> Option<Written> {
        let child = |i: usize| self.done.get(&self.region.graph.find(node.children[i]));
        match &node.head {
            // Leaves were written with the ops that define them. A leaf that is not written yet is
            // used before its definition.
            Head::Leaf(_) | Head::Attend | Head::Activation => None,
            Head::Weight(weight) => Some(Written::Operand(Operand::Weight(*weight))),
            Head::Absent => Some(Written::Operand(Operand::Absent)),
            Head::Attr(attr) => Some(Written::Attr(attr.attr())),
            Head::Result(i) => match child(0)? {
                Written::Values(values) => {
                    let value = *values.get(*i)?;
                    self.name(id, value);
                    Some(Written::Values(vec![value]))
                }
                Written::Operand(_) | Written::Attr(_) => None,
            },
            Head::Op(kind) => {
                let count = kind.row().operands.len();
                let operands = (0..count).map(|i| match child(i)? {
                    Written::Values(values) if values.len() == 1 => Some(Operand::Value(values[0])),
                    Written::Operand(operand) => Some(*operand),
                    Written::Values(_) | Written::Attr(_) => None,
                });
                let operands = operands.collect::<Option<Vec<_>>>()?;
                let attrs = (count..node.children.len()).map(|i| match child(i)? {
                    Written::Attr(attr) => Some(attr.clone()),
                    Written::Values(_) | Written::Operand(_) => None,
                });
                let attrs = attrs.collect::<Option<Vec<_>>>()?;
                let types = match &self.region.graph[id].data {
                    language::Class::Value(ty) => vec![ty.clone()],
                    language::Class::Tuple(types) => types.clone(),
                    _ => return None,
                };
                let results = self.out.push(*kind, operands, attrs, types);
                if let [value] = results[..] {
                    self.name(id, value);
                }
                Some(Written::Values(results))
            }
        }
    }

    fn name(&mut self, id: Id, value: ValueId) {
        // Two values must not have the same name, so only the first value written for a class gets
        // its name.
        self.out.values[value.index()].name = self.names.remove(&id).map(str::to_string);
    }
}
