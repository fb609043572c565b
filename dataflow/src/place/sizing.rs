//! Sizes of a plan's pieces for a grid: a *ladder*, a list of partitions from least latency to
//! least memory.
//!
//! The time of a row depends on the longest piece of each of its products, and on the number of
//! positions in a part of attention. Partitions with short pieces, whose sums are separate tasks,
//! therefore come first: these products wait only for activations. Partitions with longer pieces
//! need fewer PEs.
//!
//! The ladder is ordered by a layer's estimated cycles ([`latency`]), so the first partition with
//! room takes the least time. [`demand`] excludes partitions that cannot have room, before a plan
//! is made. If instances share PEs, the order is reversed: fewer pieces need fewer copies of
//! activations.
//!
//! ```text
//! 48 KiB a PE:  256 elements of 16 rows (2304 bytes of q4_k), 512, 1024, .. up to what a PE holds
//! ```

use crate::grid::Grid;
use ixc_ir::graph::types::CacheShape;
use ixc_ir::graph::{Function, Module, OpKind, Operand, WeightId};
use ixc_ir::plan::ATTENTION_BLOCK;

use crate::pieces::{Partition, Reduction, WeightTile};
use ixc_passes::pack::{factors, packed_alone};

/// Bytes of a PE's memory that are kept free for code and small messages.
const CODE: u64 = 6 << 10;
/// Max elements of SwiGLU's `silu` and `mul` in a task, if products have separate sums. The number
/// is small, because each element takes an exponential.
const SILU: u32 = 64;
/// Bytes of a weight row in a piece of a product. In every format, a piece with these bytes takes
/// the same time. They are 768 elements of q4_k, or 512 of q6_k.
const EVEN_ROW: u32 = 432;
/// Unit of the sizes of norm pieces: the number of elements in the longest block of activations.
const NORM_BLOCK: u64 = 256;
/// Max positions of a part of attention. With more, one PE would take too long.
const MAX_POSITIONS: u32 = 128;

/// Max positions of a context: the most that the parts of a state can hold.
pub const MAX_CONTEXT: u32 = 1 << 31;

/// Properties of a model on which the sizes of pieces depend.
#[derive(Clone, Copy, Debug, Default)]
struct Facts {
    /// Bytes of keys and values of one position of a head.
    position: u64,
    /// Number of elements of a value head.
    value: u64,
    /// Number of query heads that share a key head.
    group: u64,
    /// Number of experts of each token; 0 without experts.
    top_k: u64,
    /// Number of elements of the longest row that a norm reads; 0 without norms.
    row: u64,
}

impl Facts {
    fn of_step(module: &Module) -> Facts {
        module.functions.iter().find(|f| f.name == "step").map_or(Facts::default(), |f| Facts::from_function(module, f))
    }

    fn from_function(module: &Module, function: &Function) -> Facts {
        let mut facts = Facts { group: 1, ..Facts::default() };
        let mut heads = 1;
        for shape in module.states.iter().filter_map(CacheShape::from_state) {
            facts.position = facts.position.max(shape.key.saturating_add(shape.value).saturating_mul(2));
            facts.value = facts.value.max(shape.value);
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
                (OpKind::RmsNorm | OpKind::RmsNormQuantise, Some(ty)) => facts.row = facts.row.max(last(ty, 0)),
                _ => {}
            }
        }
        facts
    }
}

