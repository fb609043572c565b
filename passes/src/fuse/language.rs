//! The e-graph's language: graph ops with operands and attributes as children, so that a rule is
//! text such as `(rms_norm ?x ?w ?eps)`. Names and arities come from the op table.
//!
//! All nodes of an e-class compute the same value, so every class has one type. [`Types`] computes
//! it by the graph's type rules. A rule's result joins a class only if the types agree. Rules
//! therefore need no conditions on formats and shapes: an ill-typed result is not applied.
//!
//! Besides ops there are leaves: values from outside the region, weights, `_` and attributes.
//! `(result.N op)` selects a result of an op with several results. `(activation ?w)` is the
//! activation format of a weight. `(attend ?q ?k ?v)` stands for an attention and the append before
//! it. States are not part of the e-graph, but rules can match the inputs of attention.

use egg::{Analysis, DidMerge, EGraph, FromOp, FromOpError, Id, Language};
use ixc_ir::format::Format;
use ixc_ir::graph::op::{AttrKind, OPS};
use ixc_ir::graph::types::result_types;
use ixc_ir::graph::{Attr, Function, Module, OpKind, Operand, Type, ValueData, ValueId, WeightId};

/// Attribute with equality and order. Floats are compared by their bits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AttrKey {
    Int(i64),
    Float(u32),
    Bool(bool),
    Word(String),
    Format(Format),
}

impl AttrKey {
    pub(crate) fn from_attr(attr: &Attr) -> AttrKey {
        match attr {
            Attr::Int(v) => AttrKey::Int(*v),
            Attr::Float(v) => AttrKey::Float(v.to_bits()),
            Attr::Bool(v) => AttrKey::Bool(*v),
            Attr::Word(v) => AttrKey::Word(v.clone()),
            Attr::Format(v) => AttrKey::Format(*v),
        }
    }

    pub(crate) fn attr(&self) -> Attr {
        match self {
            AttrKey::Int(v) => Attr::Int(*v),
            AttrKey::Float(v) => Attr::Float(f32::from_bits(*v)),
            AttrKey::Bool(v) => Attr::Bool(*v),
            AttrKey::Word(v) => Attr::Word(v.clone()),
            AttrKey::Format(v) => Attr::Format(*v),
        }
    }
}

/// Kind of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Head {
    /// A parameter or a result of an op with effects.
    Leaf(ValueId),
    Weight(WeightId),
    Absent,
    Attr(AttrKey),
    /// An op. Its children are operands, then attributes, in the order of the op table.
    Op(OpKind),
    /// One result of an op with several results.
    Result(usize),
    /// The format to which activations are quantised for products with a weight.
    Activation,
    /// Marker for an attention; children are queries, keys and values.
    Attend,
}

/// A node of the e-graph.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    pub(crate) head: Head,
    pub(crate) children: Vec<Id>,
}

impl Node {
    pub(crate) fn new(head: Head, children: Vec<Id>) -> Node {
        Node { head, children }
    }
}

impl Language for Node {
    type Discriminant = Head;

    fn discriminant(&self) -> Head {
        self.head.clone()
    }

    fn matches(&self, other: &Node) -> bool {
        self.head == other.head && self.children.len() == other.children.len()
    }

    fn children(&self) -> &[Id] {
        &self.children
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.children
    }
}

impl std::fmt::Display for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.head {
            Head::Leaf(value) => write!(f, "%{}", value.0),
            Head::Weight(weight) => write!(f, "@{}", weight.0),
            Head::Absent => f.write_str("_"),
            Head::Attr(attr) => write!(f, "{:?}", attr.attr()),
            Head::Op(kind) => f.write_str(kind.row().mnemonic),
            Head::Result(i) => write!(f, "result.{i}"),
            Head::Activation => f.write_str("activation"),
            Head::Attend => f.write_str("attend"),
        }
    }
}

/// Reads nodes from the text of rules. Values from outside the region have no text.
impl FromOp for Node {
    type Error = FromOpError;

    fn from_op(op: &str, children: Vec<Id>) -> Result<Node, FromOpError> {
        let arity = |head: Head, n: usize, children: Vec<Id>| {
            if children.len() == n { Ok(Node { head, children }) } else { Err(FromOpError::new(op, children)) }
        };
        if let Some(kind) = OpKind::from_mnemonic(op).filter(|_| !(children.is_empty() && is_word(op))) {
            let row = kind.row();
            return arity(Head::Op(kind), row.operands.len() + row.attrs.len(), children);
        }
        match op {
            "_" => arity(Head::Absent, 0, children),
            "activation" => arity(Head::Activation, 1, children),
            "attend" => arity(Head::Attend, 3, children),
            _ => match (op.strip_prefix("result.").map(str::parse), Format::from_name(op), op.parse::<f32>()) {
                (Some(Ok(i)), _, _) => arity(Head::Result(i), 1, children),
                (_, Some(format), _) => arity(Head::Attr(AttrKey::Format(format)), 0, children),
                (_, _, Ok(float)) => arity(Head::Attr(AttrKey::Float(float.to_bits())), 0, children),
                _ if is_word(op) => arity(Head::Attr(AttrKey::Word(op.to_owned())), 0, children),
                _ => Err(FromOpError::new(op, children)),
            },
        }
    }
}

