//! `bitnet-b1.58`: BitNet b1.58 2B4T: a norm before the matrix behind attention, and one before the matrix behind gates, which are rectified and squared.

use ixc_ir::graph::attrs::{Activation, GateAttrs};

use super::Architecture;
use super::decoder::{Style, decoder};
use super::hyper::Defaults;

pub(super) const STYLE: Style =
    Style { inner_norms: true, gate: GateAttrs::plain(Activation::ReluSquared), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bitnet-b1.58",
    doc: "BitNet b1.58 2B4T",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
