//! The type rule of every op. A rule turns operands and attributes into the types of the results,
//! or into an error with the reason.
//!
//! The builder, the verifier and the parser all call [`result_types`], so they always agree.
//! Symbolic dimensions are equal if their names are.
//!
//! ```text
//! %8 = matmul %7, @w : f32[L, 4096]     // %7 : f32[L, 256], %w : f32[4096, 256]
//! ```
//!
//! Input: any op. Ids of values may be out of range, and attributes may have any kind and value.
//! This module rejects hostile ones.
//!
//! Result: an op that passes can be read with [`super::Op::attr`], [`super::Op::operand`] and
//! [`super::attrs`]. Its divisions have no remainder, and every product of dimensions in its
//! results fits `u64`.

pub(super) mod rule;

use self::rule::Rule;
use super::op::OpKind;
use super::{Attr, Choice, Dim, Element, Function, Held, Module, Operand, State, Type, Weight};
use crate::format::Format;
use crate::ngram;
use crate::plan::ATTENTION_BLOCK;
use crate::state::{POSITIONS, StateKind};

/// Reason why an op has no type.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TypeError {
    /// Too many operands, or too few.
    #[error("{op} takes {expected} operands, not {found}")]
    OperandCount {
        /// Mnemonic.
        op: &'static str,
        /// Number in the op table.
        expected: usize,
        /// Actual number.
        found: usize,
    },
    /// Too many attributes, or too few.
    #[error("{op} takes {expected} attributes, not {found}")]
    AttrCount {
        /// Mnemonic.
        op: &'static str,
        /// Number in the op table.
        expected: usize,
        /// Actual number.
        found: usize,
    },
    /// An operand that this op does not take.
    #[error("{op}: operand {operand} is {found}; it must be {expected}")]
    Operand {
        /// Mnemonic.
        op: &'static str,
        /// Name in the op table.
        operand: &'static str,
        /// Actual operand.
        found: String,
        /// Expected operand.
        expected: String,
    },
    /// An attribute that this op does not take.
    #[error("{op}: attribute {attr} is {found}; it must be {expected}")]
    Attr {
        /// Mnemonic.
        op: &'static str,
        /// Name of the attribute.
        attr: &'static str,
        /// Actual attribute.
        found: String,
        /// Expected attribute.
        expected: String,
    },
    /// A weight's shape is not one that can be stored.
    #[error("weight @{name}: {format}{shape:?} {problem}")]
    Weight {
        /// Name of the weight.
        name: String,
        /// Format of the weight.
        format: Format,
        /// Shape of the weight.
        shape: Vec<u64>,
        /// The problem, and the expectation.
        problem: String,
    },
    /// A second weight of the same name.
    #[error("there is a weight @{name} already; names must be unique")]
    DuplicateWeight {
        /// The name.
        name: String,
    },
    /// A state that does not fit its kind.
    #[error("state @{name} {problem}")]
    State {
        /// Name of the state.
        name: String,
        /// The problem, and the expectation.
        problem: String,
    },
    /// A second state of the same name.
    #[error("there is a state @{name} already; names must be unique")]
    DuplicateState {
        /// The name.
        name: String,
    },
    /// A type that no value may have.
    #[error("{ty} {problem}")]
    Type {
        /// The type.
        ty: String,
        /// The problem, and the expectation.
        problem: String,
    },
}

/// Heads and sizes of a `paged` state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Key heads.
    pub heads: u64,
    /// Elements of a key.
    pub key: u64,
    /// Elements of a value.
    pub value: u64,
}

impl CacheShape {
    /// Returns the shape of a state, or `None` for a state of another kind.
    pub fn of(state: &State) -> Option<CacheShape> {
        if state.kind != StateKind::Paged {
            return None;
        }
        let number = |field: &str, dim: usize| {
            state.fields.get(state.kind.field(field) as usize).and_then(|field| field.dims.get(dim)?.fixed())
        };
        Some(CacheShape { heads: number("keys", 0)?, key: number("keys", 2)?, value: number("values", 2)? })
    }
}

