//! The memory of a plan's states, which last from step to step, and going back to an earlier
//! position.
//!
//! ```text
//! states.region(0, keys, head, block)   a head's keys, from a block of positions on
//! states.save(96)                       copies the states that cannot be cut, at 96 tokens
//! states.reach(100)  = 96               the last position up to 100 that all states can return to
//! states.back_to(96, used)              returns to it
//! ```
//!
//! A state is a KV cache, a recurrent state or a similar tensor. Its fields have one *slot* for
//! each position (or for a group of positions), or no positions. The table of states
//! ([`ixc_ir::state`]) defines them, and the bytes that dropped positions must be reset to. The
//! declaration of a state defines how it goes back. States that can be truncated take no additional
//! memory. Of the others, at most [`SNAPSHOTS`] copies (snapshots) are kept; the oldest is dropped
//! first. Copies count as memory of states.
//!
//! Memory holds only the last positions of a state with a window ([`Sliding`]). When a step does
//! not fit, the positions that are still needed move to the front.
//!
//! A copy of states that hold all positions shares whole pages with the original
//! ([`crate::storage::shared_pages`]).
//!
//! Invariant: each region returned here lies inside this memory.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use ixc_ir::plan::{ATTENTION_BLOCK, State, StateField};
use ixc_ir::state::Rollback;

pub(crate) mod parts;

use super::sliding::Sliding;
use crate::storage::memory::{Layout, Memory, MemoryError, Region, part};
use crate::storage::shared_pages::{Column, Pool, SharedPrefix, ZeroedMemory};

/// Max copies that are kept of the states that cannot be truncated. Each copy takes as much memory
/// as those states.
pub const SNAPSHOTS: usize = 4;
/// Alignment of fields with columns of at least a page, so that their first rows can be shared,
/// too. On systems with larger pages, one page less is shared.
const PAGE: u64 = 4096;

/// A field of a state in memory: columns of equal size, one after the other.
#[derive(Clone, Copy, Debug)]
struct Columns {
    region: Region,
    /// Offset in the memory of the states.
    offset: u64,
    field: StateField,
    /// Bytes of one position of a column; without positions, bytes of a whole column.
    row_bytes: u64,
    column_bytes: u64,
    /// Number of the first column among those that sequences share; `None` if they do not share it.
    shared: Option<usize>,
}

impl Columns {
    fn column(&self, column: u32) -> Option<Region> {
        let inside = column < self.field.columns;
        inside.then(|| self.region.part(u64::from(column) * self.column_bytes, self.column_bytes)).flatten()
    }

    fn columns(&self) -> impl Iterator<Item = Region> {
        // Columns without bytes are skipped, because their number may be huge.
        let columns = if self.column_bytes == 0 { 0 } else { self.field.columns };
        (0..columns).filter_map(|column| self.column(column))
    }

    /// Returns, for each column, the byte range of a range of slots in the memory of the states.
    /// Also returns the column's number among the shared columns.
    fn ranges(&self, places: Range<u32>) -> impl Iterator<Item = (Option<usize>, Range<u64>)> {
        let at = |place: u32| u64::from(place).saturating_mul(self.row_bytes).min(self.column_bytes);
        let (from, to) = (at(places.start), at(places.end));
        // Columns without bytes are skipped, because their number may be huge.
        let columns = if self.column_bytes == 0 { 0 } else { self.field.columns };
        (0..columns).map(move |column| {
            let begin = self.offset + u64::from(column) * self.column_bytes;
            (self.shared.map(|first| first + column as usize), begin + from..begin + to.max(from))
        })
    }

