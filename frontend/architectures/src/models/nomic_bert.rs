//! `nomic-bert`: Nomic Embed 1 and 1.5. Like `bert`, but with RoPE instead of a table of positions,
//! a gated network, and matrices without biases.
//!
//! ```text
//! x = norm(token_embd[id] + token_types[0])
//! // q, k, v = attn_qkv x; q and k rotated, with pairs half a head apart
//! x = norm(x + attn_output softmax(q . k / sqrt(d)) v)
//! x = norm(x + ffn_down (silu(ffn_gate x) * ffn_up x))
//! ```

use crate::architecture::Architecture;
use crate::decoder::Style;
use crate::encoder::{self, encoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style { embed: encoder::embed, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nomic-bert",
    doc: "Nomic Embed 1, 1.5",
    defaults: Defaults { causal: false, norms: Norms::Layer, ..Defaults::USUAL },
    build: |b| encoder(b, &STYLE),
};
