//! `olmo-hybrid`: OLMo Hybrid: three layers of four have linear attention by the gated delta rule
//! ([`crate::delta_net`]), with rates up to 2, and norms as in Llama. The other layers attend as
//! those of OLMo 2, with norms after blocks only. Released models have no RoPE there (transformers
//! `olmo_hybrid`).
//!
//! No GGUF files of it are known: keys are as those of `granitehybrid` and `qwen3next`, and one more; tensors are theirs, with projections one by one.
//!
//! ```text
//! olmo-hybrid.attention.head_count_kv = [0, 0, 0, 30, ...]   // 0 where a layer has linear attention
//! olmo-hybrid.rope.scaling.finetuned  = false                // without RoPE
//! olmo-hybrid.ssm.beta_scale          = 2.0                  // what rates are multiplied by (linear_allow_neg_eigval)
//! blk.N.attn_q, .attn_k, .attn_v                             // of linear attention, too; ssm_conv1d has their channels one behind another
//! ```

use ixc_ir::graph::attrs::KeyHeads;
use ixc_ir::graph::{Unary, ValueId};

use super::olmo2;
use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, attention, feed_forward};
use crate::delta_net::{Linear, mixer};
use crate::error::ArchError;
use crate::hyper::{Defaults, Parts, Rotates};

const LINEAR: Style = Style::NEOX;
const ATTENDING: Style = olmo2::STYLE;
/// What the norm of results adds to mean squares, and what queries and keys add to sums of squares, whatever other norms add (transformers has these numbers).
const MIXER: Linear =
    Linear { key_heads: KeyHeads::Grouped, gate: Unary::Silu, norm_eps: Some(1e-5), unit_eps: Some(1e-6), apart: true };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "olmo-hybrid",
    doc: "OLMo Hybrid",
    defaults: Defaults {
        reads: &["ssm.beta_scale"],
        rotates: Rotates::IfFinetuned,
        parts: Parts::Keyless,
        ..Defaults::USUAL
    },
    build,
};

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        let style = match b.hyper.layers[layer].recurrent {
            true => {
                x = mixer(b, layer, x, &MIXER)?;
                LINEAR
            }
            false => {
                x = attention(b, layer, x, &ATTENDING)?;
                ATTENDING
            }
        };
        x = feed_forward(b, layer, x, &style)?;
    }
    b.logits(x)
}
