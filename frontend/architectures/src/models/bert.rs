//! `bert`: BERT and embedding models made from it (BGE, E5, MiniLM, MPNet and relatives of XLM-R).
//! The input is the sum of table rows for the token, for the first token type, and for the
//! position. A layer norm follows the addition of each block's output. The activation is GELU with
//! the error function; llama.cpp approximates it.
//!
//! ```text
//! x = norm(token_embd[id] + token_types[0] + position_embd[position])
//! // q, k, v = attn_q, attn_k, attn_v of x, with biases
//! x = norm(x + attn_output softmax(q . k / sqrt(d)) v)
//! x = norm(x + ffn_down gelu(ffn_up x))
//! ```
//!
//! In checkpoints of XLM-R and RoBERTa, the table of positions begins with rows that belong to no
//! position. The converter removes these.

use ixc_ir::graph::{Unary, ValueId};

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, add_positions};
use crate::encoder::{self, encoder};
use crate::error::ArchError;
use crate::hyper::{Defaults, Norms, RopeUse};

const STYLE: Style = Style { embed, ungated: Some(Unary::GeluErf), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bert",
    doc: "BERT, BGE, E5, MiniLM, XLM-RoBERTa (embeddings)",
    defaults: Defaults { causal: false, norms: Norms::Layer, rope_use: RopeUse::Never, ..Defaults::USUAL },
    build: |b| encoder(b, &STYLE),
};

/// Embeds tokens: adds the rows of the token, of the first token type (if the file has token types)
/// and of the position.
fn embed(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let x = encoder::embed(b)?;
    add_positions(b, x)
}
