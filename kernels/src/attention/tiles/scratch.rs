//! Layout of the scratch memory of tiled attention.

use super::panels::Sizes;
use super::{PAIR, RUN};
use crate::generator::bf16_tile::LINE;

/// Bytes from the high parts of a pair's weights to the low parts.
pub(super) const LOW_WEIGHTS: i64 = PAIR as i64 * RUN * 2;

/// Rounds up to a multiple.
pub(super) fn whole(n: i64, of: i64) -> i64 {
    (n + of - 1) / of * of
}

/// Offsets in scratch memory, in bytes. Each field names the contents at its offset.
pub(super) struct Places {
    /// Rows of queries times the factor on scores, as bf16.
    pub(super) queries: i64,
    /// Rows of scores of a pair, before cap and slopes.
    pub(super) scores: i64,
    /// Rows of scores of the previous pair, during the products of the next one.
    pub(super) read: i64,
    /// Tiles of both strips' weights of a pair, for each block.
    pub(super) weights: i64,
    /// Rows of sums of weighted values.
    pub(super) acc: i64,
    /// A vector of sums of weights for each query.
    pub(super) sums: i64,
    /// The maximum of each query's scores.
    pub(super) maxima: i64,
    /// The position of each query's row.
    pub(super) own: i64,
    /// Offset of the first position that each query's row sees, with a window. This position may be
    /// below 0.
    pub(super) seen: i64,
    /// Offset of each query's slope times log2 e, with slopes. `places` has the position of each
    /// query's row, as f32.
    pub(super) slopes: i64,
    pub(super) places: i64,
    /// Factors that rescale earlier sums for new maxima, for the queries of a pair.
    pub(super) factors: i64,
}

/// The layout of scratch memory.
pub(super) struct Scratch {
    /// Offset of the unpacked keys.
    pub(super) keys_at: i64,
    /// Offset of the unpacked values.
    pub(super) values_at: i64,
    pub(super) at: Places,
    pub(super) bytes: i64,
}

impl Scratch {
    pub(super) fn new(sizes: &Sizes, queries: i64, window: bool, slopes: bool) -> Scratch {
        let mut bytes = 0;
        let mut place = |size: i64| {
            let at = bytes;
            bytes = whole(bytes + size, LINE);
            at
        };
        let (keys_at, values_at) = (place(sizes.keys_bytes()), place(sizes.values_bytes()));
        let at = Places {
            queries: place(queries * sizes.query_bytes()),
            scores: place(i64::from(PAIR) * RUN * 4),
            read: place(i64::from(PAIR) * RUN * 4),
            weights: place(sizes.parts * LOW_WEIGHTS),
            acc: place(queries * sizes.padded_dv * 4),
            sums: place(queries * LINE),
            maxima: place(queries * 4),
            own: place(queries * 4),
            seen: place(if window { queries * 4 } else { 0 }),
            slopes: place(if slopes { queries * 4 } else { 0 }),
            places: place(if slopes { queries * 4 } else { 0 }),
            factors: place(i64::from(PAIR) * 4),
        };
        Scratch { keys_at, values_at, at, bytes }
    }
}
