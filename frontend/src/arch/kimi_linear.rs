//! `kimi-linear`: Kimi Linear: layers of linear attention with a decay for each element of a key ([`super::kda`]), and some of latent attention without
//! RoPE ([`super::mla`]). Experts are as `deepseek2`'s.

use super::Architecture;
use super::decoder::{Roped, Style};
use super::hyper::{Defaults, Parts};
use super::kda;

const STYLE: Style = Style { roped: Roped::None, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "kimi-linear",
    doc: "Kimi Linear",
    defaults: Defaults { parts: Parts::Keyless, ..Defaults::USUAL },
    build: |b| kda::decoder(b, &STYLE),
};
