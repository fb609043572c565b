//! `cohere2moe`: Command A with experts. Like `cohere2`, but with layer norms or RMS norms. The
//! first of every four layers has no attention window. Dense layers also have RoPE. Experts are
//! selected by sigmoids; the output is the mean of routed and shared experts.

use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder, shared_expert};
use crate::hyper::{Defaults, Layer, Norms, RMS_EPS, Windows};

const STYLE: Style = Style {
    parallel: true,
    shared: |b, layer, h, inner, style| {
        let y = shared_expert(b, layer, h, inner, style)?;
        b.scale(y, 0.5)
    },
    ..Style::LLAMA
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "cohere2moe",
    doc: "Command A, MoE",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        reads: &["logit_scale"],
        logits_multiplied: true,
        adjust: |keys, hyper| {
            // Files of models with layer norms lack the epsilon of RMS norms.
            if !keys.has(RMS_EPS) {
                hyper.norms = Norms::Layer;
            }
            let experts = hyper.layers.iter_mut().filter_map(|layer| layer.experts.as_mut());
            experts.filter(|of| of.shared > 0).for_each(|of| of.scale /= 2.0);
            // RoPE rotates heads in layers with a window, and in dense layers.
            let rotates = |layer: &Layer| layer.window.is_some() || layer.experts.is_none();
            hyper.layers.iter_mut().for_each(|layer| layer.has_rope &= rotates(layer));
            Ok(())
        },
        windows: Some(Windows { first_is_full: true, ..Windows::every(4) }),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
