//! The memory of a sequence's states, which is kept from step to step, and the return to an earlier
//! position.
//!
//! ```text
//! states.region(0, keys, head, block)   a head's keys, from a block of positions on
//! states.save(96)                       copies the states that cannot be cut, at 96 tokens
//! states.reach(100)  = 96               the last position up to 100 that all states can return to
//! states.back_to(96, used)              returns to it
//! ```
//!
//! A state is a KV cache, a recurrent state or a similar tensor. Each of its fields has either one
//! *slot* for each position (or for a group of positions), or no positions. The table of states
//! ([`ixc_ir::state`]) defines the fields, and the bytes to which dropped positions must be reset.
//! A state's declaration defines how the state returns to an earlier position. States that can be
//! truncated take no additional memory. Of all other states, at most [`SNAPSHOTS`] copies
//! (snapshots) are kept; the oldest copy is dropped first. The estimated memory of states includes
//! these copies.
//!
//! If a state has a window, memory holds only its last positions ([`Sliding`]). If a step does not
//! fit, the positions that are still needed are moved to the front.
//!
//! If a sequence is copied, the states that hold all positions share whole pages with the original
//! ([`crate::storage::shared_pages`]).
//!
//! Invariant: each region that this module returns lies inside the memory of the states.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use ixc_ir::plan::{ATTENTION_BLOCK, State, StateField};
use ixc_ir::state::Rollback;

pub(crate) mod parts;

use super::sliding::Sliding;
use crate::storage::memory::{Layout, Memory, MemoryError, Region, part};
use crate::storage::shared_pages::{Column, Pool, SharedPrefix, ZeroedMemory};

/// Maximum number of copies that are kept of the states that cannot be truncated. Each copy takes
/// as much memory as those states.
pub const SNAPSHOTS: usize = 4;
/// Alignment of fields whose columns have at least a page, so that their first rows can be shared.
/// On systems with larger pages, one page less can be shared.
const PAGE: u64 = 4096;

/// A field of a state in memory. Its columns (heads, for example) have equal sizes and lie one
/// after the other.
#[derive(Clone, Copy, Debug)]
struct Columns {
    region: Region,
    /// Offset of the field in the memory of the states.
    offset: u64,
    field: StateField,
    /// Bytes of one slot of a column; for a field without positions, bytes of a whole column.
    row_bytes: u64,
    column_bytes: u64,
    /// Index of the field's first column among the columns that sequences can share; `None` if they
    /// cannot share the field.
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

    /// Returns, for each column, the byte range of the slots `places` in the memory of the states.
    /// Also returns the column's index among the columns that can be shared.
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

    /// Drops the first `dropped` of `there` slots: moves the remaining slots to the front, in whole
    /// blocks of [`ATTENTION_BLOCK`]. In every column, a block is contiguous.
    ///
    /// # Safety
    /// The caller must have exclusive access to the memory of these states.
    unsafe fn drop_first(&self, dropped: u32, there: u32) {
        let end = u64::from(there.next_multiple_of(ATTENTION_BLOCK)) * self.row_bytes;
        let from = u64::from(dropped) * self.row_bytes;
        for column in self.columns() {
            let Some(kept) = column.part(from, end.saturating_sub(from)) else { continue };
            // SAFETY: both regions lie in the column, and the column lies in the mapping of these
            // states, to which the caller has exclusive access. `copy_from` allows regions that
            // overlap.
            unsafe { column.base().copy_from(kept.base(), kept.bytes() as usize) };
        }
    }

    /// Returns whether the bytes of the field can encode infinity or NaN. The quantised formats of
    /// the cache cannot.
    fn can_be_infinite(&self) -> bool {
        !self.field.format.is_quantised()
    }

    /// Copies the first `places` slots of the same field from other states, or the whole field if
    /// it has no positions. `memory` belongs to these states. Pages that both share are not copied.
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

