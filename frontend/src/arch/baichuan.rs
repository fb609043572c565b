//! `baichuan`: Baichuan 1: as `llama`. Scores of the model of 13 billion parameters fall with distance (ALiBi), and it has no RoPE. The converter writes no key that says which
//! of both a file is: llama.cpp knows it by its 40 layers, and so is it here, where there is no `attention.max_alibi_bias`.
//!
//! Baichuan 2 is the same with rows of the output matrix at length 1, which files have so or not: the converter leaves them as they are.

use super::Architecture;
use super::decoder::{Style, decoder};
use super::hyper::{Defaults, MAX_BIAS, Rotates, Scales};

const STYLE: Style = Style::LLAMA;
/// Layers of the model of 13 billion parameters; that of 7 has 32.
const BIASED_LAYERS: u64 = 40;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "baichuan",
    doc: "Baichuan",
    defaults: Defaults {
        reads: &[MAX_BIAS],
        rotates: Rotates::IfUnbiased,
        scales: |widths| if widths.layers == BIASED_LAYERS { Scales::ALIBI } else { Scales::NONE },
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
