//! Many rows, on machines with tile products: strips of a packed weight become bf16 panels, which every row of activations is
//! multiplied with.
//!
//! Block-quantised weights have a scale for 16 or 32 columns, and a tile product sums over 32 (bf16) or 64 (int8) of them. With
//! int8 tiles the sums would have to leave the tiles for scaling after every 32 columns, in half-filled tiles; so quants are
//! dequantised to bf16, scales and minimums included, once for all rows of the item, and sums stay in tiles over a whole
//! [`chunk`] of columns. `docs/cost-model.md` has the two beside each other. Activations come as bf16 too, rounded from f32 and
//! not from their bytes, so that this path has less error than the byte paths, not more. Sums of a weight of one chunk leave the tiles once.
//!
//! ```text
//! for each 64 weight rows, each chunk of columns         // a panel of at most PANEL_BYTES, mostly of all columns: it stays in the second level
//!   unpack the strips: panel[strip][k / 32] = tile<16x32xbf16>, row i = columns 2i, 2i + 1 of 16 weight rows
//!   for each 32 rows, each two strips: 4 sums, 2 tiles of x, 2 of the panel, 4 products for 32 columns     (2 x 2)
//!   for 16 rows more, each four strips: 4 sums, 1 tile of x, 4 of the panel, 4 products                    (1 x 4)
//!   for what is left: the same on rows copied to scratch
//! ```
//!
//! Four sums are in flight in both shapes: a product takes 52 cycles and one can start every 16.
//!
//! Float weights of 16 bits do not fit bf16, nor does an f32 activation: both are split in two bf16 (`bf16x2`), and three
//! products (high·high, low·high, high·low) give 16 bits. bf16 weights need two.

mod unpack;

use ixc_ir::format::{Codec, Format, packed};
use ixc_ir::kernel::{Affine, BufferId, DimId, KernelBuilder, Type, ValueId};

use self::unpack::Unpack;
use super::{Destination, Product};
use crate::bf16_tile::{self, BF16, LINE, ROWS, STEP, SUM, TILE};

/// Weight rows of a strip.
const STRIP: i64 = packed::STRIP as i64;
/// Most bytes of a panel: a quarter of a second-level cache of 2 MiB, which rows of activations lie in the rest of. With a panel in the first
/// level (32 KiB, 256 columns) sums leave the tiles eight times for 2048 columns: 1.9 times a bare product's time where this takes 1.5.
const PANEL_BYTES: i64 = 512 << 10;
/// Most weight rows of a panel: more would leave it fewer columns, and sums would leave the tiles more often.
const PANEL_ROWS: i64 = 64;

/// The rows of an item, as the dims give them.
#[derive(Clone, Copy)]
pub struct Rows {
    /// Blocks of 32 rows.
    pub blocks: DimId,
    /// Whether 16 more follow.
    pub half: DimId,
    /// Rows after that, fewer than 16.
    pub rest: DimId,
    /// Whether there are such.
    pub partial: DimId,
}

impl Rows {
    /// The dims of [`MatmulStrategy::Tiles`](super::MatmulStrategy::Tiles), by their names.
    pub fn of(rows: &super::Rows, partial: DimId) -> Rows {
        match rows.groups[..] {
            [(blocks, 32), (half, 16), (rest, 1)] => Rows { blocks, half, rest, partial },
            _ => unreachable!("tile products take 32, 16 and single rows, not {:?}", rows.groups),
        }
    }

    /// Rows in tiles that are full.
    pub fn whole(self) -> Affine {
        self.blocks * (2 * ROWS) + self.half * ROWS
    }
}

/// Whether a weight of this format, with activations in that one, has tile products: both must be in the forms that this file
/// reads.
pub fn takes(format: Format, x: Format) -> bool {
    format.tile_activation() == Some(x)
}

/// Parts that a weight's elements are split into: bf16 numbers whose sum they are.
fn parts(format: Format) -> i64 {
    match format.codec() {
        // The others have no tile products.
        Codec::Float(float) => float.bf16_parts().unwrap_or(1) as i64,
        Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => 1,
    }
}

/// Weight rows that a panel has at once.
fn panel_rows(tile: u32) -> i64 {
    i64::from(tile).min(PANEL_ROWS)
}

