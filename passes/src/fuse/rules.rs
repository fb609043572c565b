//! Rules: each replaces a pattern of ops by a faster form, with the reason.
//!
//! Each rule reduces the number of passes over memory. There is no rule for commutativity or
//! associativity. The number of rounds until the e-graph saturates is therefore the length of the
//! longest chain of rules, for any depth of the model. If a frontend may write operands in either
//! order, there are two rules.
//!
//! A rule's right side joins the left side's class only if both have the same type (see
//! [`super::language`]). A gate and an up projection whose formats take different activations thus
//! never become `linear.swiglu`.

use std::collections::HashMap;

use egg::{Applier, ENodeOrVar, Id, Language, Pattern, PatternAst, Rewrite, Searcher, Subst, Symbol, Var};
use ixc_ir::format::Format;
use ixc_ir::graph::op::OperandKind;
use ixc_ir::graph::{Attr, Op, OpKind, Operand};

use super::language::{Class, Graph, Head, Node, Types};

/// One rewriting rule.
pub(crate) struct Rule {
    /// Name of the rule in the log.
    pub(crate) name: &'static str,
    /// Pattern to find; `ROPE` stands for the attributes of a rotation.
    pub(crate) from: &'static str,
    /// Form that is equivalent to the pattern.
    pub(crate) to: &'static str,
    /// Condition in addition to the types.
    when: fn(&Graph, &Subst) -> bool,
}

