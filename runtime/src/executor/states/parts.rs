//! Conversion of states to bytes, for saving and restoring a sequence. It converts the slots of
//! some positions, and copies of the fields without positions.
//!
//! ```text
//! places(@kv.0, 64..100)                64..128     whole blocks: a block's keys lie side by side
//! places(@kv.1, 64..100)                96..128     with a window, only those in memory
//! places(@entries.1, 64..100)           0..32       of 128 positions each
//! ```
//!
//! The bytes of each column are contiguous, and columns are in the order of fields. Rows after the
//! last position may have any bytes.
//!
//! Restored bytes are not trusted: a slot may hold any number, also NaN. So when a sequence is
//! emptied, all its restored slots are cleared, whatever their format.

use std::io;
use std::ops::Range;

use ixc_ir::plan::{ATTENTION_BLOCK, State};
use ixc_ir::state::Rollback;

use super::{SNAPSHOTS, Snapshot, States};
use crate::sliding::Sliding;
use crate::storage::memory::Region;

/// Returns the slots that hold some positions of a state, rounded to whole blocks. Memory may hold
/// only the slots from [`States::firsts`] on.
pub(crate) fn places(state: &State, positions: &Range<u32>) -> Range<u32> {
    let every = state.every.max(1);
    let first = positions.start / every / ATTENTION_BLOCK * ATTENTION_BLOCK;
    // The sum cannot overflow, because positions are below `MAX_CONTEXT`.
    first..positions.end.div_ceil(every).next_multiple_of(ATTENTION_BLOCK).max(first)
}

/// Returns the number of bytes of `places` slots of a state: 0 for a state without positions,
/// `None` on overflow.
pub(crate) fn place_bytes(state: &State, places: u32) -> Option<u64> {
    let mut fields = state.fields.iter().filter(|field| field.positions);
    fields.try_fold(0u64, |sum, field| sum.checked_add(field.bytes(places)?))
}

/// Returns the number of bytes of a copy of the fields without positions. With `all`, these are the
/// fields of all states, otherwise only those of states that are restored from copies. Returns
/// `None` on overflow.
pub(crate) fn copy_bytes(states: &[State], all: bool) -> Option<u64> {
    let copied = states.iter().filter(|state| all || state.rollback == Rollback::Snapshot);
    let mut fields = copied.flat_map(|state| state.fields.iter().filter(|field| !field.positions));
    fields.try_fold(0u64, |sum, field| sum.checked_add(field.bytes(0)?))
}

/// Returns whether some state has a field without positions.
pub(crate) fn has_copies(states: &[State]) -> bool {
    states.iter().any(|state| state.fields.iter().any(|field| !field.positions))
}

/// The positions that the states of a sequence hold, for [`States::stand_at`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stand {
    /// Number of written positions.
    pub(crate) used: u32,
    /// The first slot in memory, for each state.
    pub(crate) bases: Vec<u32>,
}

impl States {
    /// Returns, for each state, the first of the slots of these positions that memory holds.
    pub(crate) fn firsts(&self, positions: &Range<u32>) -> Vec<u32> {
        let first = |(state, sliding): (&State, &Option<Sliding>)| {
            let places = places(state, positions);
            sliding.as_ref().map_or(0, Sliding::base).clamp(places.start, places.end)
        };
        self.states.iter().zip(&self.sliding).map(first).collect()
    }

    /// Returns the first position of a state that a token at `position` needs; `None` if the state
    /// has no window.
    pub(crate) fn first_needed(&self, state: usize, position: u32) -> Option<u32> {
        self.states.get(state)?.window?;
        self.sliding.get(state)?.as_ref().map(|sliding| sliding.first(position))
    }

    /// Returns the number of slots for which a state's memory has room.
    pub(crate) fn room(&self, state: usize) -> u32 {
        self.sliding.get(state).and_then(Option::as_ref).map_or(u32::MAX, Sliding::place_capacity)
    }

    /// Passes the bytes of a range of slots of a state to `put`, column by column.
    pub(crate) fn read_places(
        &self,
        state: usize,
        places: &Range<u32>,
        put: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        for column in self.columns_at(state, places) {
            // SAFETY: the region lies in this memory, which was zeroed when it was made. A kernel
            // that writes it borrows it exclusively.
            put(unsafe { std::slice::from_raw_parts(column.base(), column.bytes() as usize) })?;
        }
        Ok(())
    }

