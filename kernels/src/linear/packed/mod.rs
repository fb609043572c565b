//! Products with packed weights. Each vector lane is a weight row, so kernels need no horizontal
//! sums and no transposition.
//!
//! ```text
//! row of x:  .. b0 b1 b2 b3 ..        four neighbouring quants, in every dword of a vector by the load itself
//! strip:     .. [row 0: q0 q1 q2 q3][row 1: q0 q1 q2 q3] .. [row 15: ..]
//! dot4_u8s8: 16 lanes += 4 products each
//! ```
//!
//! Rows of activations form groups ([`MatmulStrategy::row_groups`]), and a strip is read once for
//! each group. The method depends on the target:
//!
//! - If a vector holds a whole strip and the target has `dot4_u8s8` as one instruction, codes are
//!   unpacked on the fly. For 32 columns of `q4_k` and eight rows, there are 12 unpacking
//!   operations, 64 products, 8 conversions and 24 scalings. Unpacking runs on execution units that
//!   products do not use. A panel of bytes in scratch memory would save the unpacking, but double
//!   the loads (Zen 5, 96 rows: `q4_k` 687 GOP/s, with a panel 576). Codes of a grid need more
//!   operations than these units can hide. For these formats, a whole strip is unpacked for all
//!   rows of an item ([`unpacks_whole`]; `iq3_s` 600 GOP/s, on the fly 432; with only eight rows it
//!   is 5 % slower).
//! - Otherwise a *stretch* (range of columns) of a strip is unpacked to a panel in scratch memory,
//!   once for all rows, and multiplied with four rows at a time ([`micro`]). Unpacking on the fly
//!   would be repeated for every four rows, because registers hold no more. It would take a quarter
//!   of the time.
//!
//! A single row is the case of decode, where weights come from memory. The kernel reads one strip
//! after the other, strictly forwards, which hardware prefetches best (Zen 4, one core: 28 of 29
//! GB/s; with two strips at a time, 19). The kernel also prefetches the data that are a page later
//! ([`ahead`]). Two chains of integer sums for each sub-block hide the latency.
//!
//! On Zen 4, products, multiplications and multiply-adds share two 256-bit units, which limits the
//! speed. For `q4_k`, 64 + 24 operations take 88 cycles, so the kernel can reach 8/11 of the peak
//! of products; it reaches 91 to 93 % of that. Where `dot4_u8s8` takes two operations of 512 bits,
//! products of pairs take four operations of 256 bits. Two of these four add words and run on other
//! units.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`ahead`] | prefetches |
//! | [`strip`] | reading a strip's blocks: quants, scales, minimums |
//! | [`activations`] | activations' quants and scales in all lanes |
//! | [`quants`] | sums over quantised blocks, four products at a time, unpacked on the fly |
//! | [`grids`] | codes by indices of a grid |
//! | [`floats`] | sums over `f16` and `bf16`, converted on the fly |
//! | [`pairs`] | sums over bf16 with bf16 activations, two products at a time |
//! | [`panel`] | unpacking a strip, and reading it packed or unpacked |
//! | [`micro`] | sums over either, two or four products at a time |

pub mod activations;
pub mod ahead;
mod floats;
mod grids;
mod micro;
pub mod pairs;
pub mod panel;
mod quants;
pub mod strip;

use ixc_ir::format::packed::STRIP;
use ixc_ir::format::{Codec, Format};
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, ValueId};

use self::micro::Micro;
use self::panel::{Dots, Source};
use self::quants::UnpackedStrip;
use self::strip::Part;
use super::{Destination, MatmulStrategy, Product, Rows, SUB, Vectors, by_rows, quantise};
use crate::generator::buffer_offset::BufferOffset;

/// Number of bytes of a strip's results for one row of activations.
const RESULT: i64 = 4 * STRIP as i64;

/// Parts of strips and rows of activations. Each part is multiplied by each row.
struct Block {
    lanes: u16,
    format: Format,
    k: u32,
    w: BufferId,
    strips: Vec<(Affine, Part)>,
    x: BufferId,
    x_format: Format,
    rows: Vec<Affine>,
    /// Scratch memory for initial values of sums: see [`quants::scratch_bytes`].
    scratch: Option<BufferOffset>,
    /// Unpacked strip in scratch memory, or `None` if codes are unpacked on the fly.
    unpacked: Option<UnpackedStrip>,
    /// Whether the weight is read from memory. If so, the kernel prefetches it.
    streams: bool,
}

