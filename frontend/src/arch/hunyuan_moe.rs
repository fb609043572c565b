//! `hunyuan-moe`: Hunyuan with experts: queries and keys are normalised behind RoPE, and a shared expert is added.

use super::Architecture;
use super::decoder::{HeadNorm, Style, decoder};
use super::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::AfterRope, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "hunyuan-moe", doc: "Hunyuan A13B", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
