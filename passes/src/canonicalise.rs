//! `canonicalise`: removes ops without a use or an effect, and merges equal ops.
//!
//! Needs: a verified module. Leaves: an equal function in which no two pure ops are equal and every
//! op has a use or an effect. No `merge_heads` undoes a `split_heads` or the reverse, and values
//! are numbered in the order of their definitions.
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
use ixc_ir::graph::rewrite::RewriteError;
use ixc_ir::graph::{Attr, DefUse, Function, Module, Op, OpKind, OpView, Operand, Rewriter, ValueId, view};

use crate::error::PassError;
use crate::pass::{Context, Pass, Run};

/// Entry of this pass in the list of passes.
pub static PASS: Pass = Pass {
    name: "canonicalise",
    doc: "Removes unused and redundant ops, and merges equal ones.",
    options: &[],
    run: Run::Graph(run),
};

/// Runs the pass.
///
/// # Errors
/// Never fails for a module that verifies.
pub fn run(mut module: Module, _: &Context<'_>) -> Result<Module, PassError> {
    let functions = module.functions.iter().map(|function| merge(&module, function));
    module.functions = functions.collect::<Result<_, _>>()?;
    Ok(module)
}

/// An op's identity: pure ops with equal keys compute the same values.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    kind: OpKind,
    operands: Vec<Operand>,
    /// Attributes as text, with floats as their bits.
    attrs: String,
}

impl Key {
    fn from_op(op: &Op) -> Key {
        let attr = |attr: &Attr| match attr {
            Attr::Float(v) => format!("{:x};", v.to_bits()),
            Attr::Int(_) | Attr::Bool(_) | Attr::Word(_) | Attr::Format(_) => format!("{attr:?};"),
        };
        Key { kind: op.kind, operands: op.operands.clone(), attrs: op.attrs.iter().map(attr).collect() }
    }
}

/// Replaces values by equal values that are defined earlier, and removes unused ops.
fn merge(module: &Module, function: &Function) -> Result<Function, RewriteError> {
    let def_use = DefUse::from_function(function);
    let mut rewriter = Rewriter::new(module, function);
    let mut seen: HashMap<Key, &[ValueId]> = HashMap::new();
    for (at, Op { results, .. }) in function.ops.iter().enumerate() {
        let op = rewriter.op(at)?;
        if op.kind.row().effect == Effect::State {
            continue;
        }
        let key = Key::from_op(op);
        if let Some(value) = undone(rewriter.function(), &def_use, at) {
            rewriter.replace_uses(results[0], value)?;
            continue;
        }
        let first = *seen.entry(key).or_insert(results);
        for (&result, &value) in results.iter().zip(first) {
            rewriter.replace_uses(result, value)?;
        }
    }
    rewriter.finish()
}

/// Returns the value that equals the result of the op at `at`, if that op undoes the op that
/// defines its operand. An example is a merge of heads that were just split.
fn undone(function: &Function, def_use: &DefUse, at: usize) -> Option<ValueId> {
    let op = &function.ops[at];
    let value = match op.kind {
        OpKind::MergeHeads => def_use.defining::<view::SplitHeads>(function, view::MergeHeads::from_op(op)?.x)?.x,
        OpKind::SplitHeads => def_use.defining::<view::MergeHeads>(function, view::SplitHeads::from_op(op)?.x)?.x,
        OpKind::Quantise => view::Quantise::from_op(op).filter(|quantise| quantise.format == Format::F32)?.x,
        _ => return None,
    };
    // A split undoes a merge only if both have the same number of heads.
    (function.ty(value) == function.ty(op.results[0])).then_some(value)
}
