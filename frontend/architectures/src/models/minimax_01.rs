//! `minimax-01`: MiniMax-Text-01 and MiniMax-M1. Seven layers of eight have linear attention with
//! constant decays ([`crate::layers::lightning_attention`]). The others have attention, with RoPE
//! on half of a head. All networks are experts. Blocks add their output to their normalised input
//! times a factor, rather than to the stream.

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, attention_of, networks};
use crate::error::ArchError;
use crate::hyper::Defaults;
use crate::layers::lightning_attention;

const STYLE: Style = Style::NEOX;
/// Key of the factor on the normalised input of a block.
const FACTOR: &str = "residual_scale";

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "minimax-01",
    doc: "MiniMax-Text-01, MiniMax-M1",
    defaults: Defaults {
        reads: &[FACTOR],
        complete: |gguf, name| {
            let made = lightning_attention::tensors(&gguf, name)?;
            gguf.with(made)
        },
        adjust: |keys, hyper| {
            lightning_attention::set_layers(keys, hyper)?;
            // The factor of this model is on the inputs of blocks, so outputs are not scaled.
            hyper.scales.residual = 1.0;
            Ok(())
        },
        ..Defaults::USUAL
    },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    let factor = b.keys().factor(FACTOR, 1.0)?;
    for layer in b.layers() {
        let h = b.norm(x, &format!("blk.{layer}.attn_norm.weight"))?;
        let y = match b.hyper.layers[layer].recurrent {
            true => lightning_attention::attention_of(b, layer, h)?,
            false => attention_of(b, layer, h, &STYLE)?,
        };
        let scaled_input = b.scale(h, factor)?;
        x = b.add(y, scaled_input)?;
        let h = b.norm(x, &format!("blk.{layer}.ffn_norm.weight"))?;
        let y = networks(b, layer, h, &STYLE)?;
        let scaled_input = b.scale(h, factor)?;
        x = b.add(y, scaled_input)?;
    }
    b.logits(x)
}
