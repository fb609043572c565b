//! `qwen3moe`: Qwen3 with experts. Attention is like that of `qwen3`. The router is a softmax over
//! all experts; the weights of the selected experts are divided by their sum. Layers without a
//! router are dense (`mlp_only_layers` and `decoder_sparse_step` of checkpoints).

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3moe",
    doc: "Qwen3, MoE",
    defaults: Defaults { dense_by_tensor: true, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
