//! `gemma3`: Gemma 3. Five layers of six have a window and their own RoPE. A norm precedes and
//! follows each block, and gates go through GELU.

use ixc_ir::graph::attrs::{Activation, GateAttrs};

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::{Defaults, Windows};

pub(super) const STYLE: Style = Style {
    head_norm: HeadNorm::Heads,
    post_norms: Some(["post_attention_norm", "post_ffw_norm"]),
    gate: GateAttrs::plain(Activation::Gelu),
    root_embedding: true,
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma3",
    doc: "Gemma 3",
    defaults: Defaults {
        windows: Some(Windows { base: Some(10_000.0), scaled: false, ..Windows::every(6) }),
        // No released model uses this key, but the class supports it.
        reads: &["final_logit_softcapping"],
        // Layers of the model with 27 billion parameters.
        scaled_by_width: 62,
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
