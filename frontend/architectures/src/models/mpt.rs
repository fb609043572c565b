//! `mpt`: MPT. Layer norms without biases, and a network without a gate. It has ALiBi
//! (`attention.max_alibi_bias`) or a table of positions (`position_embd`). Queries, keys and values
//! are clamped to a limit if files have one (`attention.clamp_kqv`). Rows of all heads go through
//! layer norms if files have them (`attn_q_norm`, `attn_k_norm`). The activation is GELU with the
//! error function, as in training; llama.cpp approximates it.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{CLAMP_KQV, HeadNorm, Style, clamped_projections, decoder, embed_with_positions};
use crate::hyper::{Defaults, MAX_BIAS, Norms, RopeUse};

/// Norms of rows of all heads, of the type of the stream's norms, if the file has the weights.
const HEAD_NORM: HeadNorm = HeadNorm {
    rows: |b, x, of| match b.has(&of.norm) {
        true => b.norm_of_rows(x, &of.norm, of.width, b.hyper.norm_eps),
        false => Ok(x),
    },
    ..HeadNorm::ABSENT
};

const STYLE: Style =
    Style { head_norm: HEAD_NORM, linear: clamped_projections, ungated: Some(Unary::GeluErf), ..Style::LLAMA };
/// Name of the table of positions.
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
