//! `muse-glimmer`: Muse Glimmer, dense. Embeddings are normalised. Three layers of four have a
//! window, and only these have RoPE. A gate multiplies the output of attention, and a norm precedes
//! and follows each block.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, OutputGate, PostNorms, RopeLayers, Style, decoder};
use crate::hyper::{Defaults, Windows};

/// Epsilon of norms after blocks: files only have that of the other norms.
const POST_EPS: f64 = 1e-8;

const STYLE: Style = Style {
    embed: |b| {
        let x = b.embed()?;
        b.plain_norm(x)
    },
    // The norm has a weight if the file has one.
    head_norm: HeadNorm {
        before: |b, x, of| match b.has(&of.norm) {
            true => b.rms_norm(x, &of.norm, of.length),
            false => b.plain_norm(x),
        },
        ..HeadNorm::ABSENT
    },
    rope_layers: RopeLayers::Windowed,
    output_gate: OutputGate::Own(Unary::Sigmoid),
    post_norms: Some(PostNorms::USUAL),
    post_norm: |b, y, norm| b.rms_norm_of(y, norm, b.hyper.embedding_length, POST_EPS),
    ..Style::LLAMA
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "muse-glimmer",
    doc: "Muse Glimmer (text only)",
    defaults: Defaults {
        reads: &["logit_scale", "final_logit_softcapping"],
        logits_multiplied: true,
        windows: Some(Windows::every(4)),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
