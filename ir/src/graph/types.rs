//! The type rule of every op: from operands and attributes to the types of the results, or why there are none.
//!
//! The builder, the verifier and the parser all call [`result_types`]; there is no second opinion. Symbolic dimensions are
//! equal when their names are.
//!
//! ```text
//! %8 = matmul %7, @w : f32[L, 4096]     // %7 : f32[L, 256], %w : f32[4096, 256]
//! ```
//!
//! Needs: ids of values may be out of range, attributes of any kind and value: this is where hostile ones are refused.
//! Leaves true: an op that passed can be read with [`super::Op::attr`], [`super::Op::operand`] and [`super::attrs`], its
//! numbers divide, and every product of dimensions in its results fits `u64`.

use std::collections::BTreeMap;

use super::op::{AttrKind, OpKind, OpRow, OperandKind};
use super::{Attr, Dim, Element, Function, Module, Operand, Type, Weight};
use crate::format::Format;

/// Why an op has no type.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TypeError {
    /// Too many operands or too few.
    #[error("{op} takes {expected} operands, not {found}")]
    OperandCount {
        /// Mnemonic.
        op: &'static str,
        /// In the op table.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// Too many attributes or too few.
    #[error("{op} takes {expected} attributes, not {found}")]
    AttrCount {
        /// Mnemonic.
        op: &'static str,
        /// In the op table.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// An operand that this op does not take.
    #[error("{op}: operand {operand} is {found}; it must be {expected}")]
    Operand {
        /// Mnemonic.
        op: &'static str,
        /// Its name in the op table.
        operand: &'static str,
        /// What it is.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// An attribute that this op does not take.
    #[error("{op}: attribute {attr} is {found}; it must be {expected}")]
    Attr {
        /// Mnemonic.
        op: &'static str,
        /// Its name.
        attr: &'static str,
        /// What it is.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// A weight's shape is not one that can be stored.
    #[error("weight @{name}: {format}{shape:?} {problem}")]
    Weight {
        /// Its name.
        name: String,
        /// Its format.
        format: Format,
        /// Its shape.
        shape: Vec<u64>,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A second weight of the same name.
    #[error("there is a weight @{name} already; names must be unique")]
    DuplicateWeight {
        /// The name.
        name: String,
    },
    /// A type that no value may have.
    #[error("{ty} {problem}")]
    Type {
        /// The type.
        ty: String,
        /// What is wrong and what would be right.
        problem: String,
    },
}

/// Heads and sizes of one layer's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Key heads.
    pub heads: u64,
    /// Elements of a key.
    pub key: u64,
    /// Elements of a value.
    pub value: u64,
}

impl std::fmt::Display for CacheShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CacheShape { heads, key, value } = self;
        write!(f, "{heads} heads with keys of {key} and values of {value}")
    }
}

/// The KV caches that the ops so far append to, by layer: an `attention` takes its sizes from here, since a token has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Caches(BTreeMap<i64, CacheShape>);

impl Caches {
    /// Of all ops of a function. Ops that have no type are passed over; the verifier reports them.
    pub fn of(module: &Module, function: &Function) -> Caches {
        let mut caches = Caches::default();
        for op in &function.ops {
            caches.note(module, function, op.kind, &op.operands, &op.attrs);
        }
        caches
    }

    /// Takes note of an op; the first append to a layer decides.
    pub fn note(&mut self, module: &Module, function: &Function, kind: OpKind, operands: &[Operand], attrs: &[Attr]) {
        if !matches!(kind, OpKind::KvAppend | OpKind::RopeAppend) {
            return;
        }
        if let Ok((layer, shape)) =
            Rule::new(module, function, kind, operands, attrs).and_then(|rule| rule.appended(kind))
        {
            self.0.entry(layer).or_insert(shape);
        }
    }

    /// The cache of a layer.
    pub fn layer(&self, layer: i64) -> Option<CacheShape> {
        self.0.get(&layer).copied()
    }

    /// All layers in order.
    pub fn layers(&self) -> impl Iterator<Item = (i64, CacheShape)> + '_ {
        self.0.iter().map(|(&layer, &shape)| (layer, shape))
    }
}

