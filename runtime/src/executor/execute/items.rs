//! Work items (kernel calls) of a stage (the tasks between two barriers). This module numbers the
//! items, divides them among threads, and calls the kernels.

use std::cell::Cell;
use std::ops::Range;
use std::sync::PoisonError;

use ixc_ir::plan::{
    ATTENTION_BLOCK, Arg, Bands, DimExpr, DimInput, KernelId, Leaves, RowAxis, Source, Split, Task, Variant,
};

use super::Pass;
use super::buffers::{Argument, SCRATCH, blocks_of, in_range};
use super::item::Item;
use super::parts::Span;
use crate::error::execute::{ExecuteError, ItemError, Problem};
use crate::executor::sequences::{Piece, runs};
use crate::expert_sort::ExpertRows;
use crate::program::{Access, MAX_BUFFERS, MAX_DIMS, Parameter, PartPlace, RowSeparation, Signature, Stage, shorten};
use crate::stats::{self, Clock};
use crate::trace::Work;

/// The items of a task with the same kernel variant, expert and piece. They are numbered
/// consecutively.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// Number of the group's first item in the stage, and of the first item after the group.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) task: usize,
    pub(super) variant: usize,
    pub(super) expert: u32,
    /// Number of the piece (rows of one sequence) with these rows; 0 if the rows belong to all
    /// pieces.
    pub(super) piece: u32,
    pub(super) first_row: u64,
    pub(super) rows: u64,
    pub(super) chunk_rows: u64,
    pub(super) chunks: u64,
    /// Whether consecutive items have the same rows and different columns. Otherwise they have the
    /// same column and different rows.
    pub(super) by_rows: bool,
    /// Whether each item is a band of a column instead of a whole column.
    pub(super) banded: bool,
    /// Division of the cached positions among the items of one row and column.
    pub(super) span: Span,
}

/// The arguments that the kernel calls of a group share: its task, its kernel and the kernel's
/// arguments.
struct Call<'p> {
    task: &'p Task,
    /// Memory layout of the partial results of the items.
    parts: &'p PartPlace,
    /// Division of the cached positions among items, if the kernel writes partial results.
    split: Option<&'p Split>,
    kernel: KernelId,
    dims: &'p [DimExpr],
    /// Number of bands into which a column is divided.
    bands: u32,
    /// Bytes between two bands, for each argument; empty if columns are not divided.
    strides: &'p [u64],
    /// Cached dims of the last item.
    last: Cell<Option<LastDims>>,
}

/// The dims of the last kernel call, and the fields of its item that determine them.
#[derive(Clone, Copy)]
struct LastDims {
    row: u64,
    rows: u64,
    band: u32,
    span: Span,
    dims: [i64; MAX_DIMS],
}

impl LastDims {
    /// Returns whether the cached dims are also those of `item`.
    fn are_of(&self, item: &Item) -> bool {
        (self.row, self.rows, self.band, self.span) == (item.row, item.rows, item.band, item.span)
    }
}

/// Minimum number of items for each thread. If a stage has fewer, columns are divided into bands.
/// With 8 items, a thread that gets one item more than the others works an eighth longer. With few
/// threads, more items would be slower, because hardware prefetch starts anew with each kernel
/// call. On one thread, reading 72 KiB in a separate call takes an eighth longer than as a part of
/// 576 KiB (Zen 5).
const ITEMS_OF_A_THREAD: u64 = 8;

