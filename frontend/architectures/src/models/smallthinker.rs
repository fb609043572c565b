//! `smallthinker`: SmallThinker. The router takes the stream before attention, so that experts are
//! selected early. Gates go through ReLU. Three of every four layers have an attention window and
//! RoPE; the first of the four has neither.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::{Activation, GateAttrs};

use crate::architecture::Architecture;
use crate::builder::{Bias, Builder};
use crate::decoder::{RopeLayers, Style, attention, routed_experts};
use crate::error::ArchError;
use crate::hyper::{Defaults, Windows};

const STYLE: Style =
    Style { rope_layers: RopeLayers::Windowed, gate: GateAttrs::plain(Activation::Relu), ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "smallthinker",
    doc: "SmallThinker",
    defaults: Defaults {
        windows: Some(Windows { first_is_full: true, optional: true, ..Windows::every(4) }),
        ..Defaults::USUAL
    },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let mut x = b.embed()?;
    for layer in b.layers() {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let of = b.experts(layer)?;
        let logits = b.linear(x, &name("ffn_gate_inp"), b.hyper.embedding_length, of.count, Bias::Optional)?;
        let route = b.route(layer, logits, &of)?;
        x = attention(b, layer, x, &STYLE)?;
        let h = b.norm(x, &name("ffn_norm.weight"))?;
        let y = routed_experts(b, layer, h, route, &of, &STYLE)?;
        x = b.add(y, x)?;
    }
    b.logits(x)
}
