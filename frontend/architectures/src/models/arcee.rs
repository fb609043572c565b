//! `arcee`: AFM. The network has no gate; its activation is the square of ReLU.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { ungated: Some(Unary::ReluSquared), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "arcee", doc: "AFM", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