/// The types of an op's results, with the KV caches of all ops of `function`.
///
/// # Errors
/// A [`TypeError`] where operands or attributes do not fit the op.
pub fn result_types(
    module: &Module,
    function: &Function,
    kind: OpKind,
    operands: &[Operand],
    attrs: &[Attr],
) -> Result<Vec<Type>, TypeError> {
    // Only these look at the caches, and only then is the walk over all ops worth it.
    let caches = match kind {
        OpKind::Attention | OpKind::KvAppend | OpKind::RopeAppend => Caches::of(module, function),
        _ => Caches::default(),
    };
    result_types_after(&caches, module, function, kind, operands, attrs)
}

/// [`result_types`] with the caches of the ops before this one.
///
/// # Errors
/// A [`TypeError`] where operands or attributes do not fit the op.
pub fn result_types_after(
    caches: &Caches,
    module: &Module,
    function: &Function,
    kind: OpKind,
    operands: &[Operand],
    attrs: &[Attr],
) -> Result<Vec<Type>, TypeError> {
    let rule = Rule::new(module, function, kind, operands, attrs)?;
    let one = |ty: Type| Ok(vec![ty]);
    match kind {
        OpKind::Embed => {
            let [rows] = rule.i32("ids")?;
            let [_, d] = rule.weight("table")?;
            one(Type::f32([rows.clone(), d.into()]))
        }
        OpKind::Dequantise => {
            let weight = rule.any_weight("w");
            one(Type::f32(weight.shape.iter().map(|&n| Dim::Fixed(n)).collect::<Vec<_>>()))
        }
        OpKind::Matmul => {
            let (lead, k) = rule.f32_rows("x")?;
            let [n, wk] = rule.f32("w")?;
            rule.same("w", wk, k)?;
            one(Type::f32(with(lead, n.clone())))
        }
        OpKind::Add | OpKind::Mul => {
            let a = rule.f32_any("a")?;
            if rule.f32_any("b")? != a {
                return Err(rule.operand("b", format!("{}, the type of a", Type::f32(a))));
            }
            one(Type::f32(a))
        }
        OpKind::AddBias => {
            let (lead, n) = rule.f32_rows("x")?;
            let [bias] = rule.weight("bias")?;
            rule.same_number("bias", bias, n)?;
            one(Type::f32(with(lead, n.clone())))
        }
        OpKind::Silu => one(Type::f32(rule.f32_any("x")?)),
        OpKind::RmsNorm => {
            let (lead, d) = rule.rms_norm()?;
            one(Type::f32(with(lead, d)))
        }
        OpKind::SplitHeads => {
            let [rows, width] = rule.f32("x")?;
            let heads = rule.positive("heads")?;
            let d = rule.divided("x", width, heads)?;
            one(Type::f32([rows.clone(), heads.into(), d.into()]))
        }
        OpKind::MergeHeads => {
            let [rows, heads, d] = rule.f32("x")?;
            let width = match (heads.fixed(), d.fixed()) {
                (Some(heads), Some(d)) => heads.checked_mul(d),
                (None, _) | (_, None) => None,
            };
            let width = width.ok_or_else(|| rule.operand("x", "f32[rows, heads, d] with numbers for heads and d"))?;
            one(Type::f32([rows.clone(), width.into()]))
        }
        OpKind::Rope => {
            let [rows, heads, d] = rule.f32("x")?;
            rule.rows("pos", rows)?;
            let size = rule.number("x", d)?;
            rule.rope(size)?;
            one(Type::f32([rows.clone(), heads.clone(), d.clone()]))
        }
        OpKind::KvAppend | OpKind::RopeAppend => {
            let (layer, shape) = rule.appended(kind)?;
            match caches.layer(layer) {
                Some(other) if other != shape => {
                    Err(rule
                        .attr("layer", format!("another: layer {layer} has {other} already, and this appends {shape}")))
                }
                Some(_) | None => one(Type::Token),
            }
        }
        OpKind::Attention => {
            let [rows, heads, d] = rule.f32("q")?;
            rule.token("kv")?;
            rule.rows("pos", rows)?;
            let layer = rule.layer()?;
            let cache = caches.layer(layer).ok_or_else(|| rule.attr("layer", "one that an op before appends to"))?;
            if rule.number("q", d)? != cache.key {
                return Err(rule.operand("q", format!("f32[rows, heads, {}] as the keys of the cache", cache.key)));
            }
            let kv_heads = rule.positive("kv_heads")?;
            if kv_heads != cache.heads {
                return Err(rule.attr("kv_heads", format!("{}, the heads of the cache", cache.heads)));
            }
            if !rule.number("q", heads)?.is_multiple_of(kv_heads) {
                return Err(rule.operand("q", format!("one with a multiple of {kv_heads} heads")));
            }
            rule.finite("scale")?;
            Ok(vec![Type::f32([rows.clone(), heads.clone(), cache.value.into()]), Type::Token])
        }
        OpKind::Route => {
            let [rows, experts] = rule.f32("logits")?;
            let experts = rule.number("logits", experts)?;
            let top_k = rule.positive("top_k")?;
            if top_k > experts {
                return Err(rule.attr("top_k", format!("at most the {experts} experts")));
            }
            rule.finite("scale")?;
            let dims = [rows.clone(), Dim::Fixed(top_k)];
            Ok(vec![Type::i32(dims.clone()), Type::f32(dims)])
        }
        OpKind::ExpertMatmul => {
            let [_, n, wk] = rule.f32("w")?;
            let [rows, slots] = rule.i32("ids")?;
            let (lead, k) = rule.f32_rows("x")?;
            if lead != [rows.clone()] && lead != [rows.clone(), slots.clone()] {
                return Err(rule.operand("x", format!("f32[{rows}, k] or f32[{rows}, {slots}, k], as ids are")));
            }
            rule.same("w", wk, k)?;
            one(Type::f32([rows.clone(), slots.clone(), n.clone()]))
        }
        OpKind::ExpertCombine => {
            let [rows, slots, n] = rule.f32("y")?;
            let p = rule.f32::<2>("p")?;
            if p != [rows, slots] {
                return Err(rule.operand("p", format!("f32[{rows}, {slots}], as the slots of y are")));
            }
            one(Type::f32([rows.clone(), n.clone()]))
        }
        OpKind::TakeRows => {
            let [_, d] = rule.f32("x")?;
            let [rows] = rule.i32("rows")?;
            one(Type::f32([rows.clone(), d.clone()]))
        }
        OpKind::Quantise => {
            let (lead, d) = rule.f32_rows("x")?;
            rule.quantised(with(lead, d.clone()))
        }
        OpKind::RmsNormQuantise => {
            let (lead, d) = rule.rms_norm()?;
            rule.quantised(with(lead, d))
        }
        OpKind::Linear => {
            let weight = rule.any_weight("w");
            let [rows, k] = rule.activation("x", weight)?;
            let [n, wk] = rule.weight("w")?;
            rule.same_number("w", wk, k)?;
            rule.bias("bias", n)?;
            let ty = Type::f32([rows.clone(), n.into()]);
            rule.residual(&ty)?;
            one(ty)
        }
        OpKind::LinearQkv => {
            let parts = [("xq", "wq", "bq"), ("xk", "wk", "bk"), ("xv", "wv", "bv")];
            let [first, k] = rule.activation("xq", rule.any_weight("wq"))?;
            let mut types = Vec::with_capacity(parts.len());
            for (x, w, bias) in parts {
                let weight = rule.any_weight(w);
                let [rows, xk] = rule.activation(x, weight)?;
                if rows != first || xk != k {
                    return Err(
                        rule.operand(x, format!("{}[{first}, {k}], the rows of xq", weight.format.activation()))
                    );
                }
                let [n, wk] = rule.weight(w)?;
                rule.same_number(w, wk, k)?;
                rule.bias(bias, n)?;
                types.push(Type::f32([rows.clone(), n.into()]));
            }
            Ok(types)
        }
        OpKind::LinearSwiglu => {
            let (gate, up) = rule.gate_up()?;
            let [rows, k] = rule.activation("x", gate)?;
            let [n, wk] = rule.weight("gate")?;
            let _: [u64; 2] = rule.weight("up")?;
            rule.same_number("gate", wk, k)?;
            debug_assert_eq!(gate.shape, up.shape);
            rule.quantised([rows.clone(), n.into()])
        }
        OpKind::RopeHeads => {
            let (rows, heads, d) = rule.rope_heads("x")?;
            one(Type::f32([rows.clone(), heads.into(), d.into()]))
        }
        OpKind::ExpertSwiglu => {
            let (gate, _) = rule.gate_up()?;
            let [rows, k] = rule.activation("x", gate)?;
            let [_, n, wk] = rule.weight("gate")?;
            rule.same_number("gate", wk, k)?;
            let [id_rows, slots] = rule.i32("ids")?;
            rule.same("ids", id_rows, rows)?;
            rule.quantised([rows.clone(), slots.clone(), n.into()])
        }
        OpKind::ExpertDown => {
            let [rows, slots, k] = rule.activation("x", rule.any_weight("w"))?;
            let [_, n, wk] = rule.weight("w")?;
            rule.same_number("w", wk, k)?;
            if rule.i32::<2>("ids")? != [rows, slots] {
                return Err(rule.operand("ids", format!("i32[{rows}, {slots}], as the slots of x are")));
            }
            if rule.f32::<2>("p")? != [rows, slots] {
                return Err(rule.operand("p", format!("f32[{rows}, {slots}], as the slots of x are")));
            }
            let ty = Type::f32([rows.clone(), n.into()]);
            rule.residual(&ty)?;
            one(ty)
        }
    }
}

