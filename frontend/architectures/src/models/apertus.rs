//! `apertus`: Apertus. Norms of every head. The network has no gate; its activation is xIELU, with
//! parameters for each layer.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::{Defaults, xielu};

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, ungated: Some(Unary::Xielu), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "apertus",
    doc: "Apertus",
    defaults: Defaults { adjust: |keys, hyper| xielu(keys, &mut hyper.layers), ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
