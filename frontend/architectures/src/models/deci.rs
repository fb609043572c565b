//! `deci`: Llama-3.x Nemotron (51B, Super, Ultra) and DeciLM. Like `llama`, but the authors removed
//! blocks from some layers: the network, or attention, in whose place there may be one matrix.

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder};
use crate::decoder::{Style, attention, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, LayerParts};

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deci",
    doc: "Llama-3.x Nemotron 51B, Super, Ultra; DeciLM",
    defaults: Defaults { layer_parts: LayerParts::Fewer, ..Defaults::USUAL },
    build: decoder,
};

/// Builds the decoder, from token ids to logits.
fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let mut x = b.embed()?;
    for layer in b.layers() {
        let of = &b.hyper.layers[layer];
        let (heads, kv_heads, network) = (of.heads, of.kv_heads, of.feed_forward > 0);
        x = match (heads, kv_heads) {
            (0, _) => x,
            (_, 0) => {
                let h = b.norm(x, &format!("blk.{layer}.attn_norm.weight"))?;
                let y = b.linear(h, &format!("blk.{layer}.attn_output"), width, width, Bias::Optional)?;
                b.add(y, x)?
            }
            _ => attention(b, layer, x, &STYLE)?,
        };
        if network {
            x = feed_forward(b, layer, x, &STYLE)?;
        }
    }
    b.logits(x)
}
