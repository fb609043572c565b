//! `refact`: Refact: as `llama`, but scores of attention fall with distance (ALiBi) in place of RoPE, and all heads of queries share one of keys. The converter writes no key
//! for the slopes; files may have one (`attention.max_alibi_bias`).

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, MAX_BIAS, Rotates, Scales};

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "refact",
    doc: "Refact",
    defaults: Defaults { reads: &[MAX_BIAS], rotates: Rotates::Never, scales: |_| Scales::ALIBI, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
