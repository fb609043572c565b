//! `cohere2moe`: Command A with experts. Like `cohere2`, with layer norms or RMS norms. The first
//! of four layers has no window, and leading dense layers also have RoPE. Experts are selected by
//! sigmoids; the output is the mean of routed and shared experts.

use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{Roped, Style, decoder};
use crate::hyper::{Defaults, Norms, Windows};

const STYLE: Style = Style { parallel: true, roped: Roped::WindowedOrDense, halved: true, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "cohere2moe",
    doc: "Command A, MoE",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        reads: &["logit_scale"],
        logits_multiplied: true,
        norms: Norms::ByKey,
        windows: Some(Windows { first_is_full: true, ..Windows::every(4) }),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
