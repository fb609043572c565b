//! `qwen3vlmoe`: the text part of Qwen3-VL with experts. Like `qwen3moe`; the sections of RoPE have
//! no effect, as in `qwen3vl`.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3vlmoe",
    doc: "Qwen3-VL, MoE (text only)",
    defaults: Defaults { dense_by_tensor: true, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
