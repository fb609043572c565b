//! Sequences: each has its own states, and all share weights and other memory. A step computes rows
//! of several sequences.
//!
//! ```text
//! step      [ sequence 4: 1 row ][ sequence 7: 1 row ][ sequence 2: 200 rows ]   pieces
//! products  all 202 rows together: a weight is read once
//! attention 1 row, 1 row and 200 rows, each with the keys and values of its own sequence
//! ```
//!
//! A sequence that becomes a copy of another shares memory with it
//! ([`crate::storage::shared_pages`]), if the system allows it.
//!
//! Pieces of one sequence follow each other, and so do their positions. Tasks that only read states
//! take the pieces one by one, as if each were a separate step. Tasks that change states take them
//! together ([`runs`]), in the order of rows.
//!
//! Invariant: a piece's rows follow those of the piece before, and so do its positions if both are
//! of one sequence. No piece of another sequence lies between two pieces of one.

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
    /// Number of positions that were written to states since the last truncation.
    used: u32,
}

impl Sequence {
    /// Makes an empty sequence, with room for `capacity` positions.
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

    /// Makes room for a step's tokens, whose first row in the step is `first_row`.
    pub(crate) fn begin(&mut self, first_row: u32, tokens: u32) {
        self.used = self.used.max(self.position.saturating_add(tokens));
        self.states.make_room(self.position, first_row, tokens);
    }

    /// Records that a step has added these tokens to the sequence.
    pub(crate) fn advance(&mut self, tokens: u32) {
        self.position = self.position.saturating_add(tokens);
        // The end of a prompt is saved, because a caller often returns to it, for example to
        // generate another answer.
        if tokens > 1 {
            self.save();
        }
    }

    /// Goes back to the position before a failed step.
    pub(crate) fn fail(&mut self) {
        // States that cannot be truncated may have changed already.
        let here = self.states.cut_anywhere().then_some(self.position);
        self.go_back(self.states.reach(self.position, here));
    }

    /// Saves the present position, so that the sequence can return to it.
    pub(crate) fn save(&mut self) {
        self.states.save(self.position);
    }

    /// Goes back to `tokens` tokens, or to fewer if states need it. Returns how many are left.
    pub(crate) fn truncate(&mut self, tokens: u32) -> u32 {
        self.go_back(self.reach(tokens));
        self.position
    }

    /// Goes to a position that the states can return to.
    fn go_back(&mut self, position: u32) {
        if position < self.used {
            self.states.back_to(position, self.used);
        }
        (self.position, self.used) = (position, position);
    }

    /// Empties the sequence, and makes room for positions that [`States::write_places`] restores.
    pub(crate) fn stand_at(&mut self, stand: &Stand) {
        self.go_back(0);
        self.states.stand_at(stand);
        (self.position, self.used) = (stand.used, stand.used);
    }

    /// Goes back to one of the restored positions. `whole` has the bytes of the states without
    /// positions.
    pub(crate) fn go_back_with(&mut self, position: u32, whole: Option<Vec<u8>>) {
        self.go_back(position);
        if let Some(whole) = whole {
            self.states.write_whole(&whole);
            self.states.add_copy(position, whole);
        }
    }

    /// Becomes a copy of the first `tokens` tokens of another sequence of the same plan, or of
    /// fewer if its states need it. Returns how many it has.
    fn copy_from(&mut self, from: &mut Sequence, tokens: u32, pool: Option<&Arc<Pool>>) -> u32 {
        let position = from.reach(tokens);
        self.states.copy_from(&mut from.states, position, from.used, self.used, pool);
        (self.position, self.used) = (position, position);
        position
    }

    /// Returns the used bytes of the sequence's states without copies, and how many of them lie in
    /// pages that other sequences may share.
    pub fn bytes(&self) -> (u64, u64) {
        (self.states.used_bytes(self.used), self.states.shared_bytes())
    }
}

/// The bytes that the states of sequences use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateBytes {
    /// Bytes in memory of one sequence alone.
    pub own: u64,
    /// Bytes in pages that several sequences share, each counted once.
    pub shared: u64,
    /// Bytes in shared pages, counted for each sequence: the memory they would take without
    /// sharing.
    pub unshared: u64,
    /// Mappings used for sharing; the system limits those of a process.
    pub mappings: u64,
    /// Number of sequences that were copied from others.
    pub copies: u64,
    /// Number of copies that share no memory.
    pub whole_copies: u64,
    /// The last reason why a copy that could share memory did not.
    pub refusal: Option<Refusal>,
}

/// The sequences of an engine, by number. The number of a removed sequence is used again.
#[derive(Debug)]
pub(crate) struct Sequences {
    slots: Vec<Option<Sequence>>,
    max_sequences: u32,
    states: Vec<State>,
    capacity: u32,
    max_tokens: u32,
    sharing: Sharing,
    /// The pool of shared pages, made at the first copy; `None` inside if sequences share no pages.
    pool: OnceLock<Result<Option<Arc<Pool>>, Refusal>>,
    copies: u64,
    whole_copies: u64,
}

impl Sequences {
    /// Makes room for at most `max_sequences` sequences of these states, each with `capacity`
    /// positions, and adds the first one.
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

    /// Returns the max number of sequences.
    pub(crate) fn max_sequences(&self) -> u32 {
        self.max_sequences
    }

    /// Adds an empty sequence. Returns its number, or `None` if there is no free number.
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

    /// Removes a sequence. Returns whether it existed.
    pub(crate) fn remove(&mut self, number: u32) -> bool {
        self.slots.get_mut(number as usize).is_some_and(|sequence| sequence.take().is_some())
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Sequence> {
        self.slots.get(number as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Sequence> {
        self.slots.get_mut(number as usize)?.as_mut()
    }

    /// Makes `to` a copy of the first `tokens` tokens of `from`, or of fewer if the states need it.
    /// Returns how many it then has, or `None` if the two are not different sequences.
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

    /// Returns the bytes that the states of all sequences use.
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

/// The rows of a sequence in a step, which are consecutive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The sequence's number.
    pub(crate) sequence: u32,
    /// The first row of the piece in the step.
    pub(crate) row: u32,
    /// Number of rows.
    pub(crate) rows: u32,
    /// The position of the first row.
    pub(crate) position: u32,
    /// The first requested output of the piece.
    pub(crate) output: u32,
    /// Number of outputs.
    pub(crate) outputs: u32,
}

/// Merges consecutive pieces of the same sequence. Returns each with the number of its first piece.
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
