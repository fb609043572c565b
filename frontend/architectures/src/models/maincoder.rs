//! `maincoder`: Maincoder: `llama` with norms of each head of queries and keys behind RoPE.

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { head_norm: HeadNorm::AfterRope, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "maincoder", doc: "Maincoder", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
