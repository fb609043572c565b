//! Sorting of a step's rows by the experts that a router chose for them.
//!
//! The input is the ids that the op `route` wrote, `[tokens][top_k]`. Each id becomes a routed row.
//! Routed rows are ordered by expert, and those of one expert by token and slot. This is a stable
//! counting sort, so the order does not depend on the number of threads.
//!
//! ```
//! let mut bucket = ixc_runtime::expert_sort::Bucket::default();
//! bucket.sort(&[2, 0, 2, 1], 2, 3, &mut Vec::new()).unwrap(); // two tokens, two slots each
//! assert_eq!(bucket.tokens(), [0, 1, 0, 1]); // expert 0: token 0; expert 1: token 1; expert 2: both
//! assert_eq!(bucket.slots(), [2, 0, 3, 1]); // where each token's slots went
//! ```
//!
//! Invariant: every value in `tokens` is below the number of tokens, and every value in `slots` is
//! below the number of routed rows. Both lists are index inputs of kernels.

use ixc_ir::plan::NO_EXPERT;

/// Value in `slots` for a slot that has no routed row.
const NO_ROW: u32 = u32::MAX;

/// The routed rows of one expert. The expert has at least one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertRows {
    /// Number of the expert.
    pub expert: u32,
    /// Index of the expert's first routed row.
    pub first: u32,
    /// Number of rows.
    pub rows: u32,
}

/// Error for an id that names no expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slot {slot} of token {token} is routed to expert {id}; the layer has {experts} experts")]
pub struct BadExpert {
    /// Index of the token in its step.
    pub token: usize,
    /// Index of the slot among the token's `top_k` slots.
    pub slot: usize,
    /// The routed id.
    pub id: u32,
    /// Number of experts of the layer.
    pub experts: u32,
}

/// The routed rows of a step, sorted by expert.
#[derive(Clone, Debug, Default)]
pub struct Bucket {
    tokens: Vec<u32>,
    slots: Vec<u32>,
    active: Vec<ExpertRows>,
}

impl Bucket {
    /// Sorts the rows of `ids`; `top_k` is at least 1 and divides the number of ids. `next` is
    /// working memory with one word for each expert; all routings can use the same memory.
    ///
    /// # Errors
    /// [`BadExpert`] for the first id that names no expert. The bucket is then empty.
    pub fn sort(&mut self, ids: &[u32], top_k: u32, experts: u32, next: &mut Vec<u32>) -> Result<(), BadExpert> {
        self.sort_but(&|_| false, ids, top_k, experts, next)
    }

    /// Sorts rows like [`Bucket::sort`], but also allows the id [`NO_EXPERT`], for experts on other
    /// machines. A slot with this id has no routed row of its own. In [`Bucket::slots`], it gets
    /// the row of the token's first slot that has one, or else row 0. The weight of such a slot
    /// must be 0.
    ///
    /// # Errors
    /// See [`Bucket::sort`].
    pub fn sort_given(&mut self, ids: &[u32], top_k: u32, experts: u32, next: &mut Vec<u32>) -> Result<(), BadExpert> {
        self.sort_but(&|id| id == NO_EXPERT.cast_unsigned(), ids, top_k, experts, next)?;
        for slots in self.slots.chunks_mut(top_k.max(1) as usize) {
            let first = slots.iter().copied().find(|&row| row != NO_ROW).unwrap_or(0);
            slots.iter_mut().filter(|row| **row == NO_ROW).for_each(|row| *row = first);
        }
        Ok(())
    }

