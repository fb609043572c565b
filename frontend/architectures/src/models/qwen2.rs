//! `qwen2`: Qwen2 and Qwen2.5, dense. Q, K and V have biases.

use crate::architecture::Architecture;
use crate::decoder::{Style, biased_projections, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { linear: biased_projections, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "qwen2", doc: "Qwen2, Qwen2.5", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
