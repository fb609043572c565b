//! The memory of an item's buffers: their base, and the bytes that a kernel may access for the dims
//! of its call.
//!
//! A buffer is a slice of the argument's source: the arena, a weight, a state, inputs or scratch
//! memory. It can also be the partial results of an item (`parts.rs`), or the cache slots that an
//! index chose (`gather.rs`).
//!
//! Invariant: each region returned here lies inside the memory of its source. The values of an
//! index buffer are below the kernel's limit. Any other case is a [`Problem`], whatever the plan
//! contains.
//!
//! Example: an argument has 4096 bytes a row, and an item has 6 rows from row 12 on. The buffer is
//! the 24576 bytes from byte 49152 on of its arena buffer. If the step has fewer than 18 rows, the
//! result is [`Problem::Slice`].

use ixc_ir::kernel::Dim;
use ixc_ir::plan::{ATTENTION_BLOCK, Arg, DimExpr, DimInput, Input, RowBase, RowCount, Source};

use super::parts::{PartKey, RowPositions};
use super::{Item, Pass, Problem};
use crate::executor::sequences::Piece;
use crate::executor::sliding::Sliding;
use crate::program::{Access, MAX_DIMS, Parameter, PartPlace, Signature};
use crate::states::States;
use crate::storage::memory::{INDEX_BYTES, Region};

/// The argument for the scratch memory of `combine`; its other arguments are partial results and
/// output.
pub(super) const SCRATCH: Arg =
    Arg { source: Source::Scratch, offset: 0, row_stride: 0, column_stride: 0, expert_stride: 0 };

/// An argument of a kernel, and the buffer that it fills.
pub(super) struct Argument<'p> {
    /// Number of the buffer among those of the kernel.
    pub buffer: usize,
    pub parameter: &'p Parameter,
    pub arg: &'p Arg,
    /// Distance between bands of a column, in bytes; 0 without bands.
    pub band_stride: u64,
}

/// Returns a dim's value, if it is in the kernel's range.
pub(super) fn in_range(value: u64, dim: &Dim) -> Result<i64, Problem> {
    let found = i64::try_from(value).unwrap_or(i64::MAX);
    let (lo, hi) = (dim.lo, dim.hi);
    if (lo..=hi).contains(&found) { Ok(found) } else { Err(Problem::Dim { dim: dim.name.clone(), found, lo, hi }) }
}

