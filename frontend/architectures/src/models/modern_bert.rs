//! `modern-bert`: ModernBERT and what was made of it for embeddings (GTE, Granite Embedding 2): blocks behind layer norms, but that the first one's attention takes embeddings as their own
//! norm leaves them; rotations of halves; and gates and what they weight in one matrix. Every third layer, from the first on, sees all of a text, with a base of its own for rotations;
//! the others see so many positions before a row and behind it.

use ixc_ir::graph::attrs::{Activation, GateAttrs};

use crate::architecture::Architecture;
use crate::decoder::{self, Style};
use crate::hyper::{Defaults, Norms, Windows};

const STYLE: Style = Style { fused_gate: true, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "modern-bert",
    doc: "ModernBERT, GTE and Granite Embedding 2 of its kind",
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
