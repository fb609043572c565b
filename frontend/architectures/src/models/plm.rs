//! `plm`: PLM: latent attention ([`crate::mla`]), whose queries are products of the stream itself,
//! and a network without a gate. Its inner values are rectified and squared. The output matrix is
//! the table of embeddings.
//!
//! ```text
//! x += attn_output attention(attn_q norm(x), latent row of norm(x))      keys and values: attn_kv_b
//! x += ffn_down max(ffn_up norm(x), 0)^2
//! ```

use ixc_ir::graph::Unary;

use crate::absorbed;
use crate::architecture::Architecture;
use crate::decoder::Style;
use crate::hyper::Defaults;
use crate::mla::decoder;

const STYLE: Style = Style { ungated: Some(Unary::ReluSquared), ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "plm",
    doc: "PLM",
    defaults: Defaults { made: absorbed::tensors, ..Defaults::USUAL },
    build: |b| decoder(b, &STYLE),
};
