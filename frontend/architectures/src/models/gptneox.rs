//! `gptneox`: GPT-NeoX, Pythia, and the first StableLM models. Attention and the network are
//! parallel, each after its own layer norm, or sequential if files state this
//! (`use_parallel_residual`). The activation is GELU with the error function, as in training. Only
//! GPT-NeoX itself was trained with an approximation of GELU; files have no key for this.

use ixc_ir::graph::{Unary, ValueId};

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, attention, feed_forward, parallel_blocks};
use crate::error::ArchError;
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style::NEOX;

/// Width of GPT-NeoX, which identifies it: no other model of this architecture has this width.
const GPT_NEOX_WIDTH: u64 = 6144;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gptneox",
    doc: "GPT-NeoX, Pythia",
    defaults: Defaults { norms: Norms::Layer, ..Defaults::USUAL },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let is_gpt_neox = b.hyper.embedding_length == GPT_NEOX_WIDTH;
    let style = &Style { ungated: Some(if is_gpt_neox { Unary::Gelu } else { Unary::GeluErf }), ..STYLE };
    let parallel = b.keys().parallel()?;
    let mut x = b.embed()?;
    for layer in b.layers() {
        if parallel {
            x = parallel_blocks(b, layer, x, "attn_norm", style.ffn_norm, style)?;
            continue;
        }
        x = attention(b, layer, x, style)?;
        x = feed_forward(b, layer, x, style)?;
    }
    b.logits(x)
}
