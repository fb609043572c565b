//! `jais2`: Jais 2. It has layer norms, biases, and a network without a gate, whose activation is
//! the square of ReLU.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style { ungated: Some(Unary::ReluSquared), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "jais2",
    doc: "Jais 2",
    defaults: Defaults { norms: Norms::Layer, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
