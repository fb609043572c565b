//! Division by layers: each rank computes a range of ops, and sends the values that later ranges
//! need to the next rank. Rank 0 returns the results, which the last rank sends to it. Other ranks
//! return nothing.
//!
//! A range may end between two ops if only rows of floats cross this point, and as few as possible.
//! In a transformer, this is the residual, so a range may also end after a layer's attention.
//! States and their tokens never cross. The ranges have nearly equal bytes of weights. No order of
//! additions changes, so the results have the same bits as those of the whole model.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use ixc_ir::format::Format;
use ixc_ir::graph::op::Effect;
use ixc_ir::graph::{Dim, Element, Op, OpKind, Operand, Type, ValueId, Weight, WeightId, view};

use super::emit::Emitter;
use crate::error::ShardError;

/// Emits this rank's function.
pub(super) fn emit(emitter: &mut Emitter<'_>) -> Result<(), ShardError> {
    let old = emitter.old;
    let crossings = Crossings::from_emitter(emitter);
    let ranges = ranges(emitter, &crossings)?;
    let (rank, last) = (emitter.group.rank, emitter.group.ranks - 1);
    let Range { start, end } = ranges[rank as usize];
    if rank > 0 {
        for value in crossings.at(start) {
            receive(emitter, value, rank - 1)?;
        }
    }
    for op in &old.ops[start..end] {
        if !op.results.iter().any(|result| crossings.anywhere[result.index()]) {
            copy(emitter, &crossings, op)?;
        }
    }
    if rank < last {
        for value in crossings.at(end) {
            send(emitter, value, rank + 1)?;
        }
    }
    for &result in &old.results {
        if rank == last {
            compute_value(emitter, &crossings, result)?;
            send(emitter, result, 0)?;
        } else if rank == 0 {
            receive(emitter, result, last)?;
        }
    }
    if rank == 0 { emitter.return_all() } else { Ok(()) }
}

/// For each value, the ops before which it crosses: it is computed earlier, and used by that op or
/// a later one.
struct Crossings {
    /// Whether each rank can compute the value itself, because it depends only on parameters and
    /// weights, without products.
    anywhere: Vec<bool>,
    /// Positions at which each value crosses: from the op after its definition to its last use.
    spans: Vec<Option<Range<usize>>>,
}

impl Crossings {
    fn from_emitter(emitter: &Emitter<'_>) -> Crossings {
        let old = emitter.old;
        let mut anywhere = vec![false; old.values.len()];
        old.params.iter().for_each(|param| anywhere[param.index()] = true);
        let mut spans: Vec<Option<Range<usize>>> = vec![None; old.values.len()];
        for (at, op) in old.ops.iter().enumerate() {
            let known = op.values().all(|(_, value)| anywhere[value.index()]);
            let integers = op.results.iter().all(|&result| old.ty(result).element() == Some(Element::I32));
            let cheap = op.kind.row().effect == Effect::Pure && (integers || op.kind == OpKind::Dequantise);
            for (_, value) in op.values() {
                if let Some(span) = &mut spans[value.index()] {
                    span.end = at + 1;
                }
            }
            for result in &op.results {
                anywhere[result.index()] = known && cheap;
                spans[result.index()] = (!(known && cheap)).then_some(at + 1..at + 1);
            }
        }
        for result in &old.results {
            if let Some(span) = &mut spans[result.index()] {
                span.end = old.ops.len() + 1;
            }
        }
        Crossings { anywhere, spans }
    }

    /// Returns the values that cross from before an op to it or later ops.
    fn at(&self, op: usize) -> Vec<ValueId> {
        let spans = self.spans.iter().zip((0..).map(ValueId));
        spans.filter(|(span, _)| span.as_ref().is_some_and(|span| span.contains(&op))).map(|(_, value)| value).collect()
    }

    /// Returns the number of floats per row that cross before each op. Returns `None` for an op if
    /// other data crosses too.
    fn widths(&self, emitter: &Emitter<'_>) -> Vec<Option<u128>> {
        let ops = emitter.old.ops.len();
        // Changes before each op: in the number of floats that cross, and in the number of crossing
        // values that cannot be sent.
        let (mut floats, mut others) = (vec![0i128; ops + 2], vec![0i64; ops + 2]);
        for (span, value) in self.spans.iter().zip((0..).map(ValueId)) {
            let Some(Range { start, end }) = span else { continue };
            match row_width(emitter, value) {
                Some(width) => {
                    floats[*start] += i128::from(width);
                    floats[*end] -= i128::from(width);
                }
                None => {
                    others[*start] += 1;
                    others[*end] -= 1;
                }
            }
        }
        let (mut width, mut other) = (0i128, 0i64);
        let changes = floats.into_iter().zip(others).take(ops);
        let widths = changes.map(|(floats, others)| {
            width += floats;
            other += others;
            (other == 0).then_some(width.unsigned_abs())
        });
        widths.collect()
    }
}

/// Returns the number of floats in a row of a value that can be sent, of type f32[T, d] or f32[T,
/// h, d]. Returns `None` for other values.
fn row_width(emitter: &Emitter<'_>, value: ValueId) -> Option<u64> {
    let ty = emitter.old.ty(value);
    let (Dim::Symbol(_), rest) = ty.dims().split_first()? else { return None };
    let floats = ty.element() == Some(Element::Format(Format::F32)) && (1..=2).contains(&rest.len());
    floats.then(|| rest.iter().map(Dim::fixed).product())?
}