impl Pass<'_> {
    /// Runs items of a stage on this thread, until none are left. `round` is the number of the
    /// stage in this pass.
    pub(super) fn work(
        &self,
        thread: usize,
        round: u64,
        stage: &Stage,
        groups: &mut Vec<Group>,
        mut clock: Option<&mut Clock>,
    ) -> Result<(), ExecuteError> {
        let total = self.groups(stage, groups);
        // The items are best done in order, because experts arrive from the drive, or are
        // prefetched into the page cache, in this order.
        let in_order = stage.window.is_some() && (self.store.experts.is_some() || self.store.advice.is_some());
        let turn = self.shares.turn(thread, round, total, in_order);
        while let Some(Range { start, end }) = turn.next() {
            if self.is_over() {
                return Ok(());
            }
            self.stretch(thread, stage, groups, start..end, clock.as_deref_mut())?;
        }
        Ok(())
    }

    /// Runs all items of a stage on this thread, while the other threads wait.
    pub(super) fn work_alone(
        &self,
        thread: usize,
        stage: &Stage,
        groups: &mut Vec<Group>,
        clock: Option<&mut Clock>,
    ) -> Result<(), ExecuteError> {
        let total = self.columns(stage, groups);
        self.stretch(thread, stage, groups, 0..total, clock)
    }

    /// Runs a range of the items of a stage.
    fn stretch(
        &self,
        thread: usize,
        stage: &Stage,
        groups: &[Group],
        Range { start: mut at, end }: Range<u64>,
        mut clock: Option<&mut Clock>,
    ) -> Result<(), ExecuteError> {
        let mut number = groups.partition_point(|group| group.end <= at);
        while at < end {
            let Some(group) = groups.get(number) else { break };
            let stop = group.end.min(end);
            let begin = self.now(clock.is_some());
            let mut work = begin.is_some().then(stats::Work::default);
            self.items(thread, stage, group, at..stop, work.as_mut())?;
            let task = (stage.first_task + group.task) as u32;
            let expert = matches!(stage.tasks[group.task].rows, RowAxis::Routed(_)).then_some(group.expert);
            let (rows, bytes) = (group.chunk_rows.min(group.rows), work.map_or(0, |work| work.bytes));
            let variant = &stage.tasks[group.task].variants[group.variant];
            let bands = variant.bands.as_ref().filter(|_| group.banded);
            let kernel = bands.map_or(variant.kernel, |bands| bands.kernel);
            self.trace(begin, Work::Task { task, kernel: kernel.0, expert, items: stop - at, rows, bytes });
            if let (Some(clock), Some(begin), Some(work)) = (clock.as_deref_mut(), begin, work) {
                // The time that items spent packing weights is subtracted from their kernel time.
                let packing = self.store.weights.take_packing(thread);
                let time = begin.elapsed().saturating_sub(packing);
                clock.work(stage.first_task + group.task, kernel, stats::Work { time, ..work });
                clock.pack(packing);
            }
            at = stop;
            number += 1;
        }
        Ok(())
    }

    /// Numbers the items of a stage, and returns their number. If there are too few items for the
    /// threads, divides columns into bands where the kernel allows it.
    fn groups(&self, stage: &Stage, groups: &mut Vec<Group>) -> u64 {
        let columns = self.columns(stage, groups);
        if columns >= ITEMS_OF_A_THREAD.saturating_mul(self.shares.threads()) {
            return columns;
        }
        groups.iter_mut().fold(0, |start, group| {
            let bands = stage.tasks[group.task].variants[group.variant].bands.as_ref();
            let items = (group.end - group.start).saturating_mul(bands.map_or(1, |bands| bands.count.into()));
            (group.start, group.end, group.banded) = (start, start.saturating_add(items), bands.is_some());
            group.end
        })
    }

    /// Numbers the items of a stage, one for each column and chunk of rows, and returns their
    /// number. If the stage computes a half of the rows, only the items of that half are numbered.
    fn columns(&self, stage: &Stage, groups: &mut Vec<Group>) -> u64 {
        let all = self.all_columns(stage, groups);
        stage.half.map_or(all, |half| self.columns_of_half(half, groups))
    }

    /// Numbers the items of a stage for all rows, one for each column and chunk of rows. Returns
    /// their number.
    pub(super) fn all_columns(&self, stage: &Stage, groups: &mut Vec<Group>) -> u64 {
        groups.clear();
        let mut end = 0u64;
        for (number, task) in stage.tasks.iter().enumerate() {
            let mut add = |rows: ExpertRows, piece: u32| {
                let fits = task.variants.iter().position(|variant| rows.rows <= variant.up_to_rows);
                let (Some(variant), true) = (fits, rows.rows > 0 && task.columns > 0) else { return };
                let chosen = &task.variants[variant];
                let listed = stage.listed.get(number).copied().flatten();
                // If an index chooses positions for a row, the row is a separate item, because each
                // row has its own chosen slots.
                let together = listed.map_or(rows.rows, |choice| {
                    let Piece { position, row, .. } = self.piece(piece);
                    let first = position.saturating_add(rows.first.saturating_sub(row));
                    rows.rows.min(choice.beyond().saturating_sub(first))
                });
                // If the positions of a row are divided, the row is a separate item, because it has
                // its own partial results.
                let each = |rows: u32| if chosen.split.is_some() { 1 } else { rows.max(1) };
                let (before, after) = ((0..together), (together..rows.rows));
                let stretches = before.step_by(each(together) as usize).map(|first| (first, each(together), u64::MAX));
                let alone = after.map(|first| (first, 1, 1));
                for (first, count, most_rows) in stretches.chain(alone) {
                    let count = u64::from(count);
                    let chunk_rows = chunk_rows(chosen, count).min(most_rows);
                    let chunks = count.div_ceil(chunk_rows);
                    let first_row = u64::from(rows.first) + u64::from(first);
                    let span = match chosen.split {
                        // The rows are tokens, as `Program::new` checked.
                        Some(split) => {
                            let Piece { position, row, rows, .. } = self.piece(piece);
                            // The cast is exact, because positions are below the capacity.
                            let own = first_row.saturating_sub(row.into()) as u32;
                            let whole = stage.whole.get(number).copied().flatten();
                            let last = rows.saturating_sub(1);
                            let seen = whole.map_or(own, |reach| last.min(own.saturating_add(reach)));
                            let position = position.saturating_add(seen);
                            let position = listed.map_or(position, |choice| choice.count(position).saturating_sub(1));
                            Span::divide(blocks_of(position, split.every), split.division)
                        }
                        None => Span::WHOLE,
                    };
                    let start = end;
                    let items = chunks.saturating_mul(u64::from(task.columns)).saturating_mul(u64::from(span.parts));
                    end = end.saturating_add(items);
                    let expert = rows.expert;
                    let rows = count;
                    groups.push(Group {
                        start,
                        end,
                        task: number,
                        variant,
                        expert,
                        piece,
                        first_row,
                        rows,
                        chunk_rows,
                        chunks,
                        by_rows: chunks > 1
                            && self.program.kernels[chosen.kernel.0 as usize].has_tiles
                            && rows_are_larger(&task.args, chunk_rows)
                            && self.are_ready(&task.args),
                        banded: false,
                        span,
                    });
                }
            };
            let by_tiles = |rows: &ExpertRows| {
                let variant = task.variants.iter().find(|variant| rows.rows <= variant.up_to_rows);
                variant.is_some_and(|variant| self.program.kernels[variant.kernel.0 as usize].has_tiles)
            };
            let separate =
                stage.separation.get(number).copied().filter(|_| self.pieces.len() > 1).unwrap_or(RowSeparation::Never);
            self.each_expert(stage, task.rows, &mut |rows| {
                let one_by_one = |add: &mut dyn FnMut(ExpertRows, u32)| {
                    self.each_piece(task.rows, rows, (0..).zip(self.pieces.iter().copied()), add)
                };
                match separate {
                    RowSeparation::Tiles if self.exact && by_tiles(&rows) => one_by_one(&mut add),
                    RowSeparation::Exact if self.exact => one_by_one(&mut add),
                    RowSeparation::Always => one_by_one(&mut add),
                    RowSeparation::Sequence => self.each_piece(task.rows, rows, runs(self.pieces), &mut add),
                    RowSeparation::Never | RowSeparation::Tiles | RowSeparation::Exact => add(rows, 0),
                }
            });
        }
        end
    }

    /// Divides rows among pieces (rows of one sequence). Calls `add` with the rows of each piece
    /// and the piece's number.
    fn each_piece(
        &self,
        axis: RowAxis,
        rows: ExpertRows,
        numbered: impl Iterator<Item = (u32, Piece)>,
        add: &mut dyn FnMut(ExpertRows, u32),
    ) {
        match axis {
            RowAxis::Tokens => {
                numbered.for_each(|(n, piece)| add(ExpertRows { first: piece.row, rows: piece.rows, ..rows }, n));
            }
            RowAxis::Outputs => {
                numbered.for_each(|(n, piece)| add(ExpertRows { first: piece.output, rows: piece.outputs, ..rows }, n));
            }
            RowAxis::Routed(bucket) => {
                let bucket = self.store.buckets[bucket.0 as usize].read().unwrap_or_else(PoisonError::into_inner);
                let (first, end) = (rows.first as usize, rows.first.saturating_add(rows.rows) as usize);
                // The rows of an expert are in the order of their tokens.
                let tokens = bucket.tokens().get(first..end).unwrap_or(&[]);
                let mut begin = 0;
                for (n, piece) in numbered {
                    let end = tokens.partition_point(|&token| token < piece.row.saturating_add(piece.rows));
                    let count = end.saturating_sub(begin) as u32;
                    add(ExpertRows { first: rows.first + begin as u32, rows: count, ..rows }, n);
                    begin = end.max(begin);
                }
            }
        }
    }

    /// Returns whether all weights among these arguments are packed already. Otherwise the items
    /// pack strips as they need them. An item that reads a strip must then directly follow the item
    /// that packed it.
    fn are_ready(&self, args: &[Arg]) -> bool {
        let ready = |arg: &Arg| !matches!(arg.source, Source::Weight(weight) if !self.store.weights.is_ready(weight));
        args.iter().all(ready)
    }

    /// Runs a range of the items of a group. Adds their number, bytes and products to `work`, but
    /// not their time.
    fn items(
        &self,
        thread: usize,
        stage: &Stage,
        group: &Group,
        numbers: Range<u64>,
        mut work: Option<&mut stats::Work>,
    ) -> Result<(), ExecuteError> {
        let (task, place) = (&stage.tasks[group.task], &stage.parts[group.task]);
        let block = match self.streamed_experts(stage, task.rows) {
            Some((number, experts)) => Some(experts.wait(number, group.expert)?),
            None => None,
        };
        let variant = &task.variants[group.variant];
        let (kernel, dims, bands, strides) = match variant.bands.as_ref().filter(|_| group.banded) {
            Some(Bands { count, kernel, dims, strides }) => (*kernel, dims, *count, &strides[..]),
            None => (variant.kernel, &variant.dims, 1, &[][..]),
        };
        let split = variant.split.as_ref();
        let call = Call { task, parts: place, split, kernel, dims, bands, strides, last: Cell::default() };
        let kernel = &self.program.kernels[call.kernel.0 as usize];
        // If the kernel takes the first block of its part as a dim, it begins with the first block
        // that its first row needs.
        let takes_begin = variant.dims.iter().any(|dim| dim.is(DimInput::PartBegin));
        for number in numbers {
            if self.stop.is_raised() {
                break;
            }
            let number = number - group.start;
            let parts = u64::from(group.span.parts);
            // The cast is exact, because the value is below the number of parts.
            let (part, number) = ((number % parts) as u32, number / parts);
            let bands = u64::from(call.bands.max(1));
            let all = u64::from(task.columns) * bands;
            let (before, chunk) = match group.by_rows {
                true => (number % all, number / all),
                false => (number / group.chunks, number % group.chunks),
            };
            let skipped = chunk * group.chunk_rows;
            let (row, sliding) = (group.first_row + skipped, stage.sliding.get(group.task).copied().flatten());
            let window = sliding.filter(|_| takes_begin);
            let window = window.and_then(|state| self.states(group.piece)?.sliding(state));
            let whole = stage.whole.get(group.task).copied().flatten();
            let piece = self.piece(group.piece);
            let own = piece.position.saturating_add(row.saturating_sub(piece.row.into()) as u32);
            let start = match whole.filter(|_| takes_begin) {
                Some(reach) if variant.split.is_none() => u64::from(own.saturating_sub(reach) / ATTENTION_BLOCK),
                _ => window.map_or(0, |window| window.first_block(own)),
            };
            let item = Item {
                row,
                rows: group.chunk_rows.min(group.rows - skipped),
                // The casts are exact, because the values are below the numbers of columns and
                // bands.
                column: (before / bands) as u32,
                band: (before % bands) as u32,
                expert: group.expert,
                piece: group.piece,
                block,
                span: Span { part, start, ..group.span },
                sliding,
                listed: stage.listed.get(group.task).copied().flatten(),
                whole,
            };
            let failed = |kernel: &Signature, problem| {
                let (task, kernel) = (shorten(&task.label), kernel.name.clone());
                ExecuteError::Item(Box::new(ItemError { task, kernel, problem }))
            };
            let done = self.item(thread, &call, kernel, &item, work.is_some());
            let done = done.map_err(|problem| failed(kernel, problem))?;
            if let (Some(work), Some(done)) = (work.as_deref_mut(), done) {
                *work += done;
            }
            if let Some(split) = split
                && self.store.parts.finished(place, self.part_key(&item), item.span.parts)
            {
                let combine = &self.program.kernels[split.combine.0 as usize];
                let combined = self.combine(thread, &call, split, combine, &item);
                combined.map_err(|problem| failed(combine, problem))?;
            }
        }
        Ok(())
    }

    fn item(
        &self,
        thread: usize,
        call: &Call<'_>,
        kernel: &Signature,
        item: &Item,
        counts: bool,
    ) -> Result<Option<stats::Work>, Problem> {
        let &Call { task, split, .. } = call;
        // All heads of a row have the same dims, and so have all columns of a chunk of rows.
        let dims = match call.last.get().filter(|last| last.are_of(item)) {
            Some(last) => last.dims,
            None => self.dims(call.dims, kernel, item)?,
        };
        call.last.set(Some(LastDims { row: item.row, rows: item.rows, band: item.band, span: item.span, dims }));
        let dims = &dims[..kernel.dims.len()];
        let (mut pointers, mut sizes) = ([std::ptr::null_mut(); MAX_BUFFERS], [0; MAX_BUFFERS]);
        // Number of bytes of the thread's memory that already hold chosen cache slots.
        let mut taken = 0;
        for (i, arg) in task.args.iter().enumerate().take(kernel.buffers.len()) {
            let parameter = &kernel.buffers[i];
            let band_stride = call.strides.get(i).copied().unwrap_or(0);
            let argument = Argument { buffer: i, parameter, arg, band_stride };
            let region = match split {
                Some(split) if split.argument as usize == i => {
                    let (first, count) = match split.leaves {
                        Leaves::Result => (item.span.part, 1),
                        Leaves::Words => (item.span.first() as u32, self.part_blocks(split.every, item)),
                    };
                    self.parts(call.parts, parameter, item, first, count, dims)?
                }
                _ if matches!(arg.source, Source::Chosen { .. }) => {
                    self.gather_chosen(thread, &mut taken, &argument, item, dims)?
                }
                _ => self.slice(thread, &argument, item, dims)?,
            };
            pointers[i] = region.base();
            sizes[i] = region.bytes();
        }
        let count = kernel.buffers.len();
        // SAFETY: dims are in their ranges. Each slice lies in its memory, which `store` keeps
        // mapped. `Program::new` checked that the kernel writes only to the arena, a state, an
        // item's own partial result or this thread's scratch memory. It also checked that the
        // written memory overlaps no other buffer of the call. Index buffers come from inputs,
        // which are not written now, and their values are below the kernel's limits. If the plan is
        // wrong, other threads may write some bytes at the same time, but no address depends on
        // those bytes.
        unsafe { self.backend.call(call.kernel.0 as usize, &pointers[..count], &sizes[..count], dims) }?;
        Ok(counts.then(|| stats::Work {
            items: 1,
            bytes: bytes_read(kernel, &task.args, &sizes),
            products: kernel.products.count(dims),
            ..stats::Work::default()
        }))
    }

    /// Combines the partial results of an item's row and column. All of them are finished.
    fn combine(
        &self,
        thread: usize,
        call: &Call<'_>,
        split: &Split,
        kernel: &Signature,
        item: &Item,
    ) -> Result<(), Problem> {
        let parts = match split.leaves {
            Leaves::Result => item.span.parts,
            Leaves::Words => self.part_blocks(split.every, &Item { span: Span::WHOLE, ..*item }),
        };
        let dims = [kernel.dims.first().map_or(Ok(0), |dim| in_range(u64::from(parts), dim))?];
        let (mut pointers, mut sizes) = ([std::ptr::null_mut(); MAX_BUFFERS], [0; MAX_BUFFERS]);
        let result = &call.task.args[split.argument as usize];
        for (i, parameter) in kernel.buffers.iter().enumerate() {
            let argument = |arg| Argument { buffer: i, parameter, arg, band_stride: 0 };
            let region = match i {
                0 => self.parts(call.parts, parameter, item, 0, parts, &dims)?,
                1 => self.slice(thread, &argument(result), item, &dims)?,
                _ => self.slice(thread, &argument(&SCRATCH), item, &dims)?,
            };
            pointers[i] = region.base();
            sizes[i] = region.bytes();
        }
        let count = kernel.buffers.len();
        // SAFETY: the same reasons as for an item's kernel hold. `Program::new` checked that the
        // kernel reads its first buffer and writes its second. The first has the partial results,
        // which no thread writes any more; the second is a slice of the task's output. Scratch
        // memory belongs to this thread.
        unsafe { self.backend.call(split.combine.0 as usize, &pointers[..count], &sizes[..count], &dims) }
    }
}

