//! `maincoder`: Maincoder. Like `llama`, but each query and key head is normalised after RoPE.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::AFTER_ROPE, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "maincoder", doc: "Maincoder", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
