//! `olmo-hybrid`: OLMo Hybrid. Three layers of four have linear attention by the gated delta rule
//! ([`crate::layers::gated_delta_net`]), with rates up to 2, and norms like Llama. The other layers
//! have attention like OLMo 2, with norms only after blocks. Released models have no RoPE there
//! (transformers `olmo_hybrid`).
//!
//! No GGUF file of this model is known. Keys are those of `granitehybrid` and `qwen3next`, and
//! `ssm.beta_scale`. Tensors are also theirs, but with separate projections.
//!
//! ```text
//! // 0 in a layer with linear attention
//! olmo-hybrid.attention.head_count_kv = [0, 0, 0, 30, ...]
//! olmo-hybrid.rope.scaling.finetuned  = false                // without RoPE
//! // factor on rates (linear_allow_neg_eigval)
//! olmo-hybrid.ssm.beta_scale    = 2.0
//! // also in linear attention; ssm_conv1d has their channels, one after the other
//! blk.N.attn_q, .attn_k, .attn_v
//! ```

use ixc_ir::graph::attrs::KeyHeads;
use ixc_ir::graph::{Unary, ValueId};

use super::olmo2;
use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, attention, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, LayerParts, RopeUse};
use crate::layers::gated_delta_net::{DeltaNetStyle, mixer};

const LINEAR: Style = Style::NEOX;
const ATTENTION: Style = olmo2::STYLE;
/// Epsilons of the norm of results, and of the squared lengths of queries and keys, whatever
/// epsilon other norms have (the numbers are from transformers).
const MIXER: DeltaNetStyle = DeltaNetStyle {
    norm_eps: Some(1e-5),
    unit_eps: Some(1e-6),
    separate_qkv: true,
    ..DeltaNetStyle::usual(KeyHeads::Grouped, Unary::Silu)
};
/// Key of the factor on rates of the delta rule.
const RATE: &str = "ssm.beta_scale";

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "olmo-hybrid",
    doc: "OLMo Hybrid",
    defaults: Defaults {
        reads: &[RATE],
        rope_use: RopeUse::IfFinetuned,
        layer_parts: LayerParts::Keyless,
        ..Defaults::USUAL
    },
    build,
};

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let rate = b.keys().float(RATE, 1.0, |x| x > 0.0 && x <= 2.0, "above 0 and at most 2")?;
    let linear = DeltaNetStyle { rate, ..MIXER };
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        let style = match b.hyper.layers[layer].recurrent {
            true => {
                x = mixer(b, layer, x, &linear)?;
                LINEAR
            }
            false => {
                x = attention(b, layer, x, &ATTENTION)?;
                ATTENTION
            }
        };
        x = feed_forward(b, layer, x, &style)?;
    }
    b.logits(x)
}
