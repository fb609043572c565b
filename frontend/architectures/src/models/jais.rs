//! `jais`: the first Jais models. They have layer norms, biases, gates and ALiBi
//! (`attention.max_alibi_bias`). Attention scores are divided by the length of a key instead of its
//! square root (muP). In files, the converter has multiplied the model's factors into the embedding
//! table and the output matrix.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, MAX_BIAS, Norms, RopeUse};

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "jais",
    doc: "Jais",
    defaults: Defaults {
        reads: &[MAX_BIAS],
        norms: Norms::Layer,
        rope_use: RopeUse::Never,
        attention_scale: |sizes| 1.0 / sizes.key_length as f64,
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