/// Columns that a panel has at once.
fn chunk(format: Format, k: u32, tile: u32) -> i64 {
    let unit = 256;
    let most = PANEL_BYTES / (panel_rows(tile) * 2 * parts(format)) / unit * unit;
    most.max(unit).min(i64::from(k))
}

/// Whether sums of all columns stay in tiles, so that they need not be added to what stands at the destination.
pub fn sums_at_once(format: Format, k: u32, tile: u32) -> bool {
    chunk(format, k, tile) == i64::from(k)
}

/// Bytes of a panel of bf16, which stays in the second-level cache while rows of activations are multiplied with it.
pub fn panel_bytes(format: Format, k: u64, rows: u64) -> u64 {
    let (k, tile) = (u32::try_from(k).unwrap_or(u32::MAX), u32::try_from(rows).unwrap_or(u32::MAX));
    (panel_rows(tile) * 2 * parts(format) * chunk(format, k, tile)).unsigned_abs()
}

/// What roundings of both factors make of a product at most, relative: a weight's lower half is cut off, which takes up to 2^-7, and an
/// activation is rounded to nearest; where both are split in two, what is left of them and of the low parts' product.
pub fn rounding(format: Format) -> f64 {
    match format.codec() {
        Codec::Float(_) => 1.0 / 16384.0,
        Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => 1.0 / 128.0 + 1.0 / 256.0,
    }
}

/// Bytes of scratch memory: the panel, then 16 rows of x and of sums for the rows that fill no tile.
pub fn scratch_bytes(format: Format, x: Format, k: u32, tile: u32) -> i64 {
    let layout = Layout::new(format, x, k, tile);
    layout.sums_at + ROWS * layout.sums_row
}

/// Where things are in scratch memory, from its start in the buffer on.
#[derive(Clone, Copy)]
struct Layout {
    chunk: i64,
    /// Bytes of a strip in the panel.
    strip: i64,
    x_at: i64,
    x_row: i64,
    sums_at: i64,
    sums_row: i64,
}

impl Layout {
    fn new(format: Format, x: Format, k: u32, tile: u32) -> Layout {
        let chunk = chunk(format, k, tile);
        let strip = chunk / STEP * TILE * parts(format);
        let x_at = panel_rows(tile) / STRIP * strip;
        let x_row = chunk * 2 * x_parts(x);
        Layout { chunk, strip, x_at, x_row, sums_at: x_at + ROWS * x_row, sums_row: panel_rows(tile) * 4 }
    }
}

/// bf16 numbers per activation.
fn x_parts(x: Format) -> i64 {
    match x.codec() {
        Codec::Bf16 { parts } => *parts as i64,
        Codec::Float(_) | Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row => 1,
    }
}

/// The offset in a row of activations of part `part` of the columns from `column` on, a multiple of 32.
fn x_offset(x: Format, column: i64, part: i64) -> i64 {
    let (len, bytes) = (x.block_len() as i64, x.block_bytes() as i64);
    let field = match (x.codec(), part) {
        (Codec::Bf16 { .. }, 0) => "high",
        (Codec::Bf16 { .. }, _) => "low",
        (Codec::Float(_) | Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row, _) => "bf16",
    };
    column / len * bytes + x.field(field) as i64 + column % len * 2
}

/// Rows of x that are multiplied at once: where they are, and how far from another.
#[derive(Clone)]
struct Source {
    buffer: BufferId,
    at: Affine,
    row: i64,
    format: Option<Format>,
}

impl Source {
    /// The offset of the columns from `column` on: in a row as the schedule lays it out, or in scratch memory, where a step's
    /// parts stand side by side.
    fn offset(&self, column: i64, part: i64, parts: i64) -> i64 {
        match self.format {
            Some(format) => x_offset(format, column, part),
            None => column / STEP * LINE * parts + part * LINE,
        }
    }
}

/// Adds the product to what is at the destination, or stores it there where it is [fresh](Destination::fresh).
pub fn multiply(b: &mut KernelBuilder, product: &Product, scratch: (BufferId, i64), rows: &Rows, to: &Destination) {
    let (tile, step) = (i64::from(product.tile), panel_rows(product.tile));
    let group = |b: &mut KernelBuilder, first: Affine, weight_rows| {
        let group = Group { product, scratch, rows: *rows, to, first, weight_rows };
        group.multiply(b);
    };
    if tile / step > 1 {
        b.for_each("panel", tile / step, |b, i| group(b, i * step, step));
    } else {
        group(b, Affine::constant(0), step);
    }
    if tile % step > 0 {
        group(b, Affine::constant(tile - tile % step), tile % step);
    }
}

