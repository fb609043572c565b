//! Access to operands and attributes for the type rules. Each method returns the requested
//! property, or a [`TypeError`] that states the expectation.
//!
//! ```text
//! let [rows, k] = rule.f32("x")?;       // f32 of two dimensions
//! let heads = rule.positive("heads")?;  // 1..=u32::MAX
//! ```
//!
//! Invariant: after [`Rule::new`], operands and attributes have the kinds that the op table lists,
//! and ids are in range. Access by a name in the op table cannot fail; access by any other name
//! panics.

use super::{CacheShape, TypeError, check_type};
use crate::format::Format;
use crate::graph::attrs::{Activation, RouteScore};
use crate::graph::op::{AttrKind, OpKind, OpRow, OperandKind};
use crate::graph::{Attr, Dim, Element, Function, Group, Module, Operand, State, StateId, TokenOwner, Type, Weight};
use crate::state::StateKind;

/// An op that a type rule checks. Operands and attributes have the kinds that the op table lists,
/// and ids are in range.
pub(in crate::graph) struct Rule<'a> {
    module: &'a Module,
    function: &'a Function,
    row: &'static OpRow,
    operands: &'a [Operand],
    attrs: &'a [Attr],
}

impl<'a> Rule<'a> {
    pub(in crate::graph) fn new(
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
                (Operand::State(s), OperandKind::State) => (s.index() < module.states.len(), "a state of this module"),
                (Operand::Absent, OperandKind::OptValue | OperandKind::OptWeight) => (true, ""),
                (_, OperandKind::Value) => (false, "a value"),
                (_, OperandKind::Weight) => (false, "a weight"),
                (_, OperandKind::State) => (false, "a state"),
                (_, OperandKind::OptValue) => (false, "a value or _"),
                (_, OperandKind::OptWeight) => (false, "a weight or _"),
            };
            if !fits {
                return Err(rule.operand(declared.name, expected));
            }
        }
        for (attr, declared) in attrs.iter().zip(row.attrs) {
            let (fits, expected) = match (declared.kind, attr) {
                (AttrKind::Int | AttrKind::OptInt, Attr::Int(_))
                | (AttrKind::Bool, Attr::Bool(_))
                | (AttrKind::Format, Attr::Format(_)) => (true, String::new()),
                (AttrKind::Float | AttrKind::OptFloat, Attr::Float(v)) => {
                    (v.is_finite(), "a finite number".to_string())
                }
                (AttrKind::Word(words), Attr::Word(word)) => {
                    (words.contains(&word.as_str()), format!("one of {}", words.join(", ")))
                }
                (AttrKind::Int | AttrKind::OptInt, _) => (false, "an integer".to_string()),
                (AttrKind::Float | AttrKind::OptFloat, _) => (false, "a number".to_string()),
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

    pub(in crate::graph) fn find(&self, name: &str) -> Operand {
        match self.row.operands.iter().position(|operand| operand.name == name) {
            Some(i) => self.operands[i],
            None => unreachable!("{} has no operand {name}", self.row.mnemonic),
        }
    }

    pub(in crate::graph) fn find_attr(&self, name: &str) -> &'a Attr {
        match self.row.attrs.iter().position(|attr| attr.name == name) {
            Some(i) => &self.attrs[i],
            None => unreachable!("{} has no attribute {name}", self.row.mnemonic),
        }
    }

    pub(in crate::graph) fn operand(&self, name: &'static str, expected: impl Into<String>) -> TypeError {
        let found = match self.find(name) {
            Operand::Value(v) => match self.function.values.get(v.index()) {
                Some(value) => value.ty.text(self.module),
                None => format!("value number {} of {}", v.0, self.function.values.len()),
            },
            Operand::Weight(w) => match self.module.weights.get(w.index()) {
                Some(weight) => format!("@{} : {}{:?}", weight.name, weight.format, weight.shape),
                None => format!("weight number {} of {}", w.0, self.module.weights.len()),
            },
            Operand::State(s) => match self.module.states.get(s.index()) {
                Some(state) => state.to_string(),
                None => format!("state number {} of {}", s.0, self.module.states.len()),
            },
            Operand::Absent => "absent".to_string(),
        };
        TypeError::Operand { op: self.row.mnemonic, operand: name, found, expected: expected.into() }
    }

    pub(in crate::graph) fn attr(&self, name: &'static str, expected: impl Into<String>) -> TypeError {
        let found = match self.find_attr(name) {
            Attr::Int(v) => v.to_string(),
            Attr::Float(v) => format!("{v:?}"),
            Attr::Bool(v) => v.to_string(),
            Attr::Word(v) => v.clone(),
            Attr::Format(v) => v.to_string(),
        };
        TypeError::Attr { op: self.row.mnemonic, attr: name, found, expected: expected.into() }
    }

    pub(in crate::graph) fn value(&self, name: &'static str) -> &'a Type {
        match self.find(name) {
            Operand::Value(v) => self.function.ty(v),
            other => unreachable!("{}: operand {name} is {other:?}", self.row.mnemonic),
        }
    }

    pub(in crate::graph) fn any_weight(&self, name: &'static str) -> &'a Weight {
        match self.find(name) {
            Operand::Weight(w) => &self.module.weights[w.index()],
            other => unreachable!("{}: operand {name} is {other:?}", self.row.mnemonic),
        }
    }

    /// Returns the shape of a weight. Fails if it does not have `N` dimensions.
    pub(in crate::graph) fn weight<const N: usize>(&self, name: &'static str) -> Result<[u64; N], TypeError> {
        let shape = &self.any_weight(name).shape;
        <[u64; N]>::try_from(shape.as_slice()).map_err(|_| self.operand(name, format!("a type of {N} dimensions")))
    }

    /// Returns the dimensions of a weight, of any number.
    pub(in crate::graph) fn weight_shape(&self, name: &'static str) -> &'a [u64] {
        &self.any_weight(name).shape
    }

    /// Returns the dimensions of a value. Fails if the element type or the number of dimensions
    /// differs.
    pub(in crate::graph) fn tensor<const N: usize>(
        &self,
        name: &'static str,
        element: Element,
    ) -> Result<[&'a Dim; N], TypeError> {
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

    pub(in crate::graph) fn f32<const N: usize>(&self, name: &'static str) -> Result<[&'a Dim; N], TypeError> {
        self.tensor(name, Element::Format(Format::F32))
    }

    pub(in crate::graph) fn i32<const N: usize>(&self, name: &'static str) -> Result<[&'a Dim; N], TypeError> {
        self.tensor(name, Element::I32)
    }

    /// Returns the dimensions of a value, which must be in the activation format of the weight
    /// `weight`.
    pub(in crate::graph) fn activation<const N: usize>(
        &self,
        name: &'static str,
        weight: &Weight,
    ) -> Result<[&'a Dim; N], TypeError> {
        self.tensor(name, Element::Format(weight.format.activation()))
    }

    pub(in crate::graph) fn f32_any(&self, name: &'static str) -> Result<Vec<Dim>, TypeError> {
        match self.value(name) {
            Type::Tensor { element: Element::Format(Format::F32), dims } => Ok(dims.clone()),
            Type::Tensor { .. } | Type::Token(_) => Err(self.operand(name, "f32")),
        }
    }

    /// Returns the leading dimensions and the last dimension of an f32 value.
    pub(in crate::graph) fn f32_rows(&self, name: &'static str) -> Result<(&'a [Dim], &'a Dim), TypeError> {
        match self.value(name) {
            Type::Tensor { element: Element::Format(Format::F32), dims } => match dims.split_last() {
                Some((last, lead)) => Ok((lead, last)),
                None => Err(self.operand(name, "f32 of at least one dimension")),
            },
            Type::Tensor { .. } | Type::Token(_) => Err(self.operand(name, "f32 of at least one dimension")),
        }
    }

    /// Checks that a value is the token of the experts' memory.
    pub(in crate::graph) fn experts(&self, name: &'static str) -> Result<(), TypeError> {
        match self.value(name) {
            Type::Token(TokenOwner::Experts) => Ok(()),
            Type::Token(TokenOwner::State(_) | TokenOwner::Ranks(_)) | Type::Tensor { .. } => {
                Err(self.operand(name, "a token of experts' memory, from expert.slots or a later op on this memory"))
            }
        }
    }

    /// Returns the group of ranks of a collective, from its token.
    pub(in crate::graph) fn group(&self) -> Result<Group, TypeError> {
        match self.value("group") {
            Type::Token(TokenOwner::Ranks(group)) => Ok(*group),
            Type::Token(TokenOwner::State(_) | TokenOwner::Experts) | Type::Tensor { .. } => {
                Err(self.operand("group", "a token of a group of ranks, from ranks.begin or a later op on this group"))
            }
        }
    }

    /// Checks that an attribute is the number of another rank of the group.
    pub(in crate::graph) fn peer(&self, name: &'static str, group: Group) -> Result<(), TypeError> {
        let Group { rank, ranks } = group;
        match self.not_negative(name)? {
            peer if peer < u64::from(ranks) && peer != u64::from(rank) => Ok(()),
            _ => Err(self.attr(name, format!("one of the {ranks} ranks, but not {rank}, which is this one"))),
        }
    }

    /// Returns the state operand of `state.begin`.
    pub(in crate::graph) fn state_operand(&self, name: &'static str) -> StateId {
        match self.find(name) {
            Operand::State(state) => state,
            other => unreachable!("{}: operand {name} is {other:?}", self.row.mnemonic),
        }
    }

    /// Returns the state of a token operand. Fails if the state is not of this kind.
    pub(in crate::graph) fn state(&self, name: &'static str, kind: StateKind) -> Result<&'a State, TypeError> {
        let state = match self.value(name) {
            Type::Token(TokenOwner::State(state)) => self.module.states.get(state.index()),
            Type::Token(TokenOwner::Experts | TokenOwner::Ranks(_)) | Type::Tensor { .. } => None,
        };
        let expected = || self.operand(name, format!("the token of a {} state", kind.row().name));
        state.filter(|state| state.kind == kind).ok_or_else(expected)
    }

    /// Returns the shape of a token operand's state. Fails if the state is not `paged`.
    pub(in crate::graph) fn cache(&self, name: &'static str) -> Result<CacheShape, TypeError> {
        let state = self.state(name, StateKind::Paged)?;
        CacheShape::from_state(state).ok_or_else(|| self.operand(name, "the token of a paged state"))
    }

    /// Checks that a value is `i32[rows]`.
    pub(in crate::graph) fn rows(&self, name: &'static str, rows: &Dim) -> Result<(), TypeError> {
        let [dim] = self.i32(name)?;
        self.same(name, dim, rows)
    }

    pub(in crate::graph) fn same(&self, name: &'static str, found: &Dim, expected: &Dim) -> Result<(), TypeError> {
        if found == expected {
            Ok(())
        } else {
            Err(self.operand(name, format!("a type with {expected} in place of {found}")))
        }
    }

    pub(in crate::graph) fn same_number(
        &self,
        name: &'static str,
        found: u64,
        expected: &Dim,
    ) -> Result<(), TypeError> {
        self.same(name, &Dim::Fixed(found), expected)
    }

    pub(in crate::graph) fn number(&self, name: &'static str, dim: &Dim) -> Result<u64, TypeError> {
        dim.fixed().ok_or_else(|| self.operand(name, format!("a type with a number in place of {dim}")))
    }

    /// Returns `width / heads`, the width of one head. Fails if the division has a remainder.
    pub(in crate::graph) fn head_width(&self, name: &'static str, width: &Dim, heads: u64) -> Result<u64, TypeError> {
        match self.number(name, width)? {
            width if width.is_multiple_of(heads) => Ok(width / heads),
            width => Err(self.operand(name, format!("a type with a multiple of {heads} in place of {width}"))),
        }
    }

    pub(in crate::graph) fn positive(&self, name: &'static str) -> Result<u64, TypeError> {
        match u64::try_from(self.find_attr(name).int()) {
            // The limit 2^32 on each count keeps the product of two counts below 2^64.
            Ok(value) if value > 0 && u32::try_from(value).is_ok() => Ok(value),
            Ok(_) | Err(_) => Err(self.attr(name, format!("in 1..={}", u32::MAX))),
        }
    }

    /// Returns whether the attribute `score` makes an expert's routing weight depend on the
    /// experts that are not yet chosen.
    pub(in crate::graph) fn weighs_by_those_left(&self) -> bool {
        RouteScore::from_word(self.find_attr("score").word()).is_some_and(RouteScore::weighs_by_those_left)
    }

    /// Returns an integer attribute. Fails if it is negative or exceeds `u32::MAX`.
    pub(in crate::graph) fn not_negative(&self, name: &'static str) -> Result<u64, TypeError> {
        match u64::try_from(self.find_attr(name).int()) {
            Ok(value) if u32::try_from(value).is_ok() => Ok(value),
            Ok(_) | Err(_) => Err(self.attr(name, format!("in 0..={}", u32::MAX))),
        }
    }

    pub(in crate::graph) fn float_above(&self, name: &'static str, bound: f64) -> Result<f64, TypeError> {
        let value = self.find_attr(name).float();
        if value > bound { Ok(value) } else { Err(self.attr(name, format!("more than {bound}"))) }
    }

    pub(in crate::graph) fn eps(&self) -> Result<(), TypeError> {
        let eps = self.find_attr("eps").float();
        if eps >= 0.0 { Ok(()) } else { Err(self.attr("eps", "at least 0")) }
    }

    pub(in crate::graph) fn layer(&self) -> Result<(), TypeError> {
        let layer = self.find_attr("layer").int();
        if u32::try_from(layer).is_ok() { Ok(()) } else { Err(self.attr("layer", format!("in 0..={}", u32::MAX))) }
    }

    pub(in crate::graph) fn bias(&self, name: &'static str, n: u64) -> Result<(), TypeError> {
        if self.find(name) == Operand::Absent {
            return Ok(());
        }
        let [bias] = self.weight(name)?;
        self.same_number(name, bias, &n.into())
    }

    /// Checks an optional operand that is the result of an index op. For each of `rows` it must
    /// have one list for all heads, or one list for each of `heads` key heads.
    pub(in crate::graph) fn choice(&self, name: &'static str, rows: &Dim, heads: Option<u64>) -> Result<(), TypeError> {
        if self.has(name) {
            let (of_rows, chosen) = match (heads, self.value(name).dims().len()) {
                (Some(heads), 3) => {
                    let [of_rows, of_heads, chosen] = self.i32(name)?;
                    if self.number(name, of_heads)? != heads {
                        return Err(
                            self.operand(name, format!("one list for all heads, or {heads}, one for each key head"))
                        );
                    }
                    (of_rows, chosen)
                }
                _ => self.i32(name).map(|[of_rows, chosen]| (of_rows, chosen))?,
            };
            self.same(name, of_rows, rows)?;
            self.number(name, chosen)?;
        }
        Ok(())
    }

    /// Checks an index op without weights, which chooses blocks of positions for each head. `every`
    /// is the number of positions that share an entry of the state; it must be 1.
    pub(in crate::graph) fn blocks_of_heads(&self, top_k: u64, every: u64) -> Result<(), TypeError> {
        if every != 1 {
            return Err(
                self.operand("kv", "the token of a state with a cache slot for every position, without weights")
            );
        }
        if self.find_attr("entries").bool() {
            return Err(self.attr("entries", "false without weights"));
        }
        let block = self.positive("block")?;
        if !top_k.is_multiple_of(block) {
            return Err(self.attr("top_k", format!("a multiple of {block}, the positions of a block")));
        }
        let local = self.positive("local")?;
        match local <= top_k / block {
            true => Ok(()),
            false => Err(self.attr("local", format!("in 1..={}, the blocks that are chosen", top_k / block))),
        }
    }

    /// Checks a weight with a bias vector of `n` elements for each expert.
    pub(in crate::graph) fn expert_bias(&self, name: &'static str, experts: u64, n: u64) -> Result<(), TypeError> {
        if self.find(name) == Operand::Absent || self.any_weight(name).shape == [experts, n] {
            return Ok(());
        }
        Err(self.operand(name, format!("one of [{experts}, {n}]")))
    }

    /// Checks the attributes of a gated linear unit.
    pub(in crate::graph) fn gate(&self) -> Result<(), TypeError> {
        let [limit, bend] = ["limit", "bend"].map(|name| self.find_attr(name).float());
        if limit < 0.0 {
            return Err(self.attr("limit", "0 or a positive number"));
        }
        match Activation::from_word(self.find_attr("act").word()).is_some_and(Activation::bends) {
            true if bend > 0.0 => Ok(()),
            true => Err(self.attr("bend", "a positive number, because this activation has a smooth bound")),
            false if bend == 0.0 => Ok(()),
            false => Err(self.attr("bend", "0, because this activation has no smooth bound")),
        }
    }

    /// Whether an optional operand is present.
    pub(in crate::graph) fn has(&self, name: &'static str) -> bool {
        self.find(name) != Operand::Absent
    }

    pub(in crate::graph) fn residual(&self, expected: &Type) -> Result<(), TypeError> {
        if self.find("residual") == Operand::Absent || self.value("residual") == expected {
            return Ok(());
        }
        Err(self.operand("residual", format!("{expected}, the type of the result")))
    }

    pub(in crate::graph) fn rms_norm(&self) -> Result<(&'a [Dim], Dim), TypeError> {
        let (lead, d) = self.f32_rows("x")?;
        let per_head = match self.find("w") {
            Operand::Weight(_) => Some(self.any_weight("w").shape.as_slice()),
            Operand::Value(_) | Operand::State(_) | Operand::Absent => None,
        };
        if let (Some([own_heads, w]), [_, heads]) = (per_head, lead) {
            self.same_number("w", *own_heads, heads)?;
            self.same_number("w", *w, d)?;
        } else {
            self.bias("w", self.number("x", d)?)?;
        }
        self.eps()?;
        Ok((lead, d.clone()))
    }

    /// Returns the result type of an op that quantises its result to the format in its attribute
    /// `format`.
    pub(in crate::graph) fn quantised_types(&self, dims: impl Into<Vec<Dim>>) -> Result<Vec<Type>, TypeError> {
        let format = self.find_attr("format").format();
        if format.activation() != format {
            return Err(self.attr("format", "an activation format: f32, a8_super or a8_small"));
        }
        let ty = Type::new(format, dims);
        check_type(&ty)?;
        Ok(vec![ty])
    }

    /// Returns the result type of an op whose result is quantised in separate blocks. A scale for
    /// the whole row is rejected, because each work item writes only a part of a row.
    pub(in crate::graph) fn quantised_in_blocks(&self, dims: impl Into<Vec<Dim>>) -> Result<Vec<Type>, TypeError> {
        match self.find_attr("format").format().has_row_scale() {
            true => Err(self.attr("format", "one whose blocks have scales of their own, such as a8_super")),
            false => self.quantised_types(dims),
        }
    }

    /// Returns the gate and up weights. They must have the same shape. Since both are multiplied by
    /// `x`, they must also have the same activation format.
    pub(in crate::graph) fn gate_up(&self) -> Result<(&'a Weight, &'a Weight), TypeError> {
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

    /// Checks the RoPE attributes for heads of `size` elements.
    pub(in crate::graph) fn rope(&self, size: u64) -> Result<(), TypeError> {
        let dims = self.positive("dims")?;
        if dims > size || !dims.is_multiple_of(2) {
            return Err(self.attr("dims", format!("even and at most {size}, the elements of a head")));
        }
        for name in ["factors", "long"] {
            if self.find(name) != Operand::Absent {
                let [factors] = self.weight(name)?;
                self.same_number(name, factors, &(dims / 2).into())?;
            }
        }
        if self.find("long") != Operand::Absent {
            self.positive("original_context")?;
        }
        match self.find_attr("scaling").word() {
            "yarn" | "yarn_untruncated" => {
                // YaRN's ramp divides by ln(base) and takes ln(original_context / beta).
                self.float_above("base", 1.0)?;
                self.float_above("factor", 0.0)?;
                self.float_above("beta_fast", 0.0)?;
                self.float_above("beta_slow", 0.0)?;
                self.positive("original_context")?;
            }
            "linear" => {
                self.float_above("base", 0.0)?;
                self.float_above("factor", 0.0)?;
            }
            _ => {
                self.float_above("base", 0.0)?;
            }
        }
        Ok(())
    }

    /// Returns the number of rows, the number of heads and the head size of `rope.heads`, or of the
    /// keys of `rope.append`.
    pub(in crate::graph) fn rope_heads(&self, name: &'static str) -> Result<(&'a Dim, u64, u64), TypeError> {
        let [rows, width] = self.f32(name)?;
        let heads = self.positive("heads")?;
        let d = self.head_width(name, width, heads)?;
        self.rows("pos", rows)?;
        if self.find("norm") != Operand::Absent {
            let [norm] = self.weight("norm")?;
            self.same_number("norm", norm, &d.into())?;
        }
        self.eps()?;
        self.rope(d)?;
        Ok((rows, heads, d))
    }

    /// Checks the state of `column.squares`: for each expert, a sum for each column and a count.
    pub(in crate::graph) fn column_squares(&self) -> Result<(), TypeError> {
        let x = self.value("x");
        let expected = || {
            self.operand(
                "x",
                "f32 or an activation format, [rows, k], or [rows, slots, k] with the rows and slots of ids",
            )
        };
        let Type::Tensor { element: Element::Format(format), dims } = x else { return Err(expected()) };
        let Some((columns, lead)) = dims.split_last().filter(|_| format.is_activation()) else {
            return Err(expected());
        };
        let state = self.state("sums", StateKind::Recurrent)?;
        let held: Vec<u64> = state.fields.iter().flat_map(|field| &field.dims).filter_map(Dim::fixed).collect();
        let wanted = self.number("x", columns)?.checked_add(1);
        let experts = match self.find("ids") {
            Operand::Absent => match lead {
                [_] => Some(1),
                _ => return Err(expected()),
            },
            _ => {
                let [rows, slots] = self.i32("ids")?;
                if lead != [rows.clone()] && lead != [rows.clone(), slots.clone()] {
                    return Err(expected());
                }
                // The number of experts is a dimension of the state.
                held.first().copied().filter(|experts| *experts > 0)
            }
        };
        match (experts, wanted, &held[..]) {
            (Some(experts), Some(wanted), &[e, width]) if (e, width) == (experts, wanted) => Ok(()),
            _ => {
                let experts = if experts == Some(1) { "1" } else { "experts" };
                Err(self.operand("sums", format!("the token of a recurrent state f32[{experts}, {columns} + 1]")))
            }
        }
    }

    /// Checks that the rows of an append op have the shape of its state.
    pub(in crate::graph) fn check_append(&self, kind: OpKind) -> Result<(), TypeError> {
        let cache = self.cache("kv")?;
        let held = |name: &'static str, found: u64, expected: u64, what: &str| match found == expected {
            true => Ok(()),
            false => {
                Err(self.operand(name, format!("a type with {expected} {what} in place of {found}, as its state")))
            }
        };
        if kind == OpKind::RopeAppend {
            let (rows, heads, key) = self.rope_heads("k")?;
            let [v_rows, width] = self.f32("v")?;
            self.same("v", v_rows, rows)?;
            if heads != cache.heads {
                return Err(self.attr("heads", format!("{}, the heads of the state", cache.heads)));
            }
            held("k", key, cache.key, "elements a head")?;
            return held("v", self.head_width("v", width, heads)?, cache.value, "elements a head");
        }
        let [rows, heads, key] = self.f32("k")?;
        let [v_rows, v_heads, value] = self.f32("v")?;
        self.same("v", v_rows, rows)?;
        self.same("v", v_heads, heads)?;
        self.rows("pos", rows)?;
        held("k", self.number("k", heads)?, cache.heads, "heads")?;
        held("k", self.number("k", key)?, cache.key, "elements a head")?;
        held("v", self.number("v", value)?, cache.value, "elements a head")
    }
}
