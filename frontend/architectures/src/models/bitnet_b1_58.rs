//! `bitnet-b1.58`: BitNet b1.58 2B4T: a norm before the matrix behind attention, and one before the matrix behind gates, which are rectified and squared.

use ixc_ir::graph::attrs::{Activation, GateAttrs};

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

pub(super) const STYLE: Style =
    Style { inner_norms: true, gate: GateAttrs::plain(Activation::ReluSquared), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bitnet-b1.58",
    doc: "BitNet b1.58 2B4T",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
