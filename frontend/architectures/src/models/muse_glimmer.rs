//! `muse-glimmer`: Muse Glimmer, dense. Embeddings are normalised. Three of every four layers have
//! an attention window, and only these have RoPE. A gate multiplies the output of attention, and a
//! norm precedes and follows each block.

use ixc_ir::graph::{Unary, ValueId};

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{HeadNorm, OutputGate, PostNorms, RopeLayers, Style, attention_of, networks};
use crate::error::ArchError;
use crate::hyper::{Defaults, Windows};

/// Epsilon of norms after blocks. Files have a key only for the epsilon of the other norms.
const POST_EPS: f64 = 1e-8;

const STYLE: Style = Style {
    // The norm of heads has a weight only if the file has one.
    head_norm: HeadNorm {
        before: |b, x, of| match b.has(&of.norm) {
            true => b.rms_norm(x, &of.norm, of.length),
            false => b.plain_norm(x),
        },
        ..HeadNorm::ABSENT
    },
    rope_layers: RopeLayers::Windowed,
    output_gate: OutputGate::Own(Unary::Sigmoid),
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
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let x = b.embed()?;
    let mut x = b.plain_norm(x)?;
    for layer in b.layers() {
        let name = |norm: &str| format!("blk.{layer}.{norm}.weight");
        let h = b.norm(x, &name("attn_norm"))?;
        let y = attention_of(b, layer, h, &STYLE)?;
        x = add_normed(b, x, y, &name(PostNorms::USUAL.attention))?;
        let h = b.norm(x, &name("ffn_norm"))?;
        let y = networks(b, layer, h, &STYLE)?;
        x = add_normed(b, x, y, &name(PostNorms::USUAL.network))?;
    }
    b.logits(x)
}

/// Adds the output `y` of a block, after the norm `norm`, to the stream `x`.
fn add_normed(b: &mut Builder<'_>, x: ValueId, y: ValueId, norm: &str) -> Result<ValueId, ArchError> {
    let y = b.rms_norm_of(y, norm, b.hyper.embedding_length, POST_EPS)?;
    b.add(y, x)
}
