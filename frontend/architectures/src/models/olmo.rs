//! `olmo`: OLMo 1. Layer norms without weights. Queries, keys and values are clamped to a limit if
//! files have one (`attention.clamp_kqv`).

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