/// Returns the range of ops of each rank.
fn ranges(emitter: &Emitter<'_>, crossings: &Crossings) -> Result<Vec<Range<usize>>, ShardError> {
    let (old, ranks) = (emitter.old, emitter.group.ranks as usize);
    let mixing: Vec<usize> = (0..old.ops.len()).filter(|&at| old.ops[at].mixes(old)).collect();
    let inside = match (mixing.first(), mixing.last()) {
        (Some(first), Some(last)) => first + 1..last + 1,
        _ => return Err(emitter.refuse("it has no layers with a state, such as attention")),
    };
    let widths = crossings.widths(emitter);
    let widths: Vec<(usize, u128)> =
        inside.filter_map(|at| Some((at, widths[at]?))).filter(|(at, _)| begins(&old.ops[*at])).collect();
    let least = widths.iter().map(|(_, width)| *width).min();
    let places: Vec<usize> = widths.iter().filter(|(_, width)| Some(*width) == least).map(|(at, _)| *at).collect();
    if places.len() + 1 < ranks {
        let (found, needed) = (places.len(), ranks - 1);
        return Err(emitter.refuse(format!(
            "the number of points between its layers where it can be divided is {found}; {ranks} ranks need {needed}"
        )));
    }
    let before = bytes_before(emitter);
    let total = before[old.ops.len()];
    let mut ends = vec![0];
    let mut next = 0;
    for rank in 1..ranks {
        // Keeps one possible end for each later rank.
        let choices = next..places.len() + rank + 1 - ranks;
        let goal = (u128::from(total) * rank as u128 / ranks as u128) as u64;
        let nearest = choices.min_by_key(|&i| before[places[i]].abs_diff(goal)).unwrap_or(next);
        ends.push(places[nearest]);
        next = nearest + 1;
    }
    ends.push(old.ops.len());
    Ok(ends.windows(2).map(|pair| pair[0]..pair[1]).collect())
}

/// Whether a range may begin with the op. A dequantised matrix belongs to the range that multiplies
/// by it. A range that began with `dequantise` would therefore equal the range that begins with the
/// next op.
fn begins(op: &Op) -> bool {
    op.kind != OpKind::Dequantise
}

/// For each op, returns the bytes of the weights that earlier ops use.
fn bytes_before(emitter: &Emitter<'_>) -> Vec<u64> {
    let mut seen: HashSet<WeightId> = HashSet::new();
    let mut sum = 0u64;
    let mut before = vec![0];
    for op in &emitter.old.ops {
        for weight in op.weights() {
            if seen.insert(weight) {
                sum = sum.saturating_add(bytes(&emitter.source.weights[weight.index()]));
            }
        }
        before.push(sum);
    }
    before
}

fn bytes(weight: &Weight) -> u64 {
    let (last, lead) = weight.shape.split_last().unwrap_or((&0, &[]));
    weight.format.row_bytes(*last).unwrap_or(0).saturating_mul(lead.iter().product())
}

/// Copies an op. First computes those of its operands that every rank computes itself.
fn copy(emitter: &mut Emitter<'_>, crossings: &Crossings, op: &Op) -> Result<(), ShardError> {
    for (_, value) in op.values() {
        compute_value(emitter, crossings, value)?;
    }
    emitter.copy(op)
}

/// Computes a value that every rank computes itself, if the rank does not have it yet.
fn compute_value(emitter: &mut Emitter<'_>, crossings: &Crossings, value: ValueId) -> Result<(), ShardError> {
    let old = emitter.old;
    // Positions of the ops that compute the value, in rising order, so that operands come before
    // their uses.
    let (mut needed, mut pending) = (BTreeSet::new(), vec![value]);
    while let Some(value) = pending.pop() {
        let is_missing = emitter.value(value).is_none() && crossings.anywhere[value.index()];
        if let Some(at) = emitter.def_use.definition(value).filter(|_| is_missing)
            && needed.insert(at)
        {
            pending.extend(old.ops[at].values().map(|(_, value)| value));
        }
    }
    needed.into_iter().try_for_each(|at| emitter.copy(&old.ops[at]))
}

/// Sends a value of the whole model to another rank.
fn send(emitter: &mut Emitter<'_>, value: ValueId, to: u32) -> Result<(), ShardError> {
    let mut x = emitter.whole(value)?;
    if emitter.ty(x).dims().len() == 3 {
        x = emitter.insert(&view::MergeHeads { x })?[0];
    }
    emitter.send(x, to)
}

/// Receives a value of the whole model from another rank.
fn receive(emitter: &mut Emitter<'_>, value: ValueId, from: u32) -> Result<(), ShardError> {
    let old = emitter.old;
    let (Some(width), Type::Tensor { dims, .. }) = (row_width(emitter, value), old.ty(value)) else {
        return Err(
            emitter.refuse(format!("ranks must send {}, but they can only send rows of floats", old.label(value)))
        );
    };
    let rows = old.params.iter().find(|&&param| *old.ty(param) == Type::i32([dims[0].clone()]));
    let Some(Operand::Value(rows)) = rows.map(|&rows| emitter.operand(Operand::Value(rows))).transpose()? else {
        return Err(emitter
            .refuse(format!("no parameter of type i32[{}] gives the number of rows that a rank receives", dims[0])));
    };
    let mut x = emitter.recv(rows, from, width)?;
    if let [_, heads, _] = &dims[..] {
        let heads = heads.fixed().unwrap_or(1) as i64;
        x = emitter.insert(&view::SplitHeads { x, heads })?[0];
    }
    emitter.set(value, x);
    Ok(())
}
