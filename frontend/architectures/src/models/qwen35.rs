//! `qwen35`: the dense models of Qwen3.5 and later. Layers of linear attention; every fourth layer
//! has gated attention.
//!
//! In files, key heads alternate in the order of value heads. Between neighbouring value heads of
//! one key head lies one value head of each other key head. RoPE's sections assign pairs to
//! dimensions of an image's position, which are equal in text.

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