    /// Sets the slots `from..to` to zero, except for bytes that are already zero.
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

/// A copy of all states that cannot be truncated, at one position.
#[derive(Clone, Debug)]
struct Snapshot {
    position: u32,
    bytes: Vec<u8>,
}

/// The states of one sequence.
#[derive(Debug)]
pub struct States {
    memory: Memory,
    states: Vec<State>,
    /// The fields in memory, indexed by state and by field.
    fields: Vec<Vec<Columns>>,
    /// The mapping of positions to slots, for each state with a window or with slots that several
    /// positions share.
    sliding: Vec<Option<Sliding>>,
    /// Saved copies, in the order of their positions.
    snapshots: VecDeque<Snapshot>,
    /// Whether the memory was restored from a saved state ([`parts`]). Its bytes are then not
    /// trusted.
    foreign: bool,
    /// The prefix of the memory that is shared with states of other sequences.
    shared: SharedPrefix,
}

/// Values of one field without positions, for example of a recurrent state.
#[derive(Clone, Debug)]
pub struct StateValues<'s> {
    /// Name of the state.
    pub name: &'s str,
    /// Number of values in a row.
    pub width: usize,
    /// The values, row by row.
    pub values: Vec<f32>,
}

impl States {
    /// Allocates states for `capacity` positions (a multiple of the attention block) and for steps
    /// of at most `max_tokens` tokens.
    ///
    /// # Errors
    /// Fails if the system refuses memory.
    pub fn new(states: &[State], capacity: u32, max_tokens: u32) -> Result<States, MemoryError> {
        let what = "the states of the sequence";
        let mut layout = Layout::default();
        let places: Vec<(u64, u64)> =
            fields_of(states, capacity, max_tokens).map(|(field, held)| place(field, held, &mut layout)).collect();
        // The memory uses small pages. The first positions of different heads are far apart, so the
        // first tokens would touch all large pages. A long context is read in sequence, which is
        // not slower with small pages.
        let memory = Memory::zeroed(what, layout.end, false)?;
        let mut places = places.into_iter();
        let mut fields = Vec::with_capacity(states.len());
        let mut shared_columns = 0;
        for state in states {
            let columns = state.fields.iter().zip(&mut places).map(|(&field, (offset, bytes))| {
                let row_bytes = field.row_bytes().unwrap_or(0);
                let rows = if field.positions { state.entries_in_memory(capacity, max_tokens) } else { 1 };
                let column_bytes = row_bytes.saturating_mul(rows.into());
                // A state with a window moves its positions in memory, so its pages cannot be
                // shared.
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

    /// Returns the declarations of the states in the plan.
    pub fn declared_states(&self) -> &[State] {
        &self.states
    }

    /// Returns the memory of the states, without saved copies.
    pub fn memory(&self) -> Region {
        self.memory.region()
    }

    /// Returns the columns that sequences with these states can share.
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

    /// Returns the number of bytes that `used` positions fill in this memory, without saved copies.
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

    /// Returns the number of bytes of states for `capacity` positions, including the maximum number
    /// of saved copies.
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

    /// Returns one column of a field with positions, from attention block `block` on. For a field
    /// without positions, returns the whole field.
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

    /// Returns the number of bytes of a slot in a field with positions. Also returns whether the
    /// elements of several slots are interleaved
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

    /// Returns whether any number of the last step's positions can be dropped. States with a
    /// sliding window can do this: until the next step, they keep the positions that the last
    /// step's first token needs.
    pub fn cuts_steps(&self) -> bool {
        self.states.iter().all(|state| state.rollback == Rollback::Cut)
    }

    /// Returns the largest position, at most `wanted`, that all states can return to. `here` is the
    /// present position of the states. After a failed step it is `None`, because states that cannot
    /// be truncated are then invalid.
    pub fn reach(&self, wanted: u32, here: Option<u32>) -> u32 {
        if here.is_some_and(|here| wanted >= here) {
            return here.unwrap_or(0);
        }
        let reach = |state: &State| match state.rollback {
            Rollback::Cut => wanted,
            Rollback::Snapshot => self.snapshot(wanted).map_or(0, |snapshot| snapshot.position),
            Rollback::None => 0,
        };
        // All states that need saved copies have copies of the same positions. Without a copy, they
        // can only return to 0.
        let min = self.states.iter().map(reach).min().unwrap_or(wanted);
        // If memory no longer holds a position that is needed at `min`, the sequence can only
        // return to 0.
        if self.sliding.iter().flatten().all(|sliding| sliding.reaches(min)) { min } else { 0 }
    }

    /// Returns the last saved copy at or before a position.
    fn snapshot(&self, position: u32) -> Option<&Snapshot> {
        self.snapshots.iter().rev().find(|snapshot| snapshot.position <= position)
    }

    /// Returns the states to an earlier position, which must be a result of [`States::reach`].
    /// `used` is the number of written positions.
    pub fn back_to(&mut self, position: u32, used: u32) {
        self.leave(position, used, u32::MAX);
    }

    /// Does the work of [`States::back_to`]. Of states that hold all positions, only positions
    /// below `held` were written.
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
            // At position 0, whole blocks are cleared, because restored blocks may have any bytes
            // after the last position.
            let used = if position == 0 { used.next_multiple_of(ATTENTION_BLOCK) } else { used };
            for (columns, row) in fields.iter().zip(state.kind.row().fields) {
                let can_be_infinite = columns.can_be_infinite() || self.foreign && position == 0;
                if row.cleared && columns.field.positions && can_be_infinite {
                    // SAFETY: the reasons for `cut` above also hold here.
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
            // runs. The saved copy of the region has the same length.
            unsafe {
                match copy {
                    Some(copy) => region.base().copy_from_nonoverlapping(copy.as_ptr(), length),
                    // At position 0, there is no copy: these states begin as zeros.
                    None => region.base().write_bytes(0, length),
                }
            }
        }
    }

    /// Makes room for a step of `tokens` tokens; `first_row` is the sequence's first row in the
    /// step. States with a window drop positions that are no longer needed.
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
                        // SAFETY: the reasons for `drop_first` above also hold here.
                        unsafe { columns.clear(memory, &ZeroedMemory::Nothing, from, there) };
                    }
                }
            }
            sliding.fill(position, first_row, tokens);
        }
    }

    /// Makes these states a copy of the first `position` positions of `from`, which has the same
    /// plan and size. `position` must be a result of `from.reach`. `used` is the number of written
    /// positions in `from`, and `own` the number in these states. With a pool, both states share
    /// the pages of the common positions.
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
        // Of states that hold all positions, only the positions below `position` are copied, in
        // whole blocks.
        let held = used.min(position.next_multiple_of(ATTENTION_BLOCK));
        for ((state, fields), sliding) in self.states.iter().zip(&self.fields).zip(&self.sliding) {
            let written = if state.window.is_some() { used } else { held };
            let places = sliding.as_ref().map_or(written, |sliding| sliding.places(written));
            for columns in fields {
                // SAFETY: the reasons for `freeze` above also hold here, and the two regions belong
                // to different sequences.
                unsafe { columns.copy_from(memory, &self.shared, original, places) };
            }
        }
        self.snapshots.clone_from(&from.snapshots);
        self.foreign = from.foreign;
        if position < used {
            self.leave(position, used, held);
        }
    }

    /// Returns the values of the fields without positions.
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

    /// Returns the mapping of positions to slots of a state; `None` if it has neither a window nor
    /// shared slots.
    pub fn sliding(&self, state: u32) -> Option<&Sliding> {
        self.sliding.get(state as usize)?.as_ref()
    }

    /// Returns the fields without positions, each with its state.
    fn whole(&self) -> impl Iterator<Item = (&State, Region)> {
        self.states.iter().zip(&self.fields).flat_map(|(state, fields)| {
            fields.iter().filter(|columns| !columns.field.positions).map(move |columns| (state, columns.region))
        })
    }

    /// Saves a copy at `position` of the states that cannot be truncated. Does nothing if all
    /// states can be truncated, or if the copy exists already.
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

/// Returns all fields, each with the number of slots for which memory has room.
fn fields_of(states: &[State], capacity: u32, max_tokens: u32) -> impl Iterator<Item = (&StateField, u32)> {
    states.iter().flat_map(move |state| {
        state.fields.iter().map(move |field| (field, state.entries_in_memory(capacity, max_tokens)))
    })
}

/// Adds a field to the layout. Returns the field's offset and number of bytes.
fn place(field: &StateField, capacity: u32, layout: &mut Layout) -> (u64, u64) {
    // If the size overflows, the maximum value makes the mapping fail later.
    let bytes = field.bytes(capacity).unwrap_or(u64::MAX);
    if field.positions && bytes / u64::from(field.columns.max(1)) > PAGE {
        layout.align(PAGE);
    }
    (layout.add(bytes), bytes)
}

#[cfg(test)]
mod tests;
