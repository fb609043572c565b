//! `qwen2vl`: the text part of Qwen2-VL and Qwen2.5-VL. Like `qwen2`. The sections of RoPE, which
//! assign pairs to dimensions of a position in an image, have no effect: in text, all dimensions
//! are equal.

use crate::architecture::Architecture;
use crate::decoder::{Style, biased_projections, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { linear: biased_projections, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen2vl",
    doc: "Qwen2-VL, Qwen2.5-VL (text only)",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
