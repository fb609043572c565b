//! `smollm3`: SmolLM3: every fourth layer has no RoPE.

use super::Architecture;
use super::decoder::{Roped, Style, decoder};
use super::hyper::Defaults;

const STYLE: Style = Style { roped: Roped::But(4), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "smollm3", doc: "SmolLM3", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
