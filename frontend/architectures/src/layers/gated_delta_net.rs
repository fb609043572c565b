//! Layers of linear attention by the gated delta rule, as in Qwen3-Next and Qwen3.5 (llama.cpp
//! `qwen3next.cpp`, `qwen35.cpp`, `delta-net-base.cpp`).
//!
//! ```text
//! q, k, v = silu(conv(attn_qkv x))         // a causal convolution of each channel
//! y = delta_net(q, k, v, alpha, beta)      // ir/src/graph/recurrent/delta_net.rs
//! ssm_out (rms_norm(y; ssm_norm) * silu(attn_gate x))
//! ```
//!
//! Models differ in two points: which key head each value head uses, and how the projections are
//! stored.

use ixc_ir::graph::attrs::KeyHeads;
use ixc_ir::graph::{Unary, ValueId};

use crate::builder::{Bias, Builder, DeltaNet, StateSizes};
use crate::decoder::{HeadNorm, OutputGate, Style, attention, feed_forward, gated_shared_expert};
use crate::error::ArchError;
use crate::hyper::Ssm;

/// Projections of a layer's input. Each row has all heads, one after the other.
struct Projections {
    /// Queries, keys and values, before the convolution.
    qkv: ValueId,
    /// Gates that multiply the result of linear attention.
    z: ValueId,
    beta: ValueId,
    alpha: ValueId,
}

/// Builds a decoder, from token ids to logits. Layers with a recurrent state have linear attention;
/// other layers have attention in this style.
pub(crate) fn decoder(b: &mut Builder<'_>, style: &Style, key_heads: KeyHeads) -> Result<ValueId, ArchError> {
    let linear = DeltaNetStyle::usual(key_heads, Unary::Silu);
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        x = match b.hyper.layers[layer].recurrent {
            true => mixer(b, layer, x, &linear)?,
            false => attention(b, layer, x, style)?,
        };
        x = feed_forward(b, layer, x, style)?;
    }
    b.logits(x)
}

/// Style that Qwen's decoders with linear attention share.
pub(crate) const QWEN: Style = Style {
    head_norm: HeadNorm::HEADS,
    output_gate: OutputGate::WithQueries,
    ffn_norm: "post_attention_norm",
    shared: gated_shared_expert,
    ..Style::NEOX
};

/// Differences between models with gated delta-net layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaNetStyle {
    /// Rule for which key head each value head uses.
    pub key_heads: KeyHeads,
    /// Function applied to the gates of the result.
    pub gate: Unary,
    /// Epsilon of the norm of the result, if it differs from the other norms' epsilon.
    pub norm_eps: Option<f64>,
    /// Epsilon added to the squared lengths of queries and keys, if it differs from the norms'
    /// epsilon.
    pub unit_eps: Option<f64>,
    /// Upper bound of the update rates of the delta rule.
    pub rate: f64,
    /// Whether files have separate matrices for queries, keys and values.
    pub separate_qkv: bool,
}

impl DeltaNetStyle {
    /// Returns the properties of most models.
    pub const fn usual(key_heads: KeyHeads, gate: Unary) -> DeltaNetStyle {
        DeltaNetStyle { key_heads, gate, norm_eps: None, unit_eps: None, rate: 1.0, separate_qkv: false }
    }
}

/// Builds the linear attention block: norm, linear attention, output matrix, and addition to the
/// stream.
pub(crate) fn mixer(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    linear: &DeltaNetStyle,
) -> Result<ValueId, ArchError> {
    let h = b.rms_norm(x, &format!("blk.{layer}.attn_norm.weight"), b.hyper.embedding_length)?;
    let y = mixer_of(b, layer, h, linear)?;
    b.add(y, x)
}

