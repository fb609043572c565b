//! Sequences: each has states of its own, and all share everything else. A step computes rows of several.
//!
//! ```text
//! step      [ sequence 4: 1 row ][ sequence 7: 1 row ][ sequence 2: 200 rows ]     pieces, one behind the other
//! products  all 202 rows together: a weight is read once
//! attention 1 row, 1 row and 200 rows, each with the keys and values of its own sequence
//! ```
//!
//! A sequence that becomes a copy of another shares memory with it ([`crate::shared_pages`]), where the system lets it.
//!
//! Pieces of one sequence stand one behind the other, each with the positions behind those of the piece before. What only reads states takes them one by
//! one, as if each was a step; what changes states takes them together ([`runs`]), in the order of rows.
//!
//! Invariant: a piece's rows follow those of the piece before, and so do its positions where it is of the same sequence; between two pieces of one sequence
//! there is none of another.

use std::sync::{Arc, OnceLock};

use ixc_ir::plan::State;

use crate::memory::MemoryError;
use crate::shared_pages::{Pool, Refusal, Sharing};
use crate::states::States;
use crate::states::parts::Stand;

/// A sequence: its states, and where they are.
#[derive(Debug)]
pub struct Sequence {
    pub(crate) states: States,
    position: u32,
    /// Positions that states were ever written up to, since they last went back.
    used: u32,
}

impl Sequence {
    /// An empty one, with room for `capacity` positions.
    ///
    /// # Errors
    /// When the system refuses memory.
    pub(crate) fn new(states: &[State], capacity: u32, max_tokens: u32) -> Result<Sequence, MemoryError> {
        Ok(Sequence { states: States::new(states, capacity, max_tokens)?, position: 0, used: 0 })
    }

    /// Tokens in it.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// How many tokens would be left if it was to be cut to `tokens`.
    pub fn reach(&self, tokens: u32) -> u32 {
        self.states.reach(tokens, Some(self.position))
    }

    /// Makes room for a step's tokens, whose first is row `first_row` of the step.
    pub(crate) fn begin(&mut self, first_row: u32, tokens: u32) {
        self.used = self.used.max(self.position.saturating_add(tokens));
        self.states.make_room(self.position, first_row, tokens);
    }

    /// A step has added its tokens.
    pub(crate) fn advance(&mut self, tokens: u32) {
        self.position = self.position.saturating_add(tokens);
        // Where a prompt was read is where one wants to get back to: another answer, or another end.
        if tokens > 1 {
            self.save();
        }
    }

    /// Goes back to before a step that failed.
    pub(crate) fn fail(&mut self) {
        // What cannot be cut may have changed already.
        let here = self.states.cut_anywhere().then_some(self.position);
        self.go_back(self.states.reach(self.position, here));
    }

    /// Saves where it is, so that one can get back to it.
    pub(crate) fn save(&mut self) {
        self.states.save(self.position);
    }

    /// Goes back to `tokens` tokens, or as far before that as states reach; gives how many are left.
    pub(crate) fn truncate(&mut self, tokens: u32) -> u32 {
        self.go_back(self.reach(tokens));
        self.position
    }

    /// Goes to a position that can be reached.
    fn go_back(&mut self, position: u32) {
        if position < self.used {
            self.states.back_to(position, self.used);
        }
        (self.position, self.used) = (position, position);
    }

    /// Forgets all, and makes place for positions that are put here ([`States::write_places`]).
    pub(crate) fn stand_at(&mut self, stand: &Stand) {
        self.go_back(0);
        self.states.stand_at(stand);
        (self.position, self.used) = (stand.used, stand.used);
    }

    /// Goes back to a position of those that were put here, at which what has no positions is `whole`.
    pub(crate) fn go_back_with(&mut self, position: u32, whole: Option<Vec<u8>>) {
        self.go_back(position);
        if let Some(whole) = whole {
            self.states.write_whole(&whole);
            self.states.add_copy(position, whole);
        }
    }

    /// Becomes a copy of the first `tokens` tokens of another of the same plan, or of as many before that as its states reach; gives how many it has.
    fn copy_from(&mut self, from: &mut Sequence, tokens: u32, pool: Option<&Arc<Pool>>) -> u32 {
        let position = from.reach(tokens);
        self.states.copy_from(&mut from.states, (position, from.used), self.used, pool);
        (self.position, self.used) = (position, position);
        position
    }

    /// Bytes of its states that hold something, copies apart, and how many of them lie in pages that other sequences may have, too.
    pub fn bytes(&self) -> (u64, u64) {
        (self.states.used_bytes(self.used), self.states.shared_bytes())
    }
}

/// What the states of sequences hold, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateBytes {
    /// In memory that is one sequence's.
    pub own: u64,
    /// In pages that several sequences share, each counted once.
    pub shared: u64,
    /// The same, counted for each sequence that has them: what they would take if nothing was shared.
    pub unshared: u64,
    /// Mappings that sharing takes of those that a process may have.
    pub mappings: u64,
    /// Sequences that were copied from others.
    pub copies: u64,
    /// How many of these share nothing.
    pub whole_copies: u64,
    /// Why something was last copied that could have been shared.
    pub refusal: Option<Refusal>,
}

/// The sequences of an engine, by number. What was removed leaves its number to the next.
#[derive(Debug)]
pub(crate) struct Sequences {
    all: Vec<Option<Sequence>>,
    most: u32,
    states: Vec<State>,
    capacity: u32,
    max_tokens: u32,
    sharing: Sharing,
    /// What they share pages in, once a sequence was copied; nothing where they share none.
    pool: OnceLock<Result<Option<Arc<Pool>>, Refusal>>,
    copies: u64,
    whole_copies: u64,
}

