//! Layout of a chunk's numbers in scratch memory.

use super::{CHUNK, NUMBERS};
use crate::ops::delta_net::DeltaNet;

/// Offsets in scratch memory: first the arrays of the key head, then arrays of a value head, then
/// arrays of some of its columns.
pub(super) struct Places {
    /// Queries, of length 1 / sqrt(d), and keys, of length 1: `[CHUNK][d]`. The recurrence also
    /// uses this memory.
    pub(super) q: i64,
    pub(super) k: i64,
    /// Transposed keys: `[d][CHUNK]`.
    pub(super) across: i64,
    /// Products of queries, and of keys, with keys: `[CHUNK][CHUNK]`.
    pub(super) qk: i64,
    pub(super) kk: i64,
    /// Numbers by row of the chunk: `alpha`, then the decay's logarithm, then the sum of the
    /// logarithms up to the row.
    pub(super) log: i64,
    /// Numbers by row: the rate; the decay since the chunk's start; the decay from the row to the
    /// chunk's end.
    pub(super) rate: i64,
    pub(super) left: i64,
    pub(super) after: i64,
    /// Factors of earlier changes in later changes, and of changes in results: `[CHUNK][CHUNK]`.
    /// Only the lower triangles are read.
    pub(super) change: i64,
    pub(super) give: i64,
    /// Changes and results: `[CHUNK][dv]`.
    pub(super) u: i64,
    pub(super) o: i64,
    pub(super) channels: Option<Channels>,
    pub(super) end: i64,
}

/// Offsets for a value head in which each element of a key has a decay.
pub(super) struct Channels {
    /// Decay of each row, decay since the chunk's start, then queries and keys times the latter:
    /// `[CHUNK][d]`.
    pub(super) decay: i64,
    pub(super) left: i64,
    pub(super) q: i64,
    pub(super) k: i64,
    /// Keys times the decay since their row: `[d][CHUNK]`.
    pub(super) kept: i64,
    /// Identity matrix, which selects the row of a number: `[CHUNK][CHUNK]`.
    pub(super) unit: i64,
}

impl Places {
    pub(super) fn new(spec: &DeltaNet) -> Places {
        let (key, value) = (i64::from(spec.d) * 4, i64::from(spec.dv) * 4);
        let mut end = 0;
        let mut place = |bytes: i64| {
            // Every array begins on a cache line, as scratch memory does.
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
