//! `olmoe`: OLMoE. All heads of a row are normalised together. The weights of experts are a softmax
//! over all experts, not divided by the sum of the selected weights.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::ROWS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "olmoe",
    doc: "OLMoE",
    defaults: Defaults { normalise: false, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
