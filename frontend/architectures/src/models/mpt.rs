//! `mpt`: MPT. It has layer norms without biases, and a network without a gate. It has ALiBi
//! (`attention.max_alibi_bias`) or a table of positions (`position_embd`). If files have
//! `attention.clamp_kqv`, queries, keys and values are clamped to it. If files have `attn_q_norm`
//! and `attn_k_norm`, layer norms normalise all heads of a row together. The activation is GELU
//! with the error function, as in training; llama.cpp approximates it.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{CLAMP_KQV, HeadNorm, Style, clamped_projections, decoder, embed_with_positions};
use crate::hyper::{Defaults, MAX_BIAS, Norms, RopeUse};

/// Norms of all heads of a row together, of the type of the stream's norms. They apply if the file
/// has the weights.
const HEAD_NORM: HeadNorm = HeadNorm {
    rows: |b, x, of| match b.has(&of.norm) {
        true => b.norm_of_rows(x, &of.norm, of.width, b.hyper.norm_eps),
        false => Ok(x),
    },
    ..HeadNorm::ABSENT
};

const STYLE: Style =
    Style { head_norm: HEAD_NORM, linear: clamped_projections, ungated: Some(Unary::GeluErf), ..Style::LLAMA };
/// Name of the table of positions, which the file may lack.
const POSITIONS: &str = "position_embd.weight";

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mpt",
    doc: "MPT",
    defaults: Defaults {
        reads: &[MAX_BIAS, CLAMP_KQV],
        norms: Norms::Layer,
        rope_use: RopeUse::Never,
        ..Defaults::USUAL
    },
    build: |b| {
        let has_positions = b.has(POSITIONS);
        decoder(b, &Style { embed: if has_positions { embed_with_positions } else { STYLE.embed }, ..STYLE })
    },
};
