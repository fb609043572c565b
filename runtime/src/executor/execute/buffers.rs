//! The memory of an item's buffers: where it begins, and how many bytes a kernel may touch, for the dims of its call.
//!
//! A buffer is a slice of what its argument names (the arena, a weight, a state, inputs, scratch memory), the parts that an
//! item leaves for `combine`, or what an index chose of a state (`chosen.rs`).
//!
//! Invariant: a region given here lies inside the memory of its source, and the values of an index buffer are below what the
//! kernel allows. Anything else is a [`Problem`], whatever the plan says.
//!
//! Example: an argument of 4096 bytes a row, for 6 rows from row 12 on, is the 24576 bytes from byte 49152 on of the rows of its
//! arena buffer; with fewer than 18 rows in this step it is [`Problem::Slice`].

use ixc_ir::kernel::Dim;
use ixc_ir::plan::{ATTENTION_BLOCK, Arg, DimExpr, DimInput, Input, KEY_LANES, RowCount, Source};

use super::parts::{Line, RowPositions};
use super::{Item, Pass, Problem};
use crate::executor::sequences::Piece;
use crate::executor::sliding::Sliding;
use crate::memory::{INDEX_BYTES, Region};
use crate::program::{Access, MAX_DIMS, Parameter, PartPlace, Signature};
use crate::states::States;

/// What `combine` has beside parts and result.
pub(super) const SCRATCH: Arg =
    Arg { source: Source::Scratch, offset: 0, row_stride: 0, column_stride: 0, expert_stride: 0 };

/// A dim's value, if the kernel takes it.
pub(super) fn in_range(value: u64, dim: &Dim) -> Result<i64, Problem> {
    let found = i64::try_from(value).unwrap_or(i64::MAX);
    let (lo, hi) = (dim.lo, dim.hi);
    if (lo..=hi).contains(&found) { Ok(found) } else { Err(Problem::Dim { dim: dim.name.clone(), found, lo, hi }) }
}

