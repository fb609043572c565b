//! `bert`: BERT and what was made of it for embeddings (BGE, E5, MiniLM, MPNet's kin of XLM-R): tokens, their first type and their positions are rows of tables, sums of
//! blocks go through layer norms, and between up and down stands GELU by the error function; llama.cpp has what is near to it.
//!
//! ```text
//! x = norm(token_embd[id] + token_types[0] + position_embd[position])
//! x = norm(x + attn_output softmax(q . k / sqrt(d)) v)               q, k, v = attn_q, attn_k, attn_v of x, with biases
//! x = norm(x + ffn_down gelu(ffn_up x))
//! ```
//!
//! Tables of positions of XLM-R and RoBERTa begin with rows for no position, which the converter leaves out.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::Style;
use crate::encoder::encoder;
use crate::hyper::{Defaults, Norms, Rotates};

const STYLE: Style = Style { learned_positions: true, ungated: Some(Unary::GeluErf), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bert",
    doc: "BERT, BGE, E5, MiniLM, XLM-RoBERTa, for embeddings",
    defaults: Defaults { causal: false, norms: Norms::Layer, rotates: Rotates::Never, ..Defaults::USUAL },
    build: |b| encoder(b, &STYLE),
};
