//! `gpt2`: GPT-2. It has a table of positions instead of RoPE, layer norms, biases, and a network
//! without a gate.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder, embed_with_positions};
use crate::hyper::{Defaults, Norms, RopeUse};

const STYLE: Style = Style { embed: embed_with_positions, ungated: Some(Unary::Gelu), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gpt2",
    doc: "GPT-2",
    defaults: Defaults { norms: Norms::Layer, rope_use: RopeUse::Never, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