impl Block {
    fn offsets(&self) -> Option<BufferOffset> {
        self.scratch.filter(|_| quants::begins_in_scratch(self.format))
    }

    /// Prefetches the data a page after the `bytes` bytes of each strip from byte `at` of the strip
    /// on.
    fn prefetch(&self, b: &mut KernelBuilder, at: &Affine, bytes: i64) {
        // The parts of a strip share cache lines, so only the first part prefetches.
        for (strip, _) in self.strips.iter().filter(|(_, part)| self.streams && part.index == 0) {
            ahead::prefetch(b, self.w, &(strip.clone() + at.clone()), bytes);
        }
    }

    /// Returns the products of all parts and rows: all rows with the first part, then all rows with
    /// the second.
    fn sums(&self, b: &mut KernelBuilder) -> Vec<ValueId> {
        if self.format.is_quantised() { quants::sums(self, b) } else { floats::sums(self, b) }
    }
}

fn dots(vectors: Vectors) -> Dots {
    if vectors.dot4 { Dots::Dot4 } else { Dots::Dot2 }
}

/// Whether products with several rows unpack strips to a panel.
pub fn unpacks(format: Format, x: Format, vectors: Vectors) -> bool {
    if format.has_row_scale() {
        return false;
    }
    let whole = usize::from(vectors.lanes) == STRIP;
    if format.is_quantised() { !whole || !vectors.dot4 } else { !whole && matches!(x.codec(), Codec::Float(_)) }
}

/// Whether the sums of a strip with all rows are gathered in scratch memory until the strip's last
/// stretch. If the distance between result rows is a power of two, result rows share a few sets of
/// the L1 cache. With activations of the same length, this also happens in L2. Measured on Zen 4
/// with `f16`: with 2048 rows, 83 % of the peak without gathering and 94 % with it; with 2080 rows,
/// 94 %. Sums of quantised weights gained nothing.
fn gathers(strategy: MatmulStrategy) -> bool {
    strategy == MatmulStrategy::Gemm6
}

/// Returns the offset of the gathered sums in scratch memory, after the slots and the panel.
fn gathered_at(format: Format, vectors: Vectors) -> i64 {
    let dots = dots(vectors);
    micro::slot_bytes(vectors.lanes) + panel::stretch(format, dots) * panel::block_bytes(format, dots)
}

/// Whether a kernel unpacks a whole strip for many rows. Its sums are the same as with strips that
/// are unpacked on the fly.
pub fn unpacks_whole(format: Format, strategy: MatmulStrategy, vectors: Vectors) -> bool {
    let whole = usize::from(vectors.lanes) == STRIP && vectors.dot4 && strategy == MatmulStrategy::Gemm;
    let grid = format.quants().is_some_and(|codec| codec.grid().is_some());
    whole && grid && !format.has_row_scale() && strip::by_sub_blocks(format)
}

/// Returns the number of bytes of an unpacked strip of `k` columns.
pub fn unpacked_bytes(format: Format, k: u64) -> u64 {
    (k / SUB as u64).saturating_mul(UnpackedStrip::bytes(format, SUB).unsigned_abs())
}

/// Returns the number of bytes of scratch memory for a product of at most `rows` rows of `k`
/// columns.
pub fn scratch_bytes(
    format: Format,
    x: Format,
    k: u32,
    strategy: MatmulStrategy,
    rows: i64,
    vectors: Vectors,
) -> Option<i64> {
    if format.has_row_scale() {
        return None;
    }
    if unpacks(format, x, vectors) {
        // For some numbers of rows, the dims may count up to one whole group more than `rows`.
        let most = rows + i64::from(strategy.row_groups()[0]);
        return Some(gathered_at(format, vectors) + if gathers(strategy) { most * RESULT } else { 0 });
    }
    match strategy {
        MatmulStrategy::Gemm => {
            let begins = quants::scratch_bytes(format, strategy.row_groups()[0]);
            let strip =
                unpacks_whole(format, strategy, vectors).then(|| quants::UnpackedStrip::bytes(format, i64::from(k)));
            begins.max(strip).map(|_| begins.unwrap_or(0) + strip.unwrap_or(0))
        }
        MatmulStrategy::Gemv | MatmulStrategy::Gemm6 | MatmulStrategy::Tiles => None,
    }
}

