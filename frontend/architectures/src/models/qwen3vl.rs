//! `qwen3vl`: the text part of Qwen3-VL. Like `qwen3`. RoPE's sections assign pairs to dimensions
//! of an image's position, which are equal in text.

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
