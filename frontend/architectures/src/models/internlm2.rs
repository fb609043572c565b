//! `internlm2`: InternLM 2, whose fused queries, keys and values the converter takes apart: as `llama`.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "internlm2", doc: "InternLM 2", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
