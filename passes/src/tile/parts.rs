//! Division of weight rows into full tiles and remaining rows.

use ixc_ir::format::packed::STRIP;

/// A part of a product: `columns` tiles from weight row `first`.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSplit {
    /// Number of weight rows, or elements, in a tile.
    pub tile: u64,
    /// First weight row of the tiles.
    pub first: u64,
    /// Number of tiles of this size.
    pub columns: u64,
}

/// Splits `n` into full tiles and a remainder.
pub fn parts(n: u64, tile: u64) -> Vec<ColumnSplit> {
    let full = ColumnSplit { tile, first: 0, columns: n / tile };
    let rest = ColumnSplit { tile: n % tile, first: n - n % tile, columns: 1 };
    [full, rest].into_iter().filter(|part| part.tile > 0 && part.columns > 0).collect()
}

/// Splits a weight's rows into full tiles like [`parts`]. The remaining rows are split into whole
/// strips and rows that do not fill a strip.
pub fn weight_parts(n: u64, tile: u64) -> Vec<ColumnSplit> {
    let split = |part: ColumnSplit| {
        let strips = part.tile / STRIP as u64 * STRIP as u64;
        if part.columns > 1 || strips == 0 || strips == part.tile {
            return vec![part];
        }
        let rest = ColumnSplit { tile: part.tile - strips, first: part.first + strips, columns: 1 };
        vec![ColumnSplit { tile: strips, ..part }, rest]
    };
    parts(n, tile).into_iter().flat_map(split).collect()
}
