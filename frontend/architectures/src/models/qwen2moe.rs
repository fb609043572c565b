//! `qwen2moe`: Qwen1.5 and Qwen2 with experts: attention as in `qwen2`; weights of experts stay as the softmax over all gives them, and a gated
//! shared expert is added. Layers without a router are dense, and those of checkpoints that say `qkv_bias: false` have no biases.

use crate::architecture::Architecture;
use crate::builder::Bias;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { bias: Bias::Optional, gated_shared: true, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen2moe",
    doc: "Qwen1.5 and Qwen2 with experts",
    defaults: Defaults { normalise: false, dense_by_tensor: true, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
