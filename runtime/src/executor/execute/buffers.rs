//! The memory of a work item's buffers: the address and the number of bytes that a kernel may
//! access in one call.
//!
//! A buffer lies in one of several sources: the arena, a weight, a state, inputs or scratch memory.
//! It can also hold the partial results of an item (`parts.rs`), or copies of the cache slots that
//! an index chose (`gather.rs`).
//!
//! Invariant: each region that this module returns lies inside the memory of its source. The values
//! of an index buffer are below the kernel's limit. Otherwise the result is a [`Problem`], for any
//! plan.
//!
//! Example: an argument has 4096 bytes for each row, and an item has 6 rows from row 12 on. Its
//! buffer is the 24576 bytes from byte 49152 on of the arena buffer. If the step has fewer than 18
//! rows, the result is [`Problem::Slice`].

use ixc_ir::kernel::Dim;
use ixc_ir::plan::{ATTENTION_BLOCK, Arg, DimExpr, DimInput, Input, RowBase, RowCount, Source};

use super::parts::{PartKey, RowPositions};
use super::{Item, Pass, Problem};
use crate::executor::sequences::Piece;
use crate::executor::sliding::Sliding;
use crate::program::{Access, MAX_DIMS, Parameter, PartPlace, Signature};
use crate::states::States;
use crate::storage::memory::{INDEX_BYTES, Region};

/// The argument for the scratch memory of a `combine` kernel. The other arguments of that kernel
/// are partial results and its output.
pub(super) const SCRATCH: Arg =
    Arg { source: Source::Scratch, offset: 0, row_stride: 0, column_stride: 0, expert_stride: 0 };

/// An argument of a kernel call, with the kernel's buffer that it is passed to.
pub(super) struct Argument<'p> {
    /// Index of the buffer in the kernel.
    pub buffer: usize,
    pub parameter: &'p Parameter,
    pub arg: &'p Arg,
    /// Bytes between two bands of a column; 0 if columns are not divided into bands.
    pub band_stride: u64,
}

/// Checks that a value lies in the declared range of a kernel's dim.
pub(super) fn in_range(value: u64, dim: &Dim) -> Result<i64, Problem> {
    let found = i64::try_from(value).unwrap_or(i64::MAX);
    let (lo, hi) = (dim.lo, dim.hi);
    if (lo..=hi).contains(&found) { Ok(found) } else { Err(Problem::Dim { dim: dim.name.clone(), found, lo, hi }) }
}

