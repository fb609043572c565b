//! `jamba`: Jamba. Most layers have a selective state space ([`crate::layers::mamba`]); a few have
//! attention without RoPE. Every other layer has experts, whose weights are not divided by their
//! sum.

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, attention, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, LayerParts, RopeUse};
use crate::layers::mamba::mixer;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "jamba",
    doc: "Jamba",
    defaults: Defaults {
        normalise: false,
        dense_by_tensor: true,
        rope_use: RopeUse::Never,
        layer_parts: LayerParts::Keyless,
        ..Defaults::USUAL
    },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in b.layers() {
        x = match b.hyper.layers[layer].recurrent {
            true => mixer(b, layer, x)?,
            false => attention(b, layer, x, &STYLE)?,
        };
        x = feed_forward(b, layer, x, &STYLE)?;
    }
    b.logits(x)
}
