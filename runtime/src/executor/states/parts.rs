//! States as bytes, for what keeps them elsewhere: rows of the positions that somebody wants, and copies of what has no positions.
//!
//! ```text
//! places(@kv.0, 64..100)                64..128     whole blocks: a block's keys lie side by side
//! places(@kv.1, 64..100)                96..128     of a window, those that are held
//! places(@entries.1, 64..100)           0..32       of 128 positions each
//! ```
//!
//! Columns come one after the other, those of a state's first field first. Rows behind the last position are whatever a block has there.
//!
//! Bytes that were read are not believed: what a place of attention has may be any number. So what was put here is cleared whole when a
//! sequence begins anew, in every format.

use std::io;
use std::ops::Range;

use ixc_ir::plan::{ATTENTION_BLOCK, State};
use ixc_ir::state::Rollback;

use super::{SNAPSHOTS, Snapshot, States};
use crate::memory::Region;
use crate::sliding::Sliding;

/// The places of a state that positions have, from the first block of them to the last; [`States::firsts`] says which of them are held.
pub(crate) fn places(state: &State, positions: &Range<u32>) -> Range<u32> {
    let every = state.every.max(1);
    let first = positions.start / every / ATTENTION_BLOCK * ATTENTION_BLOCK;
    // Positions are below `MAX_CONTEXT`.
    first..positions.end.div_ceil(every).next_multiple_of(ATTENTION_BLOCK).max(first)
}

/// Bytes of so many places of a state; nothing where it has no positions, `None` where they do not fit.
pub(crate) fn place_bytes(state: &State, places: u32) -> Option<u64> {
    let mut fields = state.fields.iter().filter(|field| field.positions);
    fields.try_fold(0u64, |sum, field| sum.checked_add(field.bytes(places)?))
}

/// Bytes of a copy of what has no positions: all of it, or what can be put back from copies alone; `None` where they do not fit.
pub(crate) fn copy_bytes(states: &[State], all: bool) -> Option<u64> {
    let copied = states.iter().filter(|state| all || state.rollback == Rollback::Snapshot);
    let mut fields = copied.flat_map(|state| state.fields.iter().filter(|field| !field.positions));
    fields.try_fold(0u64, |sum, field| sum.checked_add(field.bytes(0)?))
}

/// Whether there is something without positions.
pub(crate) fn has_copies(states: &[State]) -> bool {
    states.iter().any(|state| state.fields.iter().any(|field| !field.positions))
}

/// Positions in states of a sequence of this plan, as [`States::stand_at`] is to have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stand {
    /// Positions that are written.
    pub(crate) used: u32,
    /// Of each state, the first place that is held.
    pub(crate) bases: Vec<u32>,
}

impl States {
    /// Of each state, the first place that is held of those that these positions have.
    pub(crate) fn firsts(&self, positions: &Range<u32>) -> Vec<u32> {
        let first = |(state, sliding): (&State, &Option<Sliding>)| {
            let places = places(state, positions);
            sliding.as_ref().map_or(0, Sliding::base).clamp(places.start, places.end)
        };
        self.states.iter().zip(&self.sliding).map(first).collect()
    }

    /// The first position that is needed of a state by a token at `position`, where it needs its last ones alone.
    pub(crate) fn needed(&self, state: usize, position: u32) -> Option<u32> {
        self.states.get(state)?.window?;
        self.sliding.get(state)?.as_ref().map(|sliding| sliding.first(position))
    }

    /// Places that there is room for.
    pub(crate) fn room(&self, state: usize) -> u32 {
        self.sliding.get(state).and_then(Option::as_ref).map_or(u32::MAX, Sliding::held)
    }

    /// Gives the bytes of these places of a state, column by column.
    pub(crate) fn read_places(
        &self,
        state: usize,
        places: &Range<u32>,
        put: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        for column in self.columns_at(state, places) {
            // SAFETY: the region lies in this memory, which was zeroed when it was made; a kernel that writes it borrows it exclusively.
            put(unsafe { std::slice::from_raw_parts(column.base(), column.bytes() as usize) })?;
        }
        Ok(())
    }

    /// Takes the bytes of places of a state, as [`States::read_places`] gave them; those before what is held are passed over.
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
            // SAFETY: the region lies in this memory, which is borrowed exclusively, so no kernel runs; it has as many bytes.
            unsafe { column.base().copy_from_nonoverlapping(wanted.as_ptr(), wanted.len()) };
        }
        self.foreign = true;
        Ok(())
    }

    /// The first place of a state that is held.
    fn base(&self, state: usize) -> u32 {
        self.sliding.get(state).and_then(Option::as_ref).map_or(0, Sliding::base)
    }

    /// Where these places lie in each column of a state.
    fn columns_at(&self, state: usize, places: &Range<u32>) -> Vec<Region> {
        let from = u64::from(places.start.saturating_sub(self.base(state)));
        let count = u64::from(places.end.saturating_sub(places.start));
        let fields = self.fields.get(state).into_iter().flatten().filter(|columns| columns.field.positions);
        let part =
            |columns: &super::Columns, column: Region| column.part(from * columns.row_bytes, count * columns.row_bytes);
        fields.flat_map(|columns| columns.columns().filter_map(|column| part(columns, column))).collect()
    }

    /// Makes place for positions of another time: of states with a window, from the first place on that is to be held.
    pub(crate) fn stand_at(&mut self, stand: &Stand) {
        for (sliding, &base) in self.sliding.iter_mut().zip(&stand.bases) {
            sliding.iter_mut().filter(|sliding| sliding.slides()).for_each(|sliding| sliding.stand_at(base));
        }
        self.foreign = true;
    }

    /// Positions of the copies that are kept, and those copies, each in the order of the states.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.snapshots.iter().map(|snapshot| (snapshot.position, &*snapshot.bytes))
    }

    /// Takes a copy that was made at a position, behind those that are there.
    pub(crate) fn add_copy(&mut self, position: u32, bytes: Vec<u8>) {
        while self.snapshots.len() >= SNAPSHOTS {
            self.snapshots.pop_front();
        }
        self.snapshots.push_back(Snapshot { position, bytes });
    }

    /// Gives all that has no positions, as it is now.
    pub(crate) fn read_whole(&self, put: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        for (_, region) in self.whole() {
            // SAFETY: the region lies in this memory, which was zeroed when it was made; a kernel that writes it borrows it exclusively.
            put(unsafe { std::slice::from_raw_parts(region.base(), region.bytes() as usize) })?;
        }
        Ok(())
    }

    /// Takes all that has no positions, as [`States::read_whole`] gave it.
    pub(crate) fn write_whole(&mut self, mut bytes: &[u8]) {
        for (_, region) in self.whole() {
            let Some((now, rest)) = bytes.split_at_checked(region.bytes() as usize) else { return };
            bytes = rest;
            // SAFETY: the region lies in this memory, which is borrowed exclusively, so no kernel runs; it has as many bytes.
            unsafe { region.base().copy_from_nonoverlapping(now.as_ptr(), now.len()) };
        }
    }
}
