//! `cohere2moe`: Command A with experts: as `cohere2`, with layer norms or RMS norms; the first of four layers sees all, and leading dense ones have
//! RoPE, too. Experts are chosen by sigmoids, and the mean of them and of the shared ones counts.

use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{Roped, Style, decoder};
use crate::hyper::{Defaults, Norms, Windows};

const STYLE: Style = Style { parallel: true, roped: Roped::WindowedOrDense, halved: true, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "cohere2moe",
    doc: "Command A with experts",
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
