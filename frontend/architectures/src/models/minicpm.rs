//! `minicpm`: MiniCPM. Constant factors scale embeddings, outputs of blocks, and logits. Older
//! files have no keys for these; the factors of the model with 2 billion parameters then apply.

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Scales, Widths};

const STYLE: Style = Style::LLAMA;

/// `scale_emb` of the released models: the factor on embeddings.
const EMBEDDING: f64 = 12.0;
/// `scale_depth` of the released models. Divided by the square root of the number of layers, it is
/// the factor on outputs of blocks.
const DEPTH: f64 = 1.4;
/// `dim_model_base` of the released models. Logits are divided by the model's width over this
/// number.
const BASE_WIDTH: f64 = 256.0;

/// Returns the scales for older files, which have no keys for them.
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
