//! `defer`: computes each token's lowest-weighted experts one layer later, on request. The pass
//! changes results, so it is off by default.
//!
//! Needs: fused ops. Leaves: a function with different results, whose deviation must be measured.
//! If [`DeferOptions::experts`] is 0, nothing changes. Otherwise a layer with experts adds only its
//! highest-weighted experts to its residual. The last `defer` experts of each token are multiplied
//! with the same rows during the next layer, and added there. The attention and the router of the
//! next layer do not see them. Reads of deferred experts thus have more time: with `residency`
//! after this pass, the next layer's own experts are read while the deferred ones are computed.
//! KTransformers calls this expert deferral.
//!
//! ```text
//!   %ids0, %p0 = route %logits0, _, _ {top_k = 4, score = softmax, groups = 1, groups_kept = 1, normalise = true, scale = 1.0} : i32[T, 4], f32[T, 4]
//!   %a0 = expert.swiglu %q0, %ids0, @gate0, @up0, _, _ {act = silu, limit = 0.0, shift = 0.0, format = a8_super} : a8_super[T, 4, 256]
//!   %y0 = expert.down %a0, %ids0, %p0, @down0, _, %x0 : f32[T, 256]
//!   // attention: %x1 is %y0 and what it gives
//!   %ids1, %p1 = route %logits1, _, _ {top_k = 4, score = softmax, groups = 1, groups_kept = 1, normalise = true, scale = 1.0} : i32[T, 4], f32[T, 4]
//!   %a1 = expert.swiglu %q1, %ids1, @gate1, @up1, _, _ {act = silu, limit = 0.0, shift = 0.0, format = a8_super} : a8_super[T, 4, 256]
//!   %y1 = expert.down %a1, %ids1, %p1, @down1, _, %x1 : f32[T, 256]
//! ```
//! becomes, with one expert deferred,
//! ```text
//!   %ids0, %p0 = route %logits0, _, _ {top_k = 4, score = softmax, groups = 1, groups_kept = 1, normalise = true, scale = 1.0} : i32[T, 4], f32[T, 4]
//!   %16, %17, %18, %19 = expert.split %ids0, %p0 {now = 3} : i32[T, 3], f32[T, 3], i32[T, 1], f32[T, 1]
//!   %a0 = expert.swiglu %q0, %16, @gate0, @up0, _, _ {act = silu, limit = 0.0, shift = 0.0, format = a8_super} : a8_super[T, 3, 256]
//!   %y0 = expert.down %a0, %16, %17, @down0, _, %x0 : f32[T, 256]
//!   // attention
//!   %ids1, %p1 = route %logits1, _, _ {top_k = 4, score = softmax, groups = 1, groups_kept = 1, normalise = true, scale = 1.0} : i32[T, 4], f32[T, 4]
//!   %30 = expert.swiglu %q0, %18, @gate0, @up0, _, _ {act = silu, limit = 0.0, shift = 0.0, format = a8_super} : a8_super[T, 1, 256]
//!   %31 = expert.down %30, %18, %19, @down0, _, %x1 : f32[T, 256]
//!   %a1 = expert.swiglu %q1, %ids1, @gate1, @up1, _, _ {act = silu, limit = 0.0, shift = 0.0, format = a8_super} : a8_super[T, 4, 256]
//!   %y1 = expert.down %a1, %ids1, %p1, @down1, _, %31 : f32[T, 256]
//! ```
//!
//! The last layer with experts defers none. A layer also defers none if the next layer has no
//! experts, or if its own experts are not an `expert.swiglu` and an `expert.down` of one routing.
//! The log reports each such layer. Shared experts and dense layers do not change.

use ixc_ir::graph::rewrite::{Position, RewriteError};
use ixc_ir::graph::{DefUse, Function, Module, Op, OpKind, OpView, Rewriter, view};

use crate::decision::Decision;
use crate::error::PassError;
use crate::options::{PassOptions, pass_options};
use crate::pass::{Context, Pass, Run};

/// Entry of this pass in the list of passes.
pub static PASS: Pass = Pass {
    name: "defer",
    doc: "Computes the lowest-weighted experts of each token one layer later, if `experts` is not 0.",
    options: DeferOptions::ROWS,
    run: Run::Graph(run),
};

pass_options! {
    /// Options of the pass.
    pub struct DeferOptions for "defer" {
        #[doc = "Lowest-weighted experts of each token that are computed during the next layer; 0 defers none. It changes results."]
        pub experts: u32 = 0,
    }
}

