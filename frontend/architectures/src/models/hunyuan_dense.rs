//! `hunyuan-dense`: Hunyuan, dense. Queries and keys are normalised after RoPE.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::AFTER_ROPE, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "hunyuan-dense",
    doc: "Hunyuan, dense",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
