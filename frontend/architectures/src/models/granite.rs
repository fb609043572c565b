//! `granite`: Granite, dense. Embeddings, outputs of blocks, scores and logits are scaled.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, RopeUse};

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "granite",
    doc: "Granite 3",
    defaults: Defaults {
        reads: &["embedding_scale", "residual_scale", "logit_scale"],
        rope_use: RopeUse::IfFinetuned,
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
