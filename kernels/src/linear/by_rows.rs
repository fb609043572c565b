//! Products with weights that have one scale for each row: integer sums over all columns.
//!
//! ```text
//! y[r][n] += float(sum over k of q[n][k] * x[r][k]  -  zero * sum[r]) * dx[r] * d[n]
//! ```
//!
//! Integer arithmetic is exact, so the order of sums does not matter, and every strategy gives the
//! same bits on every target, tile products included. A block of a byte format, 64 columns of a
//! strip, already has the layout of a tile of `tile_dot_s8u8`: 16 groups of four columns times 16
//! rows. Codes of four bits are unpacked for tile products, to a panel in scratch memory, once for
//! all rows of an item.
//!
//! Groups of columns may have integer scales, which are multiples of the row's scale. A code times
//! its multiple fits in a byte. Unpacking computes 64 of these bytes in two instructions, and all
//! other steps are those of bytes. Targets without `dot4_u8s8` multiply the sums of two products by
//! the multiples instead.

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP as STRIP_ROWS;
use ixc_ir::kernel::{Affine, BufferId, DimId, Elem, KernelBuilder, Op, Type, ValueId, VarId};

use super::packed::activations::RowBlock;
use super::packed::ahead;
use super::packed::panel::{Dots, Source, has_magnitudes, times};
use super::packed::strip::Part;
use super::{Destination, MatmulStrategy, Product, SUB, row_bytes, tiles};
use crate::generator::buffer_offset::BufferOffset;
use crate::linear;

const STRIP: i64 = STRIP_ROWS as i64;
/// Number of rows of a tile.
const ROWS: i64 = 16;
/// Number of columns of a tile.
const STEP: i64 = 64;
/// Number of bytes of a tile's row.
const LINE: i64 = 64;
/// Number of bytes of a tile.
const TILE: i64 = 1024;
/// Maximum number of sums that are computed at once without `dot4_u8s8`. Together with sums in
/// 16-bit words, they fill 16 registers.
const FEW_SUMS: usize = 4;
/// Maximum number of sums that are computed at once with `dot4_u8s8`, or with 32 registers.
const SUMS: usize = 8;
/// Number of weight rows of a panel.
const PANEL_ROWS: i64 = 64;

const BYTES: Type = Type::tile(Elem::I8, 16, 64);
const SUM: Type = Type::tile(Elem::I32, 16, 16);

/// Maximum number of columns. Sums of products of bytes then fit in 32 bits, with and without the
/// zero point.
pub const MAX_COLUMNS: u32 = 1 << 16;

/// Last stage of a product: converts the integer sums of a row of activations and a strip to
/// floats, and adds them to the result.
struct Ends<'p> {
    product: &'p Product,
    to: &'p Destination,
}

impl Ends<'_> {
    /// Returns the offset of a field of the tail of a row of `x`.
    fn of_row(&self, row: &Affine, field: &str) -> Affine {
        let Product { k, x_format, .. } = *self.product;
        row.clone() * row_bytes(x_format, k) + (i64::from(k) + x_format.tail_field(field) as i64)
    }

    /// Adds the product of a row of activations and a part of a strip to the destination.
    fn add(&self, b: &mut KernelBuilder, row: &Affine, strip: &Affine, part: Part, sum: ValueId, zero: u8) {
        let Product { format, k, x, w: BufferOffset { buffer: w, at: w_at }, .. } = *self.product;
        let sum = match zero {
            0 => sum,
            zero => {
                let of_x = b.load_splat(part.dwords(), x, self.of_row(row, "sum"));
                let more = times(b, of_x, zero);
                b.same(Op::ISub, &[sum, more])
            }
        };
        let sum = b.op(Op::ToF32, part.floats(), &[sum]);
        let dx = b.load_splat(part.floats(), x, self.of_row(row, "d"));
        let sum = b.mul(sum, dx);
        let strip_bytes = super::strip_bytes(format, k);
        let tail = strip_bytes - STRIP * format.tail_bytes() as i64 + format.tail_field("d") as i64;
        let d = b.load(part.floats(), w, strip.clone() * strip_bytes + (w_at + tail + part.at(4)));
        let to = self.to;
        let at = row.clone() * to.row_bytes + strip.clone() * (4 * STRIP) + to.offset.clone() + part.at(4);
        let old = match to.fresh {
            true => b.splat_f32(part.lanes, 0.0),
            false => b.load(part.floats(), to.buffer, at.clone()),
        };
        let y = b.fma(sum, d, old);
        b.store(to.buffer, at, y);
    }
}

