//! `deepseek`: DeepSeek's first model with experts. Attention is like that of `llama`. The weights
//! of experts are a softmax over all experts, not divided by the sum of the selected weights.
//! Shared experts are added. The first layers are dense.

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
