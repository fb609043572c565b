//! `plamo`: PLaMo 1: `llama` whose attention and network stand beside each other behind one norm, and whose RoPE turns halves of a head.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { parallel: true, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "plamo", doc: "PLaMo 1", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
