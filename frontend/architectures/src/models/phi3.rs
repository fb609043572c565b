//! `phi3`: Phi-3 and later, dense: queries, keys and values by one matrix, gate and up by another. Those of long contexts divide frequencies by one
//! of two lists of factors (longrope): `rope_factors_long.weight` where the context has room for more positions than
//! `rope.scaling.original_context_length`, `rope_factors_short.weight` where it does not. (Transformers goes by the positions that there are.)

use crate::architecture::Architecture;
use crate::decoder::{Style, decoder};
use crate::hyper::Defaults;

const STYLE: Style = Style { fused_gate: true, ..Style::NEOX };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "phi3",
    doc: "Phi-3, Phi-3.5, Phi-4 and their mini ones",
    defaults: Defaults::USUAL,
    build: |b| decoder(b, &STYLE),
};
