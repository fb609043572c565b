//! `minimax-01`: MiniMax-Text-01 and MiniMax-M1. Seven of every eight layers have linear attention
//! with constant decays ([`crate::layers::lightning_attention`]). The eighth has attention, with
//! RoPE on half of each head. All networks are experts. The output of a block is added to its
//! normalised input times a factor, rather than to the stream.

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
            // This model's `residual_scale` is a factor on the inputs of blocks, so the usual
            // factor on outputs is 1.
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
