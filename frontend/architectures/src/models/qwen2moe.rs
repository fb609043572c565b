//! `qwen2moe`: Qwen1.5 and Qwen2 with experts. Attention is like that of `qwen2`. The weights of
//! experts are a softmax over all experts, not divided by the sum of the selected weights. A gated
//! shared expert is added. Layers without a router are dense. Checkpoints with `qkv_bias: false`
//! have no biases.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder, gated_shared_expert};
use crate::hyper::Defaults;

const STYLE: Style = Style { shared: gated_shared_expert, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen2moe",
    doc: "Qwen1.5 and Qwen2, MoE",
    defaults: Defaults { normalise: false, dense_by_tensor: true, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
