//! `nomic-bert`: Nomic Embed 1 and 1.5: `bert`, but queries and keys are rotated, there is no table of positions, and the network is gated; matrices have no biases.
//!
//! ```text
//! x = norm(token_embd[id] + token_types[0])
//! x = norm(x + attn_output softmax(q . k / sqrt(d)) v)               q, k, v = attn_qkv x, q and k rotated by halves
//! x = norm(x + ffn_down (silu(ffn_gate x) * ffn_up x))
//! ```

use crate::architecture::Architecture;
use crate::decoder::Style;
use crate::encoder::encoder;
use crate::hyper::{Defaults, Norms};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nomic-bert",
    doc: "Nomic Embed 1, 1.5",
    defaults: Defaults { causal: false, norms: Norms::Layer, ..Defaults::USUAL },
    build: |b| encoder(b, &Style::NEOX),
};
