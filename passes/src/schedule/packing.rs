//! Which weights are packed.
//!
//! A weight is packed for matrix products, where its rows (of each expert) are whole strips of 16 and its columns whole packed blocks. A
//! tied embedding is in the plan twice, as in the file for its rows too. Gate and up are both packed or neither, since one kernel reads
//! both.
//!
//! ```text
//! weight @w : q4_k[520, 256]     // 520 is no multiple of 16: stays
//! weight @v : q4_k[512, 256]     // q4_k_r16
//! ```

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_ir::graph::{Function, Module, OpKind, Operand, WeightId};

use super::MatrixTarget;

/// For each weight of the module the format that kernels read, where that is not the one in the file.
pub(super) fn packed(module: &Module, function: &Function, target: MatrixTarget) -> Vec<Option<Format>> {
    let mut formats: Vec<Option<Format>> = module.weights.iter().map(|_| None).collect();
    if !target.packed {
        return formats;
    }
    for (format, weight) in formats.iter_mut().zip(&module.weights) {
        *format = packable(weight.format, &weight.shape, target);
    }
    let mut pairs = Vec::new();
    for op in &function.ops {
        if let OpKind::LinearSwiglu | OpKind::ExpertSwiglu = op.kind
            && let (Operand::Weight(gate), Operand::Weight(up)) = (op.operand("gate"), op.operand("up"))
        {
            pairs.push((gate, up));
        }
    }
    // A weight may be in several pairs: until nothing changes, which each round but the last does to one more weight.
    while let Some(w) = pairs.iter().find_map(|&(gate, up)| odd_one(&formats, gate, up, target)) {
        formats[w.index()] = None;
    }
    formats
}

/// The packed one of two weights, where the other is not; one of both, where tile products would take other activations for each.
fn odd_one(formats: &[Option<Format>], gate: WeightId, up: WeightId, target: MatrixTarget) -> Option<WeightId> {
    match (formats[gate.index()], formats[up.index()]) {
        (Some(g), Some(u)) if target.tiles && g.tile_activation() != u.tile_activation() => Some(gate),
        (Some(_), None) => Some(gate),
        (None, Some(_)) => Some(up),
        (Some(_), Some(_)) | (None, None) => None,
    }
}

/// The packed form of a weight of this format and shape.
fn packable(format: Format, shape: &[u64], target: MatrixTarget) -> Option<Format> {
    let packed = format.packed()?;
    let &[.., n, k] = shape else { return None };
    let strips = n.is_multiple_of(STRIP as u64) && k.is_multiple_of(packed.block_len() as u64);
    // Tile products take their activations in blocks.
    let activation = packed.tile_activation().filter(|_| target.tiles).unwrap_or(packed.activation());
    (strips && k.is_multiple_of(activation.block_len() as u64)).then_some(packed)
}

/// The format of a weight that nothing but products read, packed where it can be, for targets without tiles.
pub fn packed_alone(format: Format, shape: &[u64]) -> Format {
    packable(format, shape, MatrixTarget { packed: true, tiles: false }).unwrap_or(format)
}

/// The operands of an op that are weights which a product multiplies with.
pub fn factors(kind: OpKind) -> &'static [&'static str] {
    match kind {
        OpKind::Dequantise | OpKind::Linear | OpKind::ExpertDown => &["w"],
        OpKind::LinearQkv => &["wq", "wk", "wv"],
        OpKind::LinearSwiglu | OpKind::ExpertSwiglu => &["gate", "up"],
        // Loads what products read.
        OpKind::ExpertPrefetch => &["gate", "up", "down"],
        OpKind::Embed
        | OpKind::Matmul
        | OpKind::Add
        | OpKind::Mul
        | OpKind::Unary(_)
        | OpKind::AddBias
        | OpKind::RmsNorm
        | OpKind::RmsNormQuantise
        | OpKind::SplitHeads
        | OpKind::MergeHeads
        | OpKind::Rope
        | OpKind::RopeHeads
        | OpKind::Recurrent(_)
        | OpKind::StateBegin
        | OpKind::KvAppend
        | OpKind::RopeAppend
        | OpKind::Attention
        | OpKind::Route
        | OpKind::TakeRows
        | OpKind::Quantise
        | OpKind::ExpertMatmul
        | OpKind::ExpertCombine
        | OpKind::ExpertSplit
        | OpKind::ExpertSlots
        | OpKind::ExpertWait
        | OpKind::ExpertEvict => &[],
    }
}
