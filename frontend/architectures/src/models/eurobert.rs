//! `eurobert`: EuroBERT and Jina Embeddings 5. Layers like Llama's, with RoPE pairs half a head
//! apart, but attention is not causal, and there is no output matrix.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "eurobert",
    doc: "EuroBERT, Jina Embeddings 5",
    defaults: Defaults { causal: false, ..Defaults::USUAL },
    build: |b| decoder(b, &Style::NEOX),
};
