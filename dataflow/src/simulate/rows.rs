//! Rows: the rows that each instance fires for, and the experts in a routing.

use crate::descriptor::Axis;

use super::pass::Pass;
use crate::layout::{Kind, Unit};
use ixc_ir::random::Random;

/// Marks a missing number.
pub(super) const NONE: u32 = u32::MAX;

/// A row: a token, or one of its slots.
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
    /// Number of tokens with known experts, which are the first tokens.
    pub known: u32,
    /// Bytes of each token's ids that were made so far.
    pub made: Vec<u64>,
    /// Time when each token's ids were complete.
    pub at: Vec<u64>,
    /// PE that made the last ids.
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
    // Floyd's algorithm: as many draws as numbers.
    for top in experts - top_k..experts {
        let id = random.below(u64::from(top) + 1) as u32;
        let id = if drawn.insert(id) { id } else { top };
        drawn.insert(id);
        ids.push(id);
    }
    ids
}

impl Pass<'_, '_> {
    /// Returns the first token of the step for which a part has work.
    pub(super) fn first_token(&self, unit: &Unit, part: u32) -> u64 {
        (u64::from(part) * u64::from(unit.positions)).saturating_sub(self.position.into())
    }

    /// Returns the number of firings of an instance that are known so far.
    pub(super) fn firings(&self, unit: &Unit, instance: u32) -> u32 {
        let tokens = self.tokens.len() as u64;
        match unit.axis {
            Axis::Outputs => self.wanted.len() as u32,
            Axis::Routed(routing) => {
                let (expert, ..) = unit.place(instance);
                self.routed[routing as usize].rows[expert as usize].len() as u32
            }
            Axis::Tokens if unit.state.is_none() => tokens as u32,
            Axis::Tokens => {
                let (.., part) = unit.place(instance);
                let first = self.first_token(unit, part);
                let end = if unit.appends { self.first_token(unit, part + 1).min(tokens) } else { tokens };
                end.saturating_sub(first) as u32
            }
        }
    }

    /// Returns the row of an instance's firing.
    pub(super) fn row(&self, unit: &Unit, instance: u32, firing: u32) -> RowId {
        let token = |token| RowId { token, routed: NONE };
        match unit.axis {
            Axis::Outputs => token(self.wanted[firing as usize]),
            Axis::Routed(routing) => {
                let (expert, ..) = unit.place(instance);
                let routing = &self.routed[routing as usize];
                let routed = routing.rows[expert as usize][firing as usize];
                RowId { token: routed / routing.top_k, routed }
            }
            Axis::Tokens if unit.state.is_none() => token(firing),
            Axis::Tokens => {
                let (.., part) = unit.place(instance);
                token(self.first_token(unit, part) as u32 + firing)
            }
        }
    }

    /// Returns a tensor's row by its number, in the host's order.
    pub(super) fn host_row(&self, axis: Axis, number: u32) -> RowId {
        match axis {
            Axis::Tokens => RowId { token: number, routed: NONE },
            Axis::Outputs => RowId { token: self.wanted[number as usize], routed: NONE },
            Axis::Routed(routing) => RowId { token: number / self.routed[routing as usize].top_k, routed: number },
        }
    }

    /// Returns the number of a tensor's rows in this step.
    pub(super) fn rows_of(&self, axis: Axis) -> u32 {
        match axis {
            Axis::Tokens => self.tokens.len() as u32,
            Axis::Outputs => self.wanted.len() as u32,
            Axis::Routed(routing) => self.tokens.len() as u32 * self.routed[routing as usize].top_k,
        }
    }

    /// Returns the number of a row in a tensor.
    pub(super) fn number_of(&self, axis: Axis, row: RowId) -> u32 {
        match axis {
            Axis::Tokens => row.token,
            Axis::Outputs => self.output_of[row.token as usize],
            Axis::Routed(_) => row.routed,
        }
    }

    /// Returns the number of bytes that an instance receives for a row at a position.
    pub(super) fn needs(&self, unit: &Unit, position: u32) -> u64 {
        let parts = unit.receives.iter().map(|receive| match receive.kind {
            Kind::Parts { positions, count } => u64::from((position / positions + 1).min(count)) * receive.slice.bytes,
            Kind::Row | Kind::Rope | Kind::Slots { .. } => 0,
        });
        unit.fixed_bytes + parts.sum::<u64>()
    }
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
