//! `hy_v4`: Hy4. It has latent attention ([`crate::layers::mla`]) with sinks, and a gate for each
//! element of its result. Its residual streams stay separate
//! ([`crate::layers::hyper_connections`]). Experts are selected by sigmoids with a bias; a shared
//! expert is added. Gates and up products of experts have a limit. The first layers are dense
//! (llama.cpp `hy-v4.cpp`, transformers `hy_v4`).
//!
//! In files with an indexer, it selects the positions that rows attend to. A layer may use the
//! positions that an earlier layer selected.

use ixc_ir::graph::attrs::RouteScore;
use ixc_ir::graph::{Unary, ValueId};

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{OutputGate, Scores, Style, networks};
use crate::error::ArchError;
use crate::hyper::Defaults;
use crate::layers::hyper_connections;
use crate::layers::mla::{self, IndexSelection, IndexStyle};

const STYLE: Style = Style {
    scores: |_, _, scores| Ok(Scores { sinks: true, ..scores }),
    output_gate: OutputGate::Own(Unary::Sigmoid),
    ..Style::LLAMA
};

const INDEX: IndexStyle = IndexStyle { rotates_last: true, eps_of_stream: true, ..IndexStyle::usual(STYLE.pairs) };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "hy_v4",
    doc: "Hy4",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        normalise: false,
        reads: &["swiglu_clamp_exp"],
        ..Defaults::USUAL
    },
    build,
};

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let sizes = b.mla()?;
    let mut selection = IndexSelection::optional(b, INDEX)?;
    let streams = hyper_connections::streams(&b.keys())?;
    let x = b.embed()?;
    let mut x = hyper_connections::begin(b, x, streams.count)?;
    for layer in 0..b.hyper.layers.len() {
        let name = |part: &str| format!("blk.{layer}.{part}");
        x = hyper_connections::wrap_block(b, layer, "hc_attn", x, streams, |b, x| {
            let h = b.norm(x, &name("attn_norm.weight"))?;
            mla::attention_of(b, layer, h, &sizes, &STYLE, selection.as_mut())
        })?;
        x = hyper_connections::wrap_block(b, layer, "hc_ffn", x, streams, |b, x| {
            let h = b.norm(x, &name("ffn_norm.weight"))?;
            networks(b, layer, h, &STYLE)
        })?;
    }
    hyper_connections::logits(b, x, streams)
}
