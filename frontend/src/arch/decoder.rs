//! Decoders: layers of an attention and a feed-forward network, each behind a norm and added to what goes by it.
//!
//! What differs between architectures is a [`Style`]; a file of one says its own and no more, unless its layers are of other parts than
//! these. Those can be taken alone: [`attention`], [`feed_forward`] and [`experts`].

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::RopeStyle;

use super::builder::{Bias, Builder};
use super::error::ArchError;
use super::hyper::Experts;

/// What differs between decoders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    /// Pairing of RoPE.
    pub pairs: RopeStyle,
    /// Bias of Q, K and V.
    pub bias: Bias,
    /// RMS norm of every query and key head before RoPE.
    pub head_norm: bool,
    /// Whether `attn_q` has, behind the queries of each head, as many numbers whose sigmoids weight the head's result.
    pub output_gate: bool,
    /// The norm before the feed-forward network.
    pub ffn_norm: &'static str,
    /// Whether a number of each token weights its shared expert.
    pub gated_shared: bool,
}

impl Style {
    /// Llama's.
    pub const LLAMA: Style = Style {
        pairs: RopeStyle::Norm,
        bias: Bias::Optional,
        head_norm: false,
        output_gate: false,
        ffn_norm: "ffn_norm",
        gated_shared: false,
    };
    /// The same but for RoPE, which turns halves of a head.
    pub const NEOX: Style = Style { pairs: RopeStyle::Neox, ..Style::LLAMA };
}

/// From the step's ids to logits.
pub(super) fn decoder(b: &mut Builder<'_>, style: &Style) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        x = attention(b, layer, x, style)?;
        x = feed_forward(b, layer, x, style)?;
    }
    b.logits(x)
}

/// Norm, attention, output matrix, residual.
pub(super) fn attention(b: &mut Builder<'_>, layer: usize, x: ValueId, style: &Style) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let facts = b.hyper.layers[layer].clone();
    let name = |part: &str| format!("blk.{layer}.{part}");
    let h = b.rms_norm(x, &name("attn_norm.weight"), width)?;
    let of_head = if style.output_gate { facts.key_length + facts.value_length } else { facts.key_length };
    let q = b.linear(h, &name("attn_q"), width, facts.heads * of_head, style.bias)?;
    let k = b.linear(h, &name("attn_k"), width, facts.kv_heads * facts.key_length, style.bias)?;
    let v = b.linear(h, &name("attn_v"), width, facts.kv_heads * facts.value_length, style.bias)?;
    let mut q = b.split_heads(q, facts.heads)?;
    let mut k = b.split_heads(k, facts.kv_heads)?;
    let v = b.split_heads(v, facts.kv_heads)?;
    let gate = if style.output_gate { Some(b.slice(q, facts.key_length, facts.value_length)?) } else { None };
    if gate.is_some() {
        q = b.slice(q, 0, facts.key_length)?;
    }
    if style.head_norm {
        q = b.rms_norm(q, &name("attn_q_norm.weight"), facts.key_length)?;
        k = b.rms_norm(k, &name("attn_k_norm.weight"), facts.key_length)?;
    }
    let q = b.rope(q, style.pairs)?;
    let k = b.rope(k, style.pairs)?;
    let mut y = b.attend(layer, q, k, v)?;
    if let Some(gate) = gate {
        let gate = b.sigmoid(gate)?;
        y = b.mul(y, gate)?;
    }
    let y = b.merge_heads(y)?;
    let y = b.linear(y, &name("attn_output"), facts.heads * facts.value_length, width, Bias::Optional)?;
    b.add(y, x)
}

/// Norm, routed experts or the dense network where the layer has none, residual.
pub(super) fn feed_forward(b: &mut Builder<'_>, layer: usize, x: ValueId, style: &Style) -> Result<ValueId, ArchError> {
    let (width, inner) = (b.hyper.embedding_length, b.hyper.layers[layer].feed_forward);
    let h = b.rms_norm(x, &format!("blk.{layer}.{}.weight", style.ffn_norm), width)?;
    match b.hyper.layers[layer].experts.clone() {
        Some(of) => experts(b, layer, x, h, &of, style),
        None => {
            let y = swiglu(b, layer, h, "", inner)?;
            b.add(y, x)
        }
    }
}

/// The SwiGLU network of the tensors `ffn_gate`, `ffn_up` and `ffn_down`, with this behind their names.
fn swiglu(b: &mut Builder<'_>, layer: usize, h: ValueId, suffix: &str, inner: u64) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let name = |part: &str| format!("blk.{layer}.{part}{suffix}");
    let gate = b.linear(h, &name("ffn_gate"), width, inner, Bias::Optional)?;
    let up = b.linear(h, &name("ffn_up"), width, inner, Bias::Optional)?;
    let y = b.swiglu(gate, up)?;
    b.linear(y, &name("ffn_down"), inner, width, Bias::Optional)
}

/// Router, routed SwiGLU experts and shared ones of `h`, added to `x`.
///
/// The shared ones are added first: nothing of them waits for the router, so they are computed beside it.
pub(super) fn experts(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    h: ValueId,
    of: &Experts,
    style: &Style,
) -> Result<ValueId, ArchError> {
    let (width, count, inner) = (b.hyper.embedding_length, of.count, of.feed_forward);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let logits = b.linear(h, &name("ffn_gate_inp"), width, count, Bias::Optional)?;
    let (ids, weights) = b.route(layer, logits, of)?;
    let x = if of.shared > 0 { shared_expert(b, layer, x, h, of.shared, style)? } else { x };
    let gate = b.expert_linear(h, ids, &name("ffn_gate_exps"), [count, inner, width])?;
    let up = b.expert_linear(h, ids, &name("ffn_up_exps"), [count, inner, width])?;
    let y = b.swiglu(gate, up)?;
    let y = b.expert_linear(y, ids, &name("ffn_down_exps"), [count, width, inner])?;
    let y = b.combine(y, weights)?;
    b.add(y, x)
}

/// What every token goes through beside its experts, weighted where the style says so, added to `x`.
fn shared_expert(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    h: ValueId,
    inner: u64,
    style: &Style,
) -> Result<ValueId, ArchError> {
    let mut y = swiglu(b, layer, h, "_shexp", inner)?;
    if style.gated_shared {
        let gate =
            b.linear(h, &format!("blk.{layer}.ffn_gate_inp_shexp"), b.hyper.embedding_length, 1, Bias::Optional)?;
        let gate = b.sigmoid(gate)?;
        y = b.scale_heads(y, gate)?;
    }
    b.add(y, x)
}
