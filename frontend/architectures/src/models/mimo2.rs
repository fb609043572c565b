//! `mimo2`: MiMo-V2-Flash. Layers with an attention window have sinks and more key heads than other
//! layers. Values are shorter than keys, and a factor multiplies the output of attention. A layer
//! has experts if the file has its router.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{Scores, Style, attention_output, build_attention, feed_forward};
use crate::error::ArchError;
use crate::hyper::{Defaults, DraftInput, Windows};

/// Key of the factor on the output of attention.
const VALUE_SCALE: &str = "attention.value_scale";

const STYLE: Style = Style {
    scores: |b, layer, scores| Ok(Scores { sinks: b.hyper.layers[layer].window.is_some(), ..scores }),
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "mimo2",
    doc: "MiMo-V2-Flash, V2.5",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        reads: &[VALUE_SCALE],
        windows: Some(Windows { base: Some(10_000.0), scaled: false, ..Windows::every(0) }),
        dense_by_tensor: true,
        draft_input: Some(DraftInput::Stream),
        ..Defaults::USUAL
    },
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let factor = b.keys().factor(VALUE_SCALE, 1.0)?;
    let mut x = b.embed()?;
    for layer in b.layers() {
        let h = b.norm(x, &format!("blk.{layer}.attn_norm.weight"))?;
        let mut y = build_attention(b, layer, h, &STYLE, None)?;
        y.heads = b.scale(y.heads, factor)?;
        let y = attention_output(b, layer, h, y, &STYLE)?;
        x = b.add(y, x)?;
        x = feed_forward(b, layer, x, &STYLE)?;
    }
    b.logits(x)
}
