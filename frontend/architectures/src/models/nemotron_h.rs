//! `nemotron_h`: Nemotron-H and Nemotron Nano 2. Each layer is one block after one norm. The block
//! is Mamba-2, attention without RoPE, or a network without a gate, whose activation is the square
//! of ReLU.

use ixc_ir::graph::{Unary, ValueId};

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, attention, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, LayerParts, RopeUse};
use crate::layers::mamba2::mixer;

const STYLE: Style = Style { ffn_norm: "attn_norm", ungated: Some(Unary::ReluSquared), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nemotron_h",
    doc: "Nemotron-H, Nemotron Nano 2",
    defaults: Defaults { layer_parts: LayerParts::One, rope_use: RopeUse::Never, ..Defaults::USUAL },
    build: decoder,
};

/// Builds the decoder, from token ids to logits.
pub(super) fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        let of = &b.hyper.layers[layer];
        let (recurrent, network) = (of.recurrent, of.feed_forward > 0);
        x = match recurrent {
            true => mixer(b, layer, x)?,
            false if network => feed_forward(b, layer, x, &STYLE)?,
            false => attention(b, layer, x, &STYLE)?,
        };
    }
    b.logits(x)
}