    /// Sorts the rows of all ids for which `left_out` returns false. The slots of all other ids get
    /// [`NO_ROW`].
    fn sort_but(
        &mut self,
        left_out: &dyn Fn(u32) -> bool,
        ids: &[u32],
        top_k: u32,
        experts: u32,
        next: &mut Vec<u32>,
    ) -> Result<(), BadExpert> {
        self.clear();
        let top_k = top_k.max(1) as usize;
        if let Some(bad) = ids.iter().position(|&id| id >= experts && !left_out(id)) {
            return Err(BadExpert { token: bad / top_k, slot: bad % top_k, id: ids[bad], experts });
        }
        next.clear();
        next.resize(experts as usize, 0);
        for &id in ids.iter().filter(|&&id| !left_out(id)) {
            next[id as usize] += 1;
        }
        let mut first = 0;
        for (expert, next) in (0..experts).zip(next.iter_mut()) {
            let rows = std::mem::replace(next, first);
            if rows > 0 {
                self.active.push(ExpertRows { expert, first, rows });
            }
            first += rows;
        }
        self.tokens.resize(first as usize, 0);
        for (i, &id) in ids.iter().enumerate() {
            if left_out(id) {
                self.slots.push(NO_ROW);
                continue;
            }
            let row = next[id as usize];
            next[id as usize] += 1;
            self.tokens[row as usize] = (i / top_k) as u32;
            self.slots.push(row);
        }
        Ok(())
    }

    /// Removes all rows.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.slots.clear();
        self.active.clear();
    }

    /// Returns the token of each routed row, as its index in the step.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the routed row of each slot of each token, `[tokens][top_k]`.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Returns the experts that have rows, in ascending order.
    pub fn active(&self) -> &[ExpertRows] {
        &self.active
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn routed_rows_are_sorted_by_expert_with_slot_indices(top_k in 1usize..5, ids in prop::collection::vec(0u32..7, 0..200)) {
            let ids = &ids[..ids.len() / top_k * top_k];
            let mut bucket = Bucket::default();
            bucket.sort(ids, top_k as u32, 7, &mut vec![9; 3])?;
            let expert_of = |row: u32| {
                bucket.active().iter().find(|a| (a.first..a.first + a.rows).contains(&row)).map(|a| a.expert)
            };
            prop_assert_eq!(bucket.active().iter().map(|a| a.rows as usize).sum::<usize>(), ids.len());
            for (i, &id) in ids.iter().enumerate() {
                let row = bucket.slots()[i];
                prop_assert_eq!(bucket.tokens()[row as usize] as usize, i / top_k);
                prop_assert_eq!(expert_of(row), Some(id));
            }
            for rows in bucket.active() {
                let tokens = &bucket.tokens()[rows.first as usize..][..rows.rows as usize];
                prop_assert!(tokens.is_sorted());
            }
        }
    }

    #[test]
    fn unassigned_slots_have_no_rows() {
        let nobody = NO_EXPERT.cast_unsigned();
        let mut bucket = Bucket::default();
        let ids = [nobody, 2, nobody, nobody, 1, 2];
        bucket.sort_given(&ids, 2, 3, &mut Vec::new()).unwrap();
        assert_eq!(bucket.tokens(), [2, 0, 2]);
        // The second token has no routed row: its slots get row 0, and their weights must be 0.
        assert_eq!(bucket.slots(), [1, 1, 0, 0, 0, 2]);
        let rows = |expert, first, rows| ExpertRows { expert, first, rows };
        assert_eq!(bucket.active(), [rows(1, 0, 1), rows(2, 1, 2)]);
        bucket.sort_given(&[nobody; 4], 2, 3, &mut Vec::new()).unwrap();
        assert!(bucket.active().is_empty() && bucket.tokens().is_empty());
        assert_eq!(bucket.slots(), [0; 4]);
        // `sort`, unlike `sort_given`, treats this id as an error.
        let bad = BadExpert { token: 0, slot: 0, id: nobody, experts: 3 };
        assert_eq!(bucket.sort(&ids, 2, 3, &mut Vec::new()), Err(bad));
    }

    #[test]
    fn an_id_that_is_no_expert_is_an_error() {
        let mut bucket = Bucket::default();
        bucket.sort(&[0, 1], 2, 2, &mut Vec::new()).unwrap();
        assert_eq!(
            bucket.sort(&[0, 1, 1, 2], 2, 2, &mut Vec::new()),
            Err(BadExpert { token: 1, slot: 1, id: 2, experts: 2 })
        );
        assert!(bucket.active().is_empty() && bucket.tokens().is_empty() && bucket.slots().is_empty());
    }
}
