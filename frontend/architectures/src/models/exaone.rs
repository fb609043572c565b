//! `exaone`: EXAONE 3 and 3.5. Like `llama`, with RoPE pairs half a head apart.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style::NEOX;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "exaone", doc: "EXAONE 3, 3.5", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
