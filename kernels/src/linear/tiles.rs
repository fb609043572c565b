//! Products of many rows, on machines with tile products. Strips of a packed weight are converted
//! to bf16 panels, and all rows of activations are multiplied by them.
//!
//! Block-quantised weights have a scale for 16 or 32 columns, while a tile product sums over 32
//! (bf16) or 64 (int8) columns. With int8 tiles, sums would leave the tiles for scaling after every
//! 32 columns, and tiles would be half filled. Codes are therefore dequantised to bf16, including
//! scales and minimums, once for all rows of the item. Sums stay in tiles over a whole [`chunk`] of
//! columns. `docs/cost-model.md` compares both methods. Activations are bf16 too, rounded from f32
//! and not from bytes, so the error is smaller than that of the kernels that multiply bytes. If the
//! weight has only one chunk of columns, sums leave the tiles only once.
//!
//! ```text
//! for every 256 columns
//!   for every 64 weight rows
//!     for every two strips
//!       unpack them: panel[strip][k / 32] = tile<16x32xbf16>, row i = columns 2i, 2i + 1 of 16 weight rows; 16 KiB, which stay in the first level
//!       for every 32 rows: 4 sums, 2 tiles of x, 2 of the panel, 4 products for 32 columns (2 x 2)
//!     for 16 rows more, the four strips: 4 sums, 1 tile of x, 4 of the panel, 4 products      (1 x 4)
//!     for what is left: the same on rows copied to scratch
//! ```
//!
//! Both shapes (2 x 2 and 1 x 4) compute four sums at once: a product takes 52 cycles, and one can
//! start every 16 cycles. Between chunks of columns, sums are stored in scratch memory, tile by
//! tile. With all columns in one chunk, sums would never leave the tiles, but the panel would be in
//! L2. Loading the four tiles of a step from L2 takes 100 cycles, while its products take 64.
//! Unpacking would also store to L2. Result rows are often a power of two apart, but each of their
//! lines is written only once.
//!
//! Activations that exceed L2 are read once for all weight rows of the item. Only their columns of
//! the current chunk are read again for the next two strips.
//!
//! bf16 cannot represent 16-bit float weights or f32 activations exactly. Both are split into two
//! bf16 (`bf16x2`), and three products (high·high, low·high, high·low) are accurate to 16 bits.
//! bf16 weights need two products.

mod unpack;

use ixc_ir::format::{Codec, Format, packed};
use ixc_ir::kernel::{Affine, BufferId, DimId, KernelBuilder, Type, ValueId};

use self::unpack::Unpack;
use super::{Destination, Product, row_bytes};
use crate::generator::bf16_tile::{self, BF16, LINE, ROWS, STEP, SUM, Side, TILE};
use crate::generator::buffer_offset::BufferOffset;

/// Number of weight rows of a strip.
const STRIP: i64 = packed::STRIP as i64;
/// Number of columns of a chunk. This many columns of two strips take 16 KiB of the 48 KiB of L1,
/// and those of 32 rows of activations take 16 KiB too. With twice the number, rows of activations
/// would evict the panel. With half the number, sums would leave the tiles twice as often.
const CHUNK: i64 = 256;
/// Number of strips of a panel, with which 16 rows are multiplied at once.
const PANEL_STRIPS: i64 = 4;
/// Number of strips that are unpacked together, and multiplied with 32 rows.
const PAIR: i64 = 2;
/// Maximum number of rows of activations of an item, which bounds the sums in scratch memory.
pub const MAX_TASK_ROWS: i64 = 512;

/// Rows of activations of an item, as dims.
#[derive(Clone, Copy)]
pub struct Rows {
    /// Number of blocks of 32 rows.
    pub blocks: DimId,
    /// 1 if 16 more rows follow, otherwise 0.
    pub half: DimId,
    /// Number of rows after the whole tiles, fewer than 16.
    pub rest: DimId,
    /// 1 if `rest` is more than 0, otherwise 0.
    pub partial: DimId,
}

impl Rows {
    /// Returns the rows of an item with the dims of
    /// [`MatmulStrategy::Tiles`](super::MatmulStrategy::Tiles).
    pub fn from_rows(rows: &super::Rows, partial: DimId) -> Rows {
        match rows.groups[..] {
            [(blocks, 32), (half, 16), (rest, 1)] => Rows { blocks, half, rest, partial },
            _ => unreachable!("tile products take 32, 16 and single rows, not {:?}", rows.groups),
        }
    }