/// Runs the pass.
///
/// # Errors
/// [`PassError::NoExperts`], [`PassError::Deferred`].
pub fn run(mut module: Module, context: &Context<'_>) -> Result<Module, PassError> {
    let deferred = context.options.get::<DeferOptions>().experts;
    if deferred == 0 {
        return Ok(module);
    }
    let routes = module.functions.iter().flat_map(|function| &function.ops).filter_map(view::Route::from_op);
    let top_k = routes.map(|route| route.top_k.unsigned_abs()).min().ok_or(PassError::NoExperts { deferred })?;
    if u64::from(deferred) >= top_k {
        return Err(PassError::Deferred { deferred, top_k });
    }
    for i in 0..module.functions.len() {
        let function = &module.functions[i];
        // In a function with `expert.split` or `expert.slots`, the time at which each expert is
        // computed is already fixed.
        let done = |op: &Op| matches!(op.kind, OpKind::ExpertSplit | OpKind::ExpertSlots);
        if function.ops.iter().any(done) {
            continue;
        }
        let layers = layers(function);
        let mut pairs: Vec<(&Layer, &Layer)> = Vec::new();
        for pair in layers.windows(2) {
            match (&pair[0].1, &pair[1].1) {
                (Some(layer), Some(next)) if pair[0].0 + 1 == pair[1].0 && fit(function, layer, next) => {
                    pairs.push((layer, next));
                }
                _ => {
                    context.decide(|| {
                        let name = format!("layer.{}", pair[0].0.saturating_sub(1));
                        let decision =
                            Decision::new("experts", name, "deferral").chose("each layer computes all of its experts");
                        decision.over(
                            format!("{deferred} per token one layer later"),
                            "the next layer cannot add their results",
                        )
                    });
                    tracing::warn!(
                        layer = pair[0].0,
                        "the layer's experts are not deferred: the next layer cannot add their results"
                    );
                }
            }
        }
        tracing::debug!(function = function.name, deferred, layers = pairs.len(), of = layers.len(), "deferred");
        if !pairs.is_empty() {
            module.functions[i] = deferring(&module, function, &pairs, deferred)?;
        }
    }
    Ok(module)
}

/// The router and the expert ops of a layer, each with its position in the function.
struct Layer {
    route: (usize, view::Route),
    product: (usize, view::ExpertSwiglu),
    sum: (usize, view::ExpertDown),
}

/// Returns an entry for each `route`: the number of token-mixing ops before it, and its layer. The
/// layer is `None` if its experts cannot be deferred.
fn layers(function: &Function) -> Vec<(usize, Option<Layer>)> {
    let (mut layers, mut number) = (Vec::new(), 0);
    let def_use = DefUse::from_function(function);
    for (i, op) in function.ops.iter().enumerate() {
        number += usize::from(op.mixes(function));
        if op.kind == OpKind::Route {
            layers.push((number, layer(function, &def_use, i)));
        }
    }
    layers
}

/// Returns the layer of a `route`. One `expert.swiglu` and one `expert.down` must be the only users
/// of its results. The `expert.down` must add to a value that is defined before them.
fn layer(function: &Function, def_use: &DefUse, at: usize) -> Option<Layer> {
    let op = &function.ops[at];
    let (route, [ids, p]) = (view::Route::from_op(op)?, view::Route::results(op)?);
    let (&[first, last], &[weighted]) = (&def_use.users(ids)?[..], &def_use.users(p)?[..]) else { return None };
    let product = view::ExpertSwiglu::from_op(&function.ops[first])?;
    let [y] = view::ExpertSwiglu::results(&function.ops[first])?;
    let sum = view::ExpertDown::from_op(&function.ops[last])?;
    let right = weighted == last && def_use.users(y)? == [last] && sum.x == y;
    let before = def_use.is_defined_before(sum.residual?, first);
    (right && before).then_some(Layer { route: (at, route), product: (first, product), sum: (last, sum) })
}

/// Whether the experts of `layer` can be added to the residual of `next`: they are computed before
/// its `route`, and have the same type.
fn fit(function: &Function, layer: &Layer, next: &Layer) -> bool {
    let sum = |layer: &Layer| function.ty(function.ops[layer.sum.0].results[0]);
    layer.sum.0 < next.route.0 && sum(layer) == sum(next)
}

/// Returns the function in which the first layer of each pair defers experts to the second.
fn deferring(
    module: &Module,
    function: &Function,
    pairs: &[(&Layer, &Layer)],
    deferred: u32,
) -> Result<Function, RewriteError> {
    let mut rewriter = Rewriter::new(module, function);
    for (Layer { route: (route, routed), product: (first, product), sum: (last, sum) }, next) in pairs {
        let (ids, p, slots) = (product.ids, sum.p, routed.top_k - i64::from(deferred));
        let split = view::ExpertSplit { ids, p, now: slots };
        let [ids_now, p_now, ids_later, p_later] = rewriter.insert(Position::After(*route), split)?;
        // This layer's experts take only the slots of `now`.
        rewriter.replace_uses_in(*first, ids, ids_now)?;
        rewriter.replace_uses_in(*last, ids, ids_now)?;
        rewriter.replace_uses_in(*last, p, p_now)?;
        // Adds the deferred experts to the residual of the next layer.
        let place = Position::Before(next.product.0);
        let [x] = rewriter.insert(place, view::ExpertSwiglu { ids: ids_later, ..*product })?;
        let residual = next.sum.1.residual;
        let [late] = rewriter.insert(place, view::ExpertDown { x, ids: ids_later, p: p_later, residual, ..*sum })?;
        if let Some(residual) = residual {
            rewriter.replace_uses_in(next.sum.0, residual, late)?;
        }
    }
    rewriter.finish()
}
