//! Layout of a chunk's data in scratch memory.

use super::{CHUNK, NUMBERS};
use crate::ops::delta_net::DeltaNet;

/// Offsets in scratch memory. Arrays of the key head come first, then arrays of a value head, then
/// arrays of some columns of a value.
pub(super) struct Places {
    /// Queries, scaled to length 1 / sqrt(d): `[CHUNK][d]`. `k` has the keys, scaled to length 1.
    /// The recurrence also uses this memory.
    pub(super) q: i64,
    pub(super) k: i64,
    /// Transposed keys: `[d][CHUNK]`.
    pub(super) across: i64,
    /// Products of queries with keys: `[CHUNK][CHUNK]`. `kk` has the products of keys with keys.
    pub(super) qk: i64,
    pub(super) kk: i64,
    /// A number for each row of the chunk: first `alpha`, which is replaced by the decay's
    /// logarithm, and then by the sum of the logarithms up to the row.
    pub(super) log: i64,
    /// Rate of each row. `left` has the decay since the chunk's start, and `after` the decay from
    /// the row to the chunk's end.
    pub(super) rate: i64,
    pub(super) left: i64,
    pub(super) after: i64,
    /// Factors of earlier changes in later changes: `[CHUNK][CHUNK]`. `give` has the factors of
    /// changes in results. Only the lower triangles are read.
    pub(super) change: i64,
    pub(super) give: i64,
    /// Changes: `[CHUNK][dv]`. `o` has the results.
    pub(super) u: i64,
    pub(super) o: i64,
    pub(super) channels: Option<Channels>,
    pub(super) end: i64,
}

/// Offsets for a value head in which each element of a key has its own decay.
pub(super) struct Channels {
    /// Decay of each row: `[CHUNK][d]`. `left` has the decay since the chunk's start, and `q` and
    /// `k` the queries and keys times that decay.
    pub(super) decay: i64,
    pub(super) left: i64,
    pub(super) q: i64,
    pub(super) k: i64,
    /// Keys times the decay since their row, as columns: `[d][CHUNK]`.
    pub(super) kept: i64,
    /// Identity matrix, whose row `i` selects the number of row `i` of the chunk: `[CHUNK][CHUNK]`.
    pub(super) unit: i64,
}

impl Places {
    pub(super) fn new(spec: &DeltaNet) -> Places {
        let (key, value) = (i64::from(spec.d) * 4, i64::from(spec.dv) * 4);
        let mut end = 0;
        let mut place = |bytes: i64| {
            // Every array begins on a cache line, because scratch memory does.
            end = (end + bytes + 63) / 64 * 64;
            end - (bytes + 63) / 64 * 64
        };
        let (keys, square, values) = (i64::from(CHUNK) * key, i64::from(CHUNK) * NUMBERS, i64::from(CHUNK) * value);
        let mut places = Places {
            q: place(keys),
            k: place(keys),
            across: place(keys),
            qk: place(square),
            kk: place(square),
            log: place(NUMBERS),
            rate: place(NUMBERS),
            left: place(NUMBERS),
            after: place(NUMBERS),
            change: place(square),
            give: place(square),
            u: place(values),
            o: place(values),
            channels: None,
            end: 0,
        };
        if spec.channels {
            places.channels = Some(Channels {
                decay: place(keys),
                left: place(keys),
                q: place(keys),
                k: place(keys),
                kept: place(keys),
                unit: place(square),
            });
        }
        places.end = end;
        places
    }
}