/// Returns the number of rows of each item (chunk) but the last one. There are as few chunks as the
/// kernel's largest chunk allows. The chunks are of equal size, rounded up to a multiple of the
/// kernel's row group.
fn chunk_rows(variant: &Variant, rows: u64) -> u64 {
    let max = u64::from(variant.row_chunk.max(1));
    let even = rows.div_ceil(rows.div_ceil(max).max(1));
    let group = variant.dims.iter().find_map(|dim| dim.divisor(DimInput::Rows)).map(u64::from);
    even.next_multiple_of(group.unwrap_or(1).max(1)).clamp(1, max)
}

/// Returns the number of bytes of a kernel call that [`stats::Work::bytes`] counts.
fn bytes_read(kernel: &Signature, args: &[Arg], sizes: &[u64]) -> u64 {
    let sum = |of: &dyn Fn(&Parameter, &Arg) -> bool| -> u64 {
        let buffers = kernel.buffers.iter().zip(args).zip(sizes);
        buffers.filter(|((buffer, arg), _)| of(buffer, arg)).map(|(_, size)| *size).sum()
    };
    let lasts = |_: &Parameter, arg: &Arg| {
        matches!(arg.source, Source::Weight(_) | Source::State { .. } | Source::Chosen { .. })
    };
    let is_arena = |arg: &Arg| matches!(arg.source, Source::Arena(_));
    let writes = |buffer: &Parameter| matches!(buffer.access, Access::Write);
    // If an index selects rows of a table, the table's buffer covers all its rows, so only the
    // other buffers are counted.
    let picks = kernel.buffers.iter().any(|buffer| matches!(buffer.access, Access::Index(_)));
    let (first, else_all) = match picks {
        true => (sum(&|buffer, arg| is_arena(arg) && writes(buffer)), sum(&|_, arg| is_arena(arg))),
        false => (sum(&lasts), sum(&|buffer, _| !matches!(buffer.access, Access::Scratch))),
    };
    if first > 0 { first } else { else_all }
}

