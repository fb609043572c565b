//! `lfm3`: LFM3, dense. Layers are like those of `lfm2`, but with a norm before and after each
//! block. In attention layers, a gate multiplies each head. Every second attention layer has a
//! window and another RoPE. No other program is known to write GGUF files of this model. The keys
//! and tensors are named as in `lfm2` and in architectures with windows.

use ixc_ir::graph::Unary;

use super::lfm2;
use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, OutputGate, PostNorms, Style};
use crate::hyper::{Defaults, LayerParts, Windows};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "lfm3",
    doc: "LFM3",
    defaults: Defaults {
        layer_parts: LayerParts::Keyless,
        windows: Some(Windows { base: Some(10_000.0), scaled: false, ..Windows::every(0) }),
        adjust: |_, hyper| {
            hyper.keep_local_frequencies();
            Ok(())
        },
        ..Defaults::USUAL
    },
    build: |b| {
        // A model's configuration may disable the norms after blocks, or the gate.
        let post_norms = b.has(&format!("blk.0.{}.weight", PostNorms::USUAL.attention)).then_some(PostNorms::USUAL);
        let gated = b.layers().any(|layer| b.has(&format!("blk.{layer}.attn_gate.weight")));
        let output_gate = if gated { OutputGate::Own(Unary::Sigmoid) } else { OutputGate::None };
        lfm2::decoder(b, &Style { head_norm: HeadNorm::HEADS, output_gate, post_norms, ..Style::NEOX })
    },
};
