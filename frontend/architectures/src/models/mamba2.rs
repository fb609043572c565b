//! `mamba2`: Mamba-2. Each layer is a selective state space; there are no networks
//! ([`crate::layers::mamba2`]).

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::error::ArchError;
use crate::hyper::{Defaults, LayerParts};
use crate::layers::mamba2::mixer;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mamba2",
    doc: "Mamba-2, Codestral Mamba",
    defaults: Defaults { layer_parts: LayerParts::One, ..Defaults::USUAL },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        x = mixer(b, layer, x)?;
    }
    b.logits(x)
}
