//! `olmo-hybrid`: OLMo Hybrid. Three of every four layers have linear attention by the gated delta
//! rule ([`crate::layers::gated_delta_net`]), with update rates up to 2. A norm precedes each of
//! their blocks, as in Llama. The fourth layer has attention like OLMo 2, with norms only after
//! blocks. It has no RoPE in released models (transformers `olmo_hybrid`).
//!
//! No GGUF file of this model is known. The keys are those of `granitehybrid` and `qwen3next`, plus
//! `ssm.beta_scale`. The tensors are also those of these architectures, except that the projections
//! below are separate.
//!
//! ```text
//! // key and value heads; 0 in a layer with linear attention
//! olmo-hybrid.attention.head_count_kv = [0, 0, 0, 30, ...]
//! olmo-hybrid.rope.scaling.finetuned  = false                // without RoPE
//! // factor on update rates (linear_allow_neg_eigval)
//! olmo-hybrid.ssm.beta_scale    = 2.0
//! // also in linear attention; ssm_conv1d has the channels of q, then k, then v
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
/// Linear attention of this model. The epsilons of its norm and of the squared lengths of queries
/// and keys are constants in transformers, whatever epsilon other norms have.
const MIXER: DeltaNetStyle = DeltaNetStyle {
    norm_eps: Some(1e-5),
    unit_eps: Some(1e-6),
    separate_qkv: true,
    ..DeltaNetStyle::usual(KeyHeads::Grouped, Unary::Silu)
};
/// Key of the factor on update rates of the delta rule.
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