#[rustfmt::skip]
pub(crate) static RULES: &[Rule] = &[
    // A dot product reads the weight's blocks as stored. To dequantise them first would move 4 to 8
    // times the bytes. The rows must also be integers, so they are quantised. This is the rounding
    // that `fuse` adds.
    rule("linear",               "(matmul ?x (dequantise ?w))",                                "(linear (quantise ?x (activation ?w)) ?w _ _)", always),
    // Rows for float weights are not quantised.
    rule("quantise_f32",         "(quantise ?x f32)",                                          "?x", always),
    // Adding a bias or a residual to a tile that is still in registers costs nothing. A separate op
    // would be a pass over the rows and a barrier.
    rule("bias",                 "(add_bias (linear ?x ?w _ _) ?b)",                           "(linear ?x ?w ?b _)", always),
    rule("residual_left",        "(add ?r (linear ?x ?w ?b _))",                               "(linear ?x ?w ?b ?r)", always),
    rule("residual_right",       "(add (linear ?x ?w ?b _) ?r)",                               "(linear ?x ?w ?b ?r)", always),
    rule("linear_heads",         "(heads.matmul ?x (dequantise ?w))",                          "(linear.heads (quantise ?x (activation ?w)) ?w)", always),
    // The scaling op adds the residual in the same pass over the rows.
    rule("scale_residual_left",  "(add ?r (scale_heads ?x ?s _))",                             "(scale_heads ?x ?s ?r)", always),
    rule("scale_residual_right", "(add (scale_heads ?x ?s _) ?r)",                             "(scale_heads ?x ?s ?r)", always),
    // The normalised row is quantised while it is in L1. The row that is written has a quarter of
    // the bytes.
    rule("norm_quantise",        "(quantise (rms_norm ?x ?w ?eps) ?f)",                        "(rms_norm.quantise ?x ?w ?eps ?f)", rounds),
    // Needs one pass over the two wide results instead of two.
    rule("silu_gate",            "(mul (silu ?g) ?u)",                                         "(gated ?g ?u silu 0.0 0.0 0.0)", always),
    rule("silu_gate_right",      "(mul ?u (silu ?g))",                                         "(gated ?g ?u silu 0.0 0.0 0.0)", always),
    // Gate and up read the same rows, so one pass over the rows serves both. The two wide results
    // are never written to memory.
    rule("swiglu",               "(gated (linear ?x ?g ?gb _) (linear ?x ?u ?ub _) ?a ?l ?s ?b)", "(linear.swiglu ?x ?g ?u ?gb ?ub ?a ?l ?s ?b f32)", always),
    // The producer of `down`'s input quantises it block by block, while the block is in L1.
    rule("swiglu_quantise",      "(quantise (linear.swiglu ?x ?g ?u ?gb ?ub ?a ?l ?s ?b f32) ?f)", "(linear.swiglu ?x ?g ?u ?gb ?ub ?a ?l ?s ?b ?f)", by_blocks),
    // Rows are quantised once for all experts, not once for each expert that reads them.
    rule("expert_swiglu",        "(gated (expert.matmul ?x ?ids (dequantise ?g)) (expert.matmul ?x ?ids (dequantise ?u)) ?a ?l ?s ?b)",
                                 "(expert.swiglu (quantise ?x (activation ?g)) ?ids ?g ?u _ _ ?a ?l ?s ?b f32)", always),
    rule("expert_swiglu_biased", "(gated (expert.add_bias (expert.matmul ?x ?ids (dequantise ?g)) ?ids ?gb) (expert.add_bias (expert.matmul ?x ?ids (dequantise ?u)) ?ids ?ub) ?a ?l ?s ?b)",
                                 "(expert.swiglu (quantise ?x (activation ?g)) ?ids ?g ?u ?gb ?ub ?a ?l ?s ?b f32)", always),
    rule("expert_swiglu_quantise", "(quantise (expert.swiglu ?x ?ids ?g ?u ?gb ?ub ?a ?l ?s ?b f32) ?f)", "(expert.swiglu ?x ?ids ?g ?u ?gb ?ub ?a ?l ?s ?b ?f)", by_blocks),
    // The weighted sum over a token's experts and the residual are added in one pass over the
    // experts' results.
    rule("expert_down",          "(expert.combine (expert.matmul ?y ?ids (dequantise ?w)) ?p)", "(expert.down (quantise ?y (activation ?w)) ?ids ?p ?w _ _)", always),
    rule("expert_down_biased",   "(expert.combine (expert.add_bias (expert.matmul ?y ?ids (dequantise ?w)) ?ids ?b) ?p)", "(expert.down (quantise ?y (activation ?w)) ?ids ?p ?w ?b _)", always),
    rule("expert_residual_left", "(add ?r (expert.down ?x ?ids ?p ?w ?b _))",                  "(expert.down ?x ?ids ?p ?w ?b ?r)", always),
    rule("expert_residual_right", "(add (expert.down ?x ?ids ?p ?w ?b _) ?r)",                 "(expert.down ?x ?ids ?p ?w ?b ?r)", always),
    // A head has 64 to 256 elements, so it stays in registers from its norm to its rotation.
    rule("rope_heads",           "(rope (split_heads ?x ?h) ?pos ?f ?l ROPE)",                 "(rope.heads ?x ?pos _ ?f ?l ?h 0.0 ROPE)", always),
    rule("rope_heads_norm",      "(rope (rms_norm (split_heads ?x ?h) ?n ?eps) ?pos ?f ?l ROPE)", "(rope.heads ?x ?pos ?n ?f ?l ?h ?eps ROPE)", weighted),
];

/// Three projections of the same rows that feed one attention become one work list. This saves
/// three barriers in decode, where each projection alone is too short to keep all threads busy.
/// Each projection may take the rows in another format, for example a `q8_0` value projection next
/// to `q4_k`.
const QKV: &str = "(attend (rope.heads (linear (quantise ?x ?fq) ?wq ?bq _) ?pq ?nq ?rq ?lq ?hq ?eq ROPEq) \
                           (rope.heads (linear (quantise ?x ?fk) ?wk ?bk _) ?pk ?nk ?rk ?lk ?hk ?ek ROPEk) \
                           (split_heads (linear (quantise ?x ?fv) ?wv ?bv _) ?hv))";

const ROPE: &[&str] =
    &["base", "dims", "style", "scaling", "factor", "original_context", "beta_fast", "beta_slow", "attn_factor"];

