//! `olmoe`: OLMoE: all heads of a row are normalised as one; weights of experts stay as the softmax over all gives them.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::Row, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "olmoe",
    doc: "OLMoE",
    defaults: Defaults { normalise: false, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
