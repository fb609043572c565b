//! `apertus`: Apertus: norms of every head, and between up and down, without a gate, xIELU with numbers of the layer's own.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::Heads, ungated: Some(Unary::Xielu), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "apertus",
    doc: "Apertus",
    defaults: Defaults { xielu: true, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