/// Returns whether an attribute of some op can have this word as its value. The word may also be
/// the name of an op with operands, such as `silu`.
fn is_word(text: &str) -> bool {
    let attrs = OPS.iter().flat_map(|row| row.attrs);
    attrs.into_iter().any(|attr| matches!(attr.kind, AttrKind::Word(words) if words.contains(&text)))
}

/// Data of an e-class: its type, or another kind of content.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Class {
    Value(Type),
    Weight(WeightId),
    Absent,
    Attr(Attr),
    /// An op with several results.
    Tuple(Vec<Type>),
    /// An `attend` node, which rules only match and never compute.
    Mark,
    /// An ill-typed result of a rule; no class is ever equal to it.
    Untyped,
}

/// Computes the type of every class.
pub(crate) struct Types {
    /// Module with the weights of the region, without functions.
    module: Module,
    /// Types of the region's leaves, by [`ValueId`].
    leaves: Vec<ValueData>,
}

/// The e-graph of a region.
pub(crate) type Graph = EGraph<Node, Types>;

impl Types {
    pub(crate) fn new(module: &Module, function: &Function) -> Types {
        let weights = Module { weights: module.weights.clone(), ..Module::default() };
        Types { module: weights, leaves: function.values.clone() }
    }

    fn op(&self, kind: OpKind, children: &[&Class]) -> Option<Class> {
        let row = kind.row();
        let (operands, attrs) = children.split_at(row.operands.len());
        // The type rules read operands from a function; this function holds only the types of the
        // operands.
        let mut function = Function::default();
        let operands = operands.iter().map(|class| match class {
            Class::Value(ty) => Some(Operand::Value(function.add_value(None, ty.clone()))),
            Class::Weight(weight) => Some(Operand::Weight(*weight)),
            Class::Absent => Some(Operand::Absent),
            Class::Attr(_) | Class::Tuple(_) | Class::Mark | Class::Untyped => None,
        });
        let operands: Vec<Operand> = operands.collect::<Option<_>>()?;
        let attrs = attrs.iter().map(|class| match class {
            Class::Attr(attr) => Some(attr.clone()),
            _ => None,
        });
        let attrs: Vec<Attr> = attrs.collect::<Option<_>>()?;
        let mut types = result_types(&self.module, &function, kind, &operands, &attrs).ok()?;
        if types.len() == 1 { types.pop().map(Class::Value) } else { Some(Class::Tuple(types)) }
    }

    fn class(&self, head: &Head, children: &[&Class]) -> Option<Class> {
        match (head, children) {
            (Head::Leaf(value), _) => self.leaves.get(value.index()).map(|data| Class::Value(data.ty.clone())),
            (Head::Weight(weight), _) => Some(Class::Weight(*weight)),
            (Head::Absent, _) => Some(Class::Absent),
            (Head::Attr(attr), _) => Some(Class::Attr(attr.attr())),
            (Head::Op(kind), _) => self.op(*kind, children),
            (Head::Result(i), [Class::Tuple(types)]) => types.get(*i).cloned().map(Class::Value),
            (Head::Activation, [Class::Weight(weight)]) => {
                self.module.weights.get(weight.index()).map(|w| Class::Attr(Attr::Format(w.format.activation())))
            }
            (Head::Attend, _) => Some(Class::Mark),
            (Head::Result(_) | Head::Activation, _) => None,
        }
    }
}

impl Analysis<Node> for Types {
    type Data = Class;

    fn make(egraph: &mut Graph, node: &Node, _id: Id) -> Class {
        let children: Vec<&Class> = node.children.iter().map(|&child| &egraph[child].data).collect();
        egraph.analysis.class(&node.head, &children).unwrap_or(Class::Untyped)
    }

    fn merge(&mut self, a: &mut Class, b: Class) -> DidMerge {
        // Rules join only classes of equal type. An untyped class can become equal to another by
        // congruence, and then gets its type.
        if *a == Class::Untyped && b != Class::Untyped {
            *a = b;
            return DidMerge(true, false);
        }
        DidMerge(false, *a != b)
    }

    fn modify(egraph: &mut Graph, id: Id) {
        // An `activation` node is replaced by the attribute leaf with its format, so that equal
        // formats are one class.
        if let Class::Attr(attr) = &egraph[id].data {
            let leaf = Node::new(Head::Attr(AttrKey::from_attr(attr)), Vec::new());
            let leaf = egraph.add(leaf);
            egraph.union(id, leaf);
        }
    }
}
