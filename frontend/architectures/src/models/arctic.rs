//! `arctic`: Snowflake Arctic. Each layer has a dense network as wide as the residual stream. In
//! parallel, experts take the layer's input, after their own norm.

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, attention, network, networks};
use crate::error::ArchError;
use crate::hyper::Defaults;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "arctic", doc: "Arctic", defaults: Defaults::USUAL, build: decoder };

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in b.layers() {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        b.experts(layer)?;
        let h = b.norm(x, &name("ffn_norm_exps"))?;
        let experts = networks(b, layer, h, &STYLE)?;
        x = attention(b, layer, x, &STYLE)?;
        let h = b.norm(x, &name("ffn_norm"))?;
        let dense = network(b, layer, h, "", b.hyper.embedding_length, &STYLE)?;
        x = b.add(dense, x)?;
        x = b.add(experts, x)?;
    }
    b.logits(x)
}
