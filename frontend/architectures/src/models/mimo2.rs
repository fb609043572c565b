//! `mimo2`: MiMo-V2-Flash. Layers with a window have sinks and more key heads than others. Values
//! are shorter than keys, and the output of attention has a factor. Tensors show which layers have
//! experts.

use ixc_ir::graph::attrs::RouteScore;

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::{Defaults, DraftInput, Windows};

/// Key of the factor on the output of attention.
const VALUE_SCALE: &str = "attention.value_scale";

const STYLE: Style = Style {
    sinks: |layer| layer.window.is_some(),
    attention_result: |b, y| {
        let factor = b.keys().factor(VALUE_SCALE, 1.0)?;
        b.scale(y, factor)
    },
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
    build: |b| decoder(b, &STYLE),
};
