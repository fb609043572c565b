//! `kv.append` of rotated keys becomes `rope.append`: the rotated row goes from registers into the cache.
//!
//! ```text
//!   %k = rope.heads %0, %pos, @k_norm, _ {...} : f32[T, 2, 64]
//!   %v = split_heads %1 {heads = 2} : f32[T, 2, 64]
//!   %kv1 = kv.append %kv, %k, %v, %pos : token<@kv.0>
//! ```
//! becomes
//! ```text
//!   %kv1 = rope.append %kv, %0, %1, %pos, @k_norm, _ {heads = 2, ...} : token<@kv.0>
//! ```
//!
//! Needs: fused rotations. Leaves ops without use behind, for `canonicalise`. Not done where the rotated keys have another
//! use (they would be computed twice) or other positions than the append.

use ixc_ir::graph::{DefUse, Function, Op, OpKind, Operand, Type, ValueId};

pub(crate) fn run(mut function: Function) -> Function {
    let def_use = DefUse::of(&function);
    let mut ops: Vec<Op> = Vec::with_capacity(function.ops.len());
    let old = std::mem::take(&mut function.ops);
    for op in &old {
        match fused(&mut function, &mut ops, op, &old, &def_use) {
            Some(fused) => ops.push(fused),
            None => ops.push(op.clone()),
        }
    }
    function.ops = ops;
    function
}

fn fused(function: &mut Function, ops: &mut Vec<Op>, op: &Op, old: &[Op], def_use: &DefUse) -> Option<Op> {
    if op.kind != OpKind::KvAppend {
        return None;
    }
    let definition = |operand: Operand, kind: OpKind| {
        let value = operand.value()?;
        Some((value, old.get(def_use.definition(value)?)?)).filter(|(_, op)| op.kind == kind)
    };
    let (k, rope) = definition(op.operand("k"), OpKind::RopeHeads)?;
    if def_use.uses(k).len() != 1 || rope.operand("pos") != op.operand("pos") {
        return None;
    }
    let v = match definition(op.operand("v"), OpKind::SplitHeads) {
        Some((_, split)) => split.operand("x"),
        None => merged(function, ops, op.operand("v"))?,
    };
    let operands =
        vec![op.operand("kv"), rope.operand("x"), v, op.operand("pos"), rope.operand("norm"), rope.operand("factors")];
    // Both rows have the same attributes in one order.
    Some(Op { kind: OpKind::RopeAppend, operands, attrs: rope.attrs.clone(), results: op.results.clone() })
}

/// Values whose heads were never split, as one row.
fn merged(function: &mut Function, ops: &mut Vec<Op>, v: Operand) -> Option<Operand> {
    let Operand::Value(value) = v else { return None };
    let [rows, heads, d] = function.ty(value).dims() else { return None };
    let width = heads.fixed()?.checked_mul(d.fixed()?)?;
    let ty = Type::f32([rows.clone(), width.into()]);
    let result: ValueId = function.add_value(None, ty);
    ops.push(Op { kind: OpKind::MergeHeads, operands: vec![v], attrs: Vec::new(), results: vec![result] });
    Some(Operand::Value(result))
}
