//! `minicpm`: MiniCPM: embeddings, what blocks add, and logits are scaled; older files have no keys for that, and mean the model of 2 billion
//! parameters.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Scales, Widths};

const STYLE: Style = Style::LLAMA;

/// `scale_emb` of the released models.
const EMBEDDING: f64 = 12.0;
/// `scale_depth` of the released models: over the root of the number of layers it is the factor on what blocks add.
const DEPTH: f64 = 1.4;
/// `dim_model_base` of the released models: logits are divided by how many times as wide a model is.
const BASE_WIDTH: f64 = 256.0;

/// What older files mean that have no keys for it.
pub(super) fn scales(of: &Widths) -> Scales {
    Scales {
        embedding: EMBEDDING,
        residual: DEPTH / (of.layers as f64).sqrt(),
        logit: of.embedding as f64 / BASE_WIDTH,
        ..Scales::NONE
    }
}

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "minicpm",
    doc: "MiniCPM",
    defaults: Defaults { reads: &["embedding_scale", "residual_scale", "logit_scale"], scales, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
