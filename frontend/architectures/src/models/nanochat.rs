//! `nanochat`: nanochat. Norms have no weights, and one also follows the embedding. Queries and
//! keys are normalised after RoPE. The network has no gate; its activation is the square of ReLU.
//! Logits have a soft limit (transformers `nanochat`).
//!
//! No GGUF file of this model is known. Its RoPE rotates in the opposite direction. Our conversion
//! swaps the two halves of each head's rows in `attn_q` and `attn_k`, which makes the rotation the
//! usual one.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::{Defaults, Norms, Scales};

const STYLE: Style = Style {
    head_norm: HeadNorm::PLAIN_AFTER_ROPE,
    ungated: Some(Unary::ReluSquared),
    embed: |b| {
        let x = b.embed()?;
        b.plain_norm(x)
    },
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nanochat",
    doc: "nanochat",
    defaults: Defaults {
        norms: Norms::UnweightedRms,
        reads: &["final_logit_softcapping"],
        scales: |_| Scales { softcap: 15.0, ..Scales::NONE },
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
