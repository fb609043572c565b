//! Rows of a step, and the experts that a routing selects for them.

use ixc_ir::random::Random;

/// Value that stands for a missing number.
pub(super) const NONE: u32 = u32::MAX;

/// Numbers of a row: a token, or one of a token's expert slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowId {
    pub token: u32,
    /// Number of the row in the routing: `token * top_k + slot`.
    pub routed: u32,
}

/// Experts of a step's tokens in one routing.
#[derive(Debug, Default)]
pub(super) struct Routed {
    pub top_k: u32,
    /// Expert of each row `token * top_k + slot`.
    pub expert: Vec<u32>,
    /// Number of earlier rows of the same expert, by row.
    pub ordinal: Vec<u32>,
    /// Rows of each expert.
    pub rows: Vec<Vec<u32>>,
    /// Number of tokens whose experts are known. These are the first tokens of the step.
    pub known: u32,
    /// Number of bytes of expert ids that were computed so far, by token.
    pub made: Vec<u64>,
    /// Time when all ids of each token were computed.
    pub at: Vec<u64>,
    /// PE that computed the last ids.
    pub source: u32,
    /// Outlets that wait for ids.
    pub waiting: Vec<u32>,
}

impl Routed {
    pub fn new(experts: u32, top_k: u32, tokens: usize) -> Routed {
        Routed {
            top_k,
            expert: vec![0; tokens * top_k as usize],
            ordinal: vec![0; tokens * top_k as usize],
            rows: vec![Vec::new(); experts as usize],
            made: vec![0; tokens],
            at: vec![0; tokens],
            source: NONE,
            ..Routed::default()
        }
    }

    /// Records the experts of the next token.
    pub fn note(&mut self, ids: &[u32], at: u64) {
        let token = self.known;
        for (slot, id) in (0..).zip(ids) {
            let row = token * self.top_k + slot;
            self.expert[row as usize] = *id;
            let rows = &mut self.rows[*id as usize];
            self.ordinal[row as usize] = rows.len() as u32;
            rows.push(row);
        }
        self.at[token as usize] = at;
        self.known += 1;
    }
}

/// Draws `top_k` different numbers below `experts`.
pub(super) fn draw(seed: u64, experts: u32, top_k: u32) -> Vec<u32> {
    let mut random = Random::new(seed);
    let mut ids: Vec<u32> = Vec::with_capacity(top_k as usize);
    let mut drawn = std::collections::HashSet::with_capacity(top_k as usize);
    // Floyd's algorithm needs only one random number for each result.
    for top in experts - top_k..experts {
        let id = random.below(u64::from(top) + 1) as u32;
        let id = if drawn.insert(id) { id } else { top };
        drawn.insert(id);
        ids.push(id);
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_expert_ids_are_distinct() {
        for seed in 0..200 {
            for (experts, top_k) in [(8, 2), (4, 4), (1, 1), (128, 8)] {
                let mut ids = draw(seed, experts, top_k);
                ids.sort_unstable();
                ids.dedup();
                assert!(ids.len() == top_k as usize && ids.iter().all(|id| *id < experts));
            }
        }
    }
}