/// Returns the types of an op's results.
///
/// # Errors
/// A [`TypeError`] if operands or attributes do not fit the op.
pub fn result_types(
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
        OpKind::Gated => {
            let gate = rule.f32_any("gate")?;
            if rule.f32_any("up")? != gate {
                return Err(rule.operand("up", format!("{}, the type of gate", Type::f32(gate))));
            }
            rule.gate()?;
            one(Type::f32(gate))
        }
        OpKind::AddBias => {
            let (lead, n) = rule.f32_rows("x")?;
            let [bias] = rule.weight("bias")?;
            rule.same_number("bias", bias, n)?;
            one(Type::f32(with(lead, n.clone())))
        }
        OpKind::ScaleHeads => {
            let [rows, width] = rule.f32("x")?;
            let [scale_rows, heads] = rule.f32("s")?;
            rule.same("s", scale_rows, rows)?;
            rule.divided("x", width, rule.number("s", heads)?)?;
            let ty = Type::f32([rows.clone(), width.clone()]);
            rule.residual(&ty)?;
            one(ty)
        }
        OpKind::Unary(_) => one(Type::f32(rule.f32_any("x")?)),
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
        OpKind::Slice => {
            let (lead, d) = rule.f32_rows("x")?;
            let d = rule.number("x", d)?;
            let (from, count) = (rule.not_negative("from")?, rule.positive("count")?);
            if from.checked_add(count).is_none_or(|end| end > d) {
                return Err(rule.attr("count", format!("at most {}, to the end of a row", d.saturating_sub(from))));
            }
            one(Type::f32(with(lead, count.into())))
        }
        OpKind::Concat => {
            let ((lead, m), (other, n)) = (rule.f32_rows("a")?, rule.f32_rows("b")?);
            let sum = rule.number("a", m)?.checked_add(rule.number("b", n)?);
            match sum.filter(|_| lead == other) {
                Some(sum) => one(Type::f32(with(lead, sum.into()))),
                None => Err(rule.operand("b", "one with the rows of a")),
            }
        }
        OpKind::Rope => {
            let [rows, heads, d] = rule.f32("x")?;
            rule.rows("pos", rows)?;
            let size = rule.number("x", d)?;
            rule.rope(size)?;
            one(Type::f32([rows.clone(), heads.clone(), d.clone()]))
        }
        OpKind::Temperature => {
            let dims = rule.f32_any("x")?;
            match dims.first() {
                Some(rows) => rule.rows("pos", rows)?,
                None => return Err(rule.operand("x", "f32 of rows")),
            }
            rule.positive("length")?;
            rule.not_negative("offset")?;
            one(Type::f32(dims))
        }
        OpKind::HeadsTemperature => {
            let dims @ [rows, heads, d] = rule.f32("x")?;
            rule.number("x", d)?;
            rule.rows("pos", rows)?;
            for name in ["scales", "biases"] {
                let [n] = rule.weight(name)?;
                rule.same_number(name, n, heads)?;
            }
            one(Type::f32(dims.map(Dim::clone)))
        }
        OpKind::Centre => {
            let (lead, d) = rule.f32_rows("x")?;
            rule.number("x", d)?;
            one(Type::f32(with(lead, d.clone())))
        }
        OpKind::Recurrent(op) => super::recurrent::types(&rule, op),
        OpKind::ColumnSquares => {
            rule.column_squares()?;
            one(rule.value("sums").clone())
        }
        OpKind::HeadsSum => {
            let [rows, heads, _] = rule.f32("x")?;
            one(Type::f32([rows.clone(), heads.clone()]))
        }
        OpKind::Ngram => {
            let [rows] = rule.i32("ids")?;
            let state = rule.state("tokens", StateKind::Recurrent)?;
            let dims: Vec<_> = state.fields.iter().flat_map(|field| field.dims.iter().map(Dim::fixed)).collect();
            if dims != [Some(1), Some(ngram::BEFORE as u64)] {
                return Err(rule.operand("tokens", format!("the token of a recurrent state f32[1, {}]", ngram::BEFORE)));
            }
            for name in ["eos", "m0", "m1", "m2", "m3", "offset"] {
                if rule.find_attr(name).int() < 0 {
                    return Err(rule.attr(name, "0 or more"));
                }
            }
            let modulus = rule.positive("modulus")?;
            if rule.find_attr("eos").int() > i64::from(i32::MAX) {
                return Err(rule.attr("eos", "an id"));
            }
            let rows_named = modulus.checked_add(rule.find_attr("offset").int().unsigned_abs());
            if rows_named.is_none_or(|named| named > i32::MAX as u64) {
                return Err(rule.attr("modulus", "a number that is below 2^31 when the offset is added"));
            }
            Ok(vec![Type::i32([rows.clone()]), rule.value("tokens").clone()])
        }
        OpKind::StateBegin => one(Type::Token(Held::State(rule.state_operand("state")))),
        OpKind::KvAppend | OpKind::RopeAppend => {
            rule.appended(kind)?;
            one(rule.value("kv").clone())
        }
        OpKind::IndexTopK => {
            let [rows, heads, d] = rule.f32("q")?;
            let cache = rule.cache("kv")?;
            rule.rows("pos", rows)?;
            if cache.heads != 1 || rule.number("q", d)? != cache.key {
                return Err(rule.operand("kv", format!("the token of a paged state of one head with keys of {d}")));
            }
            let (top_k, every) = (rule.positive("top_k")?, rule.state("kv", StateKind::Paged)?.every);
            if !rule.has("w") {
                rule.blocks_of_heads(top_k, every)?;
                return Ok(vec![Type::i32([rows.clone(), heads.clone(), Dim::Fixed(top_k)]), rule.value("kv").clone()]);
            }
            if rule.f32("w")? != [rows, heads] {
                return Err(rule.operand("w", format!("f32[{rows}, {heads}], one for each head of q")));
            }
            for name in ["block", "local"] {
                if rule.find_attr(name).int() != 0 {
                    return Err(rule.attr(name, "0 with weights, by which all heads choose together"));
                }
            }
            if rule.find_attr("entries").bool() {
                if every == 1 {
                    return Err(rule.operand("kv", "the token of a state whose places several positions share"));
                }
                return Ok(vec![Type::i32([rows.clone(), Dim::Fixed(top_k)]), rule.value("kv").clone()]);
            }
            if !top_k.is_multiple_of(every) {
                return Err(rule.attr("top_k", format!("a multiple of {every}, the positions that share a key")));
            }
            let chosen = top_k.saturating_add(every - 1);
            Ok(vec![Type::i32([rows.clone(), Dim::Fixed(chosen)]), rule.value("kv").clone()])
        }
        OpKind::Attention => {
            let [rows, heads, d] = rule.f32("q")?;
            let cache = rule.cache("kv")?;
            rule.rows("pos", rows)?;
            if rule.state("kv", StateKind::Paged)?.every != 1 {
                return Err(rule.operand("kv", "the token of a state with a place for every position"));
            }
            if rule.number("q", d)? != cache.key {
                return Err(rule.operand("q", format!("f32[rows, heads, {}] as the keys of the state", cache.key)));
            }
            if !rule.number("q", heads)?.is_multiple_of(cache.heads) {
                return Err(rule.operand("q", format!("one with a multiple of {} heads", cache.heads)));
            }
            rule.bias("sinks", rule.number("q", heads)?)?;
            for name in ["cap", "max_bias", "slope"] {
                if rule.find_attr(name).float() < 0.0 {
                    return Err(rule.attr(name, "0 or more"));
                }
            }
            let reach = rule.find_attr("reach").int();
            if !(0..=i64::from(i32::MAX / 2)).contains(&reach) {
                return Err(rule.attr("reach", format!("in 0..={}", i32::MAX / 2)));
            }
            if reach > 0 && rule.state("kv", StateKind::Paged)?.window.is_some() {
                return Err(rule.operand("kv", "the token of a state with all positions, where rows see both ways"));
            }
            rule.choice("chosen", rows, Some(cache.heads))?;
            Ok(vec![Type::f32([rows.clone(), heads.clone(), cache.value.into()]), rule.value("kv").clone()])
        }
        OpKind::HeadsMatmul => {
            let [rows, heads, k] = rule.f32("x")?;
            let [of_heads, n, wk] = rule.f32("w")?;
            rule.same("w", of_heads, heads)?;
            rule.same("w", wk, k)?;
            one(Type::f32([rows.clone(), heads.clone(), n.clone()]))
        }
        OpKind::LinearHeads => {
            let [rows, heads, k] = rule.activation("x", rule.any_weight("w"))?;
            let [of_heads, n, wk] = rule.weight("w")?;
            rule.same_number("w", of_heads, heads)?;
            rule.same_number("w", wk, k)?;
            one(Type::f32([rows.clone(), heads.clone(), n.into()]))
        }
        OpKind::Route => {
            let [rows, experts] = rule.f32("logits")?;
            let experts = rule.number("logits", experts)?;
            let top_k = rule.positive("top_k")?;
            if top_k > experts {
                return Err(rule.attr("top_k", format!("at most the {experts} experts")));
            }
            rule.bias("bias", experts)?;
            rule.bias("scales", experts)?;
            if rule.weighs_by_those_left() {
                let plain = rule.find("bias") == Operand::Absent && rule.find_attr("groups").int() == 1;
                if !plain {
                    return Err(rule.attr("score", "another one, because the op has a bias, scales or groups"));
                }
            }
            let (groups, kept) = (rule.positive("groups")?, rule.positive("groups_kept")?);
            if rule.not_negative("group_best")? > 1 {
                return Err(rule.attr("group_best", "1, or 0 for two"));
            }
            if !experts.is_multiple_of(groups) || (groups > 1 && experts / groups < 2) {
                return Err(
                    rule.attr("groups", format!("one that parts {experts} experts equally, in two each or more"))
                );
            }
            if kept > groups || kept * (experts / groups) < top_k {
                return Err(rule.attr("groups_kept", format!("at most {groups} groups, with {top_k} experts together")));
            }
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
        OpKind::ExpertAddBias => {
            let [rows, slots, n] = rule.f32("y")?;
            if rule.i32::<2>("ids")? != [rows, slots] {
                return Err(rule.operand("ids", format!("i32[{rows}, {slots}], as the slots of y are")));
            }
            let [_, width] = rule.weight("bias")?;
            rule.same_number("bias", width, n)?;
            one(Type::f32([rows.clone(), slots.clone(), n.clone()]))
        }
        OpKind::ExpertScale => {
            let [rows, slots, n] = rule.f32("y")?;
            if rule.i32::<2>("ids")? != [rows, slots] {
                return Err(rule.operand("ids", format!("i32[{rows}, {slots}], as the slots of y are")));
            }
            let [_] = rule.weight("s")?;
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
        OpKind::Positions => {
            let [rows] = rule.i32("pos")?;
            if i32::try_from(rule.positive("every")?).is_err() {
                return Err(rule.attr("every", format!("in 1..={}", i32::MAX)));
            }
            one(Type::i32([rows.clone()]))
        }
        OpKind::Ends => {
            let [rows] = rule.i32("pos")?;
            one(Type::i32([rows.clone()]))
        }
        OpKind::AttentionEntries => {
            let [rows, heads, d] = rule.f32("q")?;
            let (cache, entries) = (rule.cache("kv")?, rule.cache("entries")?);
            rule.rows("pos", rows)?;
            if rule.state("kv", StateKind::Paged)?.every != 1 {
                return Err(rule.operand("kv", "the token of a state with a place for every position"));
            }
            if entries != cache || rule.state("entries", StateKind::Paged)?.every == 1 {
                return Err(rule.operand(
                    "entries",
                    "the token of a state of the shape of kv, whose places several positions share",
                ));
            }
            if rule.number("q", d)? != cache.key {
                return Err(rule.operand("q", format!("f32[rows, heads, {}] as the keys of the state", cache.key)));
            }
            if !rule.number("q", heads)?.is_multiple_of(cache.heads) {
                return Err(rule.operand("q", format!("one with a multiple of {} heads", cache.heads)));
            }
            rule.bias("sinks", rule.number("q", heads)?)?;
            rule.choice("chosen", rows, None)?;
            let y = Type::f32([rows.clone(), heads.clone(), cache.value.into()]);
            Ok(vec![y, rule.value("kv").clone(), rule.value("entries").clone()])
        }
        OpKind::RouteListed => {
            let [rows, experts] = rule.f32("logits")?;
            rule.rows("ids", rows)?;
            rule.number("logits", experts)?;
            let [_, top_k] = rule.weight("table")?;
            if rule.weighs_by_those_left() {
                return Err(rule.attr("score", "a score that gives weights to experts far below the highest"));
            }
            if rule.any_weight("table").format != Format::F32 {
                return Err(rule.operand("table", "a weight in f32, with four bytes for each number"));
            }
            let dims = [rows.clone(), Dim::Fixed(top_k)];
            Ok(vec![Type::i32(dims.clone()), Type::f32(dims)])
        }
        OpKind::RouteGiven => {
            let [rows, slots] = rule.i32("ids")?;
            if rule.f32::<2>("p")? != [rows, slots] {
                return Err(rule.operand("p", format!("f32[{rows}, {slots}], as ids are")));
            }
            rule.positive("experts")?;
            let dims = [rows.clone(), slots.clone()];
            Ok(vec![Type::i32(dims.clone()), Type::f32(dims)])
        }
        OpKind::RouteIdentities => {
            let [rows, slots] = rule.i32("ids")?;
            if rule.f32::<2>("p")? != [rows, slots] {
                return Err(rule.operand("p", format!("f32[{rows}, {slots}], as ids are")));
            }
            if i32::try_from(rule.positive("experts")?).is_err() {
                return Err(rule.attr("experts", "below 2^31"));
            }
            let dims = [rows.clone(), slots.clone()];
            Ok(vec![Type::i32(dims.clone()), Type::f32(dims), Type::f32([rows.clone(), Dim::Fixed(1)])])
        }
        OpKind::ExpertGroups => {
            let [rows, slots] = rule.i32("ids")?;
            let size = rule.positive("size")?;
            if !size.is_power_of_two() || i32::try_from(size).is_err() {
                return Err(rule.attr("size", "a power of two below 2^31"));
            }
            one(Type::i32([rows.clone(), slots.clone()]))
        }
        OpKind::StreamWeights => {
            let [rows, width] = rule.f32("x")?;
            let n = rule.positive("streams")?;
            rule.eps()?;
            rule.above("magnitude", 0.0)?;
            let parts = match (rule.number("x", width)?, stream_widths(n)) {
                (width, _) if width == n => 1,
                (width, [Some(apart), _]) if width == apart => 2,
                (width, [_, Some(mixed)]) if width == mixed => {
                    rule.positive("iterations")?;
                    3
                }
                _ => {
                    let limit = format!("one with {n}, 2 * {n} or (2 + {n}) * {n} in place of {width}");
                    return Err(rule.operand("x", limit));
                }
            };
            let [scales] = rule.weight("scale")?;
            rule.same_number("scale", scales, &Dim::Fixed(parts))?;
            let [base] = rule.weight("base")?;
            rule.same_number("base", base, width)?;
            one(Type::f32([rows.clone(), width.clone()]))
        }
        OpKind::StreamInput => {
            let [rows, streams, d] = rule.f32("x")?;
            let [own, weights] = rule.f32("w")?;
            rule.same("w", own, rows)?;
            let n = rule.number("x", streams)?;
            if rule.number("w", weights)? < n {
                return Err(rule.operand("w", format!("one with a number for each of {n} streams")));
            }
            one(Type::f32([rows.clone(), d.clone()]))
        }
        OpKind::StreamMix => {
            let [rows, streams, d] = rule.f32("x")?;
            if rule.f32("y")? != [rows, d] {
                return Err(rule.operand("y", format!("f32[{rows}, {d}], a row for each of x")));
            }
            let n = rule.number("x", streams)?;
            let [own, weights] = rule.f32("w")?;
            rule.same("w", own, rows)?;
            let weights = Some(rule.number("w", weights)?);
            if !stream_widths(n).contains(&weights) {
                return Err(rule.operand("w", format!("f32[{rows}, 2 * {n}] or f32[{rows}, (2 + {n}) * {n}]")));
            }
            one(Type::f32([rows.clone(), streams.clone(), d.clone()]))
        }
        OpKind::StreamAttend => {
            let [rows, streams, d] = rule.f32("x")?;
            if rule.f32("y")? != [rows, d] {
                return Err(rule.operand("y", format!("f32[{rows}, {d}], a row for each of x")));
            }
            rule.number("x", streams)?;
            let [w] = rule.weight("w")?;
            rule.same_number("w", w, d)?;
            rule.eps()?;
            one(Type::f32([rows.clone(), d.clone()]))
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
            rule.bias("gate_bias", n)?;
            rule.bias("up_bias", n)?;
            rule.gate()?;
            rule.quantised_in_blocks([rows.clone(), n.into()])
        }
        OpKind::RopeHeads => {
            let (rows, heads, d) = rule.rope_heads("x")?;
            one(Type::f32([rows.clone(), heads.into(), d.into()]))
        }
        OpKind::ExpertSwiglu => {
            let (gate, _) = rule.gate_up()?;
            let [rows, k] = rule.activation("x", gate)?;
            let [experts, n, wk] = rule.weight("gate")?;
            rule.same_number("gate", wk, k)?;
            rule.expert_bias("gate_bias", [experts, n])?;
            rule.expert_bias("up_bias", [experts, n])?;
            rule.gate()?;
            let [id_rows, slots] = rule.i32("ids")?;
            rule.same("ids", id_rows, rows)?;
            rule.quantised_in_blocks([rows.clone(), slots.clone(), n.into()])
        }
        OpKind::ExpertDown => {
            let [rows, slots, k] = rule.activation("x", rule.any_weight("w"))?;
            let [experts, n, wk] = rule.weight("w")?;
            rule.same_number("w", wk, k)?;
            rule.expert_bias("bias", [experts, n])?;
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
        OpKind::ExpertSplit => {
            let [rows, slots] = rule.i32("ids")?;
            if rule.f32::<2>("p")? != [rows, slots] {
                return Err(rule.operand("p", format!("f32[{rows}, {slots}], as ids are")));
            }
            let (now, slots) = (rule.positive("now")?, rule.number("ids", slots)?);
            if now >= slots {
                return Err(rule.attr("now", format!("less than the {slots} slots")));
            }
            let dims = |slots: u64| [rows.clone(), Dim::Fixed(slots)];
            let part = |slots| [Type::i32(dims(slots)), Type::f32(dims(slots))];
            Ok([part(now), part(slots - now)].concat())
        }
        OpKind::ExpertSlots => one(Type::Token(Held::Experts)),
        OpKind::ExpertPrefetch => {
            rule.experts("slots")?;
            rule.layer()?;
            let _: [&Dim; 2] = rule.i32("ids")?;
            let first = if rule.has("gate") { "gate" } else { "up" };
            let [experts, n, k] = rule.weight(first)?;
            if rule.weight("up")? != [experts, n, k] {
                return Err(rule.operand("up", format!("of the shape of gate, [{experts}, {n}, {k}]")));
            }
            let [down_experts, _, inner] = rule.weight("down")?;
            if (down_experts, inner) != (experts, n) {
                return Err(rule.operand("down", format!("[{experts}, d, {n}], as {first} is [{experts}, {n}, {k}]")));
            }
            one(Type::Token(Held::Experts))
        }
        OpKind::ExpertWait => {
            rule.experts("slots")?;
            rule.layer()?;
            let dims = rule.i32::<2>("ids")?;
            Ok(vec![Type::i32(dims.map(Dim::clone)), Type::Token(Held::Experts)])
        }
        OpKind::ExpertEvict => {
            rule.experts("slots")?;
            rule.layer()?;
            rule.f32_any("after")?;
            one(Type::Token(Held::Experts))
        }
    }
}

/// Checks that a weight can be stored: a file format, 1 to 4 dimensions, whole blocks, and a size
/// that fits.
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
    if weight.format.packed().is_none() {
        return Err(error("has a format that is only for activations or packed layouts".to_string()));
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
        return Err(error(format!("has a last dimension that is not a multiple of the block of {block} elements")));
    };
    match lead.iter().try_fold(row, |bytes, &n| bytes.checked_mul(n)) {
        // Files and pointers have signed offsets.
        Some(bytes) if i64::try_from(bytes).is_ok() => {}
        Some(_) | None => return Err(error("has more bytes than fit 63 bits".to_string())),
    }
    if let Some(part) = &weight.part {
        let [.., n, _] = weight.shape[..] else {
            return Err(error("has no rows that could be a part of a tensor".to_string()));
        };
        if part.from.checked_add(n).is_none_or(|end| end > part.rows) {
            let super::Part { tensor, rows, from } = part;
            return Err(error(format!("ends after the {rows} rows of {tensor:?}; it begins at row {from}")));
        }
        if weight.tensor_shape()[..weight.shape.len() - 1]
            .iter()
            .try_fold(row, |bytes, &n| bytes.checked_mul(n))
            .is_none_or(|bytes| i64::try_from(bytes).is_err())
        {
            return Err(error("is part of a tensor with more bytes than fit 63 bits".to_string()));
        }
    }
    check_choice(weight).map_err(error)
}

/// Maximum characters of a tiling, or of its reason.
const CHOICE_CHARS: usize = 1 << 10;

/// Checks the decisions of passes about a weight: formats must fit its own format and its shape,
/// and texts must be one line.
fn check_choice(weight: &Weight) -> Result<(), String> {
    let Choice { stored, layout, activations, tile, why } = &weight.choice;
    if let &Some(stored) = stored {
        let columns = weight.shape.last().copied().unwrap_or(0);
        if !weight.format.has_row_scale() || !stored.is_in_files() || stored.row_bytes(columns).is_none() {
            let formats: Vec<String> = Format::requantised().map(|format| format.to_string()).collect();
            let to = formats.join(" or ");
            return Err(format!("is stored as {stored}; requantised are formats of files of whole blocks, to {to}"));
        }
    }
    if let &Some(layout) = layout {
        if weight.format.packed() != Some(layout) {
            let packed = weight.format.packed().map_or("none".to_string(), |format| format.to_string());
            return Err(format!("has the layout {layout}; its packed format is {packed}"));
        }
        let strips = match weight.shape[..] {
            [.., n, k] => n.is_multiple_of(layout.rows() as u64) && k.is_multiple_of(layout.block_len() as u64),
            _ => false,
        };
        if !strips {
            return Err(format!(
                "has the layout {layout}, but no whole strips of {} rows in whole blocks",
                layout.rows()
            ));
        }
    }
    if let &Some(found) = activations {
        let own = layout.unwrap_or(weight.format).activation();
        let pairs = layout.and_then(Format::pair_activation);
        if ![Some(own), own.row().tiles, pairs].contains(&Some(found)) {
            return Err(format!("has activations in {found}; its products take {own}, or a form of that with bf16"));
        }
        let whole = weight.shape.last().is_some_and(|k| k.is_multiple_of(found.block_len() as u64));
        if !whole {
            return Err(format!(
                "has activations in {found}, but its columns are not a multiple of the blocks of {found}"
            ));
        }
    }
    match [tile, why].into_iter().flatten().all(|text| text.len() <= CHOICE_CHARS) {
        true => Ok(()),
        false => Err(format!("has a tile or why of more than {CHOICE_CHARS} bytes")),
    }
}

/// Checks that a state fits its kind: it must have the kind's fields, in whole sizes, and only the
/// kind's abilities.
///
/// # Errors
/// [`TypeError::State`].
pub fn check_state(state: &State) -> Result<(), TypeError> {
    let row = state.kind.row();
    let error = |problem: String| Err(TypeError::State { name: state.name.clone(), problem });
    if state.fields.len() != row.fields.len() {
        let names: Vec<&str> = row.fields.iter().map(|field| field.name).collect();
        return error(format!(
            "has {} fields; {} has {}: {}",
            state.fields.len(),
            row.name,
            names.len(),
            names.join(", ")
        ));
    }
    for (field, expected) in state.fields.iter().zip(row.fields) {
        let shape = match (expected.positions, &field.dims[..]) {
            (true, [Dim::Fixed(_), Dim::Symbol(symbol), Dim::Fixed(_)]) => symbol == POSITIONS,
            (true, _) => false,
            (false, dims) => (1..=4).contains(&dims.len()) && dims.iter().all(|dim| dim.fixed().is_some()),
        };
        if !expected.formats.contains(&field.format) || !shape {
            let dims = if expected.positions { "[columns, S, width]" } else { "of one to four numbers" };
            return error(format!("has {field} as {}; it must be {} {dims}", expected.name, expected.formats()));
        }
        let block = field.format.block_len() as u64;
        if field.dims.last().and_then(Dim::fixed).is_some_and(|width| !width.is_multiple_of(block)) {
            return error(format!(
                "has {field} as {}; the last dimension must be a multiple of {block}",
                expected.name
            ));
        }
        if field.dims.contains(&Dim::Fixed(0)) {
            return error(format!("has {field} as {}; each dimension must be at least 1", expected.name));
        }
        let numbers = field.dims.iter().filter_map(Dim::fixed);
        // Engines count elements in this way. In a plan, columns and widths are u32.
        let elements = numbers.clone().try_fold(4u64, |product, n| product.checked_mul(n));
        if elements.is_none_or(|n| i64::try_from(n).is_err()) || numbers.clone().any(|n| u32::try_from(n).is_err()) {
            return error(format!("has {field} as {}; it has more bytes than fit 63 bits", expected.name));
        }
    }
    let heads = |field: &super::Field| field.dims.first().cloned();
    if row.fields.iter().all(|field| field.positions)
        && state.fields.iter().any(|field| heads(field) != heads(&state.fields[0]))
    {
        return error("has fields of different numbers of columns; they must be the same".to_string());
    }
    if !row.rollbacks.contains(&state.rollback) {
        let words: Vec<&str> = row.rollbacks.iter().map(|rollback| rollback.word()).collect();
        return error(format!(
            "cannot roll back by {}; {} can by {}",
            state.rollback.word(),
            row.name,
            words.join(" or ")
        ));
    }
    let every = 1..=i32::MAX as u64;
    match state.every {
        1 => {}
        _ if !row.windowed => {
            return error(format!("has a place for every {} positions; {} has no positions", state.every, row.name));
        }
        _ if state.window.is_some() => {
            return error(
                "has both a window and places that positions share; expected at most one of them".to_string(),
            );
        }
        found if !every.contains(&found) => {
            return error(format!("has a place for every {found} positions; it must be in 1..={}", i32::MAX));
        }
        _ => {}
    }
    match state.window {
        Some(_) if !row.windowed => error(format!("has a window; {} has no positions", row.name)),
        Some(window) if window == 0 || i32::try_from(window).is_err() => {
            error(format!("has a window of {window}; it must be in 1..={}", i32::MAX))
        }
        // Memory then begins with a chunk, and the bits of a position show what is before its
        // chunk.
        Some(window) if state.chunked && !(window.is_power_of_two() && window >= ATTENTION_BLOCK.into()) => {
            error(format!("has chunks of {window}; they must be a power of two, at least {ATTENTION_BLOCK}"))
        }
        None if state.chunked => error("has chunks without a length (window)".to_string()),
        Some(_) | None => Ok(()),
    }
}

/// Returns the possible widths of a row of weights for `n` streams: weights of a block's input and
/// output alone, or with a matrix of `n` rows.
fn stream_widths(n: u64) -> [Option<u64>; 2] {
    [n.checked_mul(2), n.checked_add(2).and_then(|parts| parts.checked_mul(n))]
}

/// Checks that a value may have this type: `i32`, `f32` or an activation format in whole blocks, no
/// dimension of 0, and symbols that can be written.
///
/// # Errors
/// [`TypeError::Type`].
pub fn check_type(ty: &Type) -> Result<(), TypeError> {
    let error = |problem: String| TypeError::Type { ty: ty.to_string(), problem };
    let Type::Tensor { element, dims } = ty else { return Ok(()) };
    // Bounds the memory that ops need to copy a long type from the text.
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
                    problem: "is malformed: expected a letter, then letters, digits and _, at most 32".to_string(),
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
    /// Writes states by number. [`Type::text`] writes their names.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Type::Token(Held::Experts) => f.write_str("token"),
            Type::Token(Held::State(state)) => write!(f, "token<state {}>", state.0),
            Type::Tensor { element: Element::I32, dims } => write_dims(f, "i32", dims),
            Type::Tensor { element: Element::Format(format), dims } => write_dims(f, format.row().name, dims),
        }
    }
}

impl std::fmt::Display for super::Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_dims(f, self.format.row().name, &self.dims)
    }
}

fn write_dims(f: &mut std::fmt::Formatter<'_>, element: &str, dims: &[Dim]) -> std::fmt::Result {
    write!(f, "{element}[")?;
    for (i, dim) in dims.iter().enumerate() {
        write!(f, "{}{dim}", if i == 0 { "" } else { ", " })?;
    }
    f.write_str("]")
}

/// Returns `lead`, then `last`.
fn with(lead: &[Dim], last: Dim) -> Vec<Dim> {
    lead.iter().cloned().chain([last]).collect()
}
