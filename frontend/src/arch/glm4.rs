//! `glm4`: GLM-4 of 2025, dense: blocks stand between two norms, gate and up are one matrix, and RoPE turns half of a head.

use super::Architecture;
use super::decoder::{Style, decoder};
use super::hyper::Defaults;

const STYLE: Style =
    Style { post_norms: Some(["post_attention_norm", "post_ffw_norm"]), fused_gate: true, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "glm4", doc: "GLM-4-0414, dense", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
