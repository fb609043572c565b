//! `gemma`: Gemma 1. Embeddings are multiplied by the square root of their length, and gates go
//! through GELU.

use ixc_ir::graph::attrs::{Activation, GateAttrs};

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder, embed_by_root};
use crate::hyper::Defaults;

const STYLE: Style = Style { gate: GateAttrs::plain(Activation::Gelu), embed: embed_by_root, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "gemma", doc: "Gemma 1", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
