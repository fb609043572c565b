//! `qwen35`: the dense models of Qwen3.5 and later: layers of linear attention, and every fourth of gated attention.
//!
//! Value heads of files stand in the order in which those that share a key head are as many apart as there are key heads. RoPE's sections say which
//! of an image's positions turns a pair; a text's are equal.

use ixc_ir::graph::attrs::KeyHeads;

use crate::architecture::Architecture;
use crate::delta_net::{QWEN, decoder};
use crate::hyper::Defaults;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen35",
    doc: "Qwen3.5 and later, dense",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &QWEN, KeyHeads::Interleaved),
};
