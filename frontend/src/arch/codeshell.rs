//! `codeshell`: CodeShell: layer norms, RoPE, queries, keys and values of one matrix, and a network without a gate, whose inner values go through GELU.

use ixc_ir::graph::Unary;

use super::Architecture;
use super::decoder::{Style, decoder};
use super::hyper::{Defaults, Norms};

const STYLE: Style = Style { ungated: Some(Unary::Gelu), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "codeshell",
    doc: "CodeShell",
    defaults: Defaults { norms: Norms::Layer, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