const fn rule(name: &'static str, from: &'static str, to: &'static str, when: fn(&Graph, &Subst) -> bool) -> Rule {
    Rule { name, from, to, when }
}

fn always(_: &Graph, _: &Subst) -> bool {
    true
}

/// Whether `?n` is a weight. `rope.heads` can include only a norm with a weight.
fn weighted(graph: &Graph, subst: &Subst) -> bool {
    matches!(graph[subst[var("n")]].data, Class::Weight(_))
}

/// Whether `?f` is a quantised format.
fn rounds(graph: &Graph, subst: &Subst) -> bool {
    !matches!(graph[subst[var("f")]].data, Class::Attr(Attr::Format(Format::F32)))
}

/// Returns whether `?f` has scales for blocks of a row. Only then can a work item write a part of a
/// row.
fn by_blocks(graph: &Graph, subst: &Subst) -> bool {
    !matches!(graph[subst[var("f")]].data, Class::Attr(Attr::Format(format)) if format.has_row_scale())
}

/// Returns all rules, compiled.
pub(crate) fn rewrites() -> Vec<Rewrite<Node, Types>> {
    let compile =
        |name: &str, searcher: Pattern<Node>, applier: Box<dyn Applier<Node, Types> + Send + Sync>| match Rewrite::new(
            name,
            searcher,
            Boxed(applier),
        ) {
            Ok(rewrite) => rewrite,
            Err(error) => unreachable!("rule {name}: {error}"),
        };
    let mut rewrites: Vec<_> = RULES
        .iter()
        .map(|rule| {
            compile(rule.name, pattern(rule.from), Box::new(TypedPattern { to: pattern(rule.to), when: rule.when }))
        })
        .collect();
    rewrites.push(compile("qkv", pattern(QKV), Box::new(Qkv)));
    rewrites
}

/// Returns the pattern of a rule's left or right side.
pub(crate) fn pattern_of(text: &str) -> PatternAst<Node> {
    pattern(text).ast
}

fn pattern(text: &str) -> Pattern<Node> {
    let rope = |suffix: &str| ROPE.iter().map(|name| format!("?{name}{suffix}")).collect::<Vec<_>>().join(" ");
    let text = text.replace("ROPEq", &rope("_q")).replace("ROPEk", &rope("_k")).replace("ROPE", &rope(""));
    match text.parse() {
        Ok(pattern) => pattern,
        Err(error) => unreachable!("rule {text}: {error}"),
    }
}

fn var(name: &str) -> Var {
    match format!("?{name}").parse() {
        Ok(var) => var,
        Err(error) => unreachable!("variable {name}: {error}"),
    }
}

/// Boxed applier of a rule; gives appliers of different types one type.
struct Boxed(Box<dyn Applier<Node, Types> + Send + Sync>);

impl Applier<Node, Types> for Boxed {
    fn apply_one(
        &self,
        graph: &mut Graph,
        class: Id,
        subst: &Subst,
        ast: Option<&PatternAst<Node>>,
        rule: Symbol,
    ) -> Vec<Id> {
        self.0.apply_one(graph, class, subst, ast, rule)
    }

    fn vars(&self) -> Vec<Var> {
        self.0.vars()
    }
}

/// Joins `new` to `class` if the types agree.
fn join(graph: &mut Graph, class: Id, new: Id) -> Option<Id> {
    (graph[class].data == graph[new].data && graph[class].data != Class::Untyped && graph.union(class, new))
        .then_some(class)
}

/// A right side that is applied only if it has the left side's type.
struct TypedPattern {
    to: Pattern<Node>,
    when: fn(&Graph, &Subst) -> bool,
}

impl Applier<Node, Types> for TypedPattern {
    fn apply_one(
        &self,
        graph: &mut Graph,
        class: Id,
        subst: &Subst,
        _: Option<&PatternAst<Node>>,
        _: Symbol,
    ) -> Vec<Id> {
        if !(self.when)(graph, subst) {
            return Vec::new();
        }
        let new = graph.add_instantiation(&self.to.ast, subst);
        join(graph, class, new).into_iter().collect()
    }

