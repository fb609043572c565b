//! Division of products in blocks such as gate, up and down. Each rank has some rows of the first
//! weights of a block. Of the last weight, it has the columns that multiply the results of these
//! rows. A sum over ranks follows.
//!
//! ```text
//! gate, up [512, 256]   rows 0..256 on rank 0            heads of attention likewise, with the
//! down     [256, 512]   columns 0..256 on rank 0         heads of keys and values that they use
//! ```
//!
//! Blocks are found backwards from each product. The cut of its input becomes cuts of the ops
//! before ([`super::cut`]), up to products whose weight rows are cut. If there are no such products
//! before it, a product is whole on all ranks, as embeddings and norms are. The rows of the last
//! product's weight are also cut, if its result is a result of the function.
//!
//! A cut of a weight's columns must lie between blocks of the format. If it does not, ranks
//! exchange the input of the product by `all_gather`, and the weight's rows are cut instead.

use std::collections::HashMap;
use std::ops::Range;

use ixc_ir::graph::op::Effect;
use ixc_ir::graph::{Dim, Op, OpKind, OpView, Operand, StateId, TokenOwner, Type, ValueId, WeightId, view};

use super::cut::{self, Take};
use super::emit::{DimCut, Emitter, part};
use crate::error::ShardError;

/// Form in which a product is divided among ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Product {
    /// Columns of the weight are cut like the input. Each rank's result is one summand.
    Columns,
    /// Ranks exchange the parts of the input. Rows of the weight may be cut, too.
    Gathered {
        /// Whether rows of the weight are cut and the ranks exchange their parts of the result.
        rows: bool,
    },
    /// The input is whole on all ranks. Rows of the weight are cut, and the ranks exchange their
    /// parts of the result.
    Rows,
}

/// Cuts of a function.
#[derive(Clone, Debug, Default)]
struct Plan {
    /// Cut of each value that a rank has only a part of.
    values: HashMap<ValueId, DimCut>,
    /// Cut of each state. `None` stands for a whole state that is used by cut heads.
    states: HashMap<StateId, Option<DimCut>>,
    /// Divided products by their position.
    products: HashMap<usize, Product>,
}

/// Emits this rank's function.
pub(super) fn emit(emitter: &mut Emitter<'_>) -> Result<(), ShardError> {
    let plan = plan(emitter)?;
    let old = emitter.old;
    // Partial results that a later op completes, each with the rank's value and the exchange that
    // is still missing.
    let mut pending: HashMap<ValueId, (ValueId, OpKind)> = HashMap::new();
    let mut parts: HashMap<ValueId, ValueId> = HashMap::new();
    for (at, op) in old.ops.iter().enumerate() {
        if let Some(product) = plan.products.get(&at) {
            emit_product(emitter, &plan, &mut parts, &mut pending, op, product)?;
        } else if let Some(view::ExpertCombine { y, p }) = view::ExpertCombine::from_op(op)
            && let Some((y, exchange)) = pending.remove(&y)
        {
            let p = emitter.whole(p)?;
            let sum = emitter.insert(&view::ExpertCombine { y, p })?[0];
            let whole = emitter.exchange(exchange, sum)?;
            emitter.set(op.results[0], whole);
        } else if let Some(cut) = op.results.first().and_then(|result| plan.values.get(result)) {
            emit_cut(emitter, &plan, &mut parts, op, cut)?;
        } else {
            emit_whole(emitter, &plan, &mut parts, op)?;
        }
    }
    emitter.return_all()
}

/// Chooses the cuts of a function.
fn plan(emitter: &Emitter<'_>) -> Result<Plan, ShardError> {
    let old = emitter.old;
    let mut plan = Plan::default();
    for (at, op) in old.ops.iter().enumerate() {
        if !matches!(op.kind, OpKind::Matmul | OpKind::ExpertMatmul) {
            continue;
        }
        let (Some(x), Some(w)) = (op.operand("x").value(), op.operand("w").value()) else { continue };
        let Some(weight) = emitter.matrix(w) else { continue };
        if let Some((chosen, product)) = block(emitter, &plan, at, op, x, weight)? {
            plan = chosen;
            plan.products.insert(at, product);
        } else if old.results.contains(&op.results[0]) && rows_divide(emitter, weight) {
            plan.products.insert(at, Product::Rows);
        }
    }
    if plan.products.is_empty() {
        return Err(emitter.refuse("no product follows another product in a way that can be divided among ranks"));
    }
    Ok(plan)
}

