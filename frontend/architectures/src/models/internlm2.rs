//! `internlm2`: InternLM 2. Like `llama`: the converter splits the fused matrix of queries, keys
//! and values.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "internlm2", doc: "InternLM 2", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