/// Adds the product to the destination, with vector instructions.
pub fn multiply(b: &mut KernelBuilder, product: &Product, rows: &super::Rows, to: &Destination, dots: Dots) {
    let parts = Part::all(product.vectors);
    let most = if dots == Dots::Dot4 { SUMS } else { FEW_SUMS };
    rows.for_sizes(b, |b, first, groups, count| {
        // With a single row of activations, all parts of a strip are multiplied together, so that
        // the strip is read once, strictly forwards.
        let sets: Vec<&[Part]> = if count == 1 { vec![&parts] } else { parts.chunks(1).collect() };
        b.for_each("strip", i64::from(product.tile) / STRIP, |b, strip| {
            b.for_each("group", groups, |b, group| {
                let row = first.clone() + group * i64::from(count);
                let rows: Vec<Affine> = (0..i64::from(count)).map(|r| row.clone() + r).collect();
                for (parts, rows) in sets.iter().flat_map(|parts| rows.chunks(most).map(move |rows| (*parts, rows))) {
                    Vectors { ends: Ends { product, to }, dots, strip: strip.into(), parts, rows }.multiply(b);
                }
            });
        });
    });
}

/// Product of several parts of a strip and several rows of activations.
struct Vectors<'p> {
    ends: Ends<'p>,
    dots: Dots,
    strip: Affine,
    parts: &'p [Part],
    rows: &'p [Affine],
}