/// Returns the candidate partitions, least latency first, for a context of at most
/// [`MAX_CONTEXT`].
pub fn ladder(module: &Module, grid: &Grid, context: u32) -> Vec<Partition> {
    let facts = Facts::of_step(module);
    let usable = grid.usable_bytes();
    let left = usable.saturating_sub(CODE.min(usable / 4));
    let tile = |rows: u32, dot: u32, row: u32, reduction: Reduction| {
        // The limit on dot products leaves two thirds of the memory for weights.
        let most = u32::try_from(left / 9).unwrap_or(u32::MAX) / 256 * 256;
        let dot = dot.min(most.max(256));
        // Subtracts the memory for one row of quantised activations, with 11 bits for each element.
        // A second row is stored only if there is room.
        let bytes = left.saturating_sub(u64::from(dot).saturating_mul(11) / 8).max(1);
        WeightTile { bytes, rows, dot, row, reduction }
    };
    let heads_bytes = usable / 20 * 9;
    let pieces = |dense: WeightTile, experts: WeightTile, elements: u32, positions: u32| {
        // A sum over experts needs memory for two rows of all expert slots. Other ops need less.
        let row = facts.top_k.saturating_add(2).saturating_mul(8).max(32);
        let most = u32::try_from(left / row).unwrap_or(u32::MAX) / 256 * 256;
        let most = most.max(256);
        // If products wait only for activations, norms should finish as early as possible.
        // Otherwise they use as few pieces as fit.
        let norm = norm(facts.row, grid, left, dense.reduction == Reduction::Separate);
        let elements = elements.min(most);
        let silu = if dense.reduction == Reduction::Separate { elements.min(SILU) } else { elements };
        Partition { dense, experts, elements, silu, norm, positions, context, heads_bytes }
    };
    let beside = |dot| tile(16, dot, u32::MAX, Reduction::Separate);
    // Pieces that take as long as 512 elements of a larger format.
    let even = |dot| tile(16, dot, EVEN_ROW, Reduction::Separate);
    let chained = |rows, dot| tile(rows, dot, u32::MAX, Reduction::Chained);
    let positions = positions(&facts, usable, left, context);
    let most = positions.last().copied().unwrap_or(ATTENTION_BLOCK);
    let mut ladder = Vec::new();
    for (dense, experts, elements) in [
        (beside(256), beside(512), 256),
        (beside(512), beside(1024), 256),
        (beside(512), chained(64, 2048), 256),
        (even(768), beside(1024), 256),
        (even(768), chained(64, 2048), 256),
        (beside(1024), chained(64, 4096), 512),
        (beside(2048), chained(128, 4096), 1024),
    ] {
        ladder.extend(positions.iter().map(|&positions| pieces(dense, experts, elements, positions)));
    }
    ladder.sort_by(|a, b| latency(&facts, grid, a).total_cmp(&latency(&facts, grid, b)));
    ladder.extend([
        pieces(chained(32, 2048), chained(256, 8192), 1024, most),
        pieces(chained(64, 4096), chained(1024, 16384), 2048, most),
        pieces(chained(1024, 16384), chained(4096, 16384), 4096, most),
    ]);
    if facts.top_k == 0 {
        // Without experts, partitions that differ only in experts' pieces are the same.
        ladder.dedup_by_key(|partition| (partition.dense, partition.elements, partition.positions));
    }
    ladder
}

/// Number of products in a layer that wait for each other, including those with experts:
/// attention's input, attention's output, gate and up, down.
const DENSE_PRODUCTS: f64 = 4.0;
/// Number of these products that use experts' weights: gate and up, down.
const EXPERT_PRODUCTS: f64 = 2.0;

/// Estimates those cycles of a layer that depend on the partition: products and their sums,
/// attention over a part, and the combination of half of all parts.
///
/// For each element of a weight, there is a product of bytes, and integer operations that unpack it
/// and scale the sum. For each element of a key or value, there is a conversion, and a product for
/// each query head.
fn latency(facts: &Facts, grid: &Grid, partition: &Partition) -> f64 {
    let rates = &grid.pe.operations;
    let product = |tile: &WeightTile, row: u64| {
        // Rows in formats with more than six bits per element are limited by bytes. Formats with
        // six bits take longest to unpack.
        let dot = tile.dot.min(tile.row.saturating_mul(8) / 6);
        let each = f64::from(tile.rows) * f64::from(dot) * (2.0 / rates.int8 + 3.0 / rates.int);
        let sum = f64::from(grid.pe.start_cycles + grid.link.hop_cycles) + f64::from(tile.rows) / rates.f32;
        each + row.div_ceil(tile.dot.max(1).into()) as f64 * sum
    };
    let experts = EXPERT_PRODUCTS * f64::from(u8::from(facts.top_k > 0));
    let products = (DENSE_PRODUCTS - experts) * product(&partition.dense, facts.row)
        + experts * product(&partition.experts, facts.row);
    // Each key and value element has two bytes.
    let elements = f64::from(partition.positions) * (facts.position / 2) as f64;
    let attention = elements * (1.0 / rates.special + facts.group as f64 / rates.f32);
    let parts = f64::from(partition.context.div_ceil(partition.positions.max(1))) / 2.0;
    // A message has the parts of all query heads of a key head.
    let message = facts.group as f64 * 4.0 / f64::from(grid.link.bytes.max(1));
    let combined = parts * (facts.value + 2) as f64 * (message + 1.0 / rates.f32);
    products + attention + combined
}

/// Estimates the cycles of a layer. The ladder is ordered by this number.
pub(super) fn cycles(module: &Module, grid: &Grid, partition: &Partition) -> f64 {
    latency(&Facts::of_step(module), grid, partition)
}

/// Returns the minimum number of PEs for a module's weights and states if each slice has its own
/// PE, and the bytes of the weights.
pub(super) fn demand(module: &Module, partition: &Partition) -> (u64, u64) {
    let (mut pes, mut bytes) = (0u64, 0u64);
    for function in module.functions.iter().filter(|function| function.name == "step") {
        let caches = module.states.iter().filter_map(CacheShape::from_state);
        let parts = u64::from(partition.division().parts);
        pes = caches.fold(pes, |pes, shape| pes.saturating_add(shape.heads.saturating_mul(parts)));
        for (w, tile) in matrices(function, partition) {
            let Some(weight) = module.weights.get(w.index()) else { continue };
            let &[ref lead @ .., n, k] = &weight.shape[..] else { continue };
            let format = packed_alone(weight.format, &weight.shape);
            let (rows, dot) = tile.tile_size(format, n, k);
            let each = n.div_ceil(rows.max(1)).saturating_mul(k.div_ceil(dot.max(1)));
            let copies = lead.iter().fold(1, |all: u64, n| all.saturating_mul(*n));
            pes = pes.saturating_add(each.saturating_mul(copies));
            let matrix = format.row_bytes(k).unwrap_or(0).saturating_mul(n);
            bytes = bytes.saturating_add(matrix.saturating_mul(copies));
        }
    }
    (pes, bytes)
}

