//! `gpt-oss`: gpt-oss. Every other layer has an attention window, all layers have attention sinks,
//! and all matrices have biases. A clamped gate multiplies the up product plus 1.
//!
//! The bounds of YaRN's ramp are not rounded to whole pairs: `truncate` is false in the
//! configuration of the released models. Files have no key for it, and llama.cpp rounds the bounds.

use ixc_ir::graph::attrs::{Activation, GateAttrs, RopeScaling, RouteScore};
use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::decoder::{Scores, Style, biased_projections, decoder};
use crate::hyper::{Defaults, Keys, Rope, RopeSizes, Windows, YARN_TRUNCATE};

const STYLE: Style = Style {
    linear: biased_projections,
    scores: |_, _, scores| Ok(Scores { sinks: true, ..scores }),
    ffn_norm: "post_attention_norm",
    gate: GateAttrs { limit: 7.0, shift: 1.0, ..GateAttrs::plain(Activation::QuickGelu) },
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gpt-oss",
    doc: "gpt-oss",
    defaults: Defaults {
        score: RouteScore::Chosen,
        normalise: false,
        windows: Some(Windows::every(2)),
        adjust: |keys, hyper| hyper.set_rope(keys, rope),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};

/// Reads RoPE. In files without the key for it, the bounds of YaRN's ramp are not rounded.
fn rope(keys: &Keys<'_>, sizes: RopeSizes) -> Result<Rope, GgufError> {
    let rope = Rope::usual(keys, sizes)?;
    match rope.scaling {
        RopeScaling::Yarn if !keys.has(YARN_TRUNCATE) => Ok(Rope { scaling: RopeScaling::YarnUntruncated, ..rope }),
        RopeScaling::None | RopeScaling::Linear | RopeScaling::Yarn | RopeScaling::YarnUntruncated => Ok(rope),
    }
}