    fn vars(&self) -> Vec<Var> {
        Searcher::<Node, Types>::vars(&self.to)
    }
}

/// Applier of the rule for three projections: joins each projection with the corresponding result
/// of one `linear.qkv`.
struct Qkv;

impl Applier<Node, Types> for Qkv {
    fn apply_one(&self, graph: &mut Graph, _: Id, subst: &Subst, _: Option<&PatternAst<Node>>, _: Symbol) -> Vec<Id> {
        let get = |name: &str, part: &str| subst[var(&format!("{name}{part}"))];
        let parts = ["q", "k", "v"];
        let xs = parts.map(|p| {
            let children = vec![subst[var("x")], get("f", p)];
            graph.add(Node::new(Head::Op(OpKind::Quantise), children))
        });
        let ws = parts.map(|p| get("w", p));
        let bs = parts.map(|p| get("b", p));
        let absent = graph.add(Node::new(Head::Absent, Vec::new()));
        let fused = [xs, ws, bs].concat();
        let fused = graph.add(Node::new(Head::Op(OpKind::LinearQkv), fused));
        (0..parts.len())
            .filter_map(|i| {
                let alone = graph.add(Node::new(Head::Op(OpKind::Linear), vec![xs[i], ws[i], bs[i], absent]));
                let result = graph.add(Node::new(Head::Result(i), vec![fused]));
                join(graph, alone, result)
            })
            .collect()
    }
}

/// Property of an operand or attribute that is known without an e-graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Child {
    /// `_`.
    Absent,
    /// Any operand except `_`.
    Present,
    /// Unknown property.
    Any,
}

/// An op and the known properties of its children. It stands for a position in a pattern, or for an
/// op that may be in a class.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Shape {
    kind: OpKind,
    children: Vec<Child>,
}

impl Shape {
    fn from_op(op: &Op) -> Shape {
        let operands = op.operands.iter().map(|operand| match operand {
            Operand::Absent => Child::Absent,
            Operand::Value(_) | Operand::Weight(_) | Operand::State(_) => Child::Present,
        });
        Shape { kind: op.kind, children: operands.chain(op.attrs.iter().map(|_| Child::Present)).collect() }
    }

    /// Returns the shape at a position of a pattern, if an op is there. `present` lists the
    /// variables that never match `_`.
    fn at(ast: &PatternAst<Node>, place: &ENodeOrVar<Node>, present: &[Var]) -> Option<Shape> {
        let ENodeOrVar::ENode(node) = place else { return None };
        let Head::Op(kind) = node.head else { return None };
        let child = |&child: &Id| match &ast[child] {
            ENodeOrVar::ENode(node) if node.head == Head::Absent => Child::Absent,
            ENodeOrVar::ENode(_) => Child::Present,
            ENodeOrVar::Var(var) if present.contains(var) => Child::Present,
            ENodeOrVar::Var(_) => Child::Any,
        };
        Some(Shape { kind, children: node.children().iter().map(child).collect() })
    }

    /// Whether one node can match both shapes.
    fn meets(&self, other: &Shape) -> bool {
        let pairs = self.children.iter().zip(&other.children);
        let apart = |pair| matches!(pair, (Child::Absent, Child::Present) | (Child::Present, Child::Absent));
        self.kind == other.kind && !pairs.map(|(a, b)| (*a, *b)).any(apart)
    }
}

/// Returns the variables of a pattern that stand for required operands according to the op table.
fn present(ast: &PatternAst<Node>) -> Vec<Var> {
    let mut present = Vec::new();
    for place in ast.as_ref() {
        let ENodeOrVar::ENode(node) = place else { continue };
        let Head::Op(kind) = node.head else { continue };
        for (row, &child) in kind.row().operands.iter().zip(node.children()) {
            if let (OperandKind::Value | OperandKind::Weight, ENodeOrVar::Var(var)) = (row.kind, &ast[child]) {
                present.push(*var);
            }
        }
    }
    present
}

