//! `step35`: Step-3.5 and 3.7 Flash. Layers without an attention window have fewer heads, and RoPE
//! rotates half of each head. A gate for each head multiplies the output of attention. Experts are
//! selected by sigmoids with a bias; a shared expert is added. In some layers, activations of gates
//! have a limit. A layer has experts if the file has its router.

use ixc_ir::graph::Unary;
use ixc_ir::graph::attrs::{Activation, GateAttrs, RouteScore};
use ixc_model_files::gguf::GgufError;

use crate::architecture::Architecture;
use crate::decoder::{HeadNorm, OutputGate, Style, decoder};
use crate::hyper::{Defaults, DraftInput, Hyper, Keys, Windows};

const STYLE: Style = Style {
    head_norm: HeadNorm::OPTIONAL,
    output_gate: OutputGate::Own(Unary::Sigmoid),
    gate: GateAttrs::plain(Activation::LimitedSilu),
    ..Style::NEOX
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "step35",
    doc: "Step-3.5, 3.7 Flash",
    defaults: Defaults {
        score: RouteScore::Sigmoid,
        reads: &["swiglu_clamp_exp", "swiglu_clamp_shexp"],
        windows: Some(Windows { base: Some(10_000.0), scaled: false, ..Windows::every(0) }),
        adjust: adjust_rope,
        dense_by_tensor: true,
        draft_input: Some(DraftInput::Stream),
        ..Defaults::USUAL
    },
    build: |b| decoder(b, &STYLE),
};

/// Halves the number of rotated elements in layers without a window. Only their frequencies are
/// divided by `rope_freqs.weight`.
fn adjust_rope(keys: &Keys<'_>, hyper: &mut Hyper) -> Result<(), GgufError> {
    let dims = hyper.rope.dims;
    if !dims.is_multiple_of(4) {
        let limit = "a multiple of 4, because layers without a window rotate half of a head, in pairs";
        return Err(keys.metadata.bad_value(&keys.name("rope.dimension_count"), dims, limit));
    }
    hyper.rope.dims = dims / 2;
    hyper.keep_local_frequencies();
    Ok(())
}
