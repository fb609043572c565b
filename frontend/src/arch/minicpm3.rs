//! `minicpm3`: MiniCPM 3: latent attention ([`super::mla`]) in the scales of `minicpm`; keys and values of all heads are one matrix, and norms of latent rows add
//! another number than the others, for which files have no key.

use super::Architecture;
use super::absorbed;
use super::decoder::Style;
use super::hyper::{Defaults, Scales};
use super::mla::decoder;

const STYLE: Style = Style::NEOX;

/// `scale_emb` of the released model.
const EMBEDDING: f64 = 12.0;
/// `scale_depth` of the released model: over the root of the number of layers it is the factor on what blocks add.
const DEPTH: f64 = 1.4;
/// `dim_model_base` of the released model: logits are divided by how many times as wide a model is.
const BASE_WIDTH: f64 = 256.0;
/// Added to the mean squares of latent rows: what the class of the model's norms has, whatever its configuration says.
const LATENT_EPS: f64 = 1e-6;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "minicpm3",
    doc: "MiniCPM 3",
    defaults: Defaults {
        reads: &["embedding_scale", "residual_scale", "logit_scale"],
        scales: |of| Scales {
            embedding: EMBEDDING,
            residual: DEPTH / (of.layers as f64).sqrt(),
            logit: of.embedding as f64 / BASE_WIDTH,
            ..Scales::NONE
        },
        made: absorbed::tensors,
        latent_eps: Some(LATENT_EPS),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
