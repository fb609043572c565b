//! `deepseek`: DeepSeek's first model with experts: attention as in `llama`; weights of experts stay as the softmax over all gives them, beside
//! shared ones; the first layers are dense.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "deepseek",
    doc: "DeepSeek-MoE (V1)",
    defaults: Defaults { normalise: false, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
