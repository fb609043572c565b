//! Sequences of tokens. Each sequence has its own states; all sequences share the weights and all
//! other memory. A step computes rows of several sequences.
//!
//! ```text
//! step      [ sequence 4: 1 row ][ sequence 7: 1 row ][ sequence 2: 200 rows ]   pieces
//! products  all 202 rows together: a weight is read once
//! attention 1 row, 1 row and 200 rows, each with the keys and values of its own sequence
//! ```
//!
//! A sequence that becomes a copy of another one shares memory with it
//! ([`crate::storage::shared_pages`]), if the system allows it.
//!
//! The rows that one addition has in a step are a *piece*. Pieces of one sequence follow each
//! other, and so do their positions. Tasks that only read states compute the pieces one by one, as
//! if each piece were a separate step. Tasks that change states compute all pieces of a sequence
//! together ([`runs`]), in the order of rows.
//!
//! Invariant: the rows of each piece follow those of the previous piece. If both belong to one
//! sequence, their positions also follow each other. No piece of another sequence lies between two
//! pieces of one sequence.

use std::sync::{Arc, OnceLock};

use ixc_ir::plan::State;

use crate::states::States;
use crate::states::parts::Stand;
use crate::storage::memory::MemoryError;
use crate::storage::shared_pages::{Pool, Refusal, Sharing};

/// A sequence: its states and its position.
#[derive(Debug)]
pub struct Sequence {
    pub(crate) states: States,
    position: u32,
    /// Number of positions that were written to states since the last truncation. It exceeds
    /// `position` during a step.
    used: u32,
}

impl Sequence {
    /// Creates an empty sequence with states for `capacity` positions.
    ///
    /// # Errors
    /// Fails if the system refuses memory.
    pub(crate) fn new(states: &[State], capacity: u32, max_tokens: u32) -> Result<Sequence, MemoryError> {
        Ok(Sequence { states: States::new(states, capacity, max_tokens)?, position: 0, used: 0 })
    }

    /// Returns the number of tokens in the sequence.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Returns the number of tokens that [`Engine::truncate`](crate::engine::Engine::truncate) to
    /// `tokens` would leave.
    pub fn reach(&self, tokens: u32) -> u32 {
        self.states.reach(tokens, Some(self.position))
    }

    /// Makes room in the states for a step's tokens. `first_row` is the row of the first of them in
    /// the step.
    pub(crate) fn begin(&mut self, first_row: u32, tokens: u32) {
        self.used = self.used.max(self.position.saturating_add(tokens));
        self.states.make_room(self.position, first_row, tokens);
    }

    /// Records that a step has added `tokens` tokens to the sequence.
    pub(crate) fn advance(&mut self, tokens: u32) {
        self.position = self.position.saturating_add(tokens);
        // The end of a prompt is saved, because a caller often returns to it, for example to
        // generate a second answer.
        if tokens > 1 {
            self.save();
        }
    }

    /// Returns to the position before a failed step.
    pub(crate) fn fail(&mut self) {
        // States that cannot be truncated may have changed already, so their present position does
        // not count.
        let here = self.states.cut_anywhere().then_some(self.position);
        self.go_back(self.states.reach(self.position, here));
    }

    /// Saves the present position, so that the sequence can return to it later.
    pub(crate) fn save(&mut self) {
        self.states.save(self.position);
    }

    /// Truncates the sequence to `tokens` tokens, or to fewer if the states cannot return to that
    /// length. Returns the remaining number of tokens.
    pub(crate) fn truncate(&mut self, tokens: u32) -> u32 {
        self.go_back(self.reach(tokens));
        self.position
    }

    /// Returns to an earlier position, which the states must be able to return to.
    fn go_back(&mut self, position: u32) {
        if position < self.used {
            self.states.back_to(position, self.used);
        }
        (self.position, self.used) = (position, position);
    }

    /// Removes all tokens, and makes room for the positions that [`States::write_places`] then
    /// restores.
    pub(crate) fn stand_at(&mut self, stand: &Stand) {
        self.go_back(0);
        self.states.stand_at(stand);
        (self.position, self.used) = (stand.used, stand.used);
    }

    /// Returns to one of the restored positions. `whole` has the bytes of the states without
    /// positions.
    pub(crate) fn go_back_with(&mut self, position: u32, whole: Option<Vec<u8>>) {
        self.go_back(position);
        if let Some(whole) = whole {
            self.states.write_whole(&whole);
            self.states.add_copy(position, whole);
        }
    }

    /// Becomes a copy of the first `tokens` tokens of another sequence of the same plan. The copy
    /// is shorter if the states of `from` cannot return to that length. Returns the number of
    /// copied tokens.
    fn copy_from(&mut self, from: &mut Sequence, tokens: u32, pool: Option<&Arc<Pool>>) -> u32 {
        let position = from.reach(tokens);
        self.states.copy_from(&mut from.states, position, from.used, self.used, pool);
        (self.position, self.used) = (position, position);
        position
    }

    /// Returns the used bytes of the sequence's states, without saved copies. Also returns how many
    /// of these bytes lie in pages that other sequences may share.
    pub fn bytes(&self) -> (u64, u64) {
        (self.states.used_bytes(self.used), self.states.shared_bytes())
    }
}

/// Memory that the states of all sequences use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateBytes {
    /// Bytes that belong to a single sequence.
    pub own: u64,
    /// Bytes of pages that several sequences can share. Each page is counted once.
    pub shared: u64,
    /// Bytes of the same pages, counted for each sequence: the memory that they would take without
    /// sharing.
    pub unshared: u64,
    /// Number of memory mappings that sharing uses. The system limits the mappings of a process.
    pub mappings: u64,
    /// Number of times that a sequence was copied from another one.
    pub copies: u64,
    /// Number of these copies that share no memory.
    pub whole_copies: u64,
    /// The last reason why a copy that could share memory did not; `None` if there was none.
    pub refusal: Option<Refusal>,
}