impl Pass<'_> {
    /// Returns the memory of `count` partial results of an item's row and column, beginning with
    /// number `first`.
    pub(super) fn parts(
        &self,
        place: &PartPlace,
        parameter: &Parameter,
        item: &Item,
        first: u32,
        count: u32,
        dims: &[i64],
    ) -> Result<Region, Problem> {
        let size_error = || Problem::Size { buffer: parameter.name.clone(), dims: dims.to_vec() };
        let bytes = parameter.size.at(dims).ok_or_else(size_error)?;
        let region = self.store.parts.region(place, self.part_key(item), first, count).ok_or_else(size_error)?;
        part(region, 0, bytes, parameter, item)
    }

    /// Computes the values of a kernel's dims for an item.
    pub(super) fn dims(&self, dims: &[DimExpr], kernel: &Signature, item: &Item) -> Result<[i64; MAX_DIMS], Problem> {
        let mut values = [0; MAX_DIMS];
        // Positions are computed on first use. Most kernels need none of them, and some need them
        // several times.
        let mut positions = None;
        for ((value, dim), own) in values.iter_mut().zip(dims).zip(&kernel.dims) {
            *value = in_range(dim.evaluate(|input| self.input(input, item, &mut positions))?, own)?;
        }
        Ok(values)
    }

    /// Returns the value of a dim's input for an item. `positions` caches the positions of the
    /// item's rows.
    fn input(&self, input: DimInput, item: &Item, positions: &mut Option<RowPositions>) -> u64 {
        let mut rows = || *positions.get_or_insert_with(|| self.row_positions(item));
        match input {
            DimInput::Rows => item.rows,
            DimInput::Band => u64::from(item.band),
            DimInput::Tokens => self.counts.get(RowCount::Tokens),
            DimInput::Outputs => self.counts.get(RowCount::Outputs),
            DimInput::Capacity => u64::from(self.capacity(item)),
            DimInput::First => rows().first,
            DimInput::Last => rows().last,
            DimInput::WindowBegin => rows().seen,
            DimInput::Position => u64::from(self.last_position(item)),
            DimInput::TextEnd => self.text_end(item),
            DimInput::PartBegin => item.span.first(),
            DimInput::PartEnd => item.span.end(),
            DimInput::Skipped => item.span.start + rows().dropped,
            DimInput::Parts => u64::from(item.span.parts),
        }
    }

    /// Returns the number of attention blocks in the part of the positions that an item reads. A
    /// cache slot covers `every` positions.
    pub(super) fn part_blocks(&self, every: u32, item: &Item) -> u32 {
        let end = blocks_of(self.last_position(item), every).min(item.span.end());
        u32::try_from(end.saturating_sub(item.span.first())).unwrap_or(u32::MAX)
    }

    /// Returns the position in its sequence of an item's last row. The item's rows must be tokens.
    pub(super) fn last_position(&self, item: &Item) -> u32 {
        // The sum stays below the capacity, as the caller of `execute::run` guarantees.
        let last = (self.part_key(item).row + item.rows).saturating_sub(1);
        self.piece(item.piece).position.saturating_add(u32::try_from(last).unwrap_or(u32::MAX))
    }

    /// Returns the last position of this step in the item's sequence.
    fn text_end(&self, item: &Item) -> u64 {
        let Piece { position, rows, .. } = self.piece(item.piece);
        u64::from(position) + u64::from(rows.saturating_sub(1))
    }

    /// Returns the positions that an item's rows can attend to. The rows are tokens, as
    /// `Program::new` checked.
    fn row_positions(&self, item: &Item) -> RowPositions {
        if let Some(choice) = item.listed {
            // An item has several rows only if each row sees all positions. The index of a row in
            // the list of chosen slots is then the row's position.
            let last = u64::from(choice.count(self.last_position(item)).saturating_sub(1));
            let first = last.saturating_sub(item.rows.saturating_sub(1));
            return RowPositions { first, last, ..RowPositions::default() };
        }
        if let Some(reach) = item.whole {
            // Each row attends to at most `reach` later positions, but not beyond the end of its
            // text.
            let (Piece { position, row, .. }, end, reach) = (self.piece(item.piece), self.text_end(item), reach.into());
            let own = u64::from(position) + item.row.saturating_sub(row.into());
            let after = own + item.rows.saturating_sub(1);
            let [first, last] = [own, after].map(|own: u64| own.saturating_add(reach).min(end));
            return RowPositions { first, last, seen: after.saturating_sub(reach), dropped: 0 };
        }
        let (piece, sliding) = (self.piece(item.piece), self.sliding(item));
        let base = sliding.map_or(0, Sliding::base);
        // The cast is exact, because a step has at most `max_tokens` rows.
        let row = item.row.saturating_sub(piece.row.into());
        let first = u64::from(piece.position.saturating_sub(base)) + row;
        let before_last = item.rows.saturating_sub(1);
        let seen = sliding.map_or(0, |sliding| sliding.first_visible(piece.position + (row + before_last) as u32));
        RowPositions { first, last: first + before_last, seen, dropped: u64::from(base / ATTENTION_BLOCK) }
    }

    /// Returns the key under which an item's partial results are stored.
    pub(super) fn part_key(&self, item: &Item) -> PartKey {
        let row = item.row.saturating_sub(self.piece(item.piece).row.into());
        PartKey { piece: item.piece, row, column: item.column }
    }

    /// Returns a piece (rows of one sequence) of the step by its number; the first piece if the
    /// number is too large.
    pub(super) fn piece(&self, number: u32) -> Piece {
        self.pieces.get(number as usize).or(self.pieces.first()).copied().unwrap_or_default()
    }

    /// Returns the states of the sequence to which a piece's rows belong.
    pub(super) fn states(&self, piece: u32) -> Option<&States> {
        self.store.sequences.get(self.piece(piece).sequence).map(|sequence| &sequence.states)
    }

    /// Returns the sliding window of the state in whose memory an item's positions are counted, if
    /// that state has a window.
    fn sliding(&self, item: &Item) -> Option<&Sliding> {
        self.states(item.piece)?.sliding(item.sliding?)
    }

    /// Returns the number of positions that the item's state has room for.
    fn capacity(&self, item: &Item) -> u32 {
        self.sliding(item).map_or(self.store.capacity, Sliding::place_capacity)
    }

    /// Returns the memory of a kernel's buffer for an item.
    pub(super) fn slice(
        &self,
        thread: usize,
        argument: &Argument<'_>,
        item: &Item,
        dims: &[i64],
    ) -> Result<Region, Problem> {
        let &Argument { buffer, parameter, arg, band_stride } = argument;
        let matrix = self.matrix(arg, item);
        let (region, values_below) = match matrix {
            Some(region) => (region, 0),
            None => self.source(thread, arg.source, &self.reading(parameter, arg.source, item)),
        };
        let size_error = || Problem::Size { buffer: parameter.name.clone(), dims: dims.to_vec() };
        let bytes = parameter.size.at(dims).ok_or_else(size_error)?;
        // If a sum saturates, it lies outside every region, so it is refused below.
        let offset = arg
            .offset
            .saturating_add(item.row.saturating_mul(arg.row_stride))
            .saturating_add(u64::from(item.column).saturating_mul(arg.column_stride))
            .saturating_add(u64::from(item.band).saturating_mul(band_stride))
            .saturating_add(match matrix {
                Some(_) => 0,
                None => u64::from(item.expert).saturating_mul(arg.expert_stride),
            });
        if let Access::Index(below) = &parameter.access {
            let below = below.at(dims).ok_or_else(size_error)?;
            if below < values_below {
                return Err(Problem::Index { buffer: parameter.name.clone(), below, found: values_below });
            }
        }
        if let Source::Weight(weight) = arg.source {
            // SAFETY: `thread` is the calling thread, and its last kernel has returned.
            if let Some(tile) = unsafe { self.store.weights.tile(thread, buffer, weight, offset, bytes) } {
                return Ok(tile);
            }
        }
        part(region, offset, bytes, parameter, item)
    }

    /// Returns an item whose column selects the data in a source. If a state has only one column,
    /// it is a copy of `item` with column 0. Otherwise it is `item`.
    fn reading(&self, parameter: &Parameter, source: Source, item: &Item) -> Item {
        let shares = match (source, &parameter.access) {
            (Source::State { state, field }, Access::Read) => {
                self.states(item.piece).is_some_and(|states| states.has_one_column(state, field))
            }
            _ => false,
        };
        if shares { Item { column: 0, ..*item } } else { *item }
    }

    /// Returns the matrix of the item's expert, if the argument is a streamed weight or a weight in
    /// blocks.
    fn matrix(&self, arg: &Arg, item: &Item) -> Option<Region> {
        let Source::Weight(weight) = arg.source else { return None };
        let Some(block) = item.block else { return self.store.weights.matrix(weight, item.expert) };
        let (offset, bytes) = self.store.experts.as_ref()?.place(weight, item.expert)?;
        block.part(offset, bytes)
    }

    /// Returns the memory of a source. For index inputs, also returns the upper bound (exclusive)
    /// of the values.
    fn source(&self, thread: usize, source: Source, item: &Item) -> (Region, u64) {
        let (store, counts) = (self.store, &self.counts);
        let empty = || store.arena.region().part(0, 0).unwrap_or(store.arena.region());
        let words =
            |region: Region, rows: RowCount| region.part(0, counts.get(rows) * INDEX_BYTES).unwrap_or_else(empty);
        let (tokens, outputs) = (RowCount::Tokens, RowCount::Outputs);
        match source {
            Source::Arena(buffer) => (self.arena(buffer.0 as usize), 0),
            Source::Weight(weight) => (store.weights.region_for(thread, weight).unwrap_or_else(empty), 0),
            Source::Rope(table) => (store.ropes[table as usize].region(), 0),
            // If the column does not exist in the state, the region is empty.
            Source::State { state, field } => {
                // The item's blocks are counted in the memory of the state `item.sliding`, if there
                // is one. Other states are then read from their first block.
                let block = if item.sliding.is_some_and(|own| own != state) { 0 } else { item.span.first() };
                let region = self.states(item.piece).and_then(|states| states.region(state, field, item.column, block));
                (region.unwrap_or_else(empty), 0)
            }
            // Chosen cache slots have no fixed memory: they are copied for each item (`gather.rs`).
            Source::Chosen { .. } => (empty(), 0),
            Source::Scratch => (store.scratch[thread].region(), 0),
            Source::Input(Input::Tokens) => (words(store.inputs.tokens, tokens), u64::from(self.program.vocabulary)),
            Source::Input(Input::Row(input)) => {
                let own = self.sliding(item).filter(|_| input.base() == RowBase::Place);
                let (region, room) = match own {
                    Some(sliding) => (sliding.rows_of(input), sliding.place_capacity()),
                    None => (store.inputs.rows_of(input), store.capacity),
                };
                (region.map_or_else(empty, |region| words(region, tokens)), input.below(room))
            }
            Source::Input(Input::Ngram(ngram)) => {
                let rows = store.inputs.ngrams.iter().find(|(of, _)| *of == ngram).map(|(_, rows)| *rows);
                (rows.map_or_else(empty, |rows| words(rows, tokens)), ngram.hash.rows())
            }
            Source::Input(Input::OutputRows) => (words(store.inputs.output_rows, outputs), counts.get(tokens)),
            Source::Input(Input::RoutedToken(bucket)) => {
                let rows = RowCount::Routed { top_k: self.program.routings[bucket.0 as usize].top_k };
                (words(store.inputs.routed[bucket.0 as usize].0, rows), counts.get(tokens))
            }
            Source::Input(Input::RoutedSlot(bucket)) => {
                let rows = RowCount::Routed { top_k: self.program.routings[bucket.0 as usize].top_k };
                (words(store.inputs.routed[bucket.0 as usize].1, rows), counts.get(rows))
            }
        }
    }

    /// Returns the region of an arena buffer that holds this step's rows.
    pub(super) fn arena(&self, buffer: usize) -> Region {
        let arena = self.store.arena.region();
        let buffer = &self.program.buffers[buffer];
        // The region fits: `Program::new` checked that all rows of the largest step lie inside the
        // arena.
        arena.part(buffer.offset, buffer.row_bytes * self.counts.get(buffer.rows)).unwrap_or(arena)
    }
}

/// Returns the number of attention blocks that the complete cache slots up to a position fill. A
/// slot covers `every` positions.
pub(super) fn blocks_of(position: u32, every: u32) -> u64 {
    (u64::from(position) + 1).div_euclid(u64::from(every.max(1))).div_ceil(u64::from(ATTENTION_BLOCK))
}

/// Returns the bytes of a region that a kernel accesses; a problem if they lie outside the region.
pub(super) fn part(
    region: Region,
    offset: u64,
    bytes: u64,
    parameter: &Parameter,
    item: &Item,
) -> Result<Region, Problem> {
    region.part(offset, bytes).ok_or_else(|| Problem::Slice {
        buffer: parameter.name.clone(),
        offset,
        bytes,
        available: region.bytes(),
        row: item.row,
        column: item.column,
        band: item.band,
        expert: item.expert,
    })
}
