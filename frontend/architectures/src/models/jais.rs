//! `jais`: Jais of the first years: layer norms and biases, gates, scores of attention that fall with distance (`attention.max_alibi_bias`) and are divided by the length of a
//! key and not by its root (muP). Factors of the model are in its embedding table and its output matrix, as the converter leaves them.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, MAX_BIAS, Norms, Rotates};

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "jais",
    doc: "Jais",
    defaults: Defaults {
        reads: &[MAX_BIAS],
        norms: Norms::Layer,
        rotates: Rotates::Never,
        scaled_by_length: true,
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
