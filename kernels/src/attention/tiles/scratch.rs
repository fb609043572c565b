//! Layout of the scratch memory of attention with tile products.

use super::panels::Sizes;
use super::{PAIR, RUN};
use crate::generator::bf16_tile::LINE;

/// Distance in bytes from the high parts of a pair's weights to the low parts.
pub(super) const LOW_WEIGHTS: i64 = PAIR as i64 * RUN * 2;

/// Rounds `n` up to a multiple of `of`.
pub(super) fn whole(n: i64, of: i64) -> i64 {
    (n + of - 1) / of * of
}

/// Offsets in scratch memory, in bytes. Each field names the data at its offset.
pub(super) struct Places {
    /// Queries as rows of bf16, multiplied by the factor on scores.
    pub(super) queries: i64,
    /// Scores of a pair of strips in rows, before cap and slopes.
    pub(super) scores: i64,
    /// Scores of the previous pair in rows, while the products of the next pair are computed.
    pub(super) read: i64,
    /// Weights of a pair of strips as tiles, for each block.
    pub(super) weights: i64,
    /// Sums of weighted values, one row for each query.
    pub(super) acc: i64,
    /// A vector of sums of weights for each query.
    pub(super) sums: i64,
    /// The maximum of each query's scores.
    pub(super) maxima: i64,
    /// The position of each query's row.
    pub(super) own: i64,
    /// First position that each query's row sees, if there is a window. It may be below 0.
    pub(super) seen: i64,
    /// Slope of each query times log2 e, if there are slopes. `places` then has the position of
    /// each query's row as f32.
    pub(super) slopes: i64,
    pub(super) places: i64,
    /// Factors that rescale earlier sums for the new maxima, for the queries of a pair.
    pub(super) factors: i64,
}

/// Layout of the scratch memory, and its size.
pub(super) struct Scratch {
    /// Offset of the panel of keys.
    pub(super) keys_at: i64,
    /// Offset of the panel of values.
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
