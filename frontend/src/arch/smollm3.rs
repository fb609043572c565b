//! `smollm3`: SmolLM3: every fourth layer has no RoPE.

use super::Architecture;
use super::decoder::{Style, decoder};
use super::hyper::Defaults;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "smollm3",
    doc: "SmolLM3",
    defaults: Defaults { unroped_every: Some(4), ..Defaults::USUAL },
    build: |b| decoder(b, &Style::LLAMA),
};