/// Adds the product to the destination, or stores it if the destination is
/// [fresh](Destination::fresh).
pub fn multiply(b: &mut KernelBuilder, product: &Product, rows: &Rows, to: &Destination) {
    if product.format.has_row_scale() {
        return by_rows::multiply(b, product, rows, to, dots(product.vectors));
    }
    let row_bytes = |f: Format| quantise::row_bytes("", f, product.k).unwrap_or(0);
    let packed = Packed {
        product,
        to,
        strip_bytes: super::strip_bytes(product.format, product.k),
        x_row: row_bytes(product.x_format),
        strips: i64::from(product.tile) / STRIP as i64,
        dots: dots(product.vectors),
    };
    match product.scratch {
        _ if pairs::takes(product.x_format) => packed.by_pairs(b, rows),
        Some(scratch) if unpacks(product.format, product.x_format, product.vectors) => {
            packed.by_panels(b, rows, scratch);
        }
        Some(scratch) if unpacks_whole(product.format, product.strategy, product.vectors) => {
            packed.by_whole_strips(b, rows, scratch);
        }
        _ => rows.for_sizes(b, |b, first, groups, count| packed.on_the_fly(b, &first, groups.into(), count)),
    }
}

/// A product with packed weights, and sizes derived from it.
struct Packed<'p> {
    product: &'p Product,
    to: &'p Destination,
    strip_bytes: i64,
    x_row: i64,
    strips: i64,
    dots: Dots,
}

/// Consecutive blocks of rows of activations, all with the same number of rows.
struct RowBlocks {
    /// Index of the first row of the first block.
    first: Affine,
    /// Number of blocks.
    number: Affine,
    /// Number of rows of a block.
    rows: u32,
}

