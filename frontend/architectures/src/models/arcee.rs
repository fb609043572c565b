//! `arcee`: AFM: a network without a gate, whose inner values are rectified and squared.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { ungated: Some(Unary::ReluSquared), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "arcee", doc: "AFM", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