    /// Returns the number of rows in whole tiles.
    pub fn whole(self) -> Affine {
        self.blocks * (2 * ROWS) + self.half * ROWS
    }
}

/// Whether tile products are possible for a weight and activations in these formats.
pub fn takes(format: Format, x: Format) -> bool {
    format.tile_activation() == Some(x)
}

/// Returns the number of bf16 parts that an element of a weight is split into.
fn parts(format: Format) -> i64 {
    match format.codec() {
        // Other formats have no bf16 tile products.
        Codec::Float(float) => float.bf16_parts().unwrap_or(1) as i64,
        Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => 1,
    }
}

/// Returns the number of columns of a chunk. If the weight or the activations have two parts, a
/// chunk has half as many columns, so that it needs the same memory.
fn chunk(format: Format, x: Format, k: u32) -> i64 {
    (CHUNK / parts(format).max(x_parts(x))).min(i64::from(k))
}

/// Returns the number of bytes of each row of activations that are read again for every two strips:
/// a chunk of columns.
pub fn chunk_bytes(format: Format, x: Format, k: u32) -> u64 {
    (chunk(format, x, k) * 2 * x_parts(x)).unsigned_abs()
}

/// Number of weight rows for which activations are read once.
pub const ROWS_AT_ONCE: u64 = (PAIR * STRIP) as u64;

/// Returns how many times sums leave the tiles before all columns are added.
pub fn leaves(format: Format, x: Format, k: u32) -> u64 {
    ((i64::from(k) - 1) / chunk(format, x, k)).unsigned_abs()
}

/// Returns a bound of the relative error of a product that comes from the rounding of its factors.
/// Truncation of a weight costs up to 2^-7, and an activation is rounded to nearest. If both
/// factors are split into two parts, the error is that of their remainders and of the omitted
/// product of the low parts.
pub fn rounding(format: Format) -> f64 {
    match format.codec() {
        Codec::Float(_) => 1.0 / 16384.0,
        Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => 1.0 / 128.0 + 1.0 / 256.0,
    }
}

/// Returns the number of bytes of scratch memory for items of at most `rows` rows of activations.
/// The memory has the panel, a chunk of 16 rows of x for a partial tile, and the sums.
pub fn scratch_bytes(format: Format, x: Format, k: u32, tile: u32, rows: i64) -> i64 {
    let layout = Layout::new(format, x, k, tile);
    // The number includes 16 rows for half a block, and 16 for a partial tile.
    let blocks = rows / (2 * ROWS) * 2 + 2;
    layout.sums_at + blocks * layout.sums_block
}

/// Layout of scratch memory. Offsets are relative to its start in the buffer.
#[derive(Clone, Copy)]
struct Layout {
    chunk: i64,
    /// Number of bytes of a strip in the panel.
    strip: i64,
    x_at: i64,
    x_row: i64,
    sums_at: i64,
    /// Number of bytes of the sums of 16 rows.
    sums_block: i64,
}

impl Layout {
    fn new(format: Format, x: Format, k: u32, tile: u32) -> Layout {
        let chunk = chunk(format, x, k);
        let (strip, strips) = (chunk / STEP * TILE * parts(format), i64::from(tile) / STRIP);
        let x_at = strips.min(PANEL_STRIPS) * strip;
        let x_row = chunk * 2 * x_parts(x);
        Layout { chunk, strip, x_at, x_row, sums_at: x_at + ROWS * x_row, sums_block: strips * TILE }
    }
}

/// Returns the number of bf16 parts of each activation.
fn x_parts(x: Format) -> i64 {
    match x.codec() {
        Codec::Bf16 { parts } => *parts as i64,
        Codec::Float(_) | Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row => 1,
    }
}

/// Returns the offset of the columns from `column` on in a row of activations. `column` must be a
/// multiple of 32. `part` selects the high (0) or low (1) part of each activation.
fn x_offset(x: Format, column: i64, part: i64) -> i64 {
    let (len, bytes) = (x.block_len() as i64, x.block_bytes() as i64);
    let field = match (x.codec(), part) {
        (Codec::Bf16 { .. }, 0) => "high",
        (Codec::Bf16 { .. }, _) => "low",
        (Codec::Float(_) | Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row, _) => "bf16",
    };
    column / len * bytes + x.field(field) as i64 + column % len * 2
}

