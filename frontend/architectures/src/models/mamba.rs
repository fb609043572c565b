//! `mamba`: Mamba and Falcon Mamba. Each layer is a selective state space; there are no networks
//! ([`crate::layers::mamba`]).

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::error::ArchError;
use crate::hyper::{Defaults, LayerParts};
use crate::layers::mamba::mixer;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mamba",
    doc: "Mamba, Falcon Mamba",
    defaults: Defaults { layer_parts: LayerParts::One, ..Defaults::USUAL },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in b.layers() {
        x = mixer(b, layer, x)?;
    }
    b.logits(x)
}
