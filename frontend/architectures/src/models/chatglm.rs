//! `chatglm`: ChatGLM 3 and GLM-4 of 2024, dense. The gate and up matrices are stored as one
//! matrix, and RoPE rotates half of each head.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { fused_gate: true, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "chatglm",
    doc: "ChatGLM 3, GLM-4-9B (2024)",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
