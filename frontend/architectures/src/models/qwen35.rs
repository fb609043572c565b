//! `qwen35`: the dense models of Qwen3.5 and later. Every fourth layer has attention with a gate;
//! the other layers have linear attention.
//!
//! Files store value heads in an order in which consecutive value heads use consecutive key heads:
//! value head `h` uses key head `h mod key heads`. The sections of RoPE, which assign pairs to
//! dimensions of a position in an image, have no effect: in text, all dimensions are equal.

use ixc_ir::graph::attrs::KeyHeads;

use crate::architecture::Architecture;
use crate::hyper::Defaults;
use crate::layers::gated_delta_net::{QWEN, decoder};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen35",
    doc: "Qwen3.5 and later, dense",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &QWEN, KeyHeads::Interleaved),
};
