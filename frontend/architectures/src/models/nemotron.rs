//! `nemotron`: Nemotron 4 and Minitron, dense. It has layer norms, and a network without a gate,
//! whose activation is the square of ReLU.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style { ungated: Some(Unary::ReluSquared), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nemotron",
    doc: "Nemotron 4, Minitron",
    defaults: Defaults { norms: Norms::Layer, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
