//! `mamba`: Mamba and Falcon Mamba: layers of a selective state space and nothing else ([`super::selective`]).

use ixc_ir::graph::ValueId;

use super::Architecture;
use super::builder::Builder;
use super::error::ArchError;
use super::hyper::{Defaults, Parts, States};
use super::selective::mixer;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mamba",
    doc: "Mamba, Falcon Mamba",
    defaults: Defaults { parts: Parts::One, states: States::Selective, ..Defaults::USUAL },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in b.layers() {
        x = mixer(b, layer, x)?;
    }
    b.logits(x)
}