/// Checks that a weight can be stored: a format that files have, a rank of 1 to 4, whole blocks, a size that fits.
///
/// # Errors
/// [`TypeError::Weight`].
pub fn check_weight(weight: &Weight) -> Result<(), TypeError> {
    let error = |problem: String| TypeError::Weight {
        name: weight.name.clone(),
        format: weight.format,
        shape: weight.shape.clone(),
        problem,
    };
    if weight.format.row().gguf_id.is_none() {
        return Err(error("has a format that only activations take".to_string()));
    }
    // GGUF has at most four dimensions (GGML_MAX_DIMS).
    let Some((&last, lead)) = weight.shape.split_last().filter(|(_, lead)| lead.len() < 4) else {
        return Err(error("must have one to four dimensions".to_string()));
    };
    if weight.shape.contains(&0) {
        return Err(error("has a dimension of 0; each must be at least 1".to_string()));
    }
    let Some(row) = weight.format.row_bytes(last) else {
        let block = weight.format.block_len();
        return Err(error(format!("has a last dimension that is no multiple of the block of {block} elements")));
    };
    match lead.iter().try_fold(row, |bytes, &n| bytes.checked_mul(n)) {
        // Signed offsets are what files and pointers have.
        Some(bytes) if i64::try_from(bytes).is_ok() => Ok(()),
        Some(_) | None => Err(error("has more bytes than fit 63 bits".to_string())),
    }
}

