//! `mamba2`: Mamba-2: layers of a selective state space and nothing else ([`super::ssm`]).

use ixc_ir::graph::ValueId;

use super::Architecture;
use super::builder::Builder;
use super::error::ArchError;
use super::hyper::{Defaults, Parts};
use super::ssm::mixer;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mamba2",
    doc: "Mamba-2, Codestral Mamba",
    defaults: Defaults { parts: Parts::One, ..Defaults::USUAL },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        x = mixer(b, layer, x)?;
    }
    b.logits(x)
}
