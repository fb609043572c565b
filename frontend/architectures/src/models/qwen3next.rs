//! `qwen3next`: Qwen3-Next. Like `qwen35moe`, but adjacent value heads share a key head, and files
//! interleave several projections by key head.

use ixc_ir::graph::attrs::KeyHeads;

use crate::architecture::Architecture;
use crate::hyper::Defaults;
use crate::layers::gated_delta_net::{QWEN, decoder};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3next",
    doc: "Qwen3-Next, Qwen3-Coder-Next",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &QWEN, KeyHeads::Grouped),
};