/// Returns the weights of products, each with the max tile into which it is cut.
fn matrices<'a>(function: &'a Function, partition: &'a Partition) -> impl Iterator<Item = (WeightId, &'a WeightTile)> {
    function.ops.iter().flat_map(move |op| {
        let names = factors(op.kind);
        op.operands.iter().zip(op.kind.row().operands).filter_map(move |(operand, row)| match operand {
            Operand::Weight(w) if names.contains(&row.name) => Some((
                *w,
                match op.kind {
                    OpKind::ExpertSwiglu | OpKind::ExpertDown => &partition.experts,
                    _ => &partition.dense,
                },
            )),
            Operand::Weight(_) | Operand::Value(_) | Operand::State(_) | Operand::Absent => None,
        })
    })
}

/// Bytes of memory that a whole row's norm needs for each element: the row, its weight, the result.
const NORM_BYTES: u64 = 10;
/// Bytes of memory that a piece of a norm needs for each element: two rows of the piece in both of
/// its tasks, its weight, two rows of the result.
const PIECE_BYTES: u64 = 23;

/// Returns the number of elements in a piece of a norm for which a PE has room. With `least_time`,
/// it has the least estimated time; otherwise the number of pieces is the smallest.
///
/// Each element takes a square, two products, the search for a block's largest element, another
/// product and a conversion. If there are several pieces, each starts two tasks, and waits for a
/// message from every other piece.
fn norm(row: u64, grid: &Grid, left: u64, least_time: bool) -> u32 {
    let (pe, rates) = (&grid.pe, &grid.pe.operations);
    let element = 6.0 / rates.f32 + 2.0 / rates.int + 1.0 / rates.special;
    let of_message = 2.0 * f64::from(grid.link.hop_cycles.max(1)) + 1.0 / rates.f32;
    let mut best: Option<(f64, u64)> = None;
    let mut pieces = 1;
    loop {
        let piece = if pieces == 1 { row } else { row.div_ceil(pieces).next_multiple_of(NORM_BLOCK) };
        let exchange = if pieces == 1 { 0.0 } else { f64::from(pe.start_cycles) + of_message * pieces as f64 };
        let cycles = piece as f64 * element + exchange;
        let bytes = piece.saturating_mul(if pieces == 1 { NORM_BYTES } else { PIECE_BYTES });
        let fits = bytes <= left;
        if fits && best.is_none_or(|(least, _)| least_time && cycles < least) {
            best = Some((cycles, piece));
        }
        if pieces > 1 && piece <= NORM_BLOCK {
            break;
        }
        pieces *= 2;
    }
    best.map_or(NORM_BLOCK, |(_, piece)| piece).try_into().unwrap_or(u32::MAX)
}

/// Returns the candidate numbers of positions in a part of attention, in ascending order. With the
/// smallest, one PE can still combine all parts; the largest is the most that a PE can keep.
fn positions(facts: &Facts, usable: u64, left: u64, context: u32) -> Vec<u32> {
    // A PE also holds code, the row of the append, and a query and a part of the result for each
    // query head.
    let head = facts.position.saturating_mul(2).saturating_add(1536);
    let rest = head.saturating_mul(facts.group).saturating_add(facts.position.saturating_mul(4)).saturating_add(CODE);
    let room = usable.saturating_sub(rest).checked_div(facts.position).unwrap_or(u64::MAX);
    let most = u32::try_from(room).unwrap_or(u32::MAX) / ATTENTION_BLOCK * ATTENTION_BLOCK;
    // A short context has only one part.
    let all = context.clamp(1, MAX_CONTEXT).next_multiple_of(ATTENTION_BLOCK);
    let most = most.clamp(ATTENTION_BLOCK, MAX_POSITIONS).min(all);
    let part = facts.value.saturating_add(2).saturating_mul(4);
    let parts = (left / 8 * 7).checked_div(part).unwrap_or(u64::MAX).max(1);
    let least = u32::try_from(u64::from(all).div_ceil(parts)).unwrap_or(u32::MAX);
    let least = least.checked_next_multiple_of(ATTENTION_BLOCK).map_or(most, |least| least.min(most));
    std::iter::successors(Some(least), |positions| (*positions < most).then(|| positions.saturating_mul(2).min(most)))
        .collect()
}
