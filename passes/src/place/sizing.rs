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
    /// Query heads of a key head.
    group: u64,
    /// Experts of a token, 0 where there are none.
    top_k: u64,
}

impl Facts {
    fn of(module: &Module, function: &Function) -> Facts {
        let layers = Caches::of(module, function);
        let mut facts = Facts { group: 1, ..Facts::default() };
        let mut heads = 1;
        for (_, shape) in layers.layers() {
            facts.position = facts.position.max(shape.key.saturating_add(shape.value).saturating_mul(2));
            heads = heads.max(shape.heads);
        }
        for op in &function.ops {
            let result = op.results.first().map(|&result| function.ty(result));
            let last = |ty: &ixc_ir::graph::Type, back: usize| {
                ty.dims().iter().rev().nth(back).and_then(|dim| dim.fixed()).unwrap_or(0)
            };
            match (op.kind, result) {
                (OpKind::Attention, Some(ty)) => facts.group = facts.group.max(last(ty, 1) / heads),
                (OpKind::Route, Some(ty)) => facts.top_k = facts.top_k.max(last(ty, 0)),
                _ => {}
            }
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
        // Dot products as long as leaves two thirds for weights.
        let most = u32::try_from(left / 9).unwrap_or(u32::MAX) / 256 * 256;
        let dot = dot.min(most.max(256));
        // A row of quantised activations, at 11 bits an element; there is a second one where there is room.
        let bytes = left.saturating_sub(u64::from(dot).saturating_mul(11) / 8).max(1);
        Slices { bytes, rows, dot, sums }
    };
    let (positions, combine_bytes) = parts(&facts, usable, context);
    let pieces = |dense: Slices, experts: Slices, elements: u32| {
        // Two rows of all slots are summed over experts, and less than that elsewhere.
        let row = facts.top_k.saturating_add(2).saturating_mul(8).max(32);
        let most = u32::try_from(left / row).unwrap_or(u32::MAX) / 256 * 256;
        let most = most.max(256);
        Pieces { dense, experts, elements: elements.min(most), positions, context, combine_bytes }
    };
    let beside = |dot| slices(16, dot, Sums::Beside);
    let chained = |rows, dot| slices(rows, dot, Sums::InProducts);
    let mut ladder = vec![
        pieces(beside(256), beside(512), 256),
        pieces(beside(512), beside(1024), 256),
        pieces(beside(512), chained(64, 2048), 256),
        pieces(beside(1024), chained(64, 4096), 512),
        pieces(beside(2048), chained(128, 4096), 1024),
        pieces(chained(32, 2048), chained(256, 8192), 1024),
        pieces(chained(64, 4096), chained(1024, 16384), 2048),
        pieces(chained(1024, 16384), chained(4096, 16384), 4096),
    ];
    if facts.top_k == 0 {
        // What experts' slices are makes no difference.
        ladder.dedup_by_key(|pieces| (pieces.dense, pieces.elements));
    }
    ladder
}

/// Positions of a part, and bytes of the parts that are combined.
fn parts(facts: &Facts, usable: u64, context: u32) -> (u32, u64) {
    let combine = usable / 3;
    // Beside keys and values: code, the append's row, and of each query head a query and a part.
    let head = facts.position.saturating_mul(2).saturating_add(1536);
    let rest = head.saturating_mul(facts.group).saturating_add(facts.position.saturating_mul(4)).saturating_add(CODE);
    let room = usable.saturating_sub(rest).checked_div(facts.position).unwrap_or(u64::MAX);
    let most = u32::try_from(room).unwrap_or(u32::MAX) / ATTENTION_BLOCK * ATTENTION_BLOCK;
    let most = most.clamp(ATTENTION_BLOCK, MOST_POSITIONS);
    // A short context is one part.
    (most.min(context.max(1).next_multiple_of(ATTENTION_BLOCK)), combine)
}