/// The weight rows of a panel.
struct Group<'p> {
    product: &'p Product,
    scratch: (BufferId, i64),
    rows: Rows,
    to: &'p Destination,
    /// The first of them, a multiple of 32, as are they.
    first: Affine,
    weight_rows: i64,
}

impl Group<'_> {
    fn multiply(&self, b: &mut KernelBuilder) {
        let product = self.product;
        let layout = Layout::new(product.format, product.x_format, product.k, product.tile);
        let k = i64::from(product.k);
        let whole = k / layout.chunk;
        let at = |columns: i64| {
            let w = columns / product.format.block_len() as i64 * product.format.block_bytes() as i64 * STRIP;
            (w, x_offset(product.x_format, columns, 0) - x_offset(product.x_format, 0, 0))
        };
        let (w_step, x_step) = at(layout.chunk);
        let part = |b: &mut KernelBuilder, columns, w: Affine, x: Affine| {
            let part = Part { group: self, layout, columns, w, x };
            part.unpack(b);
            part.multiply(b);
        };
        if whole > 1 {
            b.for_each("chunk", whole, |b, i| part(b, layout.chunk, i * w_step, i * x_step));
        } else {
            part(b, layout.chunk, Affine::constant(0), Affine::constant(0));
        }
        let rest = k % layout.chunk;
        if rest > 0 {
            let (w, x) = at(whole * layout.chunk);
            part(b, rest, Affine::constant(w), Affine::constant(x));
        }
    }
}

/// One chunk of columns.
struct Part<'p> {
    group: &'p Group<'p>,
    layout: Layout,
    columns: i64,
    /// Where its blocks start in a strip.
    w: Affine,
    /// Where its columns start in a row of x.
    x: Affine,
}

