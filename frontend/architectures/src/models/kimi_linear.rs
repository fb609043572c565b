//! `kimi-linear`: Kimi Linear. Layers of linear attention with a decay for each element of a key
//! ([`crate::layers::kda`]), and some of latent attention without RoPE ([`crate::layers::mla`]).
//! Experts are those of `deepseek2`.

use crate::architecture::Architecture;
use crate::decoder::{Roped, Style};
use crate::hyper::{Defaults, Parts};
use crate::layers::kda;

const STYLE: Style = Style { roped: Roped::None, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "kimi-linear",
    doc: "Kimi Linear",
    defaults: Defaults { parts: Parts::Keyless, ..Defaults::USUAL },
    build: |b| kda::decoder(b, &STYLE),
};
