//! `dbrx`: DBRX. All networks are experts, and layer norms have no biases. Queries, keys and values
//! are clamped to a limit (`attention.clamp_kqv`).

use crate::architecture::Architecture;
use crate::decoder::{CLAMP_KQV, Style, clamped_projections, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style { ffn_norm: "attn_output_norm", linear: clamped_projections, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "dbrx",
    doc: "DBRX",
    defaults: Defaults { reads: &[CLAMP_KQV], norms: Norms::Layer, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