/// Checks that a value may have this type: `i32`, `f32` or an activation format in whole blocks, no dimension of 0, and
/// symbols that can be written.
///
/// # Errors
/// [`TypeError::Type`].
pub fn check_type(ty: &Type) -> Result<(), TypeError> {
    let error = |problem: String| TypeError::Type { ty: ty.to_string(), problem };
    let Type::Tensor { element, dims } = ty else { return Ok(()) };
    // Bounds what an op can copy from a long type that text gives once.
    if dims.len() > 4 {
        return Err(TypeError::Type {
            ty: format!("a tensor of {} dimensions", dims.len()),
            problem: "has more than four".to_string(),
        });
    }
    for dim in dims {
        match dim {
            Dim::Fixed(0) => return Err(error("has a dimension of 0; each must be at least 1".to_string())),
            Dim::Symbol(name) if !is_symbol(name) => {
                let name: String = name.chars().take(32).collect();
                return Err(TypeError::Type {
                    ty: format!("the symbol {name:?}"),
                    problem: "is none: one is a letter, then letters, digits and _, at most 32".to_string(),
                });
            }
            Dim::Fixed(_) | Dim::Symbol(_) => {}
        }
    }
    let fixed = dims.iter().filter_map(Dim::fixed).try_fold(1u64, |n, dim| n.checked_mul(dim));
    if fixed.is_none_or(|n| i64::try_from(n).is_err()) {
        return Err(error("has more elements than fit 63 bits".to_string()));
    }
    let Element::Format(format) = element else { return Ok(()) };
    if format.activation() != *format {
        return Err(error("is a weight's format; a value is i32, f32, a8_super or a8_small".to_string()));
    }
    let block = format.block_len() as u64;
    if block > 1 && !dims.last().and_then(Dim::fixed).is_some_and(|n| n.is_multiple_of(block)) {
        return Err(error(format!("must have a last dimension that is a multiple of {block}")));
    }
    Ok(())
}