/// The sequences of an engine, indexed by number. The number of a removed sequence is used again.
#[derive(Debug)]
pub(crate) struct Sequences {
    slots: Vec<Option<Sequence>>,
    max_sequences: u32,
    states: Vec<State>,
    capacity: u32,
    max_tokens: u32,
    sharing: Sharing,
    /// The pool of shared pages, created at the first copy. It is `Ok(None)` if sharing is turned
    /// off, or if the states have no columns that can be shared.
    pool: OnceLock<Result<Option<Arc<Pool>>, Refusal>>,
    copies: u64,
    whole_copies: u64,
}

impl Sequences {
    /// Prepares for at most `max_sequences` sequences of these states, each with `capacity`
    /// positions. Adds the first sequence.
    ///
    /// # Errors
    /// Fails if the system refuses memory.
    pub(crate) fn new(
        max_sequences: u32,
        states: Vec<State>,
        capacity: u32,
        max_tokens: u32,
        sharing: Sharing,
    ) -> Result<Sequences, MemoryError> {
        let (slots, max_sequences, pool) = (Vec::new(), max_sequences.max(1), OnceLock::new());
        let mut sequences =
            Sequences { slots, max_sequences, states, capacity, max_tokens, sharing, pool, copies: 0, whole_copies: 0 };
        sequences.add()?;
        Ok(sequences)
    }

    /// Returns the declared states of each sequence.
    pub(crate) fn declared_states(&self) -> &[State] {
        &self.states
    }

    /// Returns the maximum number of sequences.
    pub(crate) fn max_sequences(&self) -> u32 {
        self.max_sequences
    }

    /// Adds an empty sequence. Returns its number, or `None` if there are already `max_sequences`
    /// sequences.
    ///
    /// # Errors
    /// Fails if the system refuses memory.
    pub(crate) fn add(&mut self) -> Result<Option<u32>, MemoryError> {
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if free >= self.max_sequences as usize {
            return Ok(None);
        }
        let sequence = Sequence::new(&self.states, self.capacity, self.max_tokens)?;
        if free == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[free] = Some(sequence);
        Ok(Some(free as u32))
    }

    /// Removes a sequence. Returns whether the sequence existed.
    pub(crate) fn remove(&mut self, number: u32) -> bool {
        self.slots.get_mut(number as usize).is_some_and(|sequence| sequence.take().is_some())
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Sequence> {
        self.slots.get(number as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Sequence> {
        self.slots.get_mut(number as usize)?.as_mut()
    }

    /// Makes `to` a copy of the first `tokens` tokens of `from`, or of fewer if the states of
    /// `from` cannot return to that length. Returns the number of copied tokens. Returns `None` if
    /// `from` and `to` are equal, or if one does not exist.
    pub(crate) fn copy(&mut self, from: u32, to: u32, tokens: u32) -> Option<u32> {
        let (from, to) = self.slots.get_disjoint_mut([from as usize, to as usize]).ok().map(|[from, to]| (from, to))?;
        let (from, to) = (from.as_mut()?, to.as_mut()?);
        let new_pool = || Pool::new(from.states.shared_columns(), from.states.memory().bytes(), self.sharing);
        let pool = self.pool.get_or_init(new_pool).as_ref().ok().and_then(Option::as_ref);
        let position = to.copy_from(from, tokens, pool);
        self.copies += 1;
        self.whole_copies += u64::from(to.states.shared_bytes() == 0);
        Some(position)
    }

    /// Returns the memory that the states of all sequences use.
    pub(crate) fn bytes(&self) -> StateBytes {
        let (mut own, mut unshared) = (0, 0);
        for (used, shared) in self.iter().map(Sequence::bytes) {
            own += used.saturating_sub(shared);
            unshared += shared;
        }
        let (shared, mappings, refusal) = match self.pool.get() {
            Some(Ok(Some(pool))) => (pool.held_bytes(), pool.mappings(), pool.refusal()),
            Some(Err(refusal)) => (0, 0, Some(refusal.clone())),
            Some(Ok(None)) | None => (0, 0, None),
        };
        let &Sequences { copies, whole_copies, .. } = self;
        StateBytes { own, shared, unshared, mappings, copies, whole_copies, refusal }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.slots.iter().flatten()
    }
}

/// The rows of one addition in a step. They are consecutive and belong to one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The sequence's number.
    pub(crate) sequence: u32,
    /// Index in the step of the piece's first row.
    pub(crate) row: u32,
    /// Number of rows.
    pub(crate) rows: u32,
    /// Position in the sequence of the piece's first row.
    pub(crate) position: u32,
    /// Index of the piece's first output among the requested outputs of the step.
    pub(crate) output: u32,
    /// Number of requested outputs.
    pub(crate) outputs: u32,
}

/// Merges consecutive pieces of the same sequence. Returns each merged piece with the index of its
/// first piece.
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
    fn consecutive_pieces_of_a_sequence_merge_into_runs() {
        let piece = |sequence, row, rows, position| Piece { sequence, row, rows, position, output: row, outputs: rows };
        let pieces = [piece(4, 0, 1, 7), piece(4, 1, 2, 8), piece(2, 3, 1, 9), piece(4, 4, 1, 10)];
        let found: Vec<_> = runs(&pieces).collect();
        assert_eq!(found, [(0, piece(4, 0, 3, 7)), (2, piece(2, 3, 1, 9)), (3, piece(4, 4, 1, 10))]);
        assert_eq!(runs(&[]).count(), 0);
    }
}
