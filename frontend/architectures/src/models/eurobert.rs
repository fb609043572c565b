//! `eurobert`: EuroBERT and Jina Embeddings 5: a decoder as Llama's, with rotations of halves, but every token sees all of its text, and there is no output matrix.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "eurobert",
    doc: "EuroBERT, Jina Embeddings 5",
    defaults: Defaults { causal: false, ..Defaults::USUAL },
    build: |b| decoder(b, &Style::NEOX),
};
