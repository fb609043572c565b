//! `granitehybrid`: Granite 4 with layers of Mamba-2, dense or with experts. It is scaled like
//! `granite` and mostly has no RoPE. Bamba has the same architecture, but is dense and not scaled;
//! its RoPE rotates half of each head.

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, attention, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, LayerParts, RopeUse};
use crate::layers::mamba2::mixer;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "granitehybrid",
    doc: "Granite 4 (H), Bamba",
    defaults: Defaults {
        reads: &["embedding_scale", "residual_scale", "logit_scale"],
        rope_use: RopeUse::IfFinetuned,
        layer_parts: LayerParts::Keyless,
        ..Defaults::USUAL
    },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        x = match b.hyper.layers[layer].recurrent {
            true => mixer(b, layer, x)?,
            false => attention(b, layer, x, &STYLE)?,
        };
        x = feed_forward(b, layer, x, &STYLE)?;
    }
    b.logits(x)
}
