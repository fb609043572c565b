//! `codeshell`: CodeShell: layer norms, RoPE, queries, keys and values of one matrix, and a network without a gate, whose inner values go through GELU. Files may lack the
//! table of embeddings (`token_embd`), which is the output matrix then.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style { ungated: Some(Unary::Gelu), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "codeshell",
    doc: "CodeShell",
    defaults: Defaults { norms: Norms::Layer, embeds_by_output: true, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
