//! `gptj`: GPT-J and CodeGen: attention and network stand beside each other behind one layer norm, a part of each head turns, neighbours together, and the network has no gate.
//! The output matrix has a bias. llama.cpp has the name and nothing behind it; keys are as others'.
//!
//! ```text
//! h = norm(x)
//! x += attn_output attention(rope(attn_q h), rope(attn_k h), attn_v h) + ffn_down gelu(ffn_up h)
//! ```

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style { parallel: true, ungated: Some(Unary::Gelu), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gptj",
    doc: "GPT-J, CodeGen",
    defaults: Defaults { norms: Norms::Layer, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