impl Part<'_> {
    fn strips(&self) -> i64 {
        self.group.weight_rows / STRIP
    }

    /// Columns of an iteration over them: eight steps where there are enough.
    fn unit(&self) -> i64 {
        [256, 128, 64, 32].into_iter().find(|unit| self.columns % unit == 0).unwrap_or(STEP)
    }

    /// Fills the panel.
    fn unpack(&self, b: &mut KernelBuilder) {
        let format = self.group.product.format;
        let strip_bytes =
            i64::from(self.group.product.k) / format.block_len() as i64 * format.block_bytes() as i64 * STRIP;
        let (panel, panel_at) = self.group.scratch;
        b.for_each("strip", self.strips(), |b, strip| {
            let unpack = Unpack {
                format,
                w: self.group.product.w.0,
                panel,
                columns: self.columns,
                from: strip * strip_bytes
                    + self.group.first.clone() * (strip_bytes / STRIP)
                    + self.w.clone()
                    + self.group.product.w.1,
                to: strip * self.layout.strip + panel_at,
            };
            unpack.strip(b);
        });
    }

    fn multiply(&self, b: &mut KernelBuilder) {
        let (x_format, rows) = (self.group.product.x_format, self.group.rows);
        let x_row = self.group.product.k as i64 / x_format.block_len() as i64 * x_format.block_bytes() as i64;
        let x = |row: Affine| Source {
            buffer: self.group.product.x,
            at: row * x_row + self.x.clone(),
            row: x_row,
            format: Some(x_format),
        };
        b.for_each("block", rows.blocks, |b, block| {
            let row: Affine = block * (2 * ROWS);
            let y = self.destination(row.clone());
            self.block(b, &[x(row.clone()), x(row + ROWS)], &y);
        });
        b.for_each("half", rows.half, |b, half| {
            let row = rows.blocks * (2 * ROWS) + half * ROWS;
            let y = self.destination(row.clone());
            self.block(b, &[x(row)], &y);
        });
        // Rows that fill no tile are copied to where a tile's worth of memory is; what stands in the other rows is multiplied
        // too, and stays there.
        b.for_each("partial", rows.partial, |b, _| {
            let (scratch, at) = self.group.scratch;
            let (layout, parts) = (self.layout, x_parts(x_format));
            let line = Type::i8(LINE as u16);
            b.for_each("r", rows.rest, |b, r| {
                let from = x(rows.whole() + r);
                let unit = self.unit();
                let skipped = from.offset(unit, 0, parts) - from.offset(0, 0, parts);
                b.for_each("i", self.columns / unit, |b, i| {
                    for step in 0..unit / STEP {
                        for part in 0..parts {
                            let from_at = from.at.clone() + i * skipped + from.offset(step * STEP, part, parts);
                            let v = b.load(line, from.buffer, from_at);
                            let to = step * LINE * parts + part * LINE;
                            let to = r * layout.x_row + i * (unit / STEP * LINE * parts) + (at + layout.x_at + to);
                            b.store(scratch, to, v);
                        }
                    }
                });
            });
            let copy =
                Source { buffer: scratch, at: Affine::constant(at + layout.x_at), row: layout.x_row, format: None };
            let (sums_at, sums_row) = (at + layout.sums_at, layout.sums_row);
            let y = self.destination(rows.whole());
            let lines = self.strips();
            if !self.group.to.fresh {
                b.for_each("r", rows.rest, |b, r| {
                    for i in 0..lines {
                        let v = b.load(line, y.0, y.1.clone() + r * self.group.to.row_bytes + i * LINE);
                        b.store(scratch, r * sums_row + (sums_at + i * LINE), v);
                    }
                });
            }
            self.block(b, &[copy], &(scratch, Affine::constant(sums_at), sums_row));
            b.for_each("r", rows.rest, |b, r| {
                for i in 0..lines {
                    let v = b.load(line, scratch, r * sums_row + (sums_at + i * LINE));
                    b.store(y.0, y.1.clone() + r * self.group.to.row_bytes + i * LINE, v);
                }
            });
        });
    }

    /// Where sums of these rows stand: buffer, offset of the first, distance of rows.
    fn destination(&self, row: Affine) -> (BufferId, Affine, i64) {
        let to = self.group.to;
        (to.buffer, row * to.row_bytes + self.group.first.clone() * 4 + to.offset.clone(), to.row_bytes)
    }

    /// 16 or 32 rows times all strips: two strips at a time with 32 rows, four with 16, so that four sums are in flight.
    fn block(&self, b: &mut KernelBuilder, x: &[Source], y: &(BufferId, Affine, i64)) {
        let strips = self.strips();
        let width = (4 / x.len() as i64).min(strips);
        let mut first = 0;
        // Two are written out: a loop would need registers for its counter and pointers.
        if strips / width > 2 {
            b.for_each("column", strips / width, |b, i| self.micro(b, x, y, i * width, width));
            first = strips / width * width;
        }
        while first < strips {
            let width = width.min(strips - first);
            self.micro(b, x, y, Affine::constant(first), width);
            first += width;
        }
    }

    /// The micro-kernel: sums of `x` times `width` strips from `strip` on.
    fn micro(
        &self,
        b: &mut KernelBuilder,
        x: &[Source],
        (y, y_at, y_row): &(BufferId, Affine, i64),
        strip: Affine,
        width: i64,
    ) {
        let (panel, panel_at) = self.group.scratch;
        let (w_parts, x_parts) = (parts(self.group.product.format), x_parts(self.group.product.x_format));
        let place =
            |row: usize, column: i64| y_at.clone() + row as i64 * ROWS * y_row + strip.clone() * LINE + column * LINE;
        let mut sums: Vec<ValueId> = Vec::new();
        for row in 0..x.len() {
            for column in 0..width {
                sums.push(match self.group.to.fresh {
                    true => b.tile_zero(SUM),
                    false => b.tile_load(SUM, *y, place(row, column), *y_row),
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
                let w_tile = |b: &mut KernelBuilder, column: i64, part: i64| {
                    let at = strip.clone() * panel_strip
                        + i.clone() * panel_unit
                        + (panel_at + column * panel_strip + (step * w_parts + part) * TILE);
                    b.tile_load(BF16, panel, at, LINE)
                };
                bf16_tile::multiply(b, &mut sums, (x_parts, x.len() as i64, &x_tile), (w_parts, width, &w_tile));
            }
            sums
        };
        let trips = self.columns / unit;
        let sums = b.for_carry("k", trips, &sums, |b, i, sums| body(b, i.into(), sums));
        for row in 0..x.len() {
            for column in 0..width {
                b.tile_store(*y, place(row, column), sums[row * width as usize + column as usize], *y_row);
            }
        }
    }
}
