//! `gptj`: GPT-J and CodeGen. Attention and the network are parallel, after one layer norm. RoPE
//! rotates a part of each head, in adjacent pairs. The network has no gate, and the output matrix
//! has a bias. llama.cpp has only this architecture's name; the keys are named as in other
//! architectures.
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
