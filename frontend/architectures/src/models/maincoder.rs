//! `maincoder`: Maincoder. Like `llama`, with norms of each query and key head after RoPE.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::AFTER_ROPE, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "maincoder", doc: "Maincoder", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