impl Pass<'_> {
    /// The memory of `count` parts from `first` on of an item's row and column.
    pub(super) fn parts(
        &self,
        place: &PartPlace,
        parameter: &Parameter,
        item: &Item,
        (first, count): (u32, u32),
        dims: &[i64],
    ) -> Result<Region, Problem> {
        let size_error = || Problem::Size { buffer: parameter.name.clone(), dims: dims.to_vec() };
        let bytes = parameter.size.at(dims).ok_or_else(size_error)?;
        let region = self.store.parts.region(place, self.line(item), first, count).ok_or_else(size_error)?;
        part(region, 0, bytes, parameter, item)
    }

    /// Evaluates the dims of a kernel for an item.
    pub(super) fn dims(&self, dims: &[DimExpr], kernel: &Signature, item: &Item) -> Result<[i64; MAX_DIMS], Problem> {
        let mut values = [0; MAX_DIMS];
        // Most kernels ask for no positions, and others several times.
        let mut positions = None;
        for ((value, dim), own) in values.iter_mut().zip(dims).zip(&kernel.dims) {
            *value = in_range(dim.evaluate(|input| self.input(input, item, &mut positions))?, own)?;
        }
        Ok(values)
    }

    /// The value of a dims' input for an item; `positions` keeps those of its rows.
    fn input(&self, input: DimInput, item: &Item, positions: &mut Option<RowPositions>) -> u64 {
        let mut rows = || *positions.get_or_insert_with(|| self.row_positions(item));
        match input {
            DimInput::Rows => item.rows,
            DimInput::Band => u64::from(item.band),
            DimInput::Tokens => self.counts.of(RowCount::Tokens),
            DimInput::Outputs => self.counts.of(RowCount::Outputs),
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

    /// Blocks of places, each of `every` positions, of an item's part.
    pub(super) fn part_blocks(&self, every: u32, item: &Item) -> u32 {
        let end = blocks_of(self.last_position(item), every).min(item.span.end());
        u32::try_from(end.saturating_sub(item.span.first())).unwrap_or(u32::MAX)
    }

    /// The position of an item's last row, which is a token, in its sequence.
    pub(super) fn last_position(&self, item: &Item) -> u32 {
        // Below the positions that there are, as the pass says.
        let last = (self.line(item).row + item.rows).saturating_sub(1);
        self.piece(item.piece).position.saturating_add(u32::try_from(last).unwrap_or(u32::MAX))
    }

    /// The position of the last row that the step has of an item's sequence.
    fn text_end(&self, item: &Item) -> u64 {
        let Piece { position, rows, .. } = self.piece(item.piece);
        u64::from(position) + u64::from(rows.saturating_sub(1))
    }

    /// Where an item's rows are, which are tokens, as the program's check says.
    fn row_positions(&self, item: &Item) -> RowPositions {
        if let Some(choice) = item.listed {
            // Several rows are taken together where they see all positions: then each is where it is among those, too.
            let last = u64::from(choice.count(self.last_position(item)).saturating_sub(1));
            let first = last.saturating_sub(item.rows.saturating_sub(1));
            return RowPositions { first, last, ..RowPositions::default() };
        }
        if let Some(reach) = item.whole {
            // Rows see as far as they reach, and none further than the last one of their text.
            let (Piece { position, row, .. }, end, reach) = (self.piece(item.piece), self.text_end(item), reach.into());
            let own = u64::from(position) + item.row.saturating_sub(row.into());
            let behind = own + item.rows.saturating_sub(1);
            let [first, last] = [own, behind].map(|own: u64| own.saturating_add(reach).min(end));
            return RowPositions { first, last, seen: behind.saturating_sub(reach), dropped: 0 };
        }
        let (piece, sliding) = (self.piece(item.piece), self.sliding(item));
        let base = sliding.map_or(0, Sliding::base);
        // Rows are at most a step's tokens.
        let row = item.row.saturating_sub(piece.row.into());
        let first = u64::from(piece.position.saturating_sub(base)) + row;
        let before_last = item.rows.saturating_sub(1);
        let seen = sliding.map_or(0, |sliding| sliding.seen(piece.position + (row + before_last) as u32));
        RowPositions { first, last: first + before_last, seen, dropped: u64::from(base / ATTENTION_BLOCK) }
    }

    /// Which line of its task's parts an item is in.
    pub(super) fn line(&self, item: &Item) -> Line {
        let row = item.row.saturating_sub(self.piece(item.piece).row.into());
        Line { piece: item.piece, row, column: item.column }
    }

    /// A piece of the step; the first where there is no such.
    pub(super) fn piece(&self, number: u32) -> Piece {
        self.pieces.get(number as usize).or(self.pieces.first()).copied().unwrap_or_default()
    }

    /// The states of a piece's sequence.
    pub(super) fn states(&self, piece: u32) -> Option<&States> {
        self.store.sequences.get(self.piece(piece).sequence).map(|sequence| &sequence.states)
    }

    /// The window in which an item counts positions, where its state has one.
    fn sliding(&self, item: &Item) -> Option<&Sliding> {
        self.states(item.piece)?.sliding(item.sliding?)
    }

    /// Positions that there is room for where an item counts them.
    fn capacity(&self, item: &Item) -> u32 {
        self.sliding(item).map_or(self.store.capacity, Sliding::held)
    }

    /// The memory of one of the kernel's buffers, which has a number, for an item; `band` is from a band of its column to the next.
    pub(super) fn slice(
        &self,
        (thread, buffer): (usize, usize),
        parameter: &Parameter,
        (arg, band): (&Arg, u64),
        item: &Item,
        dims: &[i64],
    ) -> Result<Region, Problem> {
        let matrix = self.matrix(arg, item);
        let (region, values_below) = match matrix {
            Some(region) => (region, 0),
            None => self.source(thread, arg.source, &self.reading(parameter, arg.source, item)),
        };
        let size_error = || Problem::Size { buffer: parameter.name.clone(), dims: dims.to_vec() };
        let bytes = parameter.size.at(dims).ok_or_else(size_error)?;
        // Saturated sums lie outside of everything.
        let offset = arg
            .offset
            .saturating_add(item.row.saturating_mul(arg.row_stride))
            .saturating_add(u64::from(item.column).saturating_mul(arg.column_stride))
            .saturating_add(u64::from(item.band).saturating_mul(band))
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
            // SAFETY: this is the thread, and its last kernel has returned.
            if let Some(tile) = unsafe { self.store.weights.tile(thread, buffer, weight, offset, bytes) } {
                return Ok(tile);
            }
        }
        part(region, offset, bytes, parameter, item)
    }

    /// The item as which it reads a source: of a state with one column, which its columns share, that one's.
    fn reading(&self, parameter: &Parameter, source: Source, item: &Item) -> Item {
        let shares = match (source, &parameter.access) {
            (Source::State { state, field }, Access::Read) => {
                self.states(item.piece).is_some_and(|states| states.has_one_column(state, field))
            }
            _ => false,
        };
        if shares { Item { column: 0, ..*item } } else { *item }
    }

    /// The matrix of the item's expert in its block, where the argument is a weight that lies in blocks or is streamed.
    fn matrix(&self, arg: &Arg, item: &Item) -> Option<Region> {
        let Source::Weight(weight) = arg.source else { return None };
        let Some(block) = item.block else { return self.store.weights.matrix(weight, item.expert) };
        let (offset, bytes) = self.store.experts.as_ref()?.place(weight, item.expert)?;
        block.part(offset, bytes)
    }

    /// A source's memory, and for inputs what their values are below.
    fn source(&self, thread: usize, source: Source, item: &Item) -> (Region, u64) {
        let (store, counts) = (self.store, &self.counts);
        let empty = || store.arena.region().part(0, 0).unwrap_or(store.arena.region());
        let words =
            |region: Region, rows: RowCount| region.part(0, counts.of(rows) * INDEX_BYTES).unwrap_or_else(empty);
        let (tokens, outputs) = (RowCount::Tokens, RowCount::Outputs);
        match source {
            Source::Arena(buffer) => (self.arena(buffer.0 as usize), 0),
            Source::Weight(weight) => (store.weights.region(weight).unwrap_or_else(empty), 0),
            Source::Rope(table) => (store.ropes[table as usize].region(), 0),
            // A column that there is not has no memory.
            Source::State { state, field } => {
                // What a window is beside begins with its first block.
                let block = if item.sliding.is_some_and(|own| own != state) { 0 } else { item.span.first() };
                let region = self.states(item.piece).and_then(|states| states.region(state, field, item.column, block));
                (region.unwrap_or_else(empty), 0)
            }
            // They are put where they are read from, item by item.
            Source::Chosen { .. } => (empty(), 0),
            Source::Scratch => (store.scratch[thread].region(), 0),
            Source::Input(Input::Tokens) => (words(store.inputs.tokens, tokens), u64::from(self.program.vocabulary)),
            Source::Input(Input::Positions) => {
                let own = self.sliding(item).map(Sliding::positions);
                (words(own.unwrap_or(store.inputs.positions), tokens), u64::from(self.capacity(item)))
            }
            Source::Input(Input::Ahead(reach)) => {
                let ahead = store.inputs.ahead.iter().find(|(of, _)| *of == reach).map(|(_, ahead)| *ahead);
                let below = u64::from(store.capacity) + u64::from(reach);
                (ahead.map_or_else(empty, |ahead| words(ahead, tokens)), below)
            }
            Source::Input(Input::Ends) => (words(store.inputs.ends, tokens), u64::from(store.capacity)),
            Source::Input(Input::PositionBlock) => {
                let own = self.sliding(item).map(Sliding::blocks);
                let blocks = own.unwrap_or(store.inputs.position_blocks);
                (words(blocks, tokens), u64::from(self.capacity(item) / KEY_LANES))
            }
            Source::Input(Input::PositionLane) => {
                let own = self.sliding(item).map(Sliding::lanes);
                (words(own.unwrap_or(store.inputs.position_lanes), tokens), u64::from(KEY_LANES))
            }
            Source::Input(Input::Phase(every)) => {
                let phase = store.inputs.shared.iter().find(|(of, ..)| *of == every).map(|(_, phase, _)| *phase);
                (phase.map_or_else(empty, |phase| words(phase, tokens)), every.into())
            }
            Source::Input(Input::Whole(every)) => {
                let whole = store.inputs.shared.iter().find(|(of, ..)| *of == every).map(|(.., whole)| *whole);
                let most = u64::from(store.capacity / every.max(1)) + 1;
                (whole.map_or_else(empty, |whole| words(whole, tokens)), most)
            }
            Source::Input(Input::Chosen(choice)) => {
                let count = store.inputs.chosen.iter().find(|(of, ..)| *of == choice).map(|(_, count, _)| *count);
                (count.map_or_else(empty, |count| words(count, tokens)), choice.most().saturating_add(1))
            }
            Source::Input(Input::LastChosen(choice)) => {
                let last = store.inputs.chosen.iter().find(|(of, ..)| *of == choice).map(|(.., last)| *last);
                (last.map_or_else(empty, |last| words(last, tokens)), choice.most())
            }
            Source::Input(Input::Ngram(ngram)) => {
                let rows = store.inputs.ngrams.iter().find(|(of, _)| *of == ngram).map(|(_, rows)| *rows);
                (rows.map_or_else(empty, |rows| words(rows, tokens)), ngram.hash.rows())
            }
            Source::Input(Input::OutputRows) => (words(store.inputs.output_rows, outputs), counts.of(tokens)),
            Source::Input(Input::RoutedToken(bucket)) => {
                let rows = RowCount::Routed { top_k: self.program.routings[bucket.0 as usize].top_k };
                (words(store.inputs.routed[bucket.0 as usize].0, rows), counts.of(tokens))
            }
            Source::Input(Input::RoutedSlot(bucket)) => {
                let rows = RowCount::Routed { top_k: self.program.routings[bucket.0 as usize].top_k };
                (words(store.inputs.routed[bucket.0 as usize].1, rows), counts.of(rows))
            }
        }
    }

    /// The rows of an arena buffer that this step has.
    pub(super) fn arena(&self, buffer: usize) -> Region {
        let arena = self.store.arena.region();
        let buffer = &self.program.buffers[buffer];
        // It fits: the program's check found all rows of the largest step inside the arena.
        arena.part(buffer.offset, buffer.row_bytes * self.counts.of(buffer.rows)).unwrap_or(arena)
    }
}

/// Blocks of the places, each of so many positions, that are whole at a position.
pub(super) fn blocks_of(position: u32, every: u32) -> u64 {
    (u64::from(position) + 1).div_euclid(u64::from(every.max(1))).div_ceil(u64::from(ATTENTION_BLOCK))
}

/// The slice of a region that a kernel touches, if it lies inside.
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