/// Rows of x that are multiplied together: their offset, and the distance between them.
#[derive(Clone)]
struct Source {
    buffer: BufferId,
    at: Affine,
    row: i64,
    format: Option<Format>,
}

impl Source {
    /// Returns the offset of the columns from `column` on: in a row of the activation format, or in
    /// scratch memory. In scratch memory, the parts of the same 32 columns are adjacent.
    fn offset(&self, column: i64, part: i64, parts: i64) -> i64 {
        match self.format {
            Some(format) => x_offset(format, column, part),
            None => column / STEP * LINE * parts + part * LINE,
        }
    }
}

/// Adds the product to the destination, or stores it if the destination is
/// [fresh](Destination::fresh).
pub fn multiply(b: &mut KernelBuilder, product: &Product, scratch: BufferOffset, rows: &Rows, to: &Destination) {
    let layout = Layout::new(product.format, product.x_format, product.k, product.tile);
    let k = i64::from(product.k);
    let chunks = (k + layout.chunk - 1) / layout.chunk;
    let chunk = |b: &mut KernelBuilder, number: Affine, columns, place: Place| {
        let chunk = Chunk { product, scratch, rows: *rows, to, layout, number, columns, place };
        chunk.multiply(b);
    };
    let columns = |number: i64| (k - number * layout.chunk).min(layout.chunk);
    let place = |first, last| Place { first, last };
    chunk(b, 0.into(), columns(0), place(true, chunks == 1));
    if chunks > 2 {
        b.for_each("chunk", chunks - 2, |b, i| chunk(b, Affine::from(i) + 1, layout.chunk, place(false, false)));
    }
    if chunks > 1 {
        chunk(b, (chunks - 1).into(), columns(chunks - 1), place(false, true));
    }
}

/// Position of a chunk among all chunks of columns.
#[derive(Clone, Copy)]
struct Place {
    /// Whether this is the first chunk. Sums then begin with the destination's values, or with
    /// zeros.
    first: bool,
    /// Whether this is the last chunk. Sums are then written to the destination.
    last: bool,
}

/// Product of a chunk of columns.
struct Chunk<'p> {
    product: &'p Product,
    scratch: BufferOffset,
    rows: Rows,
    to: &'p Destination,
    layout: Layout,
    number: Affine,
    columns: i64,
    place: Place,
}

/// Strips of a weight that are multiplied with the same rows together.
#[derive(Clone)]
struct Strips {
    /// Index of the first strip in the weight.
    first: Affine,
    /// Index of the first strip in the panel.
    in_panel: Affine,
    count: i64,
}

/// Location of sums: the offset for 16 rows and the first strip, and the distances between rows and
/// between strips.
#[derive(Clone)]
struct Sums {
    buffer: BufferId,
    at: Affine,
    row: i64,
    strip: i64,
}

/// Source and destination of the sums of 16 rows. Without a source, sums begin with zeros.
#[derive(Clone)]
struct Ends {
    from: Option<Sums>,
    to: Sums,
}

