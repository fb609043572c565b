//! `bloom`: BLOOM and BLOOMZ. It has ALiBi instead of RoPE, a layer norm on embeddings, and a
//! network without a gate. The converter writes no key for ALiBi's slopes, but files may have
//! `attention.max_alibi_bias`.
//!
//! ```text
//! x = norm(token_embd[id])
//! x += attn_output softmax(q . k / sqrt(d) - slope * distance) v        q, k, v = attn_qkv norm(x)
//! x += ffn_down gelu(ffn_up norm(x))
//! ```

use ixc_ir::graph::Unary;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, MAX_BIAS, Norms, RopeUse, Scales};

const STYLE: Style = Style {
    embed: |b| {
        let x = b.embed()?;
        b.norm(x, "token_embd_norm.weight")
    },
    ungated: Some(Unary::Gelu),
    ..Style::LLAMA
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "bloom",
    doc: "BLOOM, BLOOMZ",
    defaults: Defaults {
        reads: &[MAX_BIAS],
        norms: Norms::Layer,
        rope_use: RopeUse::Never,
        scales: |_| Scales::ALIBI,
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};
