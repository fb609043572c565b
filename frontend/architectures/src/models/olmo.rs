//! `olmo`: OLMo 1. Layer norms have no weights. If files have `attention.clamp_kqv`, queries, keys
//! and values are clamped to it.

use crate::architecture::Architecture;
use crate::decoder::{CLAMP_KQV, Style, clamped_projections, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style { linear: clamped_projections, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "olmo",
    doc: "OLMo 1",
    defaults: Defaults { reads: &[CLAMP_KQV], norms: Norms::UnweightedLayer, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
