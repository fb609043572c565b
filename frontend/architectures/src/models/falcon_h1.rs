//! `falcon-h1`: Falcon-H1. Each layer has attention and Mamba-2 in parallel. Both take the same
//! normalised row, and both outputs are added to the stream. Matrices in files include the model's
//! constant factors.

use ixc_ir::graph::ValueId;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Style, attention, feed_forward};
use crate::error::ArchError;
use crate::hyper::Defaults;
use crate::layers::mamba2;

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "falcon-h1", doc: "Falcon-H1", defaults: Defaults::USUAL, build: decoder };

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in 0..b.hyper.layers.len() {
        let h = b.norm(x, &format!("blk.{layer}.attn_norm.weight"))?;
        let y = mamba2::state_space(b, layer, h)?;
        x = attention(b, layer, x, &Style::NEOX)?;
        x = b.add(y, x)?;
        x = feed_forward(b, layer, x, &Style::NEOX)?;
    }
    b.logits(x)
}
