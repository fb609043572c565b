//! `qwen3vl`: the text part of Qwen3-VL: `qwen3`. RoPE's sections say which of an image's positions turns a pair; a text's are equal.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::Heads, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3vl",
    doc: "Qwen3-VL, for text",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
