//! `glm4`: GLM-4 of 2025, dense. A norm precedes and follows each block, the gate and up matrices
//! are stored as one matrix, and RoPE rotates half of each head. The converter permutes the
//! matrices of vision models (GLM-4.1V, GLM-4.6V-Flash), so their RoPE pairs are half of the
//! rotated length apart.

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::RopeStyle;
use ixc_model_files::gguf::Value;

use crate::architecture::Architecture;
use crate::builder::Builder;
use crate::decoder::{self, PostNorms, Style};
use crate::error::ArchError;
use crate::hyper::{Defaults, Keys};

const STYLE: Style = Style { post_norms: Some(PostNorms::USUAL), fused_gate: true, ..Style::LLAMA };

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "glm4",
    doc: "GLM-4-0414, dense; GLM-4.1V and 4.6V-Flash (text only)",
    defaults: Defaults::USUAL,
    build: decoder,
};

fn decoder(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let pairs = if has_sections(&b.keys()) { RopeStyle::Neox } else { STYLE.pairs };
    decoder::decoder(b, &Style { pairs, ..STYLE })
}

/// Returns whether RoPE pairs are divided among several dimensions of a position (M-RoPE), as in
/// vision models. This is so if the first two dimensions have a nonzero number of pairs.
fn has_sections(keys: &Keys<'_>) -> bool {
    match keys.metadata.get(&keys.name("rope.dimension_sections")) {
        Some(Value::Array(sections)) => (0..2).all(|of| sections.integer(of).is_some_and(|pairs| pairs > 0)),
        _ => false,
    }
}
