//! `gemma2`: Gemma 2. Every other layer has a window, a norm precedes and follows each block, gates
//! go through GELU, and scores and logits have soft limits. The first files lack keys for these
//! limits, and mean those of the released models.

use ixc_ir::graph::attrs::{Activation, GateAttrs};

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Scales, Windows};

pub(super) const STYLE: Style = Style {
    post_norms: Some(["post_attention_norm", "post_ffw_norm"]),
    gate: GateAttrs::plain(Activation::Gelu),
    root_embedding: true,
    ..Style::NEOX
};

pub(super) const DEFAULTS: Defaults = Defaults {
    reads: &["attn_logit_softcapping", "final_logit_softcapping"],
    scales: |_| Scales { softcap: 30.0, attention_softcap: 50.0, ..Scales::NONE },
    windows: Some(Windows { length: Some(4096), ..Windows::every(2) }),
    // Layers of the model with 27 billion parameters.
    scaled_by_width: 46,
    ..Defaults::USUAL
};

pub(super) const ARCHITECTURE: Architecture =
    Architecture { name: "gemma2", doc: "Gemma 2", defaults: DEFAULTS, build: |b| decoder(b, &STYLE) };
