//! `plm`: PLM. It has latent attention ([`crate::layers::mla`]), with queries made from the layer's
//! input, and a network without a gate, whose activation is the square of ReLU. The output matrix
//! is the embedding table.
//!
//! ```text
//! // keys and values are made from latent rows by attn_kv_b
//! x += attn_output attention(attn_q norm(x), latent row of norm(x))
//! x += ffn_down max(ffn_up norm(x), 0)^2
//! ```

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::Style;
use crate::hyper::Defaults;
use crate::layers::key_absorption;
use crate::layers::mla::decoder;

const STYLE: Style = Style { ungated: Some(Unary::ReluSquared), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "plm",
    doc: "PLM",
    defaults: Defaults {
        complete: |gguf, name| {
            let made = key_absorption::tensors(&gguf, name)?;
            gguf.with(made)
        },
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