impl Vectors<'_> {
    fn multiply(&self, b: &mut KernelBuilder) {
        let Product { format, k, .. } = *self.ends.product;
        let count = self.parts.len() * self.rows.len();
        // A few sums would not hide the latency of an addition, so each sum is divided into two
        // chains.
        let chains = if count < FEW_SUMS { 2 } else { 1 };
        let zero = b.splat_int(self.parts[0].dwords(), 0);
        let columns = Columns { strip: self.source(), k: i64::from(k), parts: self.parts };
        let sums = columns.for_sub_blocks(b, &vec![zero; chains * count], &mut |b, sub, sums| {
            let mut sums = sums.to_vec();
            self.sub_block(b, sub, &mut sums);
            sums
        });
        // Formats with magnitudes put the sign on the other factor, and have no zero point. Scaled
        // words have already subtracted the zero point.
        let without = has_magnitudes(format, self.dots) || self.scales_words();
        let zero = if without { 0 } else { linear::quants(format).zero_of_products() };
        for (p, part) in self.parts.iter().enumerate() {
            for (r, row) in self.rows.iter().enumerate() {
                let own = p * self.rows.len() + r;
                let mut sum = sums[own];
                if let Some(&other) = sums.get(count + own) {
                    sum = b.iadd(sum, other);
                }
                self.ends.add(b, row, &self.strip, *part, sum, zero);
            }
        }
    }

    /// Whether sums of two products, instead of codes, are multiplied by the multiples. This costs
    /// additional additions. Without `dot4_u8s8`, a byte times its multiple would be too large for
    /// 16-bit sums. The multiple would then also apply to the zero point, so the zero point is
    /// subtracted from the sums of two products.
    fn scales_words(&self) -> bool {
        self.dots == Dots::Dot2 && linear::quants(self.ends.product.format).multiples().is_some()
    }

    /// Returns the reader of the strip's codes.
    fn source(&self) -> Source {
        let Product { format, k, w: BufferOffset { buffer: w, at: w_at }, .. } = *self.ends.product;
        let offset = self.strip.clone() * super::strip_bytes(format, k) + w_at;
        Source { panel: false, format, dots: self.dots, buffer: w, offset }
    }

    /// Adds the products of 32 columns to the sums. Even groups of columns are added to the first
    /// chain, odd groups to the last.
    fn sub_block(&self, b: &mut KernelBuilder, columns: &SubBlock, sums: &mut [ValueId]) {
        let Product { format, k, x, x_format, .. } = *self.ends.product;
        let SubBlock { source, first, sub, multiples } = columns;
        let row = |row: &Affine| {
            let at = row.clone() * row_bytes(x_format, k) + first.clone();
            RowBlock { buffer: x, format: x_format, at, sub: Some(*sub) }
        };
        if self.ends.product.strategy == MatmulStrategy::Gemv {
            let bytes = (format.block_bytes() * STRIP_ROWS) as i64 * SUB / format.block_len() as i64;
            ahead::prefetch(b, source.buffer, &(source.offset.clone() + *sub * bytes), bytes);
        }
        let rows: Vec<RowBlock> = self.rows.iter().map(row).collect();
        let (lanes, count) = (self.parts[0].lanes, self.parts.len() * self.rows.len());
        let (dwords, words) = (self.parts[0].dwords(), self.parts[0].words());
        let magnitudes = has_magnitudes(format, self.dots);
        let scales_words = self.scales_words();
        let mut pairs: Vec<Option<ValueId>> = vec![None; count];
        // Zero point times each row's sums of two activations, if several parts of the strip need
        // it. A single part subtracts the zero point directly.
        let mut zeros: Vec<Option<ValueId>> = vec![None; rows.len()];
        for pair in 0..SUB / 8 {
            for (p, part) in self.parts.iter().enumerate() {
                let of_bytes = if scales_words { &[] } else { &multiples[p][..] };
                let groups = source.pair(b, *sub, pair, *part, of_bytes);
                for (group, quants) in (2 * pair..).zip(groups) {
                    let sizes = magnitudes.then(|| source.magnitudes(b, *sub, group, *part, quants));
                    for (r, row) in rows.iter().enumerate() {
                        let own = p * rows.len() + r;
                        let chain = group as usize % 2 * (sums.len() - count);
                        let x = row.group(b, lanes, group);
                        if scales_words && p == 0 {
                            let zero = b.splat_int(part.quants(), linear::quants(format).zero().into());
                            let two = b.op(Op::Dot2U8S8, words, &[zero, x]);
                            match self.parts.len() {
                                1 => {
                                    let sum = pairs[own].unwrap_or_else(|| b.splat_int(words, 0));
                                    pairs[own] = Some(b.same(Op::ISub, &[sum, two]));
                                }
                                _ => zeros[r] = Some(zeros[r].map_or(two, |sum| b.iadd(sum, two))),
                            }
                        }
                        match (self.dots, sizes) {
                            (Dots::Dot4, _) => sums[chain + own] = b.dot4_u8s8(sums[chain + own], quants, x),
                            (Dots::Dot2, Some(sizes)) => {
                                let x = b.same(Op::Sign, &[x, quants]);
                                let two = b.op(Op::Dot2U8S8, words, &[sizes, x]);
                                let ones = b.splat_int(words, 1);
                                let four = b.op(Op::Dot2S16, dwords, &[two, ones]);
                                sums[chain + own] = b.iadd(sums[chain + own], four);
                            }
                            (Dots::Dot2, None) => {
                                let two = b.op(Op::Dot2U8S8, words, &[quants, x]);
                                pairs[own] = Some(pairs[own].map_or(two, |sum| b.iadd(sum, two)));
                            }
                        }
                    }
                }
            }
            // Maximum number of pairs of products whose sums fit in a word.
            let fit = (linear::quants(format).pairs_in_a_word() as i64 / 2).clamp(1, SUB / 8);
            if (pair + 1) % fit == 0 {
                for (own, two) in pairs.iter_mut().enumerate() {
                    if let Some(two) = two.take() {
                        let two = zeros[own % rows.len()].map_or(two, |zero| b.same(Op::ISub, &[two, zero]));
                        let times = match scales_words {
                            true => multiples[own / rows.len()][0],
                            false => b.splat_int(words, 1),
                        };
                        let four = b.op(Op::Dot2S16, dwords, &[two, times]);
                        sums[own] = b.iadd(sums[own], four);
                    }
                }
                zeros.fill(None);
            }
        }
    }
}