/// Returns the plan extended by the block that ends with a product, if there is such a block.
fn block(
    emitter: &Emitter<'_>,
    plan: &Plan,
    at: usize,
    op: &Op,
    x: ValueId,
    weight: WeightId,
) -> Result<Option<(Plan, Product)>, ShardError> {
    let dim = emitter.old.ty(x).dims().len() - 1;
    let Some(columns) = emitter.size(x, dim) else { return Ok(None) };
    let mut tentative = plan.clone();
    // Only whether the cut reaches such products matters here, so the trial cuts all columns, which
    // is always possible.
    let Some(reached) = tentative.reach(emitter, x, DimCut::from_range(dim, 0..columns)) else { return Ok(None) };
    if !reached {
        return Ok(None);
    }
    let ranks = u64::from(emitter.group.ranks);
    let whole = &emitter.source.weights[weight.index()];
    let name = format!("@{}", whole.name);
    let unit = cut::unit(emitter, x, dim).map_err(|problem| emitter.refuse_op(op, name.clone(), problem))?;
    if !columns.is_multiple_of(ranks) || !(columns / ranks).is_multiple_of(unit) {
        let problem = format!(
            "its {columns} columns cannot be divided evenly among {ranks} ranks in multiples of {unit} columns"
        );
        return Err(emitter.refuse_op(op, name, problem));
    }
    let mut chosen = plan.clone();
    let range = part(columns, emitter.group);
    if chosen.reach(emitter, x, DimCut::from_range(dim, range)) != Some(true) || !chosen.is_closed(emitter, at) {
        return Ok(None);
    }
    let between_blocks = (columns / ranks).is_multiple_of(whole.stored_format().block_len() as u64);
    let product = match between_blocks && !whole.format.has_row_scale() {
        true => Product::Columns,
        false => Product::Gathered { rows: rows_divide(emitter, weight) },
    };
    Ok(Some((chosen, product)))
}

/// Whether a weight's rows can be divided equally among the ranks.
fn rows_divide(emitter: &Emitter<'_>, weight: WeightId) -> bool {
    let shape = &emitter.source.weights[weight.index()].shape;
    shape.len() >= 2 && shape[shape.len() - 2].is_multiple_of(emitter.group.ranks.into())
}

impl Plan {
    /// Cuts a value and the values from which it is computed. Returns whether the cut reaches a
    /// product whose rows are cut, or `None` if the value itself stays whole.
    fn reach(&mut self, emitter: &Emitter<'_>, value: ValueId, cut: DimCut) -> Option<bool> {
        let old = emitter.old;
        let mut work = vec![(value, cut)];
        let mut reached = false;
        let mut first = true;
        while let Some((value, cut)) = work.pop() {
            let own = std::mem::take(&mut first);
            let cut = match self.values.get(&value) {
                Some(known) if known.dim != cut.dim => return None,
                Some(known) => union(known, &cut),
                None => cut,
            };
            if self.values.get(&value) == Some(&cut) {
                continue;
            }
            let definition = emitter.def_use.definition(value);
            let Some((at, op)) = definition.map(|at| (at, &old.ops[at])) else {
                if own {
                    return None;
                }
                continue;
            };
            // A product that is already divided exchanges its parts and gives a whole result.
            if self.products.contains_key(&at) || op.results[0] != value {
                if own {
                    return None;
                }
                continue;
            }
            let direct = matches!(op.kind, OpKind::Matmul | OpKind::ExpertMatmul);
            // A slice of each row is a range of the row's elements, so the cut moves by the start
            // of the slice.
            if let (OpKind::Slice, true) = (op.kind, cut.dim + 1 == old.ty(value).dims().len()) {
                let view = view::Slice::from_op(op)?;
                let shifted = shift(&cut, view.from.unsigned_abs());
                self.values.insert(value, cut);
                work.push((view.x, shifted));
                continue;
            }
            let Some(of_operands) = cut::operands(emitter, op, &cut) else {
                if own {
                    return None;
                }
                continue;
            };
            // A product that is directly the input of another product is not cut, because there is
            // no op between them.
            if own && direct {
                return None;
            }
            self.values.insert(value, cut);
            reached |= direct || op.kind == OpKind::HeadsMatmul;
            for (operand, take) in op.operands.iter().zip(of_operands.takes) {
                match (operand, take) {
                    (Operand::Value(value), Take::Cut(cut)) if emitter.matrix(*value).is_none() => {
                        work.push((*value, cut));
                    }
                    (Operand::Value(token), Take::State(cut)) => {
                        let Type::Token(TokenOwner::State(state)) = old.ty(*token) else { continue };
                        work.extend(self.cut_state(emitter, *state, cut)?);
                    }
                    _ => {}
                }
            }
        }
        Some(reached)
    }