impl Packed<'_> {
    /// Multiplies `groups` groups of `count` rows, from row `first` on, with codes unpacked on the
    /// fly.
    fn on_the_fly(&self, b: &mut KernelBuilder, first: &Affine, groups: Affine, count: u32) {
        let Product { format, vectors, .. } = *self.product;
        let parts = Part::all(vectors).len();
        // With float weights, two strips at a time halve the loads of activations, if registers
        // suffice. With a single row, only one strip should be read at a time.
        let together = if count == 1 || format.is_quantised() || parts > 1 { 1 } else { self.strips.min(2) };
        for (from, number, together) in
            [(0, self.strips / together, together), (self.strips / together * together, self.strips % together, 1)]
        {
            if number == 0 {
                continue;
            }
            b.for_each("strip", number, |b, strip| {
                let strips: Vec<Affine> = (0..together).map(|s| strip * together + from + s).collect();
                self.groups(b, &strips, None, first, groups.clone(), count);
            });
        }
    }

    /// Multiplies some strips by `groups` groups of `count` rows, from row `first` on.
    fn groups(
        &self,
        b: &mut KernelBuilder,
        strips: &[Affine],
        unpacked: Option<&UnpackedStrip>,
        first: &Affine,
        groups: Affine,
        count: u32,
    ) {
        let Product { format, k, x, x_format, w: BufferOffset { buffer: w, at: w_at }, strategy, vectors, .. } =
            *self.product;
        // Products with panels use the scratch memory for other data.
        let scratch = self.product.scratch.filter(|_| !unpacks(format, x_format, vectors));
        let parts = Part::all(vectors);
        // With several rows, registers hold the sums of only one part.
        let sets: Vec<&[Part]> = if count == 1 { vec![&parts] } else { parts.chunks(1).collect() };
        b.for_each("group", groups, |b, group| {
            let row = first.clone() + group * i64::from(count);
            let rows: Vec<Affine> = (0..i64::from(count)).map(|r| row.clone() + r).collect();
            for set in &sets {
                let strips: Vec<(&Affine, Part)> =
                    strips.iter().flat_map(|strip| set.iter().map(move |part| (strip, *part))).collect();
                let block = Block {
                    lanes: vectors.lanes,
                    format,
                    k,
                    w,
                    strips: strips.iter().map(|&(s, part)| (s.clone() * self.strip_bytes + w_at, part)).collect(),
                    x,
                    x_format,
                    rows: rows.iter().map(|row| row.clone() * self.x_row).collect(),
                    scratch,
                    unpacked: unpacked.cloned(),
                    streams: strategy == MatmulStrategy::Gemv,
                };
                let mut sums = block.sums(b).into_iter();
                for (strip, part) in &strips {
                    for (row, sum) in rows.iter().zip(&mut sums) {
                        let at = self.result(row, strip) + part.at(4);
                        let old = b.load(part.floats(), self.to.buffer, at.clone());
                        let sum = b.add(old, sum);
                        b.store(self.to.buffer, at, sum);
                    }
                }
            }
        });
    }

    /// Multiplies all rows by one strip after the other. Each strip is unpacked once for all rows.
    fn by_whole_strips(&self, b: &mut KernelBuilder, rows: &Rows, scratch: BufferOffset) {
        let Product { format, k, strategy, vectors, .. } = *self.product;
        let begins = quants::scratch_bytes(format, strategy.row_groups()[0]).unwrap_or(0);
        let unpacked = UnpackedStrip { buffer: scratch.buffer, at: (scratch.at + begins).into() };
        b.for_each("strip", self.strips, |b, strip| {
            for part in Part::all(vectors) {
                unpacked.fill(b, &self.source(strip.into()).strip(part), k.into());
            }
            rows.for_sizes(b, |b, first, groups, count| {
                self.groups(b, &[strip.into()], Some(&unpacked), &first, groups.into(), count);
            });
        });
    }

    fn result(&self, row: &Affine, strip: &Affine) -> Affine {
        row.clone() * self.to.row_bytes + strip.clone() * RESULT + self.to.offset.clone()
    }

    /// Multiplies all rows. Several rows use panels. A single row of a kernel for few rows reads
    /// the strips directly.
    fn by_panels(&self, b: &mut KernelBuilder, rows: &Rows, scratch: BufferOffset) {
        let Product { format, strategy, vectors, .. } = *self.product;
        let mut blocks: Vec<RowBlocks> = Vec::new();
        let mut single = None;
        let mut first = Affine::constant(0);
        for (groups, size) in &rows.groups {
            let rows = micro::rows(format, vectors, *size);
            let number = *groups * i64::from(size / rows);
            match blocks.last_mut() {
                _ if *size == 1 && strategy == MatmulStrategy::Gemv => {
                    single = Some((first.clone(), Affine::from(*groups)))
                }
                Some(last) if last.rows == rows => last.number = last.number.clone() + number,
                _ => blocks.push(RowBlocks { first: first.clone(), number, rows }),
            }
            first = first + *groups * i64::from(*size);
        }
        if strategy != MatmulStrategy::Gemv {
            self.panels(b, scratch, &blocks);
        } else if let Some((groups, size)) = rows.groups.iter().find(|(_, size)| *size > 1) {
            // A kernel for few rows usually gets one row. If no group has several rows, nothing is
            // unpacked.
            for RowBlocks { first, rows, .. } in &blocks {
                b.for_each("group", *groups, |b, group| {
                    let first = first.clone() + group * i64::from(*size);
                    let number = Affine::constant(i64::from(size / rows));
                    self.panels(b, scratch, &[RowBlocks { first, number, rows: *rows }]);
                });
            }
        }
        if let Some((first, number)) = single {
            // A single row is summed in the same order as several rows, so that results do not
            // depend on the number of rows.
            if format.is_quantised() {
                b.for_each("strip", self.strips, |b, strip| {
                    b.for_each("row", number, |b, row| {
                        let whole = self.source(strip.into());
                        let columns = i64::from(self.product.k);
                        self.micro(whole, &[first + row], &strip.into(), 0, None).multiply(b, columns);
                    });
                });
            } else {
                self.on_the_fly(b, &first, number, 1);
            }
        }
    }

    /// Returns a reader of the first block of a strip.
    fn source(&self, strip: Affine) -> Source {
        let Product { format, w: BufferOffset { buffer: w, at }, .. } = *self.product;
        Source { panel: false, format, dots: self.dots, buffer: w, offset: strip * self.strip_bytes + at }
    }

    /// Returns the micro-kernel for some rows and for the blocks of a strip from `source` on. The
    /// activations of these blocks begin `x` bytes after the start of a row.
    fn micro(
        &self,
        source: Source,
        rows: &[Affine],
        strip: &Affine,
        x: impl Into<Affine>,
        slots: Option<BufferOffset>,
    ) -> Micro {
        let x = x.into();
        Micro {
            vectors: self.product.vectors,
            source,
            x: self.product.x,
            x_format: self.product.x_format,
            rows: rows.iter().map(|row| row.clone() * self.x_row + x.clone()).collect(),
            results: rows.iter().map(|row| self.result(row, strip)).collect(),
            to: self.to.buffer,
            slots,
        }
    }

    /// Unpacks one stretch of a strip after the other, and multiplies all rows by it.
    fn panels(&self, b: &mut KernelBuilder, slots: BufferOffset, blocks: &[RowBlocks]) {
        let BufferOffset { buffer: scratch, at } = slots;
        let Product { format, k, x_format, strategy, vectors, .. } = *self.product;
        let (k, len) = (i64::from(k), format.block_len() as i64);
        let stretch = panel::stretch(format, self.dots) * len;
        let x_bytes = |columns: i64| columns / x_format.block_len() as i64 * x_format.block_bytes() as i64;
        let gathered = gathers(strategy).then(|| at + gathered_at(format, vectors));
        let panel = Affine::constant(at + micro::slot_bytes(vectors.lanes));
        let panel = Source { panel: true, format, dots: self.dots, buffer: scratch, offset: panel };
        let part = |b: &mut KernelBuilder, strip: Affine, from: Affine, columns: i64| {
            let source = self.source(strip.clone()).block(from.clone() * (stretch / len));
            let unpack = |b: &mut KernelBuilder, block: Affine, columns: i64| {
                let (source, panel) = (source.block(block.clone()), panel.block(block));
                if strategy == MatmulStrategy::Gemv {
                    let bytes = format.block_bytes() as i64 * STRIP as i64;
                    ahead::prefetch(b, source.buffer, &source.offset, bytes * columns / len);
                }
                match format.is_quantised() {
                    true => source.unpack(b, &panel, columns / SUB, vectors),
                    false => panel::unpack_column(b, &source, &panel, vectors),
                }
            };
            if columns / len > 0 {
                b.for_each("b", columns / len, |b, i| unpack(b, i.into(), len));
            }
            if columns % len > 0 {
                unpack(b, (columns / len).into(), columns % len);
            }
            for RowBlocks { first, number, rows: count } in blocks {
                b.for_each("rows", number.clone(), |b, i| {
                    let row = first.clone() + i * i64::from(*count);
                    let rows: Vec<Affine> = (0..i64::from(*count)).map(|r| row.clone() + r).collect();
                    let x = from.clone() * x_bytes(stretch);
                    let mut micro = self.micro(panel.clone(), &rows, &strip, x, Some(slots));
                    if let Some(at) = gathered {
                        micro.to = scratch;
                        micro.results = rows.iter().map(|row| row.clone() * RESULT + at).collect();
                    }
                    micro.multiply(b, columns);
                });
            }
        };
        // Copies the results of all rows to scratch memory, or back to the destination.
        let copy = |b: &mut KernelBuilder, strip: &Affine, back: bool| {
            let Some(gathered) = gathered else { return };
            let number = blocks
                .iter()
                .fold(Affine::constant(0), |sum, blocks| sum + blocks.number.clone() * i64::from(blocks.rows));
            b.for_each("r", number, |b, r| {
                for part in Part::all(vectors) {
                    let far = (self.to.buffer, self.result(&r.into(), strip) + part.at(4));
                    let near = (scratch, r * RESULT + gathered + part.at(4));
                    let (from, to) = if back { (near, far) } else { (far, near) };
                    let v = b.load(part.floats(), from.0, from.1);
                    b.store(to.0, to.1, v);
                }
            });
        };
        b.for_each("strip", self.strips, |b, strip| {
            copy(b, &strip.into(), false);
            let whole = k / stretch;
            if whole > 0 {
                b.for_each("stretch", whole, |b, i| part(b, strip.into(), i.into(), stretch));
            }
            if k % stretch > 0 {
                part(b, strip.into(), Affine::constant(whole), k % stretch);
            }
            copy(b, &strip.into(), true);
        });
    }
}