/// Returns whether an item's rows of activations have more bytes than its column of a weight. With
/// tile products, the larger of the two stays in the thread's cache over consecutive items, and the
/// smaller one is loaded for each item. A tile load from the third-level cache takes 13 times as
/// long as from the first. Vector loads stream from the third level nearly as fast as from the
/// second. With vectors, reading a weight again for each chunk of rows made prefill 2 to 6 % slower
/// (Zen 5, 2 threads). The result is false for tasks that read a state, because a state's column is
/// larger than the rows.
fn rows_are_larger(args: &[Arg], chunk_rows: u64) -> bool {
    let of_state = args.iter().any(|arg| matches!(arg.source, Source::State { .. } | Source::Chosen { .. }));
    let is_weight = |arg: &&Arg| matches!(arg.source, Source::Weight(_));
    let column: u64 = args.iter().filter(is_weight).map(|arg| arg.column_stride).fold(0, u64::saturating_add);
    let rows = args.iter().filter(|arg| matches!(arg.source, Source::Arena(_)) && arg.column_stride == 0);
    let row = rows.map(|arg| arg.row_stride).fold(0, u64::saturating_add);
    !of_state && column > 0 && row.saturating_mul(chunk_rows) > column
}

#[cfg(test)]
mod tests {
    use super::*;
    use ixc_ir::plan::BufferId;

