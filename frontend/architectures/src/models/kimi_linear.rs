//! `kimi-linear`: Kimi Linear. Most layers have linear attention with a decay for each element of a
//! key ([`crate::layers::kda`]). Some have latent attention without RoPE ([`crate::layers::mla`]).
//! Experts are like those of `deepseek2`.

use crate::architecture::Architecture;
use crate::decoder::{RopeLayers, Style};
use crate::hyper::{Defaults, LayerParts};
use crate::layers::kda;

const STYLE: Style = Style { rope_layers: RopeLayers::None, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "kimi-linear",
    doc: "Kimi Linear",
    defaults: Defaults { layer_parts: LayerParts::Keyless, ..Defaults::USUAL },
    build: |b| kda::decoder(b, &STYLE),
};