impl Sequences {
    /// At most `most`, of these states, each with room for `capacity` positions; the first of them is there.
    ///
    /// # Errors
    /// When the system refuses memory.
    pub(crate) fn new(
        most: u32,
        states: Vec<State>,
        (capacity, max_tokens): (u32, u32),
        sharing: Sharing,
    ) -> Result<Sequences, MemoryError> {
        let (all, most, pool) = (Vec::new(), most.max(1), OnceLock::new());
        let mut sequences =
            Sequences { all, most, states, capacity, max_tokens, sharing, pool, copies: 0, whole_copies: 0 };
        sequences.add()?;
        Ok(sequences)
    }

    /// The states of each.
    pub(crate) fn declared(&self) -> &[State] {
        &self.states
    }

    /// Most that there can be.
    pub(crate) fn most(&self) -> u32 {
        self.most
    }

    /// Adds an empty one; gives its number, or `None` where there are as many as there can be.
    ///
    /// # Errors
    /// When the system refuses memory.
    pub(crate) fn add(&mut self) -> Result<Option<u32>, MemoryError> {
        let free = self.all.iter().position(Option::is_none).unwrap_or(self.all.len());
        if free >= self.most as usize {
            return Ok(None);
        }
        let sequence = Sequence::new(&self.states, self.capacity, self.max_tokens)?;
        if free == self.all.len() {
            self.all.push(None);
        }
        self.all[free] = Some(sequence);
        Ok(Some(free as u32))
    }

    /// Removes one; whether it was there.
    pub(crate) fn remove(&mut self, number: u32) -> bool {
        self.all.get_mut(number as usize).is_some_and(|sequence| sequence.take().is_some())
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Sequence> {
        self.all.get(number as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Sequence> {
        self.all.get_mut(number as usize)?.as_mut()
    }

    /// Makes one a copy of the first `tokens` tokens of another, or of as many before that as states reach; gives how many it has then, or `None` where they
    /// are not two.
    pub(crate) fn copy(&mut self, from: u32, to: u32, tokens: u32) -> Option<u32> {
        let (from, to) = self.all.get_disjoint_mut([from as usize, to as usize]).ok().map(|[from, to]| (from, to))?;
        let (from, to) = (from.as_mut()?, to.as_mut()?);
        let new_pool = || Pool::new(from.states.shared_columns(), from.states.memory().bytes(), self.sharing);
        let pool = self.pool.get_or_init(new_pool).as_ref().ok().and_then(Option::as_ref);
        let position = to.copy_from(from, tokens, pool);
        self.copies += 1;
        self.whole_copies += u64::from(to.states.shared_bytes() == 0);
        Some(position)
    }

    /// What the states of all hold.
    pub(crate) fn bytes(&self) -> StateBytes {
        let (mut own, mut unshared) = (0, 0);
        for (used, shared) in self.iter().map(Sequence::bytes) {
            own += used.saturating_sub(shared);
            unshared += shared;
        }
        let (shared, mappings, refusal) = match self.pool.get() {
            Some(Ok(Some(pool))) => (pool.held(), pool.mappings(), pool.refusal()),
            Some(Err(refusal)) => (0, 0, Some(refusal.clone())),
            Some(Ok(None)) | None => (0, 0, None),
        };
        let &Sequences { copies, whole_copies, .. } = self;
        StateBytes { own, shared, unshared, mappings, copies, whole_copies, refusal }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.all.iter().flatten()
    }
}

/// The rows of a sequence in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The sequence's number.
    pub(crate) sequence: u32,
    /// The first row of the step that is its.
    pub(crate) row: u32,
    /// How many are.
    pub(crate) rows: u32,
    /// The position of the first.
    pub(crate) position: u32,
    /// The first of the wanted outputs that is its.
    pub(crate) output: u32,
    /// How many are.
    pub(crate) outputs: u32,
}

/// Pieces of the same sequence as one each, with the number of the first of them.
pub(crate) fn runs(pieces: &[Piece]) -> impl Iterator<Item = (u32, Piece)> {
    let mut at = 0;
    pieces.chunk_by(|a, b| a.sequence == b.sequence).filter_map(move |run| {
        let number = at;
        at += run.len() as u32;
        let sum = |of: fn(&Piece) -> u32| run.iter().map(of).fold(0, u32::saturating_add);
        let (rows, outputs) = (sum(|piece| piece.rows), sum(|piece| piece.outputs));
        run.first().map(|first| (number, Piece { rows, outputs, ..*first }))
    })
}

#[cfg(all(test, target_os = "linux"))]
#[path = "sequences/tests/shared.rs"]
mod shared_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_one_sequence_are_a_run() {
        let piece = |sequence, row, rows, position| Piece { sequence, row, rows, position, output: row, outputs: rows };
        let pieces = [piece(4, 0, 1, 7), piece(4, 1, 2, 8), piece(2, 3, 1, 9), piece(4, 4, 1, 10)];
        let found: Vec<_> = runs(&pieces).collect();
        assert_eq!(found, [(0, piece(4, 0, 3, 7)), (2, piece(2, 3, 1, 9)), (3, piece(4, 4, 1, 10))]);
        assert_eq!(runs(&[]).count(), 0);
    }
}
