//! `bailingmoe`: Ling of 2024 and 2025. Like `llama`, but with routed and shared experts.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bailingmoe",
    doc: "Ling 1, 1.5",
    defaults: Defaults { normalise: false, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