/// All columns of some parts of a strip, which are read in sub-blocks of 32.
struct Columns<'p> {
    strip: Source,
    k: i64,
    parts: &'p [Part],
}

/// A sub-block of 32 columns: number `sub` after the column `first`. `source` begins at the column
/// `first`.
struct SubBlock {
    source: Source,
    first: Affine,
    sub: VarId,
    /// Multiples of the codes of each part, if groups of columns have scales. See
    /// [`Source::multiples`].
    multiples: Vec<Vec<ValueId>>,
}

/// Function that emits the computation for a sub-block. It takes and returns the values that are
/// carried from one sub-block to the next.
type OfSubBlock<'a> = &'a mut dyn FnMut(&mut KernelBuilder, &SubBlock, &[ValueId]) -> Vec<ValueId>;

impl Columns<'_> {
    /// Emits `body` for every sub-block. If kernels multiply the format's codes by scales, each
    /// group of columns with one scale has a loop of its own. Otherwise, one loop covers all
    /// sub-blocks.
    fn for_sub_blocks(&self, b: &mut KernelBuilder, carried: &[ValueId], body: OfSubBlock<'_>) -> Vec<ValueId> {
        let format = self.strip.format;
        let Some(columns) = linear::quants(format).multiples() else {
            let multiples = vec![Vec::new(); self.parts.len()];
            return b.for_carry("s", self.k / SUB, carried, |b, sub, carried| {
                let source = self.strip.clone();
                body(b, &SubBlock { source, first: Affine::constant(0), sub, multiples }, carried)
            });
        };
        let (columns, len) = (columns as i64, format.block_len() as i64);
        b.for_carry("b", self.k / len, carried, |b, block, carried| {
            let strip = self.strip.block(block);
            (0..len / columns).fold(carried.to_vec(), |carried, group| {
                let multiples = self.parts.iter().map(|part| strip.multiples(b, group, *part)).collect();
                let (source, first) = (strip.sub_block(group * columns / SUB), block * len + group * columns);
                b.for_carry("s", columns / SUB, &carried, |b, sub, carried| {
                    body(b, &SubBlock { source, first, sub, multiples }, carried)
                })
            })
        })
    }
}

/// Layout of scratch memory for tile products. Offsets are relative to its start.
#[derive(Clone, Copy)]
struct Layout {
    /// Number of bytes of a strip in the panel, or 0 if tiles are read from the weight itself.
    strip: i64,
    x_at: i64,
    x_row: i64,
    sums_at: i64,
    end: i64,
}

impl Layout {
    fn new(format: Format, x: Format, k: u32, tile: u32) -> Layout {
        let strip = if unpacks(format) { i64::from(k) * STRIP } else { 0 };
        let x_at = panel_rows(tile) / STRIP * strip;
        let x_row = row_bytes(x, k);
        let sums_at = x_at + ROWS * x_row;
        Layout { strip, x_at, x_row, sums_at, end: sums_at + 4 * TILE }
    }
}

/// Whether the format's codes are narrower than a byte. Tiles are then read from an unpacked panel.
pub fn unpacks(format: Format) -> bool {
    linear::quants(format).low.bits < 8
}

fn panel_rows(tile: u32) -> i64 {
    i64::from(tile).min(PANEL_ROWS)
}

/// Returns the number of bytes of weights that tile products read repeatedly: a panel of at most
/// `rows` rows, or the same rows of the weight.
pub fn panel_bytes(k: u64, rows: u64) -> u64 {
    k.saturating_mul(rows.min(PANEL_ROWS.unsigned_abs()))
}