    /// Moves the positions `dropped..there` to the front. In every field, whole blocks of
    /// [`ATTENTION_BLOCK`] follow each other.
    ///
    /// # Safety
    /// The caller must have exclusive access to the memory of these states.
    unsafe fn drop_first(&self, dropped: u32, there: u32) {
        let end = u64::from(there.next_multiple_of(ATTENTION_BLOCK)) * self.row_bytes;
        let from = u64::from(dropped) * self.row_bytes;
        for column in self.columns() {
            let Some(kept) = column.part(from, end.saturating_sub(from)) else { continue };
            // SAFETY: both regions lie in the column, and the column lies in the mapping of these
            // states, to which the caller has exclusive access. The regions may overlap.
            unsafe { column.base().copy_from(kept.base(), kept.bytes() as usize) };
        }
    }

    /// Returns whether bytes of the field can encode infinity or NaN. Quantised blocks of the cache
    /// cannot.
    fn can_be_infinite(&self) -> bool {
        !self.field.format.is_quantised()
    }

    /// Copies the first slots of the same field from other states, or all of a field without
    /// positions. `memory` belongs to these states. Shared pages are not copied.
    ///
    /// # Safety
    /// `memory` and `from` must be the mappings of two sequences. The caller must have exclusive
    /// access to both.
    unsafe fn copy_from(&self, memory: Region, shared: &SharedPrefix, from: Region, places: u32) {
        let rows = if self.field.positions { places.next_multiple_of(ATTENTION_BLOCK) } else { 1 };
        for (number, range) in self.ranges(0..rows) {
            for own in shared.own_ranges(number, range) {
                let at = |memory: Region| memory.part(own.start, own.end - own.start);
                let (Some(to), Some(from)) = (at(memory), at(from)) else { continue };
                // SAFETY: both regions lie in the mappings of their states, to which the caller has
                // exclusive access. The mappings differ.
                unsafe { to.base().copy_from_nonoverlapping(from.base(), to.bytes() as usize) };
            }
        }
    }

    /// Sets the slots `from..to` to zero, except for bytes that are zero already.
    ///
    /// # Safety
    /// `memory` must be the mapping of these states. The caller must have exclusive access to it.
    unsafe fn clear(&self, memory: Region, zeroed: &ZeroedMemory, from: u32, to: u32) {
        for (number, range) in self.ranges(from..to.max(from)) {
            for rest in zeroed.rest(number, range) {
                let Some(places) = memory.part(rest.start, rest.end - rest.start) else { continue };
                // SAFETY: the region lies in the mapping of these states, to which the caller has
                // exclusive access.
                unsafe { places.base().write_bytes(0, places.bytes() as usize) };
            }
        }
    }
}

/// A copy of all states that cannot be truncated.
#[derive(Clone, Debug)]
struct Snapshot {
    position: u32,
    bytes: Vec<u8>,
}

/// The states of a plan.
#[derive(Debug)]
pub struct States {
    memory: Memory,
    states: Vec<State>,
    /// The columns, by state, then by field.
    fields: Vec<Vec<Columns>>,
    /// The positions in memory of each state with a window or with shared slots.
    sliding: Vec<Option<Sliding>>,
    /// Copies in the order of their positions.
    snapshots: VecDeque<Snapshot>,
    /// Whether the memory was restored from a saved state ([`parts`]), so its bytes are not
    /// trusted.
    foreign: bool,
    /// The part of the memory that is shared with other states.
    shared: SharedPrefix,
}

/// Values of a state's field without positions.
#[derive(Clone, Debug)]
pub struct StateValues<'s> {
    /// Name of the state.
    pub name: &'s str,
    /// Elements of a row.
    pub width: usize,
    /// The values, row by row.
    pub values: Vec<f32>,
}

