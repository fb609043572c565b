//! `mpt`: MPT: layer norms without biases, a network without a gate, and scores of attention that fall with distance (`attention.max_alibi_bias`) or rows of a table for
//! positions (`position_embd`). Queries, keys and values are cut off to stay within a limit where files have one (`attention.clamp_kqv`); those of all heads
//! together go through layer norms where files have them (`attn_q_norm`, `attn_k_norm`). Between up and down stands GELU by the error function, as the models were trained;
//! llama.cpp has what is near to it.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, Style, decoder};
use crate::hyper::{Defaults, MAX_BIAS, Norms, Rotates};

const STYLE: Style = Style { head_norm: HeadNorm::RowAsStream, ungated: Some(Unary::GeluErf), ..Style::LLAMA };
/// The table of positions.
const POSITIONS: &str = "position_embd.weight";

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mpt",
    doc: "MPT",
    defaults: Defaults {
        reads: &[MAX_BIAS, "attention.clamp_kqv"],
        norms: Norms::Layer,
        rotates: Rotates::Never,
        ..Defaults::USUAL
    },
    build: |b| {
        let learned_positions = b.has(POSITIONS);
        decoder(b, &Style { learned_positions, ..STYLE })
    },
};
