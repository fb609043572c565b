//! `bitnet-b1.58`: BitNet b1.58 2B4T. A norm before the output matrix of attention, and one before
//! the down matrix. Gates go through the square of ReLU.

use ixc_ir::graph::attrs::{Activation, GateAttrs};

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

pub(super) const STYLE: Style = Style {
    before_output: |b, x, norm, width| b.rms_norm(x, norm, width),
    gate: GateAttrs::plain(Activation::ReluSquared),
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bitnet-b1.58",
    doc: "BitNet b1.58 2B4T",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
