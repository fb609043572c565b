//! `dots3note`: dots.3 note. Layers have latent attention ([`crate::layers::mla`]), over a window
//! or over positions that an indexer selects. These two kinds of layers differ in the sizes of
//! heads and latent rows. The rotated part of a key is normalised, and each head's result has a
//! gate. Experts are selected by sigmoids with a bias; a shared expert is added. The first layers
//! are dense (transformers `dots3_note`, llama.cpp `dots3note.cpp`).

use ixc_ir::graph::attrs::{RopeStyle, RouteScore};
use ixc_ir::graph::{Unary, ValueId};
use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{OutputGate, Style, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, Keys, MAX_WIDTH, Mla, Windows};
use crate::layers::mla::{self, IndexSelection, IndexStyle};

const STYLE: Style = Style { output_gate: OutputGate::Own(Unary::Sigmoid), ..Style::LLAMA };

/// Indexer whose RoPE pairs are adjacent, as in transformers; llama.cpp pairs elements half a head
/// apart.
const INDEX: IndexStyle = IndexStyle::usual(RopeStyle::Norm);

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "dots3note",
    doc: "dots.3 note (text only)",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        normalise: false,
        windows: Some(Windows::every(0)),
        adjust: |keys, hyper| match hyper.mla {
            Some(full) => hyper.set_local_mla(keys, &full, &local_mla(keys, &full)?),
            None => Ok(()),
        },
        ..Defaults::USUAL
    },
    build,
};

/// Reads the sizes of latent attention in layers with a window. If the file does not state their
/// rank, they are the sizes of other layers. The rank of queries is always the same.
fn local_mla(keys: &Keys<'_>, full: &Mla) -> Result<Mla, GgufError> {
    let Some(rank) = keys.optional("attention.kv_lora_rank_swa", 1, MAX_WIDTH)? else { return Ok(*full) };
    let key_length = keys.optional("attention.key_length_mla_swa", 1, MAX_WIDTH)?.unwrap_or(full.key_length);
    let value_length = keys.optional("attention.value_length_mla_swa", 1, MAX_WIDTH)?.unwrap_or(full.value_length);
    Ok(Mla { rank, key_length, value_length, ..*full })
}

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let full = b.mla()?;
    let local = local_mla(&b.keys(), &full)?;
    let mut selection = IndexSelection::new(b, INDEX)?;
    let mut x = b.embed()?;
    for layer in b.layers() {
        x = match b.hyper.layers[layer].window {
            Some(_) => mla::attention(b, layer, x, &local, &STYLE, None)?,
            None => mla::attention(b, layer, x, &full, &STYLE, Some(&mut selection))?,
        };
        x = feed_forward(b, layer, x, &STYLE)?;
    }
    b.logits(x)
}
