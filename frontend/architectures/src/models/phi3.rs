//! `phi3`: Phi-3 and later, dense. Queries, keys and values have one matrix, and so have gate and
//! up. Models with long contexts divide RoPE frequencies by one of two lists of factors (longrope).
//! If the context has more positions than `rope.scaling.original_context_length`, the list is
//! `rope_factors_long.weight`, otherwise `rope_factors_short.weight`. Transformers instead chooses
//! the list by the length of the text.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { fused_gate: true, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "phi3",
    doc: "Phi-3, Phi-3.5, Phi-4, mini variants included",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
