//! `ernie4_5`: ERNIE 4.5, dense. It has no differences from `llama`.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "ernie4_5", doc: "ERNIE 4.5", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
