//! Layers of Kimi Delta Attention: linear attention by the gated delta rule with a decay for each
//! element of a key (Kimi Team, "Kimi Linear", 2025; llama.cpp `kimi-linear.cpp`).
//!
//! ```text
//! q, k, v = silu(conv(attn_q h)), …        // three causal convolutions
//! alpha   = ssm_f_b ssm_f_a h              // a number for each element of a key
//! y = delta_net(q, k, v, alpha, beta)      // ir/src/graph/recurrent/delta_net.rs
//! attn_output (rms_norm(y; ssm_norm) * sigmoid(ssm_g_b ssm_g_a h))     // or ssm_g h
//! ```
//!
//! ```text
//! kimi-linear.kda.head_dim       = 128   // elements of a key and of a value
//! glm5-next.kda.gate_lower_bound = -5.0  // lower bound of logarithms of decays
//! ```

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::KeyHeads;
use ixc_model_files::gguf::GgufError;

use crate::builder::{Bias, Builder, DeltaNet, StateSizes};
use crate::decoder::{Style, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Keys, MAX_COUNT, MAX_TAPS, MAX_WIDTH};
use crate::layers::mla;

/// Epsilon added to the squared length of a key, whatever epsilon the file states (`l2norm` of
/// flash-linear-attention).
const LENGTH_EPS: f64 = 1e-6;

/// Sizes of linear attention layers (KDA), and the bound of their decays.
#[derive(Clone, Copy)]
pub(crate) struct Kda {
    /// Number of taps of the convolutions.
    taps: u64,
    /// Number of heads.
    heads: u64,
    /// Elements of a key, and of a value.
    length: u64,
    /// Lower bound of the logarithm of a decay; 0 means no bound.
    decay_bound: f64,
}

impl Kda {
    /// Reads the keys of a file with linear attention layers (KDA).
    pub(crate) fn read(keys: &Keys<'_>) -> Result<Kda, GgufError> {
        let length = keys.required_size("kda.head_dim", 1, MAX_WIDTH)?;
        let taps = keys.required_size("ssm.conv_kernel", 2, MAX_TAPS)?;
        let heads = keys.required_size("attention.head_count", 1, MAX_COUNT)?;
        keys.is_true("kda.safe_gate")?;
        let decay_bound = keys.float("kda.gate_lower_bound", 0.0, |x| x <= 0.0, "0 or a number below")?;
        Ok(Kda { taps, heads, length, decay_bound })
    }
}

/// Builds a decoder, from token ids to logits. Its layers have linear attention (KDA) or latent
/// attention.
pub(crate) fn decoder(b: &mut Builder<'_>, style: &Style) -> Result<ValueId, ArchError> {
    let (kda, sizes) = (Kda::read(&b.keys())?, b.mla()?);
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        x = match b.hyper.layers[layer].recurrent {
            true => mixer(b, layer, x, &kda)?,
            false => mla::attention(b, layer, x, &sizes, style, None)?,
        };
        x = feed_forward(b, layer, x, style)?;
    }
    b.logits(x)
}

/// Builds the linear attention block: norm, linear attention, output matrix, and addition to the
/// stream.
pub(crate) fn mixer(b: &mut Builder<'_>, layer: usize, x: ValueId, of: &Kda) -> Result<ValueId, ArchError> {
    let h = b.norm(x, &format!("blk.{layer}.attn_norm.weight"))?;
    let y = mixer_of(b, layer, h, of)?;
    b.add(y, x)
}

/// Builds linear attention on normalised rows, including its output matrix.
pub(crate) fn mixer_of(b: &mut Builder<'_>, layer: usize, h: ValueId, of: &Kda) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let Kda { taps, heads, length, decay_bound } = *of;
    let inner = heads * length;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let fused = match b.has(&name("attn_qkv.weight")) {
        true => Some(b.linear(h, &name("attn_qkv"), width, 3 * inner, Bias::Optional)?),
        false => None,
    };
    let mut mixed = |part: &str, from: u64| {
        let x = match fused {
            Some(all) => b.slice(all, from, inner)?,
            None => b.linear(h, &name(&format!("attn_{part}")), width, inner, Bias::Optional)?,
        };
        let taps_of = name(&format!("ssm_conv1d_{part}.weight"));
        let x = b.short_conv(&format!("conv.{layer}.{part}"), x, &taps_of, inner, taps)?;
        let x = b.silu(x)?;
        b.split_heads(x, heads)
    };
    let (q, k, v) = (mixed("q", 0)?, mixed("k", inner)?, mixed("v", 2 * inner)?);
    let alpha = gate(b, layer, h, "f", of)?;
    let alpha = b.split_heads(alpha, heads)?;
    let beta = b.linear(h, &name("ssm_beta"), width, heads, Bias::Optional)?;
    let a = b.vector(&name("ssm_a"), heads)?;
    let dt = b.vector(&name("ssm_dt.bias"), inner)?;
    let rule = DeltaNet {
        sizes: StateSizes { heads, key_length: length, value_length: length },
        q,
        k,
        v,
        alpha,
        beta,
        a,
        dt,
        key_heads: KeyHeads::Grouped,
        eps: LENGTH_EPS,
        decay_bound,
        rate: 1.0,
    };
    let y = b.delta_net(&format!("ssm.{layer}"), &rule)?;
    let y = b.rms_norm(y, &name("ssm_norm.weight"), length)?;
    let y = b.merge_heads(y)?;
    let z = gate(b, layer, h, "g", of)?;
    let z = b.sigmoid(z)?;
    let y = b.mul(y, z)?;
    b.linear(y, &name("attn_output"), inner, width, Bias::Optional)
}

/// Builds the gate of all heads. The file has one matrix for it, or two with a short row between
/// them.
fn gate(b: &mut Builder<'_>, layer: usize, h: ValueId, letter: &str, of: &Kda) -> Result<ValueId, ArchError> {
    let (width, inner, rank) = (b.hyper.embedding_length, of.heads * of.length, of.length);
    let [first, second] = ["a", "b"].map(|part| format!("blk.{layer}.ssm_{letter}_{part}"));
    let whole = format!("blk.{layer}.ssm_{letter}");
    if b.has(&format!("{whole}.weight")) {
        return b.linear(h, &whole, width, inner, Bias::Optional);
    }
    if !b.has(&format!("{second}.weight")) {
        return b.linear(h, &first, width, inner, Bias::Optional);
    }
    let row = b.linear(h, &first, width, rank, Bias::Optional)?;
    b.linear(row, &second, rank, inner, Bias::Optional)
}
