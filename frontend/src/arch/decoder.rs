//! The parts that pre-norm decoders share: attention with grouped heads, a dense SwiGLU network, routed SwiGLU experts.
//!
//! An architecture file says which parts a layer has and in what order; what differs inside a part is a parameter here.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::RopeStyle;

use super::builder::{Bias, Builder};
use super::error::ArchError;

/// What differs between the attention of decoders.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionStyle {
    /// Pairing of RoPE.
    pub pairs: RopeStyle,
    /// Bias of Q, K and V.
    pub bias: Bias,
    /// RMS norm of every query and key head before RoPE.
    pub head_norm: bool,
}

/// Norm, attention, output matrix, residual.
pub(super) fn attention(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    style: AttentionStyle,
) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let facts = b.hyper.layers[layer].clone();
    let name = |part: &str| format!("blk.{layer}.{part}");
    let h = b.rms_norm(x, &name("attn_norm.weight"), width)?;
    let q = b.linear(h, &name("attn_q"), width, facts.heads * facts.key_length, style.bias)?;
    let k = b.linear(h, &name("attn_k"), width, facts.kv_heads * facts.key_length, style.bias)?;
    let v = b.linear(h, &name("attn_v"), width, facts.kv_heads * facts.value_length, style.bias)?;
    let mut q = b.split_heads(q, facts.heads)?;
    let mut k = b.split_heads(k, facts.kv_heads)?;
    let v = b.split_heads(v, facts.kv_heads)?;
    if style.head_norm {
        q = b.rms_norm(q, &name("attn_q_norm.weight"), facts.key_length)?;
        k = b.rms_norm(k, &name("attn_k_norm.weight"), facts.key_length)?;
    }
    let q = b.rope(q, style.pairs)?;
    let k = b.rope(k, style.pairs)?;
    let y = b.attend(layer, q, k, v)?;
    let y = b.merge_heads(y)?;
    let y = b.linear(y, &name("attn_output"), facts.heads * facts.value_length, width, Bias::Optional)?;
    b.add(y, x)
}

/// Norm, SwiGLU network, residual.
pub(super) fn dense(b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, ArchError> {
    let (width, inner) = (b.hyper.embedding_length, b.hyper.layers[layer].feed_forward);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let h = b.rms_norm(x, &name("ffn_norm.weight"), width)?;
    let gate = b.linear(h, &name("ffn_gate"), width, inner, Bias::Optional)?;
    let up = b.linear(h, &name("ffn_up"), width, inner, Bias::Optional)?;
    let y = b.swiglu(gate, up)?;
    let y = b.linear(y, &name("ffn_down"), inner, width, Bias::Optional)?;
    b.add(y, x)
}

/// Norm, router, routed SwiGLU experts, residual; the dense network where the layer has no experts.
pub(super) fn experts_or_dense(b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let Some(experts) = b.hyper.layers[layer].experts.clone() else { return dense(b, layer, x) };
    let (count, inner) = (experts.count, experts.feed_forward);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let h = b.rms_norm(x, &name("ffn_norm.weight"), width)?;
    let logits = b.linear(h, &name("ffn_gate_inp"), width, count, Bias::Optional)?;
    let (ids, weights) = b.route(logits, &experts)?;
    let gate = b.expert_linear(h, ids, &name("ffn_gate_exps"), [count, inner, width])?;
    let up = b.expert_linear(h, ids, &name("ffn_up_exps"), [count, inner, width])?;
    let y = b.swiglu(gate, up)?;
    let y = b.expert_linear(y, ids, &name("ffn_down_exps"), [count, width, inner])?;
    let y = b.combine(y, weights)?;
    b.add(y, x)
}
