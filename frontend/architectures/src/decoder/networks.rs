//! Feed-forward networks of decoder layers: dense networks, routed experts and shared experts.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::GateAttrs;

use super::{LayerMatrix, Product, Style, add};
use crate::builder::{Bias, Builder, GateUp, Matrices, Route};
use crate::error::ArchError;
use crate::hyper::Experts;

/// Builds the network block: norm, experts (in dense layers the dense network), and addition to the
/// stream.
pub(crate) fn feed_forward(b: &mut Builder<'_>, layer: usize, x: ValueId, style: &Style) -> Result<ValueId, ArchError> {
    let h = if style.pre_norms { b.norm(x, &format!("blk.{layer}.{}.weight", style.ffn_norm))? } else { x };
    feed_forward_of(b, layer, x, h, style)
}

/// Builds the experts, or in dense layers the dense network, on `h`. Adds the result to the stream
/// `x`.
pub(super) fn feed_forward_of(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    h: ValueId,
    style: &Style,
) -> Result<ValueId, ArchError> {
    let norm = style.post_norms.map(|norms| norms.network);
    match b.hyper.layers[layer].experts.clone() {
        Some(of) => {
            // Without a norm of the experts' sum, the output of shared experts is added to the
            // stream before that of routed experts. It does not depend on the router, so both can
            // be computed in parallel.
            let stream = if norm.is_none() { Some(x) } else { None };
            match (experts(b, layer, stream, h, &of, style)?, norm) {
                ((routed, Some(with_shared)), None) => b.add(routed, with_shared),
                ((routed, Some(shared)), Some(_)) => {
                    let y = b.add(routed, shared)?;
                    add(b, layer, x, y, norm)
                }
                ((routed, None), _) => add(b, layer, x, routed, norm),
            }
        }
        None => {
            let y = network(b, layer, h, "", b.hyper.layers[layer].feed_forward, style)?;
            add(b, layer, x, y, norm)
        }
    }
}

/// Builds routed and shared experts, or in dense layers the dense network, on `h`.
pub(crate) fn networks(b: &mut Builder<'_>, layer: usize, h: ValueId, style: &Style) -> Result<ValueId, ArchError> {
    let Some(of) = b.hyper.layers[layer].experts.clone() else {
        return network(b, layer, h, "", b.hyper.layers[layer].feed_forward, style);
    };
    match experts(b, layer, None, h, &of, style)? {
        (routed, Some(shared)) => b.add(routed, shared),
        (routed, None) => Ok(routed),
    }
}

/// Returns the attributes of the gate's activation. The layer's limit replaces that of the style; 0
/// means that the layer has none.
fn gate_attrs(style: &Style, limit: f64) -> GateAttrs {
    if limit == 0.0 { style.gate } else { GateAttrs { limit, ..style.gate } }
}

/// Builds a dense network on `h` from the tensors `ffn_gate`, `ffn_up` and `ffn_down`, with
/// `suffix` appended to their names. If the style has an `ungated` activation, the network has no
/// `ffn_gate`.
pub(crate) fn network(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    suffix: &str,
    inner: u64,
    style: &Style,
) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let name = |part: &str| format!("blk.{layer}.{part}{suffix}");
    let down = |b: &mut Builder<'_>, x: ValueId| {
        let name = name("ffn_down");
        (style.linear)(b, &Product { layer, matrix: LayerMatrix::Down, name: &name, x, from: inner, to: width })
    };
    if let Some(function) = style.ungated {
        let up = b.linear(h, &name("ffn_up"), width, inner, Bias::Optional)?;
        let y = b.activation(function, up)?;
        return down(b, y);
    }
    let (gate, up) = if style.fused_gate {
        let both = b.linear(h, &name("ffn_up"), width, 2 * inner, Bias::Optional)?;
        (b.slice(both, 0, inner)?, b.slice(both, inner, inner)?)
    } else {
        let gate = b.linear(h, &name("ffn_gate"), width, inner, Bias::Optional)?;
        (gate, b.linear(h, &name("ffn_up"), width, inner, Bias::Optional)?)
    };
    let y = b.gated(gate, up, &gate_attrs(style, b.hyper.layers[layer].limits.shared))?;
    down(b, y)
}

