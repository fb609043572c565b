//! `phi2`: Phi-1.5 and Phi-2. Attention and the network are parallel, after one layer norm, and the
//! network has no gate.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style { parallel: true, ungated: Some(Unary::Gelu), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "phi2",
    doc: "Phi-1, Phi-1.5, Phi-2",
    defaults: Defaults { norms: Norms::Layer, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