impl States {
    /// Makes states for `capacity` positions, a multiple of the attention's block, and steps of at
    /// most `max_tokens`.
    ///
    /// # Errors
    /// Fails if the system refuses memory.
    pub fn new(states: &[State], capacity: u32, max_tokens: u32) -> Result<States, MemoryError> {
        let what = "the states of the sequence";
        let mut layout = Layout::default();
        let places: Vec<(u64, u64)> =
            fields_of(states, capacity, max_tokens).map(|(field, held)| place(field, held, &mut layout)).collect();
        // Requests small pages: the first positions of different heads are far apart, so the first
        // tokens would touch all large pages. A long context is read in sequence, which small pages
        // do not slow down.
        let memory = Memory::zeroed(what, layout.end, false)?;
        let mut places = places.into_iter();
        let mut fields = Vec::with_capacity(states.len());
        let mut shared_columns = 0;
        for state in states {
            let columns = state.fields.iter().zip(&mut places).map(|(&field, (offset, bytes))| {
                let row_bytes = field.row_bytes().unwrap_or(0);
                let rows = if field.positions { state.entries_in_memory(capacity, max_tokens) } else { 1 };
                let column_bytes = row_bytes.saturating_mul(rows.into());
                // A state with a window moves its positions, so it cannot be shared.
                let is_shared = state.kind.row().shared && state.window.is_none() && column_bytes > PAGE;
                let shared = is_shared.then_some(shared_columns);
                shared_columns += if is_shared { field.columns as usize } else { 0 };
                let region = part(&memory, what, offset, bytes)?;
                Ok(Columns { region, offset, field, row_bytes, column_bytes, shared })
            });
            fields.push(columns.collect::<Result<Vec<_>, MemoryError>>()?);
        }
        let sliding = states.iter().map(|state| {
            let held = state.entries_in_memory(capacity, max_tokens);
            let slides = state.window.is_some() || state.every > 1;
            slides.then(|| Sliding::new(state.window, state.chunked, state.every, held, max_tokens)).transpose()
        });
        let sliding = sliding.collect::<Result<_, _>>()?;
        Ok(States {
            memory,
            states: states.to_vec(),
            fields,
            sliding,
            snapshots: VecDeque::new(),
            foreign: false,
            shared: SharedPrefix::default(),
        })
    }

    /// Returns the declared states.
    pub fn declared_states(&self) -> &[State] {
        &self.states
    }

    /// Returns the memory of the states, without copies.
    pub fn memory(&self) -> Region {
        self.memory.region()
    }

    /// Returns the columns that sequences with these states share.
    pub(crate) fn shared_columns(&self) -> Vec<Column> {
        let fields = self.states.iter().zip(&self.fields).flat_map(|(state, fields)| {
            fields.iter().filter(|columns| columns.shared.is_some()).map(move |columns| (state.every, columns))
        });
        let columns = fields.flat_map(|(every, columns)| {
            let &Columns { row_bytes, column_bytes: bytes, .. } = columns;
            let column = move |range: Range<u64>| Column { offset: range.start, bytes, row_bytes, every };
            columns.ranges(0..0).map(move |(_, range)| column(range))
        });
        columns.collect()
    }

    /// Returns the number of bytes of pages that are shared with other states.
    pub fn shared_bytes(&self) -> u64 {
        self.shared.bytes()
    }

