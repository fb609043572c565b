//! `hunyuan-moe`: Hunyuan with experts. Queries and keys are normalised after RoPE, and a shared
//! expert is added to the routed experts.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::AFTER_ROPE, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "hunyuan-moe", doc: "Hunyuan A13B", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