/// Builds linear attention on normalised rows, including its output matrix.
pub(crate) fn mixer_of(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    linear: &DeltaNetStyle,
) -> Result<ValueId, ArchError> {
    let DeltaNetStyle { key_heads, gate, norm_eps, unit_eps, rate, separate_qkv } = *linear;
    let [norm_eps, unit_eps] = [norm_eps, unit_eps].map(|eps| eps.unwrap_or(b.hyper.norm_eps));
    let sizes = b.ssm()?;
    let Ssm { taps, heads, groups, key_length, value_length, .. } = sizes;
    let width = b.hyper.embedding_length;
    let (keys, values) = (groups * key_length, heads * value_length);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let Projections { qkv, z, beta, alpha } = projections(b, layer, h, &sizes, separate_qkv)?;
    let mixed = b.short_conv(&format!("conv.{layer}"), qkv, &name("ssm_conv1d.weight"), 2 * keys + values, taps)?;
    let mixed = b.silu(mixed)?;
    let mut part = |from: u64, heads: u64, length: u64| {
        let part = b.slice(mixed, from, heads * length)?;
        b.split_heads(part, heads)
    };
    let q = part(0, groups, key_length)?;
    let k = part(keys, groups, key_length)?;
    let v = part(2 * keys, heads, value_length)?;
    let a = b.vector(&name("ssm_a"), heads)?;
    let dt = b.vector(&name("ssm_dt.bias"), heads)?;
    let rule = DeltaNet {
        sizes: StateSizes { heads, key_length, value_length },
        q,
        k,
        v,
        alpha,
        beta,
        a,
        dt,
        key_heads,
        eps: unit_eps,
        decay_bound: 0.0,
        rate,
    };
    let y = b.delta_net(&format!("ssm.{layer}"), &rule)?;
    let y = b.rms_norm_of(y, &name("ssm_norm.weight"), value_length, norm_eps)?;
    let y = b.merge_heads(y)?;
    let z = b.unary(gate, z)?;
    let y = b.mul(y, z)?;
    b.linear(y, &name("ssm_out"), values, width, Bias::Optional)
}

/// Builds the projections, which files store in several forms. Queries, keys and values have one
/// matrix, or separate ones (OLMo Hybrid). In Qwen3-Next, `ssm_ba` and the first files' `ssm_in`
/// interleave several projections by key head.
fn projections(
    b: &mut Builder<'_>,
    layer: usize,
    h: ValueId,
    sizes: &Ssm,
    separate_qkv: bool,
) -> Result<Projections, ArchError> {
    let Ssm { heads, groups, key_length, value_length, .. } = *sizes;
    let width = b.hyper.embedding_length;
    let (keys, values, group) = (groups * key_length, heads * value_length, heads / groups);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let (qkv, z) = if b.has(&name("ssm_in.weight")) {
        let all = b.linear(h, &name("ssm_in"), width, 2 * keys + 2 * values, Bias::Optional)?;
        let [q, k, v, z] =
            by_key_head(b, all, groups, [key_length, key_length, group * value_length, group * value_length])?;
        let qk = b.concat(q, k)?;
        (b.concat(qk, v)?, z)
    } else if separate_qkv {
        let mut part = |part: &str, width_of: u64| b.linear(h, &name(part), width, width_of, Bias::Optional);
        let (q, k, v) = (part("attn_q", keys)?, part("attn_k", keys)?, part("attn_v", values)?);
        let z = part("attn_gate", values)?;
        let qk = b.concat(q, k)?;
        (b.concat(qk, v)?, z)
    } else {
        let qkv = b.linear(h, &name("attn_qkv"), width, 2 * keys + values, Bias::Optional)?;
        (qkv, b.linear(h, &name("attn_gate"), width, values, Bias::Optional)?)
    };
    let (beta, alpha) = if b.has(&name("ssm_ba.weight")) {
        let both = b.linear(h, &name("ssm_ba"), width, 2 * heads, Bias::Optional)?;
        let [beta, alpha] = by_key_head(b, both, groups, [group, group])?;
        (beta, alpha)
    } else {
        let beta = b.linear(h, &name("ssm_beta"), width, heads, Bias::Optional)?;
        (beta, b.linear(h, &name("ssm_alpha"), width, heads, Bias::Optional)?)
    };
    Ok(Projections { qkv, z, beta, alpha })
}

/// Splits rows that have, for each of `groups` key heads, parts of these `lengths`. Returns for
/// each part a row with all heads.
fn by_key_head<const N: usize>(
    b: &mut Builder<'_>,
    rows: ValueId,
    groups: u64,
    lengths: [u64; N],
) -> Result<[ValueId; N], ArchError> {
    let split = b.split_heads(rows, groups)?;
    let (mut parts, mut from) = ([split; N], 0);
    for (part, length) in parts.iter_mut().zip(lengths) {
        let own = b.slice(split, from, length)?;
        *part = b.merge_heads(own)?;
        from += length;
    }
    Ok(parts)
}