impl Chunk<'_> {
    /// Returns the number of columns of an iteration: at most eight steps of 32.
    fn unit(&self) -> i64 {
        [256, 128, 64, 32].into_iter().find(|unit| self.columns % unit == 0).unwrap_or(STEP)
    }

    fn multiply(&self, b: &mut KernelBuilder) {
        let strips = i64::from(self.product.tile) / STRIP;
        self.copy_partial(b);
        match strips / PANEL_STRIPS {
            0 => {}
            1 => self.panel(b, 0.into(), PANEL_STRIPS),
            panels => b.for_each("panel", panels, |b, i| self.panel(b, i * PANEL_STRIPS, PANEL_STRIPS)),
        }
        let rest = strips % PANEL_STRIPS;
        if rest > 0 {
            self.panel(b, (strips - rest).into(), rest);
        }
    }

    /// Multiplies all rows by the strips of a panel, which begin with strip `first` of the weight.
    fn panel(&self, b: &mut KernelBuilder, first: Affine, strips: i64) {
        let rows = self.rows;
        let pair = |b: &mut KernelBuilder, pair: Affine| {
            let strips = Strips { first: first.clone() + pair.clone() * PAIR, in_panel: pair * PAIR, count: PAIR };
            self.unpack(b, &strips);
            b.for_each("block", rows.blocks, |b, block| {
                let row: Affine = block * (2 * ROWS);
                let x = [self.x(row.clone()), self.x(row.clone() + ROWS)];
                let ends = [block * 2, block * 2 + 1].map(|block| self.ends(block, &strips));
                self.micro(b, &x, &strips, &ends);
            });
        };
        // Iterations are unrolled, since a loop would need registers for its counter and pointers.
        (0..strips / PAIR).for_each(|i| pair(b, i.into()));
        let all = Strips { first, in_panel: 0.into(), count: strips };
        b.for_each("half", rows.half, |b, half| {
            let block = rows.blocks * 2 + half;
            self.micro(b, &[self.x(block.clone() * ROWS)], &all, &[self.ends(block, &all)]);
        });
        self.partial(b, &all);
    }

    /// Unpacks strips of the weight to the panel.
    fn unpack(&self, b: &mut KernelBuilder, strips: &Strips) {
        let Product { format, k, w: BufferOffset { buffer: w, at: w_at }, .. } = *self.product;
        let BufferOffset { buffer: panel, at: panel_at } = self.scratch;
        let bytes = |columns: i64| columns / format.block_len() as i64 * format.block_bytes() as i64 * STRIP;
        b.for_each("strip", strips.count, |b, strip| {
            let unpack = Unpack {
                format,
                w,
                panel,
                columns: self.columns,
                from: (strips.first.clone() + strip) * bytes(i64::from(k))
                    + self.number.clone() * bytes(self.layout.chunk)
                    + w_at,
                to: (strips.in_panel.clone() + strip) * self.layout.strip + panel_at,
                permutes: self.product.vectors.permutes,
            };
            unpack.strip(b);
        });
    }

    /// Returns the location of the activations of the rows from `row` on, at the first column of
    /// the chunk.
    fn x(&self, row: Affine) -> Source {
        let Product { k, x, x_format, .. } = *self.product;
        let bytes = row_bytes(x_format, k);
        let chunk = x_offset(x_format, self.layout.chunk, 0) - x_offset(x_format, 0, 0);
        Source { buffer: x, at: row * bytes + self.number.clone() * chunk, row: bytes, format: Some(x_format) }
    }

    /// Returns the location in scratch memory of the sums of block number `block`, which has 16
    /// rows of activations. The sums stay there from one chunk of columns to the next.
    fn waiting(&self, block: Affine, strips: &Strips) -> Sums {
        let BufferOffset { buffer, at } = self.scratch;
        let at = block * self.layout.sums_block + strips.first.clone() * TILE + (at + self.layout.sums_at);
        Sums { buffer, at, row: LINE, strip: TILE }
    }

    /// Returns the location in the destination of the results for 16 rows of activations, from
    /// `row` on.
    fn result(&self, row: Affine, strips: &Strips) -> Sums {
        let Destination { buffer, offset, row_bytes, .. } = self.to;
        let at = row * *row_bytes + strips.first.clone() * LINE + offset.clone();
        Sums { buffer: *buffer, at, row: *row_bytes, strip: LINE }
    }

    /// Returns the source and the destination of the sums of block number `block`, for this chunk
    /// of columns.
    fn ends(&self, block: Affine, strips: &Strips) -> Ends {
        let (waiting, result) = (self.waiting(block.clone(), strips), self.result(block * ROWS, strips));
        let to = if self.place.last { result.clone() } else { waiting.clone() };
        let from = match (self.place.first, self.to.fresh) {
            (true, true) => None,
            (true, false) => Some(result),
            (false, _) => Some(waiting),
        };
        Ends { from, to }
    }

    /// Copies the chunk's columns of a partial tile's rows to scratch memory of a tile's size.
    fn copy_partial(&self, b: &mut KernelBuilder) {
        let (BufferOffset { buffer: scratch, at }, layout, rows) = (self.scratch, self.layout, self.rows);
        let parts = x_parts(self.product.x_format);
        b.for_each("r", rows.rest, |b, r| {
            let from = self.x(rows.whole() + r);
            let unit = self.unit();
            let skipped = from.offset(unit, 0, parts) - from.offset(0, 0, parts);
            b.for_each("i", self.columns / unit, |b, i| {
                for step in 0..unit / STEP {
                    for part in 0..parts {
                        let from_at = from.at.clone() + i * skipped + from.offset(step * STEP, part, parts);
                        let v = b.load(Type::i8(LINE as u16), from.buffer, from_at);
                        let to = step * LINE * parts + part * LINE;
                        let to = r * layout.x_row + i * (unit / STEP * LINE * parts) + (at + layout.x_at + to);
                        b.store(scratch, to, v);
                    }
                }
            });
        });
    }

    /// Multiplies the copied rows of a partial tile. The unused rows of the tile are multiplied
    /// too, but their results are not copied to the output.
    fn partial(&self, b: &mut KernelBuilder, strips: &Strips) {
        let (BufferOffset { buffer: scratch, at }, layout, rows) = (self.scratch, self.layout, self.rows);
        b.for_each("partial", rows.partial, |b, _| {
            let x = Source { buffer: scratch, at: (at + layout.x_at).into(), row: layout.x_row, format: None };
            let result = self.result(rows.whole(), strips);
            let waiting = self.waiting(rows.blocks * 2 + rows.half, strips);
            let copy = |b: &mut KernelBuilder, from: &Sums, to: &Sums| {
                b.for_each("r", rows.rest, |b, r| {
                    for strip in 0..strips.count {
                        let line = Type::i8(LINE as u16);
                        let v = b.load(line, from.buffer, from.at.clone() + r * from.row + strip * from.strip);
                        b.store(to.buffer, to.at.clone() + r * to.row + strip * to.strip, v);
                    }
                });
            };
            let from = if self.place.first && self.to.fresh { None } else { Some(waiting.clone()) };
            if self.place.first && !self.to.fresh {
                copy(b, &result, &waiting);
            }
            self.micro(b, &[x], strips, &[Ends { from, to: waiting.clone() }]);
            if self.place.last {
                copy(b, &waiting, &result);
            }
        });
    }

    /// Micro-kernel: sums the products of tiles of `x` and tiles of strips, 2 x 2 or 1 x 4 tiles.
    fn micro(&self, b: &mut KernelBuilder, x: &[Source], strips: &Strips, ends: &[Ends]) {
        let BufferOffset { buffer: panel, at: panel_at } = self.scratch;
        let (w_parts, x_parts) = (parts(self.product.format), x_parts(self.product.x_format));
        let place = |sums: &Sums, strip: i64| sums.at.clone() + strip * sums.strip;
        let mut sums: Vec<ValueId> = Vec::new();
        for ends in ends {
            for strip in 0..strips.count {
                sums.push(match &ends.from {
                    None => b.tile_zero(SUM),
                    Some(from) => b.tile_load(SUM, from.buffer, place(from, strip), from.row),
                });
            }
        }
        let unit = self.unit();
        let panel_strip = self.layout.strip;
        let panel_unit = unit / STEP * TILE * w_parts;
        let x_unit: Vec<i64> = x.iter().map(|x| x.offset(unit, 0, x_parts) - x.offset(0, 0, x_parts)).collect();
        let body = |b: &mut KernelBuilder, i: Affine, sums: &[ValueId]| {
            let mut sums = sums.to_vec();
            for step in 0..unit / STEP {
                let x_tile = |b: &mut KernelBuilder, row: i64, part: i64| {
                    let (x, unit) = (&x[row as usize], x_unit[row as usize]);
                    let at = x.at.clone() + i.clone() * unit + x.offset(step * STEP, part, x_parts);
                    b.tile_load(BF16, x.buffer, at, x.row)
                };
                let w_tile = |b: &mut KernelBuilder, strip: i64, part: i64| {
                    let at = strips.in_panel.clone() * panel_strip
                        + i.clone() * panel_unit
                        + (panel_at + strip * panel_strip + (step * w_parts + part) * TILE);
                    b.tile_load(BF16, panel, at, LINE)
                };
                let rows = Side { parts: x_parts, tiles: x.len() as i64, emit: &x_tile };
                let columns = Side { parts: w_parts, tiles: strips.count, emit: &w_tile };
                bf16_tile::multiply(b, &mut sums, &rows, &columns);
            }
            sums
        };
        let sums = b.for_carry("k", self.columns / unit, &sums, |b, i, sums| body(b, i.into(), sums));
        for (ends, sums) in ends.iter().zip(sums.chunks_exact(strips.count as usize)) {
            for (strip, sum) in (0..).zip(sums) {
                b.tile_store(ends.to.buffer, place(&ends.to, strip), *sum, ends.to.row);
            }
        }
    }
}
