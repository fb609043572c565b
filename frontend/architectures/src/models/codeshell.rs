//! `codeshell`: CodeShell. It has layer norms, RoPE, one matrix for queries, keys and values, and a
//! network without a gate, with GELU. If the file lacks the embedding table (`token_embd`), the
//! output matrix serves as that table.

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, Norms};

const STYLE: Style = Style { ungated: Some(Unary::Gelu), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "codeshell",
    doc: "CodeShell",
    defaults: Defaults {
        norms: Norms::Layer,
        complete: |gguf, _| gguf.with_same("token_embd.weight", "output.weight"),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
