//! `smollm3`: SmolLM3. Every fourth layer has no RoPE.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "smollm3",
    doc: "SmolLM3",
    defaults: Defaults { unroped_every: Some(4), ..Defaults::USUAL },
    build: |b| decoder(b, &Style::LLAMA),
};