/// Builds routed experts on `h`. The second result is the output of shared experts plus `x`, if the
/// layer has shared experts.
fn experts(
    b: &mut Builder<'_>,
    layer: usize,
    x: Option<ValueId>,
    h: ValueId,
    of: &Experts,
    style: &Style,
) -> Result<(ValueId, Option<ValueId>), ArchError> {
    let route = select(b, layer, h, of)?;
    selected_experts(b, layer, x, h, route, of, style)
}

/// Builds the router on `h`: the selected experts and their weights.
pub(crate) fn select(b: &mut Builder<'_>, layer: usize, h: ValueId, of: &Experts) -> Result<Route, ArchError> {
    let logits = router_logits(b, layer, h, of)?;
    b.route(layer, logits, of)
}

/// Builds the logits of a router on `h`.
pub(crate) fn router_logits(b: &mut Builder<'_>, layer: usize, h: ValueId, of: &Experts) -> Result<ValueId, ArchError> {
    b.linear(h, &format!("blk.{layer}.ffn_gate_inp"), b.hyper.embedding_length, of.count, Bias::Optional)
}

/// Does what [`experts`] does, with the experts that `route` selected for `h`.
pub(crate) fn selected_experts(
    b: &mut Builder<'_>,
    layer: usize,
    x: Option<ValueId>,
    h: ValueId,
    route: Route,
    of: &Experts,
    style: &Style,
) -> Result<(ValueId, Option<ValueId>), ArchError> {
    let mut others = if of.shared > 0 { Some((style.shared)(b, layer, h, of.shared, style)?) } else { None };
    if let (Some(others), Some(x)) = (&mut others, x) {
        *others = b.add(*others, x)?;
    }
    Ok((routed_experts(b, layer, h, route, of, style)?, others))
}

/// Builds the experts that `route` selected for `h`, and sums their outputs times their weights.
pub(crate) fn routed_experts(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    route: Route,
    of: &Experts,
    style: &Style,
) -> Result<ValueId, ArchError> {
    let Route { ids, weights } = route;
    let (width, count, inner) = (b.hyper.embedding_length, of.count, of.feed_forward);
    let name = |part: &str| format!("blk.{layer}.{part}");
    // Experts may take rows that are narrower than the stream. Two matrices then project to that
    // width and back. Kimi K3's files have other names for these matrices, and a norm before the
    // second.
    let own = of.latent.unwrap_or(width);
    let latent = |b: &Builder<'_>, part: &str| {
        let [usual, other] = ["latent", "routed"].map(|of| name(&format!("ffn_{of}_{part}")));
        if b.has(&format!("{other}.weight")) { other } else { usual }
    };
    let down = latent(b, "down");
    let h = if of.latent.is_some() { b.linear(h, &down, width, own, Bias::Optional)? } else { h };
    let inward = Matrices { count, rows: inner, columns: own };
    let y = match style.ungated {
        Some(function) => {
            let up = b.expert_linear(h, ids, &name("ffn_up_exps"), inward)?;
            b.activation(function, up)?
        }
        None => {
            let GateUp { gate, up } = b.expert_gate_up(layer, h, ids, inward)?;
            b.gated(gate, up, &gate_attrs(style, b.hyper.layers[layer].limits.routed))?
        }
    };
    let outward = Matrices { count, rows: own, columns: inner };
    let y = b.expert_linear(y, ids, &name("ffn_down_exps"), outward)?;
    let mut y = b.combine(y, weights)?;
    if of.latent.is_none() {
        return Ok(y);
    }
    let norm = name("ffn_routed_norm.weight");
    if b.has(&norm) {
        y = b.rms_norm(y, &norm, own)?;
    }
    let up = latent(b, "up");
    b.linear(y, &up, own, width, Bias::Optional)
}

/// Builds the shared expert, of width `inner`, on `h`.
pub(crate) fn shared_expert(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    inner: u64,
    style: &Style,
) -> Result<ValueId, ArchError> {
    network(b, layer, h, "_shexp", inner, &Style { fused_gate: false, ..*style })
}

/// Builds the shared expert, and multiplies its output by a sigmoid gate for each token.
pub(crate) fn gated_shared_expert(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    inner: u64,
    style: &Style,
) -> Result<ValueId, ArchError> {
    let y = shared_expert(b, layer, h, inner, style)?;
    let gate = b.linear(h, &format!("blk.{layer}.ffn_gate_inp_shexp"), b.hyper.embedding_length, 1, Bias::Optional)?;
    let gate = b.sigmoid(gate)?;
    b.scale_heads(y, gate)
}