    /// Cuts a state. Returns the cuts of the keys and values that ops write to it, or `None` if
    /// another op needs a different cut.
    fn cut_state(
        &mut self,
        emitter: &Emitter<'_>,
        state: StateId,
        cut: Option<DimCut>,
    ) -> Option<Vec<(ValueId, DimCut)>> {
        let joint = match (self.states.get(&state), cut) {
            (None, cut) => cut,
            (Some(None), None) => None,
            (Some(Some(known)), Some(cut)) if known.dim == cut.dim => Some(union(known, &cut)),
            (Some(_), _) => return None,
        };
        self.states.insert(state, joint.clone());
        let Some(cut) = joint else { return Some(Vec::new()) };
        let appends = emitter.old.ops.iter().filter_map(view::KvAppend::from_op);
        let own = appends.filter(|append| *emitter.old.ty(append.kv) == Type::Token(TokenOwner::State(state)));
        let heads = DimCut { dim: 1, ranges: cut.ranges };
        Some(own.flat_map(|append| [(append.k, heads.clone()), (append.v, heads.clone())]).collect())
    }

    /// Whether every user of a cut value can use a rank's part of it, and all ops on a cut state
    /// are cut. `end` is the product that ends the block.
    fn is_closed(&self, emitter: &Emitter<'_>, end: usize) -> bool {
        let old = emitter.old;
        let cut_state = |ty: &Type| match ty {
            Type::Token(TokenOwner::State(state)) => self.states.get(state).is_some_and(Option::is_some),
            Type::Token(_) | Type::Tensor { .. } => false,
        };
        let uses_part = |at: usize, value: ValueId| {
            let op = &old.ops[at];
            let is_part = op.results.first().is_some_and(|result| self.values.contains_key(result));
            let takes_part = is_part
                && (op.kind == OpKind::Slice
                    || op
                        .results
                        .first()
                        .and_then(|result| cut::operands(emitter, op, self.values.get(result)?))
                        .is_some_and(|of| {
                            let mut own =
                                op.operands.iter().zip(&of.takes).filter(|(own, _)| own.value() == Some(value));
                            own.all(|(_, take)| matches!(take, Take::Cut(_)))
                        }));
            let appends = op.kind == OpKind::KvAppend && cut_state(old.ty(op.results[0]));
            let ends = at == end || self.products.get(&at).is_some_and(|product| *product != Product::Rows);
            takes_part || appends || (ends && op.operand("x").value() == Some(value))
        };
        let values = self.values.keys().all(|&value| {
            emitter.def_use.users(value).is_some_and(|users| users.into_iter().all(|at| uses_part(at, value)))
        });
        let states = old.ops.iter().filter(|op| op.kind.row().effect == Effect::State).all(|op| {
            let on_cut_state = op.results.iter().any(|&result| cut_state(old.ty(result)));
            let is_part = op.results.first().is_some_and(|result| self.values.contains_key(result));
            !on_cut_state || is_part || matches!(op.kind, OpKind::KvAppend | OpKind::StateBegin)
        });
        values && states
    }
}

/// Returns the union of two cuts of one dimension.
fn union(a: &DimCut, b: &DimCut) -> DimCut {
    let mut all: Vec<Range<u64>> = a.ranges.iter().chain(&b.ranges).cloned().collect();
    all.sort_unstable_by_key(|range| (range.start, range.end));
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for range in all {
        match ranges.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => ranges.push(range),
        }
    }
    DimCut { dim: a.dim, ranges }
}

/// Returns a cut with all ranges moved up by `by`.
fn shift(cut: &DimCut, by: u64) -> DimCut {
    let ranges = cut.ranges.iter().map(|range| range.start + by..range.end + by);
    DimCut { dim: cut.dim, ranges: ranges.collect() }
}

