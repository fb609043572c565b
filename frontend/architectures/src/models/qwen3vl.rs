//! `qwen3vl`: the text part of Qwen3-VL. Like `qwen3`. The sections of RoPE, which assign pairs to
//! dimensions of a position in an image, have no effect: in text, all dimensions are equal.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3vl",
    doc: "Qwen3-VL (text only)",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
