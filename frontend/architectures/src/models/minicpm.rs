//! `minicpm`: MiniCPM. Embeddings, outputs of blocks, and logits are scaled. Older files have no
//! keys for this, and mean the model of 2 billion parameters.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Scales, Widths};

const STYLE: Style = Style::LLAMA;

/// `scale_emb` of the released models.
const EMBEDDING: f64 = 12.0;
/// `scale_depth` of the released models. Divided by the root of the number of layers, it is the
/// factor on outputs of blocks.
const DEPTH: f64 = 1.4;
/// `dim_model_base` of the released models. Logits are divided by the ratio of a model's width to
/// it.
const BASE_WIDTH: f64 = 256.0;

/// Returns the scales of older files, which have no keys for them.
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