/// Returns the part of a value that a cut op reads.
fn take(
    emitter: &mut Emitter<'_>,
    plan: &Plan,
    parts: &HashMap<ValueId, ValueId>,
    value: ValueId,
    wanted: &DimCut,
) -> Result<ValueId, ShardError> {
    let (x, own) = match (plan.values.get(&value), parts.get(&value)) {
        (Some(own), Some(&x)) => (x, own.clone()),
        _ => {
            let size = emitter.size(value, wanted.dim).unwrap_or(0);
            (emitter.whole(value)?, DimCut::from_range(wanted.dim, 0..size))
        }
    };
    if own == *wanted {
        return Ok(x);
    }
    // Positions of the wanted ranges within this rank's part.
    let mut places = Vec::with_capacity(wanted.ranges.len());
    for range in &wanted.ranges {
        let mut before = 0;
        let found = own.ranges.iter().find_map(|of| {
            let inside = of.start <= range.start && range.end <= of.end;
            let place = before + range.start.saturating_sub(of.start);
            before += of.end - of.start;
            inside.then_some(place..place + (range.end - range.start))
        });
        match found {
            Some(place) => places.push(place),
            None => {
                return Err(emitter.refuse(format!(
                    "{} is divided among ranks where an op needs all of it",
                    emitter.old.label(value)
                )));
            }
        }
    }
    local(emitter, x, wanted.dim, &places)
}

/// Appends ops that take ranges of a dimension of a value.
fn local(emitter: &mut Emitter<'_>, x: ValueId, dim: usize, places: &[Range<u64>]) -> Result<ValueId, ShardError> {
    let dims: Vec<Option<u64>> = emitter.ty(x).dims().iter().map(Dim::fixed).collect();
    // To cut heads, they are merged into rows, where each head is a range of elements.
    let width = match &dims[..] {
        [_, Some(_), Some(width)] if dim == 1 => Some(*width),
        _ => None,
    };
    let (row, each) = match width {
        Some(width) => (emitter.insert(&view::MergeHeads { x })?[0], width),
        None => (x, 1),
    };
    let mut joint = None;
    for place in places {
        let (from, count) = ((place.start * each) as i64, ((place.end - place.start) * each) as i64);
        let piece = emitter.insert(&view::Slice { x: row, from, count })?[0];
        joint = Some(match joint {
            None => piece,
            Some(a) => emitter.insert(&view::Concat { a, b: piece })?[0],
        });
    }
    let row = joint.unwrap_or(row);
    match width {
        None => Ok(row),
        Some(_) => {
            let heads = places.iter().map(|place| place.end - place.start).sum::<u64>() as i64;
            Ok(emitter.insert(&view::SplitHeads { x: row, heads })?[0])
        }
    }
}

/// Appends an op whose first result is cut.
fn emit_cut(
    emitter: &mut Emitter<'_>,
    plan: &Plan,
    parts: &mut HashMap<ValueId, ValueId>,
    op: &Op,
    cut: &DimCut,
) -> Result<(), ShardError> {
    let result = op.results[0];
    if let (OpKind::Slice, Some(view)) = (op.kind, view::Slice::from_op(op))
        && cut.dim + 1 == emitter.old.ty(result).dims().len()
    {
        let part = take(emitter, plan, parts, view.x, &shift(cut, view.from.unsigned_abs()))?;
        parts.insert(result, part);
        return Ok(());
    }
    let Some(of_operands) = cut::operands(emitter, op, cut) else {
        return Err(emitter.refuse_op(op, emitter.old.label(result), "its result cannot be divided among ranks"));
    };
    let mut operands = Vec::with_capacity(op.operands.len());
    for (&operand, take_of) in op.operands.iter().zip(&of_operands.takes) {
        operands.push(match (operand, take_of) {
            (Operand::Weight(weight), Take::Cut(cut)) => Operand::Weight(emitter.slice(weight, cut)),
            (Operand::Value(value), Take::Cut(cut)) => Operand::Value(match emitter.matrix(value) {
                Some(weight) => matrix(emitter, weight, cut)?,
                None => take(emitter, plan, parts, value, cut)?,
            }),
            _ => emitter.operand(operand)?,
        });
    }
    let results = emitter.push(op.kind, operands, of_operands.attrs)?;
    parts.insert(result, results[0]);
    op.results.iter().zip(results).skip(1).for_each(|(&old, new)| emitter.set(old, new));
    Ok(())
}

