//! `qwen3`: Qwen3, dense. Every query and key head is normalised before RoPE.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::HEADS, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "qwen3", doc: "Qwen3", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
