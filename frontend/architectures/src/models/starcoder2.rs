//! `starcoder2`: StarCoder 2. It has layer norms, biases, and a network without a gate.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style { ungated: Some(Unary::Gelu), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "starcoder2",
    doc: "StarCoder 2",
    defaults: Defaults { norms: Norms::Layer, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
