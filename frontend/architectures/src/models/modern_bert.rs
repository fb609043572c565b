//! `modern-bert`: ModernBERT and embedding models made from it (GTE, Granite Embedding 2). A layer
//! norm precedes each block, except the first attention, whose input is the normalised embedding.
//! RoPE pairs are half a head apart, and the gate and up matrices are stored as one matrix. Every
//! third layer, beginning with the first, attends to the whole text and has its own RoPE base. The
//! other layers have a window before and after each row.

use ixc_ir::graph::attrs::{Activation, GateAttrs};

use crate::architecture::Architecture;
use crate::decoder::{self, Style};
use crate::hyper::{Defaults, Norms, Windows};

const STYLE: Style = Style { fused_gate: true, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "modern-bert",
    doc: "ModernBERT; GTE and Granite Embedding 2 of the same architecture",
    defaults: Defaults {
        causal: false,
        norms: Norms::Layer,
        windows: Some(Windows { first_is_full: true, optional: true, base: Some(10_000.0), ..Windows::every(3) }),
        ..Defaults::USUAL
    },
    build: |b| {
        let style = Style { gate: GateAttrs::plain(b.hidden_activation(Activation::GeluErf)?), ..STYLE };
        let x = b.embed()?;
        let mut x = b.norm(x, "token_embd_norm.weight")?;
        for layer in b.layers() {
            let pre_norms = b.has(&format!("blk.{layer}.attn_norm.weight"));
            x = decoder::attention(b, layer, x, &Style { pre_norms, ..style })?;
            x = decoder::feed_forward(b, layer, x, &style)?;
        }
        b.logits(x)
    },
};
