//! `glm5-next`: GLM-5.3-Flash. It has several residual streams
//! ([`crate::layers::hyper_connections`]); logits are made from their mean. Layers have linear
//! attention with a bounded decay for each element of a key ([`crate::layers::kda`]), or latent
//! attention without RoPE ([`crate::layers::mla`]). Experts are selected by sigmoids with a bias;
//! shared experts are added. Files state the limits of gates and up products (llama.cpp
//! `glm5-next.cpp`).
//!
//! An indexer selects runs of a few consecutive positions, over which latent attention goes.
//! Positions after the last complete run are always included.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{RopeLayers, Style, networks};
use crate::error::ArchError;
use crate::hyper::{Defaults, LayerParts, Precise, RopeUse};
use crate::layers::{hyper_connections, kda, mla};

const STYLE: Style = Style { rope_layers: RopeLayers::None, ..Style::LLAMA };

const PRECISE: Precise = Precise {
    kept: &[
        "hc_",
        "indexer.attn_q_b",
        "indexer.attn_k",
        "indexer.proj",
        "indexer_compressor_gate",
        "indexer_compressor_ape",
        "ssm_f_a.weight",
        "ssm_f_b.weight",
        "ssm_g_a.weight",
        "ssm_g_b.weight",
        "ssm_beta.weight",
        "attn_kv_a_mqa.weight",
        "attn_k_b.weight",
        "attn_v_b.weight",
    ],
    in_bytes: &["attn_q_a", "attn_q_b", "nextn.eh_proj"],
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "glm5-next",
    doc: "GLM-5.3-Flash",
    defaults: Defaults {
        precise: PRECISE,
        score: RouteScore::Sigmoid,
        reads: &["swiglu_clamp_exp", "swiglu_clamp_shexp"],
        adjust: |keys, hyper| {
            hyper.limit_shared_experts(keys);
            Ok(())
        },
        layer_parts: LayerParts::Keyless,
        rope_use: RopeUse::Never,
        ..Defaults::USUAL
    },
    build,
};

fn build(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let (kda, sizes) = (kda::Kda::read(&b.keys())?, b.mla()?);
    let mut selection = mla::IndexSelection::new(b, mla::IndexStyle::usual(STYLE.pairs))?;
    let streams = hyper_connections::streams(&b.keys())?;
    let x = b.embed()?;
    let mut x = hyper_connections::begin(b, x, streams.count)?;
    for layer in 0..b.hyper.layers.len() {
        let name = |part: &str| format!("blk.{layer}.{part}");
        x = hyper_connections::wrap_block(b, layer, "hc_attn", x, streams, |b, x| {
            let h = b.norm(x, &name("attn_norm.weight"))?;
            match b.hyper.layers[layer].recurrent {
                true => kda::mixer_of(b, layer, h, &kda),
                false => mla::attention_of(b, layer, h, &sizes, &STYLE, Some(&mut selection)),
            }
        })?;
        x = hyper_connections::wrap_block(b, layer, "hc_ffn", x, streams, |b, x| {
            let h = b.norm(x, &name("ffn_norm.weight"))?;
            networks(b, layer, h, &STYLE)
        })?;
    }
    hyper_connections::logits_of_mean(b, x, streams.count)
}
