//! `fuse`: reads weights quantised, and does in one op what one pass over memory can do.
//!
//! Needs: a verified module. Leaves: the same function of the same parameters but for rounding, where every matrix product
//! that can is a `linear`, `linear.qkv`, `linear.swiglu`, `expert.swiglu` or `expert.down`. **The rounding is part of what
//! the pass means**: a product with a quantised weight takes its rows in that weight's activation format (8-bit integers
//! with a scale for 32 or 256), so `fuse` puts in a `quantise` that the graph as written has not. With `f32`, `f16` and
//! `bf16` weights nothing rounds.
//!
//! ```text
//!   %h = rms_norm %x, @norm {eps = 1e-6} : f32[T, 256]
//!   %0 = dequantise @w : f32[512, 256]                    // @w : q4_k[512, 256]
//!   %y = matmul %h, %0 : f32[T, 512]
//! ```
//! becomes
//! ```text
//!   %1 = rms_norm.quantise %x, @norm {eps = 1e-6, format = a8_super} : a8_super[T, 256]
//!   %y = linear %1, @w, _, _ : f32[T, 512]
//! ```
//!
//! How: the pure ops of a function are one e-graph ([`language`]), its rules ([`rules`]) run until nothing is new, and the
//! cheapest DAG ([`extract`]) is written back in the order in which the ops with effects, which stay where they are, need
//! it. What an append takes from a rotation is fused last and without egg ([`append`]): an append has effects.
//!
//! Cost: about 40 nodes for each layer's 25 ops; the number of rounds does not grow with the model. Limits on nodes and
//! rounds (never on time: the same module must give the same result) end a run that misbehaves, and what was found until
//! then is used; the log says why a run ended.

mod append;
mod extract;
mod language;
mod rules;

use std::collections::HashMap;
use std::time::Duration;

use egg::{Id, Runner, SimpleScheduler, StopReason};
use ixc_ir::graph::op::Effect;
use ixc_ir::graph::{Attr, Function, Module, Op, OpKind, Operand, ValueId};

use crate::canonicalise;
use crate::manager::{Options, PassError};
use extract::Choice;
use language::{AttrKey, Graph, Head, Node, Types};

/// egg must have a limit on time; this one is never met.
const NO_TIME_LIMIT: Duration = Duration::from_secs(u32::MAX as u64);

/// Runs the pass.
///
/// # Errors
/// When a function is too large, or uses a value before it is defined, which the verifier refuses.
pub fn run(mut module: Module, options: &Options) -> Result<Module, PassError> {
    for i in 0..module.functions.len() {
        let fused = fuse(&module, &module.functions[i], options)?;
        module.functions[i] = append::run(fused);
    }
    canonicalise::run(module, options)
}

fn fuse(module: &Module, function: &Function, options: &Options) -> Result<Function, PassError> {
    let mut region = Region::new(module, function)?;
    let mut graph = std::mem::replace(&mut region.graph, Graph::new(Types::new(module, &Function::default())));
    graph.rebuild();
    let before = graph.total_size();
    if before > options.fuse_nodes {
        return Err(PassError::TooLarge { function: function.name.clone(), nodes: before, limit: options.fuse_nodes });
    }
    let rewrites = rules::rewrites();
    let runner = Runner::<Node, Types>::new(Types::new(module, &Function::default()))
        .with_egraph(graph)
        .with_scheduler(SimpleScheduler)
        .with_node_limit(options.fuse_nodes)
        .with_iter_limit(options.fuse_rounds)
        .with_time_limit(NO_TIME_LIMIT);
    // A clock that stands still: no time counts here, and the real one calibrates itself for up to 200 ms first.
    let runner = quanta::with_clock(&quanta::Clock::mock().0, || runner.run(&rewrites));
    let reason = runner.stop_reason.clone().unwrap_or(StopReason::Saturated);
    tracing::debug!(
        function = function.name,
        nodes_before = before,
        nodes = runner.egraph.total_size(),
        rounds = runner.iterations.len(),
        ?reason,
        "egg stopped"
    );
    if !matches!(reason, StopReason::Saturated) {
        tracing::warn!(function = function.name, ?reason, "fusing ended early; some ops may stay unfused");
    }
    for iteration in &runner.iterations {
        for (rule, count) in &iteration.applied {
            tracing::trace!(%rule, count, "applied");
        }
    }
    region.graph = runner.egraph;
    let roots: Vec<Id> = region.roots();
    let choice = extract::extract(&region.graph, &roots);
    Writer::new(&region, function, choice).write()
}

/// A function's pure ops as an e-graph.
struct Region<'a> {
    function: &'a Function,
    graph: Graph,
    /// Class of each value; `None` where it is not defined yet.
    values: Vec<Option<Id>>,
}

