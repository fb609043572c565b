//! `kv.append` of rotated keys becomes `rope.append`: the rotated row goes from registers into the
//! cache.
//!
//! ```text
//!   %k = rope.heads %0, %pos, @k_norm, _, _ {...} : f32[T, 2, 64]
//!   %v = split_heads %1 {heads = 2} : f32[T, 2, 64]
//!   %kv1 = kv.append %kv, %k, %v, %pos : token<@kv.0>
//! ```
//! becomes
//! ```text
//!   %kv1 = rope.append %kv, %0, %1, %pos, @k_norm, _, _ {heads = 2, ...} : token<@kv.0>
//! ```
//!
//! Needs: fused rotations. The rule does not apply if the rotated keys have another use, because
//! they would be computed twice. It also does not apply if their positions differ from those of the
//! append.

use ixc_ir::graph::rewrite::{Position, RewriteError};
use ixc_ir::graph::{DefUse, Function, Module, OpView, Rewriter, TokenOwner, Type, view};

use crate::decision::Decision;
use crate::pass::Context;

pub(crate) fn run(module: &Module, function: &Function, context: &Context<'_>) -> Result<Function, RewriteError> {
    let def_use = DefUse::from_function(function);
    let mut rewriter = Rewriter::new(module, function);
    for (at, op) in function.ops.iter().enumerate() {
        let Some(append) = view::KvAppend::from_op(op) else { continue };
        let rotated = def_use.defining::<view::RopeHeads>(function, append.k);
        let once = |rope: &view::RopeHeads| def_use.uses(append.k).len() == 1 && rope.pos == append.pos;
        let state = || match function.ty(append.kv) {
            Type::Token(TokenOwner::State(state)) => module.states[state.index()].name.clone(),
            Type::Token(TokenOwner::Experts | TokenOwner::Ranks(_)) | Type::Tensor { .. } => String::new(),
        };
        let Some(rope) = rotated.filter(once) else {
            context.decide(|| {
                let why = match rotated {
                    None => "its keys are not the result of a rotation",
                    Some(rope) if rope.pos != append.pos => {
                        "its keys are rotated by other positions than the positions of the append"
                    }
                    Some(_) => "another op uses the rotated keys too, so they would be computed twice",
                };
                Decision::new("kv.append", state(), "fusion").chose("kv.append").over("rope.append", why)
            });
            continue;
        };
        context.decide(|| {
            let why = "two ops would write the rotated row to memory and read it again";
            Decision::new("rope.append", state(), "fusion").chose("rope.append").over("rope.heads and kv.append", why)
        });
        let v = match def_use.defining::<view::SplitHeads>(function, append.v) {
            Some(split) => split.x,
            // Heads of the values that do not come from a split must first be merged into one row.
            None => rewriter.insert(Position::Before(at), view::MergeHeads { x: append.v })?[0],
        };
        let view::RopeHeads { x: k, pos, norm, factors, long, heads, eps, base, dims, style, scaling, .. } = rope;
        let view::RopeHeads { factor, original_context, beta_fast, beta_slow, attn_factor, .. } = rope;
        let kv = append.kv;
        #[rustfmt::skip]
        rewriter.replace(at, view::RopeAppend {
            kv, k, v, pos, norm, factors, long, heads, eps, base, dims, style, scaling, factor, original_context, beta_fast, beta_slow, attn_factor,
        })?;
    }
    rewriter.finish()
}
