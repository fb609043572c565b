//! `kimi-linear`: Kimi Linear: layers of linear attention with a decay for each element of a key ([`super::kda`]), and some of latent attention without
//! RoPE ([`super::mla`]). Experts are as `deepseek2`'s.

use ixc_ir::graph::ValueId;

use super::Architecture;
use super::builder::Builder;
use super::decoder::{Roped, Style, feed_forward};
use super::error::ArchError;
use super::hyper::{Defaults, Parts};
use super::{kda, mla};

const STYLE: Style = Style { roped: Roped::None, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "kimi-linear",
    doc: "Kimi Linear",
    defaults: Defaults { parts: Parts::Keyless, ..Defaults::USUAL },
    build: decoder,
};

/// From the step's ids to logits.
fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let sizes = b.mla()?;
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        x = match b.hyper.layers[layer].recurrent {
            true => kda::mixer(b, layer, x)?,
            false => mla::attention(b, layer, x, &sizes, &STYLE, None)?,
        };
        x = feed_forward(b, layer, x, &STYLE)?;
    }
    b.logits(x)
}