/// Whether a dimension's symbol can be written; at most 32 characters.
pub fn is_symbol(name: &str) -> bool {
    name.len() <= 32
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl std::fmt::Display for Dim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Dim::Fixed(n) => write!(f, "{n}"),
            Dim::Symbol(name) => f.write_str(name),
        }
    }
}

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Type::Tensor { element, dims } = self else { return f.write_str("token") };
        match element {
            Element::I32 => f.write_str("i32[")?,
            Element::Format(format) => write!(f, "{format}[")?,
        }
        for (i, dim) in dims.iter().enumerate() {
            write!(f, "{}{dim}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

/// `lead` and then `last`.
fn with(lead: &[Dim], last: Dim) -> Vec<Dim> {
    lead.iter().cloned().chain([last]).collect()
}

/// An op under its rule: operands and attributes are of the kinds that the table lists and ids are in range.
struct Rule<'a> {
    module: &'a Module,
    function: &'a Function,
    row: &'static OpRow,
    operands: &'a [Operand],
    attrs: &'a [Attr],
}

impl<'a> Rule<'a> {
    fn new(
        module: &'a Module,
        function: &'a Function,
        kind: OpKind,
        operands: &'a [Operand],
        attrs: &'a [Attr],
    ) -> Result<Rule<'a>, TypeError> {
        let row = kind.row();
        let op = row.mnemonic;
        if operands.len() != row.operands.len() {
            return Err(TypeError::OperandCount { op, expected: row.operands.len(), found: operands.len() });
        }
        if attrs.len() != row.attrs.len() {
            return Err(TypeError::AttrCount { op, expected: row.attrs.len(), found: attrs.len() });
        }
        let rule = Rule { module, function, row, operands, attrs };
        for (operand, declared) in operands.iter().zip(row.operands) {
            let (fits, expected) = match (operand, declared.kind) {
                (Operand::Value(v), OperandKind::Value | OperandKind::OptValue) => {
                    (v.index() < function.values.len(), "a value of this function")
                }
                (Operand::Weight(w), OperandKind::Weight | OperandKind::OptWeight) => {
                    (w.index() < module.weights.len(), "a weight of this module")
                }
                (Operand::Absent, OperandKind::OptValue | OperandKind::OptWeight) => (true, ""),
                (_, OperandKind::Value) => (false, "a value"),
                (_, OperandKind::Weight) => (false, "a weight"),
                (_, OperandKind::OptValue) => (false, "a value or _"),
                (_, OperandKind::OptWeight) => (false, "a weight or _"),
            };
            if !fits {
                return Err(rule.operand(declared.name, expected));
            }
        }
        for (attr, declared) in attrs.iter().zip(row.attrs) {
            let (fits, expected) = match (declared.kind, attr) {
                (AttrKind::Int, Attr::Int(_))
                | (AttrKind::Bool, Attr::Bool(_))
                | (AttrKind::Format, Attr::Format(_)) => (true, String::new()),
                (AttrKind::Float, Attr::Float(v)) => (v.is_finite(), "a finite number".to_string()),
                (AttrKind::Word(words), Attr::Word(word)) => {
                    (words.contains(&word.as_str()), format!("one of {}", words.join(", ")))
                }
                (AttrKind::Int, _) => (false, "an integer".to_string()),
                (AttrKind::Float, _) => (false, "a number".to_string()),
                (AttrKind::Bool, _) => (false, "true or false".to_string()),
                (AttrKind::Word(words), _) => (false, format!("one of {}", words.join(", "))),
                (AttrKind::Format, _) => (false, "a format".to_string()),
            };
            if !fits {
                return Err(rule.attr(declared.name, expected));
            }
        }
        Ok(rule)
    }

    fn find(&self, name: &str) -> Operand {
        match self.row.operands.iter().position(|operand| operand.name == name) {
            Some(i) => self.operands[i],
            None => unreachable!("{} has no operand {name}", self.row.mnemonic),
        }
    }

    fn find_attr(&self, name: &str) -> &'a Attr {
        match self.row.attrs.iter().position(|attr| attr.name == name) {
            Some(i) => &self.attrs[i],
            None => unreachable!("{} has no attribute {name}", self.row.mnemonic),
        }
    }

    fn operand(&self, name: &'static str, expected: impl Into<String>) -> TypeError {
        let found = match self.find(name) {
            Operand::Value(v) => match self.function.values.get(v.index()) {
                Some(value) => value.ty.to_string(),
                None => format!("value number {} of {}", v.0, self.function.values.len()),
            },
            Operand::Weight(w) => match self.module.weights.get(w.index()) {
                Some(weight) => format!("@{} : {}{:?}", weight.name, weight.format, weight.shape),
                None => format!("weight number {} of {}", w.0, self.module.weights.len()),
            },
            Operand::Absent => "absent".to_string(),
        };
        TypeError::Operand { op: self.row.mnemonic, operand: name, found, expected: expected.into() }
    }

    fn attr(&self, name: &'static str, expected: impl Into<String>) -> TypeError {
        let found = match self.find_attr(name) {
            Attr::Int(v) => v.to_string(),
            Attr::Float(v) => format!("{v:?}"),
            Attr::Bool(v) => v.to_string(),
            Attr::Word(v) => v.clone(),
            Attr::Format(v) => v.to_string(),
        };
        TypeError::Attr { op: self.row.mnemonic, attr: name, found, expected: expected.into() }
    }

    fn value(&self, name: &'static str) -> &'a Type {
        match self.find(name) {
            Operand::Value(v) => self.function.ty(v),
            other => unreachable!("{}: operand {name} is {other:?}", self.row.mnemonic),
        }
    }

    fn any_weight(&self, name: &'static str) -> &'a Weight {
        match self.find(name) {
            Operand::Weight(w) => &self.module.weights[w.index()],
            other => unreachable!("{}: operand {name} is {other:?}", self.row.mnemonic),
        }
    }

    /// The shape of a weight of rank `N`.
    fn weight<const N: usize>(&self, name: &'static str) -> Result<[u64; N], TypeError> {
        let shape = &self.any_weight(name).shape;
        <[u64; N]>::try_from(shape.as_slice()).map_err(|_| self.operand(name, format!("one of {N} dimensions")))
    }

    /// The dimensions of a value of this element type and rank.
    fn tensor<const N: usize>(&self, name: &'static str, element: Element) -> Result<[&'a Dim; N], TypeError> {
        let expected = || match element {
            Element::I32 => format!("i32 of {N} dimensions"),
            Element::Format(format) => format!("{format} of {N} dimensions"),
        };
        let ty = self.value(name);
        let dims: Vec<&Dim> = ty.dims().iter().collect();
        match <[&Dim; N]>::try_from(dims) {
            Ok(dims) if ty.element() == Some(element) => Ok(dims),
            Ok(_) | Err(_) => Err(self.operand(name, expected())),
        }
    }

    fn f32<const N: usize>(&self, name: &'static str) -> Result<[&'a Dim; N], TypeError> {
        self.tensor(name, Element::Format(Format::F32))
    }

    fn i32<const N: usize>(&self, name: &'static str) -> Result<[&'a Dim; N], TypeError> {
        self.tensor(name, Element::I32)
    }

    /// `x` as the activations of `weight`.
    fn activation<const N: usize>(&self, name: &'static str, weight: &Weight) -> Result<[&'a Dim; N], TypeError> {
        self.tensor(name, Element::Format(weight.format.activation()))
    }

    fn f32_any(&self, name: &'static str) -> Result<Vec<Dim>, TypeError> {
        match self.value(name) {
            Type::Tensor { element: Element::Format(Format::F32), dims } => Ok(dims.clone()),
            Type::Tensor { .. } | Type::Token => Err(self.operand(name, "f32")),
        }
    }

    /// f32 of any leading dimensions, and the last one.
    fn f32_rows(&self, name: &'static str) -> Result<(&'a [Dim], &'a Dim), TypeError> {
        match self.value(name) {
            Type::Tensor { element: Element::Format(Format::F32), dims } => match dims.split_last() {
                Some((last, lead)) => Ok((lead, last)),
                None => Err(self.operand(name, "f32 of at least one dimension")),
            },
            Type::Tensor { .. } | Type::Token => Err(self.operand(name, "f32 of at least one dimension")),
        }
    }

    fn token(&self, name: &'static str) -> Result<(), TypeError> {
        match self.value(name) {
            Type::Token => Ok(()),
            Type::Tensor { .. } => Err(self.operand(name, "a token")),
        }
    }

    /// `i32[rows]`.
    fn rows(&self, name: &'static str, rows: &Dim) -> Result<(), TypeError> {
        let [dim] = self.i32(name)?;
        self.same(name, dim, rows)
    }

    fn same(&self, name: &'static str, found: &Dim, expected: &Dim) -> Result<(), TypeError> {
        if found == expected {
            Ok(())
        } else {
            Err(self.operand(name, format!("one with {expected} in place of {found}")))
        }
    }

    fn same_number(&self, name: &'static str, found: u64, expected: &Dim) -> Result<(), TypeError> {
        self.same(name, &Dim::Fixed(found), expected)
    }

    fn number(&self, name: &'static str, dim: &Dim) -> Result<u64, TypeError> {
        dim.fixed().ok_or_else(|| self.operand(name, format!("one with a number in place of {dim}")))
    }

    /// `width / heads`.
    fn divided(&self, name: &'static str, width: &Dim, heads: u64) -> Result<u64, TypeError> {
        match self.number(name, width)? {
            width if width.is_multiple_of(heads) => Ok(width / heads),
            width => Err(self.operand(name, format!("one with a multiple of {heads} in place of {width}"))),
        }
    }

    fn positive(&self, name: &'static str) -> Result<u64, TypeError> {
        match u64::try_from(self.find_attr(name).int()) {
            // One row's worth of anything countable stays below this, and products of two of them below 2^63.
            Ok(value) if value > 0 && u32::try_from(value).is_ok() => Ok(value),
            Ok(_) | Err(_) => Err(self.attr(name, format!("in 1..={}", u32::MAX))),
        }
    }

    fn finite(&self, name: &'static str) -> Result<f64, TypeError> {
        // `Rule::new` has refused infinities; what f32 kernels take must be finite as f32 too.
        let value = self.find_attr(name).float();
        if (value as f32).is_finite() { Ok(value) } else { Err(self.attr(name, "a finite f32")) }
    }

    fn above(&self, name: &'static str, bound: f64) -> Result<f64, TypeError> {
        let value = self.finite(name)?;
        if value > bound { Ok(value) } else { Err(self.attr(name, format!("more than {bound}"))) }
    }

    fn eps(&self) -> Result<(), TypeError> {
        let eps = self.finite("eps")?;
        if eps >= 0.0 { Ok(()) } else { Err(self.attr("eps", "at least 0")) }
    }

    fn layer(&self) -> Result<i64, TypeError> {
        let layer = self.find_attr("layer").int();
        if u32::try_from(layer).is_ok() { Ok(layer) } else { Err(self.attr("layer", format!("in 0..={}", u32::MAX))) }
    }

    fn bias(&self, name: &'static str, n: u64) -> Result<(), TypeError> {
        if self.find(name) == Operand::Absent {
            return Ok(());
        }
        let [bias] = self.weight(name)?;
        self.same_number(name, bias, &n.into())
    }

    fn residual(&self, expected: &Type) -> Result<(), TypeError> {
        if self.find("residual") == Operand::Absent || self.value("residual") == expected {
            return Ok(());
        }
        Err(self.operand("residual", format!("{expected}, the type of the result")))
    }

    fn rms_norm(&self) -> Result<(&'a [Dim], Dim), TypeError> {
        let (lead, d) = self.f32_rows("x")?;
        let [w] = self.weight("w")?;
        self.same_number("w", w, d)?;
        self.eps()?;
        Ok((lead, d.clone()))
    }

    /// The result of an op that quantises to its attribute `format`.
    fn quantised(&self, dims: impl Into<Vec<Dim>>) -> Result<Vec<Type>, TypeError> {
        let format = self.find_attr("format").format();
        if format.activation() != format {
            return Err(self.attr("format", "an activation format: f32, a8_super or a8_small"));
        }
        let ty = Type::of(format, dims);
        check_type(&ty)?;
        Ok(vec![ty])
    }

    /// Gate and up: of one shape, and with one activation format since they share `x`.
    fn gate_up(&self) -> Result<(&'a Weight, &'a Weight), TypeError> {
        let (gate, up) = (self.any_weight("gate"), self.any_weight("up"));
        if gate.shape != up.shape {
            return Err(self.operand("up", format!("of the shape of gate, {:?}", gate.shape)));
        }
        if gate.format.activation() != up.format.activation() {
            let expected = format!("a format that takes {} activations, as gate does", gate.format.activation());
            return Err(self.operand("up", expected));
        }
        Ok((gate, up))
    }

    /// The RoPE attributes, for heads of `size` elements.
    fn rope(&self, size: u64) -> Result<(), TypeError> {
        let dims = self.positive("dims")?;
        if dims > size || !dims.is_multiple_of(2) {
            return Err(self.attr("dims", format!("even and at most {size}, the elements of a head")));
        }
        if self.find("factors") != Operand::Absent {
            let [factors] = self.weight("factors")?;
            self.same_number("factors", factors, &(dims / 2).into())?;
        }
        self.finite("attn_factor")?;
        match self.find_attr("scaling").word() {
            "yarn" => {
                // The ramp divides by ln(base) and takes ln(original_context / beta).
                self.above("base", 1.0)?;
                self.above("factor", 0.0)?;
                self.above("beta_fast", 0.0)?;
                self.above("beta_slow", 0.0)?;
                self.positive("original_context")?;
            }
            "linear" => {
                self.above("base", 0.0)?;
                self.above("factor", 0.0)?;
            }
            _ => {
                self.above("base", 0.0)?;
            }
        }
        Ok(())
    }

    /// Rows, heads and head size of `rope.heads` and of the keys of `rope.append`.
    fn rope_heads(&self, name: &'static str) -> Result<(&'a Dim, u64, u64), TypeError> {
        let [rows, width] = self.f32(name)?;
        let heads = self.positive("heads")?;
        let d = self.divided(name, width, heads)?;
        self.rows("pos", rows)?;
        if self.find("norm") != Operand::Absent {
            let [norm] = self.weight("norm")?;
            self.same_number("norm", norm, &d.into())?;
        }
        self.eps()?;
        self.rope(d)?;
        Ok((rows, heads, d))
    }

    /// What an append puts where.
    fn appended(&self, kind: OpKind) -> Result<(i64, CacheShape), TypeError> {
        self.token("kv")?;
        let layer = self.layer()?;
        if kind == OpKind::RopeAppend {
            let (rows, heads, key) = self.rope_heads("k")?;
            let [v_rows, width] = self.f32("v")?;
            self.same("v", v_rows, rows)?;
            return Ok((layer, CacheShape { heads, key, value: self.divided("v", width, heads)? }));
        }
        let [rows, heads, key] = self.f32("k")?;
        let [v_rows, v_heads, value] = self.f32("v")?;
        self.same("v", v_rows, rows)?;
        self.same("v", v_heads, heads)?;
        self.rows("pos", rows)?;
        let shape = CacheShape {
            heads: self.number("k", heads)?,
            key: self.number("k", key)?,
            value: self.number("v", value)?,
        };
        Ok((layer, shape))
    }
}