/// Returns the number of bytes of scratch memory for tile products: the panel, 16 rows of x for a
/// partial tile, and four tiles of sums.
pub fn scratch_bytes(format: Format, x: Format, k: u32, tile: u32) -> i64 {
    Layout::new(format, x, k, tile).end
}

/// Adds the product to the destination, with tile instructions.
pub fn multiply_tiles(
    b: &mut KernelBuilder,
    product: &Product,
    scratch: BufferOffset,
    rows: &tiles::Rows,
    to: &Destination,
) {
    let layout = Layout::new(product.format, product.x_format, product.k, product.tile);
    let tile = i64::from(product.tile);
    let step = panel_rows(product.tile);
    let group = |b: &mut KernelBuilder, first: Affine, strips: i64| {
        let group = Group { ends: Ends { product, to }, scratch, layout, rows: *rows, first, strips };
        group.unpack(b);
        group.multiply(b);
    };
    if tile / step > 1 {
        b.for_each("panel", tile / step, |b, i| group(b, i * (step / STRIP), step / STRIP));
    } else {
        group(b, Affine::constant(0), step / STRIP);
    }
    if tile % step > 0 {
        group(b, Affine::constant((tile - tile % step) / STRIP), tile % step / STRIP);
    }
}

/// Source of up to 16 rows of x for a tile: their offset, and the index of the first row in the
/// result. A partial tile also has the number of its rows.
#[derive(Clone)]
struct Source16 {
    buffer: BufferId,
    at: Affine,
    row: Affine,
    count: Option<DimId>,
}

/// Strips of a panel, and all rows of the item.
struct Group<'p> {
    ends: Ends<'p>,
    scratch: BufferOffset,
    layout: Layout,
    rows: tiles::Rows,
    /// Index of the first strip.
    first: Affine,
    strips: i64,
}

