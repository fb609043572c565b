//! `dots3note`: dots.3 note. Two kinds of layers have latent attention ([`crate::layers::mla`]):
//! over a window, or over positions that an indexer selects. The kinds differ in the sizes of heads
//! and rows. The rotated part of a key is normalised, and a number for each head gates its result.
//! Experts are selected by sigmoids with a bias, next to a shared expert. The first layers are
//! dense (transformers `dots3_note`, llama.cpp `dots3note.cpp`).

use ixc_ir::graph::attrs::{RopeStyle, RouteScore};
use ixc_ir::graph::{Unary, ValueId};

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{OutputGate, Style, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, Windows};
use crate::layers::mla::{self, Choice, IndexStyle};

const STYLE: Style = Style { output_gate: OutputGate::Own(Unary::Sigmoid), ..Style::LLAMA };

/// RoPE pairs of the indexer as in transformers; llama.cpp pairs elements half a head apart.
const INDEX: IndexStyle = IndexStyle::usual(RopeStyle::Norm);

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "dots3note",
    doc: "dots.3 note (text only)",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        normalise: false,
        windows: Some(Windows::every(0)),
        ..Defaults::USUAL
    },
    build,
};

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let full = b.mla()?;
    let local = b.hyper.local_mla.unwrap_or(full);
    let mut choice = Choice::new(b, INDEX)?;
    let mut x = b.embed()?;
    for layer in b.layers() {
        x = match b.hyper.layers[layer].window {
            Some(_) => mla::attention(b, layer, x, &local, &STYLE, None)?,
            None => mla::attention(b, layer, x, &full, &STYLE, Some(&mut choice))?,
        };
        x = feed_forward(b, layer, x, &STYLE)?;
    }
    b.logits(x)
}
