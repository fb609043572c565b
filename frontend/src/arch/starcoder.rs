//! `starcoder`: SantaCoder and StarCoder: `gpt2` whose heads of queries share one of keys.

use ixc_ir::graph::Unary;

use super::Architecture;
use super::decoder::{Style, decoder};
use super::hyper::{Defaults, Norms, Rotates};

const STYLE: Style = Style { learned_positions: true, ungated: Some(Unary::Gelu), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "starcoder",
    doc: "SantaCoder, StarCoder",
    defaults: Defaults { norms: Norms::Layer, rotates: Rotates::Never, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
