//! Division by experts: each rank has some experts of every layer, and computes everything else in
//! full. `route.owned` keeps only the slots of a rank's experts. The sums of all ranks are added.
//!
//! ```text
//!   %3 = expert.matmul %x, %ids, %w : f32[T, 2, 4]
//!   %4 = expert.combine %3, %p : f32[T, 4]
//! ```
//! becomes, for the second of two ranks and 8 experts,
//! ```text
//!   %3, %4 = route.owned %ids, %p {first = 4, experts = 4} : i32[T, 2], f32[T, 2]
//!   %5 = expert.matmul %x, %3, %w : f32[T, 2, 4]
//!   %6 = expert.combine %5, %4 : f32[T, 4]
//!   %7, %8 = all_reduce %g, %6 : f32[T, 4], token[1, 2]
//! ```
//!
//! The whole model's graph rounds a token's sum over experts once, but here each rank rounds its
//! own sum.

use std::collections::HashMap;

use ixc_ir::graph::op::Effect;
use ixc_ir::graph::{Op, OpKind, OpView, Operand, ValueId, view};

use super::emit::{DimCut, Emitter, part};
use crate::error::ShardError;

/// Routings of a function.
struct Routings {
    /// Routed experts, by the value with their ids.
    by_ids: HashMap<ValueId, Routed>,
    /// Ids of the chosen experts, by each value that has one row per token and slot.
    slots: HashMap<ValueId, ValueId>,
}

/// Experts that a routing selects, and their use.
struct Routed {
    /// Weights of a token's slots in the sum of the experts' results, if there is a sum.
    p: Option<ValueId>,
    /// Number of experts on all ranks together.
    experts: u64,
    /// Expert ids and slot weights restricted to this rank's experts, once they are emitted.
    owned: Option<(ValueId, ValueId)>,
}

/// Emits this rank's function.
pub(super) fn emit(emitter: &mut Emitter<'_>) -> Result<(), ShardError> {
    let mut routings = routings(emitter)?;
    if routings.by_ids.is_empty() {
        return Err(emitter.refuse("it has no products with experts"));
    }
    let old = emitter.old;
    for op in &old.ops {
        emit_op(emitter, &mut routings, op)?;
    }
    emitter.return_all()
}

/// Returns the routings by their ids. Checks that each expert's result is used only as a row of its
/// slot until the sum.
fn routings(emitter: &Emitter<'_>) -> Result<Routings, ShardError> {
    let old = emitter.old;
    let mut routed: HashMap<ValueId, Routed> = HashMap::new();
    let mut slots: HashMap<ValueId, ValueId> = HashMap::new();
    for op in &old.ops {
        let mut ids: Vec<ValueId> = op.values().filter_map(|(_, value)| slots.get(&value).copied()).collect();
        if let Some(view::ExpertMatmul { ids: own, w, .. }) = view::ExpertMatmul::from_op(op) {
            let label = old.label(w);
            let Some(weight) = emitter.matrix(w) else {
                return Err(emitter.refuse_op(op, label, "the matrices are computed; expected a weight"));
            };
            let weight = &emitter.source.weights[weight.index()];
            let (name, experts) = (format!("@{}", weight.name), weight.shape[0]);
            let known = routed.entry(own).or_insert(Routed { p: None, experts, owned: None });
            if known.experts != experts {
                let expected = known.experts;
                let problem = format!("it has {experts} experts; another product of the same ids has {expected}");
                return Err(emitter.refuse_op(op, name, problem));
            }
            if experts < u64::from(emitter.group.ranks) {
                let ranks = emitter.group.ranks;
                return Err(emitter.refuse_op(
                    op,
                    name,
                    format!("it has {experts} experts, fewer than the {ranks} ranks"),
                ));
            }
            ids.push(own);
        }
        ids.dedup();
        let &[own] = &ids[..] else {
            if ids.is_empty() {
                continue;
            }
            return Err(emitter.refuse_op(op, old.label(op.results[0]), "it mixes the experts of two routings"));
        };
        if let Some(view::ExpertCombine { y, p }) = view::ExpertCombine::from_op(op)
            && slots.contains_key(&y)
        {
            if let Some(routed) = routed.get_mut(&own) {
                let known = *routed.p.get_or_insert(p);
                if known != p {
                    let problem =
                        format!("another sum of these experts has the weights {}; expected one sum", old.label(known));
                    return Err(emitter.refuse_op(op, old.label(p), problem));
                }
            }
            continue;
        }
        // Ops that do not mix the rows of different slots. Each result row belongs to the same slot
        // as its operand row.
        let lead = old.ty(own).dims();
        let apart = op.results.iter().all(|&result| {
            let dims = old.ty(result).dims();
            dims.len() == 3 && &dims[..2] == lead
        });
        if !apart || op.kind.row().effect == Effect::State {
            let problem = "it uses the results of single experts, which may be on other ranks";
            return Err(emitter.refuse_op(op, old.label(op.results[0]), problem));
        }
        slots.extend(op.results.iter().map(|&result| (result, own)));
    }
    if let Some(result) = old.results.iter().find(|result| slots.contains_key(result)) {
        return Err(emitter.refuse(format!("it returns {}, results of single experts", old.label(*result))));
    }
    Ok(Routings { by_ids: routed, slots })
}

