//! `gemma-embedding`: EmbeddingGemma. Like Gemma 3, but attention is not causal: windows extend
//! before and after a position. In sentence-transformers, two matrices (`dense_2`, `dense_3`)
//! multiply the mean of a text's rows. Here they multiply each row after the last norm, if files
//! have them. The result is the same, as the mean of products is the product of the mean.

use super::gemma3;
use crate::architecture::Architecture;
use crate::builder::Bias;
use crate::decoder::decoder;
use crate::hyper::{Defaults, Windows};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma-embedding",
    doc: "EmbeddingGemma",
    defaults: Defaults {
        causal: false,
        windows: Some(Windows { base: Some(10_000.0), scaled: false, ..Windows::every(6) }),
        ..Defaults::USUAL
    },
    build: |b| {
        let x = decoder(b, &gemma3::STYLE)?;
        let (width, inner) = (b.hyper.embedding_length, b.rows("dense_2.weight"));
        let Some(inner) = inner else { return Ok(x) };
        let x = b.linear(x, "dense_2", width, inner, Bias::Optional)?;
        b.linear(x, "dense_3", inner, width, Bias::Optional)
    },
};
