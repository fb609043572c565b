//! How large the pieces of a plan may be for a grid: a ladder from least latency to least memory.
//!
//! A row takes the time of the longest piece of each of its products, so the shortest dot products come first, with sums beside them, whose
//! pieces wait for nothing but activations. Longer ones take fewer PEs: the first of the ladder that has room is the one with the least
//! estimated latency. Where instances share PEs, the other end comes first: the fewer pieces, the fewer copies of activations.
//!
//! ```text
//! 48 KiB a PE:  256 elements of 16 rows (2304 bytes of q4_k), 512, 1024, .. up to what a PE holds
//! ```

use ixc_ir::dataflow::grid::Grid;
use ixc_ir::graph::types::Caches;
use ixc_ir::graph::{Function, Module, OpKind};
use ixc_ir::plan::ATTENTION_BLOCK;

use crate::schedule::pieces::{Pieces, Slices, Sums};

/// Bytes of a PE for code and small messages.
const CODE: u64 = 6 << 10;
/// Positions of a part at most: more take long for one PE.
const MOST_POSITIONS: u32 = 128;

/// What sizes depend on.
#[derive(Clone, Copy, Debug, Default)]
struct Facts {
    /// Bytes of keys and values of a head's position.
    position: u64,
    /// Elements of a value head.
    value: u64,
    experts: bool,
}

impl Facts {
    fn of(module: &Module, function: &Function) -> Facts {
        let layers = Caches::of(module, function);
        let mut facts = Facts {
            experts: function.ops.iter().any(|op| matches!(op.kind, OpKind::ExpertSwiglu | OpKind::ExpertMatmul)),
            ..Facts::default()
        };
        for (_, shape) in layers.layers() {
            facts.position = facts.position.max(shape.key.saturating_add(shape.value).saturating_mul(2));
            facts.value = facts.value.max(shape.value);
        }
        facts
    }
}

/// The ladder, least latency first.
pub fn ladder(module: &Module, grid: &Grid, context: u32) -> Vec<Pieces> {
    let facts = module.functions.iter().find(|f| f.name == "step").map_or(Facts::default(), |f| Facts::of(module, f));
    let usable = grid.usable_bytes();
    let left = usable.saturating_sub(CODE.min(usable / 4));
    let slices = |rows: u32, dot: u32, sums: Sums| {
        // Two rows of quantised activations, at 11 bits an element.
        let bytes = left.saturating_sub(u64::from(dot).saturating_mul(3)).max(1);
        Slices { bytes, rows, dot, sums }
    };
    let (positions, combine_bytes) = parts(&facts, usable, context);
    let pieces = |dense: Slices, experts: Slices, elements: u32| {
        let most = u32::try_from(left / 32).unwrap_or(u32::MAX).max(32);
        Pieces { dense, experts, elements: elements.min(most), positions, context, combine_bytes }
    };
    let beside = |dot| slices(16, dot, Sums::Beside);
    let chained = |rows, dot| slices(rows, dot, Sums::InProducts);
    let mut ladder = vec![
        pieces(beside(256), beside(512), 256),
        pieces(beside(512), beside(1024), 256),
        pieces(beside(512), slices(32, 2048, Sums::Beside), 512),
        pieces(beside(1024), slices(48, 2048, Sums::Beside), 512),
        pieces(beside(1024), chained(64, 4096), 512),
        pieces(beside(2048), chained(128, 4096), 1024),
        pieces(chained(32, 2048), chained(256, 8192), 1024),
        pieces(chained(64, 4096), chained(1024, 16384), 2048),
        pieces(chained(1024, 16384), chained(4096, 16384), 4096),
    ];
    if !facts.experts {
        // What experts' slices are makes no difference.
        ladder.dedup_by_key(|pieces| (pieces.dense, pieces.elements));
    }
    ladder
}

/// Positions of a part, and bytes of the parts that are combined.
fn parts(facts: &Facts, usable: u64, context: u32) -> (u32, u64) {
    let combine = usable / 3;
    let room = (usable / 100 * 72).checked_div(facts.position).unwrap_or(u64::MAX);
    let most = u32::try_from(room).unwrap_or(u32::MAX) / ATTENTION_BLOCK * ATTENTION_BLOCK;
    let most = most.clamp(ATTENTION_BLOCK, MOST_POSITIONS);
    // A short context is one part.
    (most.min(context.max(1).next_multiple_of(ATTENTION_BLOCK)), combine)
}
