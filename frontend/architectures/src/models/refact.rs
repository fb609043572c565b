//! `refact`: Refact. Like `llama`, but with ALiBi instead of RoPE, and one key head for all query
//! heads. The converter writes no key for ALiBi's slopes, but files may have
//! `attention.max_alibi_bias`.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, MAX_BIAS, RopeUse, Scales};

const STYLE: Style = Style::LLAMA;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "refact",
    doc: "Refact",
    defaults: Defaults { reads: &[MAX_BIAS], rope_use: RopeUse::Never, scales: |_| Scales::ALIBI, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