/// Test for *closed* ops, with a cache of results. No rule matches a user of a closed op together
/// with that op, or with an op that rules replace it with. Rules match the result of a closed op
/// only as a variable, so no match spans both sides of it.
///
/// An `add` is closed: it may become a `linear` with a residual, and rules match only a `linear`
/// without one.
pub(crate) struct Closed {
    /// Ops in left sides of rules, except the root of each side.
    inside: Vec<Shape>,
    /// For each rule, the root of its left side and the root of its right side. `None` means that
    /// the right side is a variable, which can be any op.
    steps: Vec<(Shape, Option<Shape>)>,
    known: HashMap<Shape, bool>,
}

impl Closed {
    pub(crate) fn new() -> Closed {
        let (mut inside, mut steps) = (Vec::new(), Vec::new());
        let mut look = |ast: &PatternAst<Node>| {
            let below = ast.as_ref().split_last().map_or(&[][..], |(_, below)| below);
            inside.extend(below.iter().filter_map(|place| Shape::at(ast, place, &[])));
        };
        for rule in RULES {
            let (from, to) = (pattern(rule.from).ast, pattern(rule.to).ast);
            look(&from);
            let root = |ast: &PatternAst<Node>, present: &[Var]| Shape::at(ast, ast.as_ref().last()?, present);
            if let Some(root_from) = root(&from, &[]) {
                steps.push((root_from, root(&to, &present(&from))));
            }
        }
        // The right side of this rule selects a result of an op. No rule matches an op below such a
        // selection, so the rule adds no step.
        look(&pattern(QKV).ast);
        Closed { inside, steps, known: HashMap::new() }
    }

    /// Whether an op is closed.
    pub(crate) fn op(&mut self, op: &Op) -> bool {
        let shape = Shape::from_op(op);
        if let Some(&known) = self.known.get(&shape) {
            return known;
        }
        let mut shapes = vec![shape.clone()];
        let mut closed = true;
        let mut next = 0;
        while closed && next < shapes.len() {
            let now = shapes[next].clone();
            next += 1;
            closed = !self.inside.iter().any(|inside| inside.meets(&now));
            for (from, to) in &self.steps {
                match to {
                    _ if !from.meets(&now) => {}
                    Some(to) if shapes.contains(to) => {}
                    Some(to) => shapes.push(to.clone()),
                    None => closed = false,
                }
            }
        }
        self.known.insert(shape, closed);
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_compiles_and_has_a_name_of_its_own() {
        let mut names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(rewrites().len(), names.len() + 1);
    }

    #[test]
    fn ops_are_closed_if_no_rule_matches_their_users() {
        use ixc_ir::graph::parse::parse;
        let text = "
weight @e : f32[9, 8]
weight @n : f32[8]
weight @w : f32[8, 8]
func @f(%ids: i32[T], %r: f32[T, 8]) -> (f32[T, 8]) {
  %embed = embed %ids, @e
  %norm = rms_norm %embed, @n {eps = 1e-6}
  %rounded = quantise %norm {format = f32}
  %plain = linear %rounded, @w, _, _
  %biased = linear %rounded, @w, @n, _
  %summed = linear %rounded, @w, _, %r
  %dense = dequantise @w
  %product = matmul %norm, %dense
  %shifted = add_bias %product, @n
  %sum = add %shifted, %r
  %wide = mul %plain, %sum
  %rows = take_rows %wide, %ids
  return %rows
}";
        let module = parse(text).unwrap();
        let mut closed = Closed::new();
        let function = &module.functions[0];
        let names = function.ops.iter().filter(|op| closed.op(op)).map(|op| function.label(op.results[0]));
        assert_eq!(names.collect::<Vec<_>>(), ["%embed", "%summed", "%sum", "%rows"]);
    }
}