/// Appends an op with whole results. An op that writes to a cut state takes only this rank's heads
/// of its operands.
fn emit_whole(
    emitter: &mut Emitter<'_>,
    plan: &Plan,
    parts: &mut HashMap<ValueId, ValueId>,
    op: &Op,
) -> Result<(), ShardError> {
    if let Some(view::StateBegin { state }) = view::StateBegin::from_op(op) {
        let cut = plan.states.get(&state).cloned().flatten();
        let state = emitter.state(state, cut.as_ref())?;
        let token = emitter.insert(&view::StateBegin { state })?[0];
        emitter.set(op.results[0], token);
        return Ok(());
    }
    if let Some(append) = view::KvAppend::from_op(op)
        && let Type::Token(TokenOwner::State(state)) = emitter.old.ty(append.kv)
        && let Some(Some(cut)) = plan.states.get(state)
    {
        let heads = DimCut { dim: 1, ranges: cut.ranges.clone() };
        let [k, v] = [append.k, append.v].map(|value| take(emitter, plan, parts, value, &heads));
        let (kv, pos) = (emitter.whole(append.kv)?, emitter.whole(append.pos)?);
        let token = emitter.insert(&view::KvAppend { kv, k: k?, v: v?, pos })?[0];
        emitter.set(op.results[0], token);
        return Ok(());
    }
    emitter.copy(op)
}

/// Appends a divided product, and the exchange that makes its result whole.
fn emit_product(
    emitter: &mut Emitter<'_>,
    plan: &Plan,
    parts: &mut HashMap<ValueId, ValueId>,
    pending: &mut HashMap<ValueId, (ValueId, OpKind)>,
    op: &Op,
    product: &Product,
) -> Result<(), ShardError> {
    let (Some(x), Some(w)) = (op.operand("x").value(), op.operand("w").value()) else {
        return Err(emitter.refuse_op(op, emitter.old.label(op.results[0]), "it has no operands"));
    };
    let Some(weight) = emitter.matrix(w) else {
        return Err(emitter.refuse_op(op, emitter.old.label(w), "the operand is not a weight"));
    };
    let shape = emitter.source.weights[weight.index()].shape.clone();
    let (columns, rows) = (shape.len() - 1, shape.len() - 2);
    let cut_rows = DimCut::from_range(rows, part(shape[rows], emitter.group));
    let own = match plan.values.contains_key(&x) && *product != Product::Rows {
        true => {
            let dim = emitter.old.ty(x).dims().len() - 1;
            Some(take(emitter, plan, parts, x, &DimCut::from_range(dim, part(shape[columns], emitter.group)))?)
        }
        false => None,
    };
    let (x, w, exchange) = match (product, own) {
        (Product::Columns, Some(own)) => {
            let cut = DimCut::from_range(columns, part(shape[columns], emitter.group));
            (own, matrix(emitter, weight, &cut)?, Some(OpKind::AllReduce))
        }
        (Product::Gathered { rows }, Some(own)) => {
            let x = emitter.exchange(OpKind::AllGather, own)?;
            match rows {
                true => (x, matrix(emitter, weight, &cut_rows)?, Some(OpKind::AllGather)),
                false => (x, emitter.whole(w)?, None),
            }
        }
        (Product::Rows | Product::Columns | Product::Gathered { .. }, _) => {
            (emitter.whole(x)?, matrix(emitter, weight, &cut_rows)?, Some(OpKind::AllGather))
        }
    };
    let y = match view::ExpertMatmul::from_op(op) {
        Some(expert) => {
            let ids = emitter.whole(expert.ids)?;
            emitter.insert(&view::ExpertMatmul { x, ids, w })?[0]
        }
        None => emitter.insert(&view::Matmul { x, w })?[0],
    };
    let result = op.results[0];
    // If the only user sums over the slots of a token, ranks exchange that sum instead, which has
    // fewer numbers.
    let users = emitter.def_use.users(result).unwrap_or_default();
    let combined = users.iter().all(|&at| emitter.old.ops[at].kind == OpKind::ExpertCombine) && users.len() == 1;
    match exchange {
        Some(exchange) if combined => {
            pending.insert(result, (y, exchange));
        }
        Some(exchange) => {
            let whole = emitter.exchange(exchange, y)?;
            emitter.set(result, whole);
        }
        None => emitter.set(result, y),
    }
    Ok(())
}

/// Appends the dequantised slice of a weight.
fn matrix(emitter: &mut Emitter<'_>, weight: WeightId, cut: &DimCut) -> Result<ValueId, ShardError> {
    let w = emitter.slice(weight, cut);
    Ok(emitter.insert(&view::Dequantise { w })?[0])
}