    /// Returns the number of bytes of this memory that `used` positions fill, without copies.
    pub fn used_bytes(&self, used: u32) -> u64 {
        let bytes = self.fields.iter().zip(&self.sliding).flat_map(|(fields, sliding)| {
            let places = sliding.as_ref().map_or(used, |sliding| sliding.places(used));
            fields.iter().map(move |columns| match columns.field.positions {
                true => u64::from(places) * columns.row_bytes * u64::from(columns.field.columns),
                false => columns.region.bytes(),
            })
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns the number of bytes of all states for `capacity` positions, including copies.
    pub fn bytes(states: &[State], capacity: u32, max_tokens: u32) -> u64 {
        let mut layout = Layout::default();
        for (field, held) in fields_of(states, capacity, max_tokens) {
            place(field, held, &mut layout);
        }
        let sliding = states.iter().filter(|state| state.window.is_some() || state.every > 1).count() as u64;
        layout.add(sliding.saturating_mul(Sliding::bytes(max_tokens)));
        let copied = states.iter().filter(|state| state.rollback == Rollback::Snapshot);
        let copy = copied.fold(0, |sum: u64, state| sum.saturating_add(state.bytes(capacity).unwrap_or(u64::MAX)));
        layout.end.saturating_add(copy.saturating_mul(SNAPSHOTS as u64))
    }

    /// Returns a column of a field with positions, from a block of [`ATTENTION_BLOCK`] positions
    /// on. Returns all of a field without positions.
    pub fn region(&self, state: u32, field: u32, column: u32, block: u64) -> Option<Region> {
        let columns = self.fields.get(state as usize)?.get(field as usize)?;
        if !columns.field.positions {
            return Some(columns.region);
        }
        let skipped = block.checked_mul(u64::from(ATTENTION_BLOCK))?.checked_mul(columns.row_bytes)?;
        columns.column(column)?.part(skipped, columns.column_bytes.checked_sub(skipped)?)
    }

    /// Returns whether a field has positions and only one column.
    pub fn has_one_column(&self, state: u32, field: u32) -> bool {
        let columns = self.fields.get(state as usize).and_then(|fields| fields.get(field as usize));
        columns.is_some_and(|columns| columns.field.positions && columns.field.columns == 1)
    }

    /// Returns the bytes of a slot of a field with positions, and whether its slots are interleaved
    /// ([`FieldRow::lanes`](ixc_ir::state::FieldRow::lanes)).
    pub fn place(&self, state: u32, field: u32) -> Option<(u64, bool)> {
        let row_bytes = self.fields.get(state as usize)?.get(field as usize)?.row_bytes;
        let row = self.states.get(state as usize)?.kind.row().fields.get(field as usize)?;
        Some((row_bytes, row.lanes))
    }

    /// Returns whether all states can be truncated to any position.
    pub fn cut_anywhere(&self) -> bool {
        self.states.iter().all(|state| state.rollback == Rollback::Cut && state.window.is_none())
    }

    /// Returns whether any number of the last step's positions can be dropped. A sliding window
    /// keeps the positions that a step's first token needs until the next step.
    pub fn cuts_steps(&self) -> bool {
        self.states.iter().all(|state| state.rollback == Rollback::Cut)
    }

    /// Returns the last position up to `wanted` that all states can return to. `here` is their
    /// present position. It is `None` after a failed step, because states that cannot be truncated
    /// are then invalid.
    pub fn reach(&self, wanted: u32, here: Option<u32>) -> u32 {
        if here.is_some_and(|here| wanted >= here) {
            return here.unwrap_or(0);
        }
        let reach = |state: &State| match state.rollback {
            Rollback::Cut => wanted,
            Rollback::Snapshot => self.snapshot(wanted).map_or(0, |snapshot| snapshot.position),
            Rollback::None => 0,
        };
        // All states that need a copy have copies of the same positions. Without a copy, they can
        // return only to 0.
        let min = self.states.iter().map(reach).min().unwrap_or(wanted);
        // The sequence also goes back to 0 if memory no longer holds a needed position.
        if self.sliding.iter().flatten().all(|sliding| sliding.reaches(min)) { min } else { 0 }
    }

    /// Returns the last copy up to a position.
    fn snapshot(&self, position: u32) -> Option<&Snapshot> {
        self.snapshots.iter().rev().find(|snapshot| snapshot.position <= position)
    }

    /// Goes back to a position that [`States::reach`] returned. `used` is the number of written
    /// positions.
    pub fn back_to(&mut self, position: u32, used: u32) {
        self.leave(position, used, u32::MAX);
    }

    /// Goes back like [`States::back_to`]. States that hold all positions were written only up to
    /// position `held`.
    fn leave(&mut self, position: u32, used: u32, held: u32) {
        let memory = self.memory.region();
        // SAFETY: the memory belongs to these states, which are borrowed exclusively, so no kernel
        // runs.
        let zeroed = unsafe { self.shared.cut(memory, position) };
        for ((state, fields), sliding) in self.states.iter().zip(&self.fields).zip(&mut self.sliding) {
            let (position, used) = match sliding {
                Some(sliding) => sliding.back_to(position, used),
                None => (position, used),
            };
            let blocks = held.div_ceil(state.every.max(1)).checked_next_multiple_of(ATTENTION_BLOCK);
            let used = if state.window.is_some() { used } else { used.min(blocks.unwrap_or(u32::MAX)) };
            // At position 0, whole blocks are cleared.
            let used = if position == 0 { used.next_multiple_of(ATTENTION_BLOCK) } else { used };
            for (columns, row) in fields.iter().zip(state.kind.row().fields) {
                let can_be_infinite = columns.can_be_infinite() || self.foreign && position == 0;
                if row.cleared && columns.field.positions && can_be_infinite {
                    // SAFETY: as for `cut`.
                    unsafe { columns.clear(memory, &zeroed, position, used) };
                }
            }
        }
        self.foreign &= position > 0;
        self.snapshots.retain(|snapshot| snapshot.position <= position);
        let kept = self.snapshots.back().filter(|snapshot| snapshot.position == position);
        let mut bytes = kept.map(|snapshot| &snapshot.bytes[..]);
        for (state, region) in self.whole() {
            let length = region.bytes() as usize;
            let copy = match (state.rollback, &mut bytes) {
                (Rollback::Snapshot, Some(bytes)) => {
                    let (copy, rest) = bytes.split_at(length);
                    *bytes = rest;
                    Some(copy)
                }
                (Rollback::Snapshot, None) | (Rollback::None | Rollback::Cut, _) => None,
            };
            // SAFETY: the region lies in this memory, which is borrowed exclusively, so no kernel
            // runs. A copy has the same length.
            unsafe {
                match copy {
                    Some(copy) => region.base().copy_from_nonoverlapping(copy.as_ptr(), length),
                    // At position 0, the states are zero.
                    None => region.base().write_bytes(0, length),
                }
            }
        }
    }

    /// Makes room for a step's rows from `first_row` on. States with a window drop the positions
    /// that are not needed any more.
    pub fn make_room(&mut self, position: u32, first_row: u32, tokens: u32) {
        for ((state, fields), sliding) in self.states.iter().zip(&self.fields).zip(&mut self.sliding) {
            let Some(sliding) = sliding else { continue };
            if let Some((dropped, there)) = sliding.make_room(position, tokens) {
                for (columns, row) in fields.iter().zip(state.kind.row().fields) {
                    // SAFETY: the memory belongs to these states, which are borrowed exclusively,
                    // so no kernel runs.
                    unsafe { columns.drop_first(dropped, there) };
                    if row.cleared && columns.can_be_infinite() {
                        let (memory, from) = (self.memory.region(), there - dropped);
                        // SAFETY: as for `drop_first`.
                        unsafe { columns.clear(memory, &ZeroedMemory::Nothing, from, there) };
                    }
                }
            }
            sliding.fill(position, first_row, tokens);
        }
    }

    /// Copies other states of the same plan and size. `used` is the number of written positions in
    /// `from`, and `own` the number in these states. `position` is a value that `reach` of `from`
    /// returned. With a pool, both share their common pages.
    pub(crate) fn copy_from(
        &mut self,
        from: &mut States,
        position: u32,
        used: u32,
        own: u32,
        pool: Option<&Arc<Pool>>,
    ) {
        self.back_to(0, own);
        for (to, from) in self.sliding.iter_mut().flatten().zip(from.sliding.iter().flatten()) {
            to.stand_at(from.base());
        }
        let (memory, original) = (self.memory.region(), from.memory.region());
        if let Some(pool) = pool {
            // SAFETY: both regions are the whole memory of their states. Both states are borrowed
            // exclusively, so no kernel runs.
            unsafe {
                from.shared.freeze(original, pool, position);
                self.shared.take(memory, pool, &from.shared, original, position);
            }
        }
        // States with all positions are copied only up to `position`, in whole blocks.
        let held = used.min(position.next_multiple_of(ATTENTION_BLOCK));
        for ((state, fields), sliding) in self.states.iter().zip(&self.fields).zip(&self.sliding) {
            let written = if state.window.is_some() { used } else { held };
            let places = sliding.as_ref().map_or(written, |sliding| sliding.places(written));
            for columns in fields {
                // SAFETY: as for `freeze`; the regions belong to different sequences.
                unsafe { columns.copy_from(memory, &self.shared, original, places) };
            }
        }
        self.snapshots.clone_from(&from.snapshots);
        self.foreign = from.foreign;
        if position < used {
            self.leave(position, used, held);
        }
    }

    /// Returns the fields without positions.
    pub fn values(&self) -> impl Iterator<Item = StateValues<'_>> {
        self.whole().map(|(state, region)| {
            // SAFETY: the region lies in this memory, which was zeroed when it was made. A kernel
            // that writes it borrows it exclusively.
            let bytes = unsafe { std::slice::from_raw_parts(region.base(), region.bytes() as usize) };
            let floats = bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]));
            let width = state.fields.first().map_or(0, |field| field.width as usize);
            StateValues { name: &state.name, width, values: floats.collect() }
        })
    }

    /// Returns the positions in memory of a state with a window or with shared slots.
    pub fn sliding(&self, state: u32) -> Option<&Sliding> {
        self.sliding.get(state as usize)?.as_ref()
    }

    /// Returns the fields without positions, each with its state.
    fn whole(&self) -> impl Iterator<Item = (&State, Region)> {
        self.states.iter().zip(&self.fields).flat_map(|(state, fields)| {
            fields.iter().filter(|columns| !columns.field.positions).map(move |columns| (state, columns.region))
        })
    }

    /// Copies the states that cannot be truncated, at `position`. Does nothing if all states can be
    /// cut, or if this copy exists.
    pub fn save(&mut self, position: u32) {
        let saved = self.snapshots.back().is_some_and(|snapshot| snapshot.position >= position);
        if saved || !self.states.iter().any(|state| state.rollback == Rollback::Snapshot) {
            return;
        }
        // The new copy reuses the memory of the oldest one.
        let oldest = if self.snapshots.len() < SNAPSHOTS { None } else { self.snapshots.pop_front() };
        let mut bytes = oldest.map_or_else(Vec::new, |oldest| oldest.bytes);
        bytes.clear();
        for (_, region) in self.whole().filter(|(state, _)| state.rollback == Rollback::Snapshot) {
            // SAFETY: the region lies in this memory, which was zeroed when it was made. It is
            // borrowed exclusively, so no kernel runs.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(region.base(), region.bytes() as usize) });
        }
        self.snapshots.push_back(Snapshot { position, bytes });
    }
}

/// Returns all fields, each with the positions that it has room for.
fn fields_of(states: &[State], capacity: u32, max_tokens: u32) -> impl Iterator<Item = (&StateField, u32)> {
    states.iter().flat_map(move |state| {
        state.fields.iter().map(move |field| (field, state.entries_in_memory(capacity, max_tokens)))
    })
}

/// Adds a field to the layout. Returns its offset and bytes.
fn place(field: &StateField, capacity: u32, layout: &mut Layout) -> (u64, u64) {
    // A size that overflows becomes the max value, so that the mapping fails.
    let bytes = field.bytes(capacity).unwrap_or(u64::MAX);
    if field.positions && bytes / u64::from(field.columns.max(1)) > PAGE {
        layout.align(PAGE);
    }
    (layout.add(bytes), bytes)
}

#[cfg(test)]
mod tests;
