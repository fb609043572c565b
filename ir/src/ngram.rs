//! Rows of a table that the last tokens name together (n-gram embeddings, Qwen3.8-Flash-Next): which row, and how tokens are remembered.
//!
//! ```text
//! h = id * m0 ^ (id before) * m1 ^ (id before that) * m2 ^ ...      // 64 bits
//! row = h mod modulus + offset
//! ```
//!
//! Behind an end of text nothing is before: that id, and all before it, are the end's; and so are those before the first. A token's own id is what it is.
//!
//! A hash needs arithmetic of 64 bits and names a row, which no kernel may compute; who runs a step does, and has the ids before it in a state.

use serde::{Deserialize, Serialize};

/// Most tokens that name a row together.
pub const TOKENS: usize = 4;
/// Ids that are remembered.
pub const BEFORE: usize = TOKENS - 1;
/// Most ids: each is remembered as a single, one above, so that 0 is none.
pub const MAX_IDS: u64 = (1 << f32::MANTISSA_DIGITS) - 1;

/// How ids name a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hash {
    /// The id that ends a text.
    pub end: u32,
    /// Of the token's own id, of the one before it, and so on; 0 where fewer matter.
    pub multipliers: [u64; TOKENS],
    /// Rows of the part of the table; at least 1.
    pub modulus: u32,
    /// The first of them.
    pub offset: u32,
}

impl Hash {
    /// Rows that the table must have.
    pub fn rows(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.modulus)
    }

    /// The row of a token behind those of a state.
    pub fn row(&self, id: u32, before: &[f32; BEFORE]) -> u64 {
        let mut hash = u64::from(id).wrapping_mul(self.multipliers[0]);
        let mut ended = false;
        for (&remembered, multiplier) in before.iter().zip(&self.multipliers[1..]) {
            // What no step wrote is as good as none.
            let id = if remembered >= 1.0 { (remembered - 1.0) as u32 } else { self.end };
            ended |= id == self.end;
            let id = if ended { self.end } else { id };
            hash ^= u64::from(id).wrapping_mul(*multiplier);
        }
        hash % u64::from(self.modulus.max(1)) + u64::from(self.offset)
    }
}

/// A state with one more id, the last one first.
pub fn remember(before: &mut [f32; BEFORE], id: u32) {
    before.rotate_right(1);
    before[0] = id as f32 + 1.0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_depend_on_the_tokens_before_up_to_an_end() {
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