impl<'a> Region<'a> {
    fn new(module: &Module, function: &'a Function) -> Result<Region<'a>, PassError> {
        let graph = Graph::new(Types::new(module, function));
        let mut region = Region { function, graph, values: vec![None; function.values.len()] };
        for &param in &function.params {
            region.leaf(param);
        }
        // The append that each token comes from: what an attention reads stands there.
        let mut appends: HashMap<ValueId, &Op> = HashMap::new();
        for op in &function.ops {
            match op.kind.row().effect {
                Effect::State => {
                    region.attend(op, &appends)?;
                    op.results.iter().for_each(|&result| region.leaf(result));
                    if op.kind == OpKind::KvAppend {
                        appends.extend(op.results.iter().map(|&token| (token, op)));
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
            Operand::Absent => Ok(self.graph.add(Node::new(Head::Absent, Vec::new()))),
        }
    }

    fn op(&mut self, op: &Op) -> Result<(), PassError> {
        let mut children = Vec::with_capacity(op.operands.len() + op.attrs.len());
        for &operand in &op.operands {
            children.push(self.operand(operand)?);
        }
        for attr in &op.attrs {
            children.push(self.graph.add(Node::new(Head::Attr(AttrKey::of(attr)), Vec::new())));
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

    /// Marks what an attention reads: its queries, and the keys and values of the append that its token comes from.
    fn attend(&mut self, op: &Op, appends: &HashMap<ValueId, &Op>) -> Result<(), PassError> {
        if op.kind != OpKind::Attention {
            return Ok(());
        }
        let Operand::Value(token) = op.operand("kv") else { return Ok(()) };
        if let Some(append) = appends.get(&token).filter(|append| append.attr("layer") == op.attr("layer")) {
            let operands = [op.operand("q"), append.operand("k"), append.operand("v")];
            let children = operands.into_iter().map(|operand| self.operand(operand)).collect::<Result<_, _>>()?;
            self.graph.add(Node::new(Head::Attend, children));
        }
        Ok(())
    }

    /// What must be computed: what ops with effects take, and the results.
    fn roots(&self) -> Vec<Id> {
        let state = self.function.ops.iter().filter(|op| op.kind.row().effect == Effect::State);
        let operands = state.flat_map(|op| &op.operands).filter_map(|operand| match operand {
            Operand::Value(value) => Some(*value),
            Operand::Weight(_) | Operand::Absent => None,
        });
        let values = operands.chain(self.function.results.iter().copied());
        values.filter_map(|value| self.values[value.index()]).collect()
    }
}

/// Writes the chosen nodes as a function.
struct Writer<'a> {
    region: &'a Region<'a>,
    choice: Choice,
    out: Function,
    /// What each class is in `out`.
    done: HashMap<Id, Written>,
    /// A value's name in the function as it was, by class.
    names: HashMap<Id, &'a str>,
}

#[derive(Clone)]
enum Written {
    Values(Vec<ValueId>),
    Operand(Operand),
    Attr(Attr),
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
        for op in function.ops.iter().filter(|op| op.kind.row().effect == Effect::State) {
            let operands = op.operands.iter().map(|&operand| self.operand(operand)).collect::<Result<_, _>>()?;
            let types = op.results.iter().map(|&result| function.ty(result).clone()).collect();
            let results = self.out.push(op.kind, operands, op.attrs.clone(), types);
            for (&old, new) in op.results.iter().zip(results) {
                self.out.values[new.index()].name.clone_from(&function.values[old.index()].name);
                self.define(old, new);
            }
        }
        for &result in &function.results {
            match self.operand(Operand::Value(result))? {
                Operand::Value(value) => self.out.results.push(value),
                Operand::Weight(_) | Operand::Absent => return Err(self.undefined(result)),
            }
        }
        Ok(self.out)
    }

    fn define(&mut self, old: ValueId, new: ValueId) {
        if let Some(id) = self.region.values[old.index()] {
            self.done.insert(self.region.graph.find(id), Written::Values(vec![new]));
        }
    }

    fn undefined(&self, value: ValueId) -> PassError {
        PassError::Undefined { function: self.out.name.clone(), value: value.0 }
    }

    fn operand(&mut self, operand: Operand) -> Result<Operand, PassError> {
        let Operand::Value(value) = operand else { return Ok(operand) };
        let id = self.region.values.get(value.index()).copied().flatten().ok_or_else(|| self.undefined(value))?;
        match self.class(self.region.graph.find(id)) {
            Some(Written::Values(values)) if values.len() == 1 => Ok(Operand::Value(values[0])),
            _ => Err(self.undefined(value)),
        }
    }

    /// Writes a class and all that it needs; `None` where something is not there or needs itself.
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
                let children = node.children.iter().rev().map(|&child| self.region.graph.find(child));
                stack.extend(children.filter(|child| !self.done.contains_key(child)).map(|child| (child, false)));
            }
        }
        self.done.get(&root).cloned()
    }

    /// Writes a node whose children are written.
    fn node(&mut self, id: Id, node: &Node) -> Option<Written> {
        let child = |i: usize| self.done.get(&self.region.graph.find(node.children[i]));
        match &node.head {
            // Written with the ops that define them; a leaf that is asked for before is used before it is defined.
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
        // Two classes may not have one name, and a name stands for one value: the class's first.
        self.out.values[value.index()].name = self.names.remove(&id).map(str::to_string);
    }
}
