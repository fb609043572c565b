//! `qwen35moe`: Qwen3.5 and later with experts. Attention and linear attention are those of
//! `qwen35`. A gated shared expert is added to the routed experts.

use ixc_ir::graph::attrs::KeyHeads;

use crate::architecture::Architecture;
use crate::hyper::Defaults;
use crate::layers::gated_delta_net::{QWEN, decoder};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen35moe",
    doc: "Qwen3.5 and later, MoE",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &QWEN, KeyHeads::Interleaved),
};
