//! `canonicalise`: drops what does nothing and merges what repeats.
//!
//! Needs: a verified module. Leaves: the same function, where no two pure ops are equal, every op has a use or an effect,
//! `merge_heads` and `split_heads` do not undo each other, and values stand in the order of their definitions.
//!
//! ```text
//!   %1 = split_heads %x {heads = 4} : f32[T, 4, 64]
//!   %2 = merge_heads %1 : f32[T, 256]
//!   %3 = silu %2 : f32[T, 256]
//!   %4 = silu %x : f32[T, 256]
//!   %5 = mul %3, %4 : f32[T, 256]
//!   %6 = add %5, %x : f32[T, 256]
//!   return %5
//! ```
//! becomes
//! ```text
//!   %1 = silu %x : f32[T, 256]
//!   %2 = mul %1, %1 : f32[T, 256]
//!   return %2
//! ```

use std::collections::HashMap;

use ixc_ir::format::Format;
use ixc_ir::graph::op::Effect;
use ixc_ir::graph::{Attr, DefUse, Function, Module, Op, OpKind, Operand, ValueId};

use crate::error::PassError;
use crate::pass::{Context, Pass, Run};

/// The pass.
pub static PASS: Pass = Pass {
    name: "canonicalise",
    doc: "Drops what does nothing and merges what repeats.",
    options: &[],
    run: Run::Graph(run),
};

/// Runs the pass.
///
/// # Errors
/// None; passes have one signature.
pub fn run(mut module: Module, _: &Context<'_>) -> Result<Module, PassError> {
    module.functions = module.functions.into_iter().map(|function| compact(&merge(function))).collect();
    Ok(module)
}

/// An op's identity: equal pure ops compute the same.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    kind: OpKind,
    operands: Vec<Operand>,
    /// Attributes as text, in which floats are their bits.
    attrs: String,
}

impl Key {
    fn of(op: &Op) -> Key {
        let attr = |attr: &Attr| match attr {
            Attr::Float(v) => format!("{:x};", v.to_bits()),
            Attr::Int(_) | Attr::Bool(_) | Attr::Word(_) | Attr::Format(_) => format!("{attr:?};"),
        };
        Key { kind: op.kind, operands: op.operands.clone(), attrs: op.attrs.iter().map(attr).collect() }
    }
}

/// Replaces values by equal ones that are defined before; leaves ops without use.
fn merge(mut function: Function) -> Function {
    let mut same: Vec<ValueId> = (0..function.values.len() as u32).map(ValueId).collect();
    let mut seen: HashMap<Key, usize> = HashMap::new();
    let def_use = DefUse::of(&function);
    for i in 0..function.ops.len() {
        for operand in &mut function.ops[i].operands {
            if let Operand::Value(value) = operand {
                *value = same[value.index()];
            }
        }
        let op = &function.ops[i];
        if op.kind.row().effect == Effect::State {
            continue;
        }
        if let Some(value) = undone(&function, &def_use, op) {
            let result = op.results[0];
            same[result.index()] = value;
            inherit_name(&mut function, result, value);
            continue;
        }
        match seen.get(&Key::of(op)) {
            Some(&first) => {
                let pairs: Vec<_> =
                    op.results.iter().copied().zip(function.ops[first].results.iter().copied()).collect();
                for (result, value) in pairs {
                    same[result.index()] = value;
                    inherit_name(&mut function, result, value);
                }
            }
            None => {
                seen.insert(Key::of(op), i);
            }
        }
    }
    function.results.iter_mut().for_each(|result| *result = same[result.index()]);
    function
}

/// A value without a name takes that of the value which it replaces.
fn inherit_name(function: &mut Function, from: ValueId, to: ValueId) {
    let name = function.values[from.index()].name.take();
    let slot = &mut function.values[to.index()].name;
    if slot.is_none() {
        *slot = name;
    }
}

/// The value that an op gives back unchanged.
fn undone(function: &Function, def_use: &DefUse, op: &Op) -> Option<ValueId> {
    let (&Operand::Value(x), [result]) = (op.operands.first()?, &op.results[..]) else { return None };
    let before = |kind: OpKind| {
        let before = &function.ops[def_use.definition(x)?];
        match before.operands.first() {
            Some(&Operand::Value(value)) if before.kind == kind => Some(value),
            _ => None,
        }
    };
    let value = match op.kind {
        OpKind::MergeHeads => before(OpKind::SplitHeads)?,
        OpKind::SplitHeads => before(OpKind::MergeHeads)?,
        OpKind::Quantise if *op.attr("format") == Attr::Format(Format::F32) => x,
        _ => return None,
    };
    // Split into another number of heads than was merged is no way back.
    (function.ty(value) == function.ty(*result)).then_some(value)
}

/// Drops pure ops without use, and values without definition.
pub(crate) fn compact(function: &Function) -> Function {
    let mut out = Function { name: function.name.clone(), ..Function::default() };
    let mut moved: Vec<Option<ValueId>> = vec![None; function.values.len()];
    let define = |out: &mut Function, moved: &mut Vec<Option<ValueId>>, value: ValueId| {
        let data = &function.values[value.index()];
        let new = out.add_value(data.name.as_deref(), data.ty.clone());
        moved[value.index()] = Some(new);
        new
    };
    for &param in &function.params {
        let param = define(&mut out, &mut moved, param);
        out.params.push(param);
    }
    for (op, _) in function.ops.iter().zip(DefUse::of(function).live(function)).filter(|(_, live)| *live) {
        let operands = op.operands.iter().map(|operand| match operand {
            // A verified function defines before it uses; what does not stays wrong for the verifier to say.
            Operand::Value(value) => Operand::Value(moved[value.index()].unwrap_or(ValueId(u32::MAX))),
            Operand::Weight(_) | Operand::State(_) | Operand::Absent => *operand,
        });
        let operands = operands.collect();
        let results = op.results.iter().map(|&result| define(&mut out, &mut moved, result)).collect();
        out.ops.push(Op { kind: op.kind, operands, attrs: op.attrs.clone(), results });
    }
    out.results = function.results.iter().map(|result| moved[result.index()].unwrap_or(ValueId(u32::MAX))).collect();
    out
}
