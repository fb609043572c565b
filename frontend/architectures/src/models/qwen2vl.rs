//! `qwen2vl`: the text part of Qwen2-VL and Qwen2.5-VL: `qwen2`. RoPE's sections say which of an image's positions turns a pair; a text's are equal.

use crate::architecture::Architecture;
use crate::builder::Bias;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { bias: Bias::Required, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen2vl",
    doc: "Qwen2-VL, Qwen2.5-VL, for text",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
