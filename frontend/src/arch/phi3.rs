//! `phi3`: Phi-3 and later, dense: queries, keys and values by one matrix, gate and up by another.

use super::Architecture;
use super::decoder::{Style, decoder};
use super::hyper::Defaults;

const STYLE: Style = Style { fused_gate: true, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "phi3",
    doc: "Phi-3 and Phi-4 without longrope (4k mini, 14B)",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