fn emit_op(emitter: &mut Emitter<'_>, routings: &mut Routings, op: &Op) -> Result<(), ShardError> {
    let Routings { by_ids: routed, slots } = routings;
    let ids = match op.kind {
        OpKind::ExpertMatmul | OpKind::ExpertAddBias | OpKind::ExpertScale => op.operand("ids").value(),
        OpKind::ExpertCombine => op.operand("y").value().and_then(|y| slots.get(&y).copied()),
        _ => None,
    };
    let Some((ids, range)) = ids.and_then(|ids| Some((ids, part(routed.get(&ids)?.experts, emitter.group)))) else {
        return emitter.copy(op);
    };
    let (own_ids, own_p) = rank_routing(emitter, routed, ids, op)?;
    let cut = DimCut::from_range(0, range);
    let mut operands = Vec::with_capacity(op.operands.len());
    for (&operand, row) in op.operands.iter().zip(op.kind.row().operands) {
        operands.push(match (row.name, operand) {
            ("ids", _) => Operand::Value(own_ids),
            ("p", _) => Operand::Value(own_p),
            (_, Operand::Weight(weight)) => Operand::Weight(emitter.slice(weight, &cut)),
            ("w", Operand::Value(w)) => match emitter.matrix(w) {
                Some(weight) => {
                    let w = emitter.slice(weight, &cut);
                    Operand::Value(emitter.insert(&view::Dequantise { w })?[0])
                }
                None => emitter.operand(operand)?,
            },
            _ => emitter.operand(operand)?,
        });
    }
    let mut result = emitter.push(op.kind, operands, op.attrs.clone())?[0];
    if op.kind == OpKind::ExpertCombine {
        result = emitter.exchange(OpKind::AllReduce, result)?;
    }
    emitter.set(op.results[0], result);
    Ok(())
}

/// Returns the ids and weights of the slots with this rank's experts, for a routing that `op` uses.
fn rank_routing(
    emitter: &mut Emitter<'_>,
    routed: &mut HashMap<ValueId, Routed>,
    ids: ValueId,
    op: &Op,
) -> Result<(ValueId, ValueId), ShardError> {
    let label = emitter.old.label(ids);
    let Some(Routed { p: Some(p), experts, owned }) = routed.get_mut(&ids) else {
        return Err(emitter.refuse_op(op, label, "no expert.combine sums the results of these experts"));
    };
    if let Some(owned) = owned {
        return Ok(*owned);
    }
    let Some(p) = emitter.value(*p) else {
        return Err(emitter.refuse_op(op, label, "the weights of its experts are computed after the product"));
    };
    let range = part(*experts, emitter.group);
    let ids = emitter.whole(ids)?;
    let view = view::RouteOwned { ids, p, first: range.start as i64, experts: (range.end - range.start) as i64 };
    let results = emitter.insert(&view)?;
    *owned = Some((results[0], results[1]));
    Ok((results[0], results[1]))
}
