//! N-gram embeddings (Qwen3.8-Flash-Next): the last few tokens together select a row of a table.
//!
//! ```text
//! h = id * m0 ^ (id before) * m1 ^ (id before that) * m2 ^ ...      // 64 bits
//! row = h mod modulus + offset
//! ```
//!
//! An end-of-text id ends the history: that id and all ids before it count as the end-of-text id.
//! Positions before the first token also count as that id. The token's own id never counts as
//! another id.
//!
//! The hash needs 64-bit arithmetic, and its result is a row number. Kernels cannot compute row
//! numbers, so the runtime computes it. The earlier ids come from a state.

use serde::{Deserialize, Serialize};

/// Maximum number of tokens that select a row together.
pub const TOKENS: usize = 4;
/// Number of earlier ids that the state holds.
pub const BEFORE: usize = TOKENS - 1;
/// Maximum number of different ids. The state holds each id plus 1 as an f32, which must be exact.
/// 0 means no id.
pub const MAX_IDS: u64 = (1 << f32::MANTISSA_DIGITS) - 1;

/// Hash function from token ids to a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hash {
    /// The end-of-text id.
    pub end: u32,
    /// Multipliers of the token's own id, of the id before it, and so on. 0 for ids that the hash
    /// does not use.
    pub multipliers: [u64; TOKENS],
    /// Number of rows that the hash selects from, at least 1.
    pub modulus: u32,
    /// First row of the table that the hash selects from.
    pub offset: u32,
}

impl Hash {
    /// Returns the number of rows that the table must have at least.
    pub fn rows(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.modulus)
    }

    /// Returns the row for the token `id`, which follows the ids in the state `before`.
    pub fn row(&self, id: u32, before: &[f32; BEFORE]) -> u64 {
        let mut hash = u64::from(id).wrapping_mul(self.multipliers[0]);
        let mut ended = false;
        for (&remembered, multiplier) in before.iter().zip(&self.multipliers[1..]) {
            // An entry without an id counts as the end-of-text id.
            let id = if remembered >= 1.0 { (remembered - 1.0) as u32 } else { self.end };
            ended |= id == self.end;
            let id = if ended { self.end } else { id };
            hash ^= u64::from(id).wrapping_mul(*multiplier);
        }
        hash % u64::from(self.modulus.max(1)) + u64::from(self.offset)
    }
}

/// Adds an id to the state. The newest id is first.
pub fn remember(before: &mut [f32; BEFORE], id: u32) {
    before.rotate_right(1);
    before[0] = id as f32 + 1.0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ngram_rows_depend_on_tokens_since_end_of_text() {
        let hash = Hash { end: 2, multipliers: [5, (1 << 40) | 7, 11, 0], modulus: 97, offset: 3 };
        let expected = |ids: [u64; 3]| ((ids[0] * 5) ^ (ids[1] * ((1 << 40) | 7)) ^ (ids[2] * 11)) % 97 + 3;
        let mut before = [0.0; BEFORE];
        let mut rows = Vec::new();
        for id in [9, 2, 4, 6, 7] {
            rows.push(hash.row(id, &before));
            remember(&mut before, id);
        }
        assert_eq!(rows, [[9, 2, 2], [2, 9, 2], [4, 2, 2], [6, 4, 2], [7, 6, 4]].map(expected));
    }
}