impl Group<'_> {
    /// Unpacks the strips into the panel, if the format needs one.
    fn unpack(&self, b: &mut KernelBuilder) {
        let Product { format, k, vectors, w: BufferOffset { buffer: w, at: w_at }, .. } = *self.ends.product;
        if !unpacks(format) {
            return;
        }
        let BufferOffset { buffer: panel, at: panel_at } = self.scratch;
        let strip_bytes = super::strip_bytes(format, k);
        b.for_each("strip", self.strips, |b, strip| {
            let offset = (self.first.clone() + strip) * strip_bytes + w_at;
            let source = Source { panel: false, format, dots: Dots::Dot4, buffer: w, offset };
            let parts = Part::all(vectors);
            let columns = Columns { strip: source, k: i64::from(k), parts: &parts };
            columns.for_sub_blocks(b, &[], &mut |b, SubBlock { source, first, sub, multiples }, _| {
                for (part, multiples) in parts.iter().zip(multiples) {
                    for pair in 0..SUB / 8 {
                        for (group, quants) in (2 * pair..).zip(source.pair(b, *sub, pair, *part, multiples)) {
                            let column = first.clone() * (LINE / 4) + *sub * (SUB / 4 * LINE);
                            let at = strip * self.layout.strip + column + group * LINE;
                            b.store(panel, at + (panel_at + part.at(4)), quants);
                        }
                    }
                }
                Vec::new()
            });
        });
    }

    fn multiply(&self, b: &mut KernelBuilder) {
        let Product { k, x, x_format, .. } = *self.ends.product;
        let (rows, x_row) = (self.rows, row_bytes(x_format, k));
        let whole = |row: Affine| Source16 { buffer: x, at: row.clone() * x_row, row, count: None };
        b.for_each("block", rows.blocks, |b, block| {
            let row: Affine = block * (2 * ROWS);
            self.block(b, &[whole(row.clone()), whole(row + ROWS)]);
        });
        b.for_each("half", rows.half, |b, half| {
            self.block(b, &[whole(rows.blocks * (2 * ROWS) + half * ROWS)]);
        });
        // Rows that do not fill a tile are copied to scratch memory of a tile's size. The unused
        // rows are multiplied too, but their results are not copied to the output.
        b.for_each("partial", rows.partial, |b, _| {
            let BufferOffset { buffer: scratch, at } = self.scratch;
            let line = Type::i8(LINE as u16);
            b.for_each("r", rows.rest, |b, r| {
                b.for_each("i", i64::from(k) / LINE, |b, i| {
                    let v = b.load(line, x, (rows.whole() + r) * x_row + i * LINE);
                    b.store(scratch, r * self.layout.x_row + i * LINE + (at + self.layout.x_at), v);
                });
            });
            let copy = Affine::constant(at + self.layout.x_at);
            self.block(b, &[Source16 { buffer: scratch, at: copy, row: rows.whole(), count: Some(rows.rest) }]);
        });
    }

    /// Multiplies 16 or 32 rows by all strips. With 32 rows, it takes two strips at a time, with 16
    /// rows four strips, so that four sums are computed at once.
    fn block(&self, b: &mut KernelBuilder, x: &[Source16]) {
        let width = (4 / x.len() as i64).min(self.strips);
        let mut first = 0;
        // Two iterations are unrolled, since a loop would need registers for its counter and
        // pointers.
        if self.strips / width > 2 {
            b.for_each("column", self.strips / width, |b, i| self.micro(b, x, i * width, width));
            first = self.strips / width * width;
        }
        while first < self.strips {
            let width = width.min(self.strips - first);
            self.micro(b, x, Affine::constant(first), width);
            first += width;
        }
    }

    /// Micro-kernel: sums the products of `x` and `width` strips from `strip` on, then converts the
    /// sums to results.
    fn micro(&self, b: &mut KernelBuilder, x: &[Source16], strip: Affine, width: i64) {
        let Product { format, k, vectors, w: BufferOffset { buffer: w, at: w_at }, x_format, .. } = *self.ends.product;
        let BufferOffset { buffer: scratch, at } = self.scratch;
        let x_row = row_bytes(x_format, k);
        let (weights, first, strip_bytes) = match unpacks(format) {
            true => (scratch, strip.clone() * self.layout.strip + at, self.layout.strip),
            false => {
                let bytes = super::strip_bytes(format, k);
                (w, (self.first.clone() + strip.clone()) * bytes + w_at, bytes)
            }
        };
        let zeros: Vec<ValueId> = (0..x.len() as i64 * width).map(|_| b.tile_zero(SUM)).collect();
        let sums = b.for_carry("k", i64::from(k) / STEP, &zeros, |b, i, sums| {
            let mut sums = sums.to_vec();
            let rows: Vec<ValueId> =
                x.iter().map(|x| b.tile_load(BYTES, x.buffer, x.at.clone() + i * STEP, x_row)).collect();
            for column in 0..width {
                let columns = b.tile_load(BYTES, weights, first.clone() + i * TILE + column * strip_bytes, LINE);
                for (row, rows) in rows.iter().enumerate() {
                    let sum = &mut sums[row * width as usize + column as usize];
                    *sum = b.tile_dot(Op::TileDotS8U8, *sum, *rows, columns);
                }
            }
            sums
        });
        let sums_at = at + self.layout.sums_at;
        for (i, sum) in (0..).zip(&sums) {
            b.tile_store(scratch, Affine::constant(sums_at + i * TILE), *sum, LINE);
        }
        for (number, x) in (0..).zip(x) {
            let count = x.count.map_or(Affine::constant(ROWS), Affine::from);
            b.for_each("r", count, |b, r| {
                for column in 0..width {
                    for part in Part::all(vectors) {
                        let from = sums_at + (number * width + column) * TILE + part.at(4);
                        let sum = b.load(part.dwords(), scratch, r * LINE + from);
                        let strip = self.first.clone() + strip.clone() + column;
                        let zero = linear::quants(format).zero_of_products();
                        self.ends.add(b, &(x.row.clone() + r), &strip, part, sum, zero);
                    }
                }
            });
        }
    }
}
