//! `nanochat`: nanochat: norms have no weights, one more of them stands behind the embedding, queries and keys go through theirs behind RoPE, and
//! the network has no gate; its inner values are rectified and squared. Logits have a cap (transformers `nanochat`).
//!
//! No GGUF files of it are known. Its RoPE turns the other way: with the second half of each head's rows of `attn_q` and `attn_k` before the first, as files
//! here have them, that is the usual one.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::{Defaults, Norms, Scales};

const STYLE: Style = Style {
    head_norm: HeadNorm::PlainAfterRope,
    ungated: Some(Unary::ReluSquared),
    normed_embedding: true,
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "nanochat",
    doc: "nanochat",
    defaults: Defaults {
        norms: Norms::Plain,
        reads: &["final_logit_softcapping"],
        scales: |_| Scales { softcap: 15.0, ..Scales::NONE },
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