    #[test]
    fn chunks_are_even_and_in_whole_groups() {
        let variant = |row_chunk, dims| Variant {
            up_to_rows: u32::MAX,
            row_chunk,
            kernel: KernelId(0),
            dims,
            split: None,
            bands: None,
        };
        let groups = || vec![DimInput::Rows / 6, DimInput::Rows % 6];
        assert_eq!(chunk_rows(&variant(96, groups()), 512), 90);
        assert_eq!(chunk_rows(&variant(96, groups()), 96), 96);
        assert_eq!(chunk_rows(&variant(96, groups()), 97), 54);
        assert_eq!(chunk_rows(&variant(96, groups()), 7), 12);
        assert_eq!(chunk_rows(&variant(1, vec![]), 512), 1);
        assert_eq!(chunk_rows(&variant(4, vec![DimInput::Rows.into()]), 5), 3);
        assert_eq!(chunk_rows(&variant(5, vec![DimInput::Rows / u32::MAX]), 4), 5);
    }

    #[test]
    fn larger_operand_stays_in_the_cache() {
        let arg =
            |source, row_stride, column_stride| Arg { source, offset: 0, row_stride, column_stride, expert_stride: 0 };
        let x = arg(Source::Arena(BufferId(0)), 2816, 0);
        let y = arg(Source::Arena(BufferId(1)), 8192, 128);
        // 32 rows of a weight with 2048 columns in q4_k take 36 KiB, as much as 13 rows of
        // activations.
        let args = [x.clone(), arg(Source::Weight(0), 0, 32 * 1152), y.clone()];
        assert_eq!([13, 14].map(|rows| rows_are_larger(&args, rows)), [false, true]);
        let attention = [x, arg(Source::State { state: 0, field: 0 }, 0, 1 << 20), y];
        assert!(!rows_are_larger(&attention, 1 << 20));
    }
}