impl Pass<'_> {
    /// Returns the memory of `count` partial results, from number `first` on, of an item's row and
    /// column.
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

    /// Evaluates the dims of a kernel for an item.
    pub(super) fn dims(&self, dims: &[DimExpr], kernel: &Signature, item: &Item) -> Result<[i64; MAX_DIMS], Problem> {
        let mut values = [0; MAX_DIMS];
        // Positions are computed on first use: most kernels need none, some need them several
        // times.
        let mut positions = None;
        for ((value, dim), own) in values.iter_mut().zip(dims).zip(&kernel.dims) {
            *value = in_range(dim.evaluate(|input| self.input(input, item, &mut positions))?, own)?;
        }
        Ok(values)
    }

    /// Returns an input's value for an item. `positions` caches the positions of its rows.
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

    /// Returns the number of attention blocks in an item's part of the positions. Each cache slot
    /// covers `every` positions.
    pub(super) fn part_blocks(&self, every: u32, item: &Item) -> u32 {
        let end = blocks_of(self.last_position(item), every).min(item.span.end());
        u32::try_from(end.saturating_sub(item.span.first())).unwrap_or(u32::MAX)
    }

    /// Returns the position of an item's last row in its sequence. The rows must be tokens.
    pub(super) fn last_position(&self, item: &Item) -> u32 {
        // The sum stays below the capacity, as the caller of the pass guarantees.
        let last = (self.part_key(item).row + item.rows).saturating_sub(1);
        self.piece(item.piece).position.saturating_add(u32::try_from(last).unwrap_or(u32::MAX))
    }

    /// Returns the position of the last row of the step in an item's sequence.
    fn text_end(&self, item: &Item) -> u64 {
        let Piece { position, rows, .. } = self.piece(item.piece);
        u64::from(position) + u64::from(rows.saturating_sub(1))
    }

    /// Returns the positions of an item's rows, which are tokens (the program's check).
    fn row_positions(&self, item: &Item) -> RowPositions {
        if let Some(choice) = item.listed {
            // Several rows form an item only if they see all positions. The index of a row in the
            // list of chosen slots then equals its position.
            let last = u64::from(choice.count(self.last_position(item)).saturating_sub(1));
            let first = last.saturating_sub(item.rows.saturating_sub(1));
            return RowPositions { first, last, ..RowPositions::default() };
        }
        if let Some(reach) = item.whole {
            // Rows see up to `reach` positions ahead, but not beyond the end of their text.
            let (Piece { position, row, .. }, end, reach) = (self.piece(item.piece), self.text_end(item), reach.into());
            let own = u64::from(position) + item.row.saturating_sub(row.into());
            let after = own + item.rows.saturating_sub(1);
            let [first, last] = [own, after].map(|own: u64| own.saturating_add(reach).min(end));
            return RowPositions { first, last, seen: after.saturating_sub(reach), dropped: 0 };
        }
        let (piece, sliding) = (self.piece(item.piece), self.sliding(item));
        let base = sliding.map_or(0, Sliding::base);
        // The cast is exact, because rows are at most a step's tokens.
        let row = item.row.saturating_sub(piece.row.into());
        let first = u64::from(piece.position.saturating_sub(base)) + row;
        let before_last = item.rows.saturating_sub(1);
        let seen = sliding.map_or(0, |sliding| sliding.first_visible(piece.position + (row + before_last) as u32));
        RowPositions { first, last: first + before_last, seen, dropped: u64::from(base / ATTENTION_BLOCK) }
    }

    /// Returns the key of an item's partial results in its task.
    pub(super) fn part_key(&self, item: &Item) -> PartKey {
        let row = item.row.saturating_sub(self.piece(item.piece).row.into());
        PartKey { piece: item.piece, row, column: item.column }
    }

    /// Returns a piece of the step; the first one if the number is too large.
    pub(super) fn piece(&self, number: u32) -> Piece {
        self.pieces.get(number as usize).or(self.pieces.first()).copied().unwrap_or_default()
    }

    /// Returns the states of a piece's sequence.
    pub(super) fn states(&self, piece: u32) -> Option<&States> {
        self.store.sequences.get(self.piece(piece).sequence).map(|sequence| &sequence.states)
    }

    /// Returns the window in which an item's positions are counted, if its state has one.
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
        // A saturated sum is outside of every region, so it is refused.
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

    /// Returns the item whose column selects the data in a source. It is column 0 if all columns
    /// read the same column of a state, else `item`.
    fn reading(&self, parameter: &Parameter, source: Source, item: &Item) -> Item {
        let shares = match (source, &parameter.access) {
            (Source::State { state, field }, Access::Read) => {
                self.states(item.piece).is_some_and(|states| states.has_one_column(state, field))
            }
            _ => false,
        };
        if shares { Item { column: 0, ..*item } } else { *item }
    }

    /// Returns the matrix of the item's expert, if the argument is a weight in blocks or a streamed
    /// weight.
    fn matrix(&self, arg: &Arg, item: &Item) -> Option<Region> {
        let Source::Weight(weight) = arg.source else { return None };
        let Some(block) = item.block else { return self.store.weights.matrix(weight, item.expert) };
        let (offset, bytes) = self.store.experts.as_ref()?.place(weight, item.expert)?;
        block.part(offset, bytes)
    }

    /// Returns a source's memory and, for inputs, the upper bound of the values.
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
            // A column that does not exist has an empty region.
            Source::State { state, field } => {
                // Other states than the one with the window are read from their first block.
                let block = if item.sliding.is_some_and(|own| own != state) { 0 } else { item.span.first() };
                let region = self.states(item.piece).and_then(|states| states.region(state, field, item.column, block));
                (region.unwrap_or_else(empty), 0)
            }
            // Chosen cache slots are copied for each item (`gather.rs`).
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
        // The region fits: the program's check found all rows of the largest step inside the arena.
        arena.part(buffer.offset, buffer.row_bytes * self.counts.get(buffer.rows)).unwrap_or(arena)
    }
}

/// Returns the number of attention blocks that complete cache slots fill at a position. Each slot
/// covers `every` positions.
pub(super) fn blocks_of(position: u32, every: u32) -> u64 {
    (u64::from(position) + 1).div_euclid(u64::from(every.max(1))).div_ceil(u64::from(ATTENTION_BLOCK))
}

/// Returns the slice of a region that a kernel accesses, or a problem if it exceeds the region.
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