    /// Restores slots of a state from bytes that [`States::read_places`] returned. Slots before the
    /// first one in memory are skipped.
    pub(crate) fn write_places(
        &mut self,
        state: usize,
        places: &Range<u32>,
        get: &mut dyn FnMut(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let base = self.base(state);
        let held = places.start.max(base).min(places.end)..places.end;
        let mut bytes = Vec::new();
        let columns = self.fields.get(state).into_iter().flatten().filter(|columns| columns.field.positions);
        let row_bytes: Vec<u64> = columns.flat_map(|columns| columns.columns().map(|_| columns.row_bytes)).collect();
        for (row_bytes, column) in row_bytes.into_iter().zip(self.columns_at(state, &held)) {
            let passed = u64::from(held.start - places.start) * row_bytes;
            bytes.resize((passed + column.bytes()) as usize, 0);
            get(&mut bytes)?;
            let wanted = &bytes[passed as usize..];
            // SAFETY: the region lies in this memory, which is borrowed exclusively, so no kernel
            // runs. The region and `wanted` have the same length.
            unsafe { column.base().copy_from_nonoverlapping(wanted.as_ptr(), wanted.len()) };
        }
        self.foreign = true;
        Ok(())
    }

    /// Returns the number of the first slot of a state that memory holds.
    fn base(&self, state: usize) -> u32 {
        self.sliding.get(state).and_then(Option::as_ref).map_or(0, Sliding::base)
    }

    /// Returns the memory of a range of slots: one region for each column of a state.
    fn columns_at(&self, state: usize, places: &Range<u32>) -> Vec<Region> {
        let from = u64::from(places.start.saturating_sub(self.base(state)));
        let count = u64::from(places.end.saturating_sub(places.start));
        let fields = self.fields.get(state).into_iter().flatten().filter(|columns| columns.field.positions);
        let part =
            |columns: &super::Columns, column: Region| column.part(from * columns.row_bytes, count * columns.row_bytes);
        fields.flat_map(|columns| columns.columns().filter_map(|column| part(columns, column))).collect()
    }

    /// Makes room for the positions that are to be restored. States with a window then begin at the
    /// slots in `stand.bases`.
    pub(crate) fn stand_at(&mut self, stand: &Stand) {
        for (sliding, &base) in self.sliding.iter_mut().zip(&stand.bases) {
            sliding.iter_mut().filter(|sliding| sliding.slides()).for_each(|sliding| sliding.stand_at(base));
        }
        self.foreign = true;
    }

    /// Returns the saved copies with their positions. The bytes of a copy are those of the states,
    /// in order.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.snapshots.iter().map(|snapshot| (snapshot.position, &*snapshot.bytes))
    }

    /// Adds a saved copy. Its position must be after those of all existing copies.
    pub(crate) fn add_copy(&mut self, position: u32, bytes: Vec<u8>) {
        while self.snapshots.len() >= SNAPSHOTS {
            self.snapshots.pop_front();
        }
        self.snapshots.push_back(Snapshot { position, bytes });
    }

    /// Passes the current bytes of the fields without positions to `put`.
    pub(crate) fn read_whole(&self, put: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        for (_, region) in self.whole() {
            // SAFETY: the region lies in this memory, which was zeroed when it was made. A kernel
            // that writes it borrows it exclusively.
            put(unsafe { std::slice::from_raw_parts(region.base(), region.bytes() as usize) })?;
        }
        Ok(())
    }

    /// Restores the fields without positions from the bytes of [`States::read_whole`].
    pub(crate) fn write_whole(&mut self, mut bytes: &[u8]) {
        for (_, region) in self.whole() {
            let Some((now, rest)) = bytes.split_at_checked(region.bytes() as usize) else { return };
            bytes = rest;
            // SAFETY: the region lies in this memory, which is borrowed exclusively, so no kernel
            // runs. The region and `now` have the same length.
            unsafe { region.base().copy_from_nonoverlapping(now.as_ptr(), now.len()) };
        }
    }
}
