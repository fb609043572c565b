//! `seed_oss`: Seed-OSS. Q, K and V have biases.

use crate::architecture::Architecture;
use crate::decoder::{Style, biased_projections, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { linear: biased_projections, ffn_norm: "post_attention_norm", ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "seed_oss", doc: "Seed-OSS", defaults: Defaults::USUAL, build: |b| decoder(b, &STYLE) };
