//! Candidates for the pass `tile`: the kernels and item sizes for a weight's products, with their
//! costs.
//!
//! A candidate is a kernel with two item sizes: the number of weight rows, and the maximum number
//! of rows of activations. All candidates read all columns of their weight rows, so sums stay in
//! registers. All candidates for a quantised weight give the same bits, except tile products, which
//! multiply bf16. For float weights, `gemv` adds in another order than `gemm` and `gemm6`. The time
//! of a candidate is the maximum of two times. One is that of the arithmetic. The other is that of
//! repeated reads from the cache level or memory that holds the bytes:
//!
//! | kernel | reads again | how often |
//! | --- | --- | --- |
//! | `gemv`, `gemm`, strips unpacked on the fly | the item's weight rows | for each 4, or 8 rows of activations |
//! | | its rows of activations | for each item |
//! | `gemv`, `gemm`, `gemm6`, strips unpacked to a panel | its rows of activations | for each strip of 16 weight rows |
//! | `gemm`, whole strips unpacked | its rows of activations | for each strip of 16 weight rows |
//! | | the strip | for every 8 rows |
//! | `tiles` | its rows of activations | once |
//! | | of these rows a chunk of columns | for every 32 weight rows |
//! | | its sums | for each chunk of columns |
//! | `tiles` of weights with a scale for each row | its rows of activations | for each panel of 64 weight rows |
//! | | the panel | for every 32 rows |
//! | `gemv`, `gemm`, pairs of bf16 | its rows of activations | for every two strips |
//! | | a stretch of two strips | for every 4 rows |
//!
//! With few rows, the time of a kernel is the time to read its weight rows from memory, so all
//! threads need equal numbers of them. Items for few rows can therefore be divided into bands
//! ([`bands`]).
//!
//! Costs are in [`UNIT`]s of a cycle for each element of the weight. They were measured on AVX-512
//! with byte products (Zen 4, Sapphire Rapids), at the row counts where two kernels take the same
//! time. Unpacking has a benefit from 6 rows on. With vector instructions, 16 rows take an eighth
//! of a cycle. With tiles, the first block of 16 rows takes as long; three quarters of that time
//! convert the weight to bf16. All costs are proportionally higher for shorter vectors, and on
//! targets where a product of bytes takes two instructions.

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_targets::{CoreCaches, Target};

use super::{MatmulStrategy, by_rows, packed, takes, tiles};
use crate::generator::generate::Vectors;

/// Unit of costs in cycles.
pub const UNIT: f64 = 1.0 / 2048.0;
/// Cost of a row of activations with `gemv`, which unpacks a strip for every four rows. `gemm`
/// unpacks for every eight rows.
const GEMV_ROW: f64 = 18.0;
/// Cost of a row of activations without unpacking: bf16 pairs times a float weight. 16 rows take an
/// eighth of a cycle.
const PAIRS_ROW: f64 = 16.0;
/// Cost of a row of activations with `gemm`, or with `gemm6`, which gives the same bits. Both
/// become faster than `gemv` at the same number of rows.
const GEMM_ROW: f64 = 15.0;
/// Cost of `gemm` that does not depend on the number of rows. With this value, `gemm` and `gemv`
/// cost the same at 6 rows.
const GEMM_UNPACK: f64 = 16.0;
/// Cost of a block of 16 rows of activations with tiles: 1/32 of a cycle, even if the block is
/// partial.
const TILES_BLOCK: f64 = 64.0;
/// Cost of converting the weight to bf16: three times the cost of a block of 16 rows.
const TILES_UNPACK: f64 = 192.0;
/// Cost of unpacking codes of four bits to bytes for tiles.
const TILES_BYTES: f64 = 48.0;
/// Cost of multiplying codes by their multiples: four additional instructions for 128 bytes.
const TILES_MULTIPLES: f64 = 32.0;
/// Number of bytes of a bf16.
const BF16_BYTES: f64 = 2.0;
/// Factor on the costs for f32 products: a product takes one lane of a multiply-add, while a
/// product of bytes takes a quarter of a lane.
const FLOAT_PRODUCTS: f64 = 4.0;
/// Factor on the costs for products of bf16 pairs: a product takes half a lane.
const BF16_PRODUCTS: f64 = 2.0;
/// Factor on the costs for byte products on targets without an instruction for four products. These
/// take one instruction for pairs of products, and another one that adds the pairs.
const PAIRS_OF_PRODUCTS: f64 = 2.0;
/// Vector length in bytes of the machines on which costs were measured.
const MEASURED_VECTOR: f64 = 64.0;

/// Bytes per cycle that a core's vector instructions read from L1, L2, L3 and memory. L1 has two
/// loads of 32 bytes, L2 half of that, and L3 half of L2. The value for memory is a core's fraction
/// of the socket's bandwidth. The last two are assumptions. Reads from several levels run in
/// parallel.
const BYTES_PER_CYCLE: [f64; 4] = [64.0, 32.0, 16.0, 3.0];
/// Bytes per cycle that a core's tile loads read from L1, L2, L3 and memory, measured on an Emerald
/// Rapids. A tile of 1 KiB takes 8 cycles of the load ports, 17 to 40 cycles from L2, and 107 to
/// 127 from L3.
const TILE_BYTES_PER_CYCLE: [f64; 4] = [128.0, 36.0, 9.0, 3.0];
/// Minimum number of cores that read the same rows of activations, each with other weight rows. L3
/// needs only one copy of these rows.
const SHARING: u64 = 8;

/// Possible numbers of weight rows of an item for vector kernels. 32 rows of a `q4_k` weight of
/// 2048 columns have 36 KiB.
const VECTOR_ITEMS: [u64; 2] = [16, 32];
/// Possible numbers of weight rows of an item for tile products: two or four tiles of 16 rows. With
/// four tiles, a block of 16 rows of activations has four sums that are computed at once.
const TILES_ITEMS: [u64; 2] = [32, 64];
/// Possible maximum numbers of rows of activations for vector kernels. An unpacked strip for more
/// than 12 groups of 8 rows has no further benefit.
const VECTOR_CHUNKS: [u32; 7] = [8, 16, 24, 32, 48, 64, 96];
/// Possible maximum numbers of rows of activations for `gemm6`, whose groups have 12 rows.
const SIXES_CHUNKS: [u32; 5] = [12, 24, 36, 48, 96];
/// Possible maximum numbers of rows of activations for tile products. With 256 rows, a fifth of the
/// time is unpacking.
const TILES_CHUNKS: [u32; 5] = [32, 64, 128, 256, tiles::MAX_TASK_ROWS as u32];

/// Maximum number of columns of weights with a scale for each row. Their integer sums then fit in
/// 32 bits.
pub const MAX_COLUMNS_BY_ROWS: u64 = by_rows::MAX_COLUMNS as u64;

/// Properties of a weight that determine its products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weight {
    /// Format of the weight that kernels read.
    pub format: Format,
    /// Format of the activations.
    pub x: Format,
    /// Number of rows of the weight, or of each expert's matrix.
    pub n: u64,
    /// Number of columns of the weight.
    pub k: u64,
    /// Number of weights that a kernel multiplies together: 2 for gate and up. Their sums share the
    /// cache, so an item has half as many rows of each.
    pub products: u32,
    /// Block length in which results are quantised, otherwise 1. The number of weight rows of an
    /// item must be a multiple of it.
    pub block: u64,
    /// Number of results that are quantised together. The number of weight rows of a band must be a
    /// multiple of it.
    pub sub_block: u64,
}

impl Weight {
    /// Returns the number of bytes that an item of `rows` weight rows reads from all weights of the
    /// kernel.
    pub fn bytes(&self, rows: u64) -> u64 {
        let row = self.format.row_bytes(self.k).unwrap_or(u64::MAX);
        row.saturating_mul(rows).saturating_mul(self.products.into())
    }
}

/// Bytes that an item reads repeatedly, so they should stay in a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reuse {
    /// Name of the bytes, for messages.
    pub what: &'static str,
    /// Number of these bytes that does not depend on the rows of activations.
    fixed: u64,
    /// Number of bytes of other data that must fit in the same cache.
    beside: u64,
    /// Number of these bytes for each row of activations, and the maximum number of rows.
    row: (u64, u32),
    /// Whether other cores read the same bytes, so that they are in a shared cache only once.
    shared: bool,
    /// Number of bytes read, for each element of the weight and each row of activations.
    reads: f64,
}

impl Reuse {
    /// Returns the number of bytes that must stay in a cache, for an item with the maximum number
    /// of rows.
    pub fn bytes(&self) -> u64 {
        self.bytes_of_rows(self.row.1)
    }

    fn bytes_of_rows(&self, rows: u32) -> u64 {
        self.row.0.saturating_mul(rows.into()).saturating_add(self.fixed)
    }

    /// Returns the lowest cache level that is large enough for the bytes.
    pub fn level(&self, caches: &CoreCaches) -> Level {
        let l3 = caches.l3.saturating_mul(if self.shared { SHARING } else { 1 });
        [(Level::L1, caches.l1d), (Level::L2, caches.l2), (Level::L3, l3)]
            .into_iter()
            .find(|(_, size)| self.bytes().saturating_add(self.beside) <= *size)
            .map_or(Level::Memory, |(level, _)| level)
    }
}

/// A kernel for a weight's products, with the sizes of its items.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Kernel for the products.
    pub strategy: MatmulStrategy,
    /// Number of weight rows of an item.
    pub rows: u64,
    /// Maximum number of rows of activations of an item.
    pub row_chunk: u32,
    /// Bytes that an item with the maximum number of rows reads repeatedly.
    pub reuse: Vec<Reuse>,
    /// Cost of arithmetic that does not depend on the rows of activations, in units for each
    /// element of the weight.
    unpack: f64,
    /// Cost of arithmetic for a block of rows of activations, in units for each element of the
    /// weight, and the number of rows of a block.
    block: (f64, u32),
}

/// Cache level that holds bytes which are read repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// L1 data cache.
    L1,
    /// L2 cache.
    L2,
    /// A core's part of the L3 cache.
    L3,
    /// Memory: no cache holds the bytes.
    Memory,
}

impl Candidate {
    /// Returns the cost of arithmetic in [`UNIT`]s, for an element of the weight and `rows` rows of
    /// activations.
    pub fn arithmetic(&self, rows: u32) -> f64 {
        let (block, size) = self.block;
        self.unpack + block * f64::from(rows.div_ceil(size))
    }

    /// Returns the cost in [`UNIT`]s of an element of the weight and one row of activations, for an
    /// item with the maximum number of rows. It is the maximum of the costs of arithmetic and of
    /// reads.
    pub fn cost_of_a_row(&self, caches: &CoreCaches) -> f64 {
        let speeds = match self.strategy {
            MatmulStrategy::Tiles => TILE_BYTES_PER_CYCLE,
            MatmulStrategy::Gemv | MatmulStrategy::Gemm | MatmulStrategy::Gemm6 => BYTES_PER_CYCLE,
        };
        let reads = |reuse: &Reuse| reuse.reads / speeds[reuse.level(caches) as usize] / UNIT;
        let arithmetic = self.arithmetic(self.row_chunk) / f64::from(self.row_chunk);
        self.reuse.iter().map(reads).fold(arithmetic, f64::max)
    }
}

/// Returns the possible numbers of weight rows of an item, in ascending order.
pub fn item_rows(weight: &Weight, target: Target) -> Vec<u64> {
    let sizes = if has_tiles(weight, target) { TILES_ITEMS } else { VECTOR_ITEMS };
    let mut rows: Vec<u64> = sizes.map(|rows| whole_strips(rows.next_multiple_of(weight.block).min(weight.n))).to_vec();
    rows.dedup();
    rows
}

/// Returns the possible numbers of weight rows of a band, for items of `rows` weight rows, in
/// ascending order.
pub fn bands(weight: &Weight, rows: u64) -> Vec<u64> {
    let smallest = VECTOR_ITEMS[0].next_multiple_of(weight.sub_block.max(1));
    let sizes = std::iter::successors(Some(smallest), |band| band.checked_mul(2)).take_while(|band| *band < rows);
    sizes.filter(|band| rows.is_multiple_of(*band)).collect()
}

/// Returns all candidates for items of `rows` weight rows. They are in the order in which they
/// become the fastest as the number of rows of activations grows.
pub fn candidates(weight: &Weight, rows: u64, target: Target) -> Vec<Candidate> {
    let items = Items::new(weight, rows, target);
    let floats = !weight.format.activation().is_quantised();
    let few = packed_floats_by_pairs(weight, target);
    let instructions = match (few, floats, items.vectors.dot4) {
        (true, _, _) | (false, false, true) => 1.0,
        (false, true, _) if items.has_pairs() => BF16_PRODUCTS,
        (false, true, _) => FLOAT_PRODUCTS,
        (false, false, false) => PAIRS_OF_PRODUCTS,
    };
    let slower = MEASURED_VECTOR / f64::from(target.isa().vector_bytes) * instructions;
    let partial = !rows.is_multiple_of(STRIP as u64);
    let gemv_row = if few { PAIRS_ROW } else { GEMV_ROW };
    let gemv_chunks = if partial { &VECTOR_CHUNKS[..2] } else { &VECTOR_CHUNKS[..] };
    let gemv = Arithmetic { unpack: 0.0, block: gemv_row * slower, block_rows: 1 };
    let mut found = items
        .candidates(MatmulStrategy::Gemv, gemv_chunks, gemv, |chunk| items.vector_reads(MatmulStrategy::Gemv, chunk));
    if !few {
        let (strategy, chunks) = match floats && items.has_panels() {
            true => (MatmulStrategy::Gemm6, &SIXES_CHUNKS[..]),
            false => (MatmulStrategy::Gemm, &VECTOR_CHUNKS[..]),
        };
        let gemm = Arithmetic { unpack: GEMM_UNPACK * slower, block: GEMM_ROW * slower, block_rows: 1 };
        found.extend(items.candidates(strategy, chunks, gemm, |chunk| items.vector_reads(strategy, chunk)));
    }
    if has_tiles(weight, target) && rows.is_multiple_of(TILES_ITEMS[0]) {
        let chunks = &TILES_CHUNKS[..];
        found.extend(match weight.format.has_row_scale() {
            // A product of bytes costs half as much as a product of bf16. Two instructions unpack
            // 128 four-bit codes to bytes.
            true => {
                let multiplied = items.strips.quants().is_some_and(|codec| codec.multiples().is_some());
                let bytes = if by_rows::unpacks(items.strips) { TILES_BYTES } else { 0.0 };
                let unpack = bytes + if multiplied { TILES_MULTIPLES } else { 0.0 };
                let arithmetic = Arithmetic { unpack, block: TILES_BLOCK / 2.0, block_rows: 16 };
                items.candidates(MatmulStrategy::Tiles, chunks, arithmetic, |chunk| items.tile_reads_by_rows(chunk))
            }
            // Tile products of all other formats multiply bf16. They multiply all weight rows of a
            // chunk of columns, and then those of the next chunk.
            false => {
                let arithmetic = Arithmetic { unpack: TILES_UNPACK, block: TILES_BLOCK, block_rows: 16 };
                items.candidates(MatmulStrategy::Tiles, chunks, arithmetic, |chunk| items.tile_reads(chunk))
            }
        });
    }
    found
}

/// Costs of a kernel's arithmetic, in units for each element of the weight.
#[derive(Clone, Copy)]
struct Arithmetic {
    /// Cost that does not depend on the rows of activations.
    unpack: f64,
    /// Cost for a block of rows of activations.
    block: f64,
    /// Number of rows of a block.
    block_rows: u32,
}

/// Items with a given number of weight rows, for one weight and target.
struct Items<'a> {
    weight: &'a Weight,
    rows: u64,
    vectors: Vectors,
    /// Format of the strips: the weight's format, or its packed form.
    strips: Format,
}

impl Items<'_> {
    fn new(weight: &Weight, rows: u64, target: Target) -> Items<'_> {
        Items { weight, rows, vectors: Vectors::for_target(target), strips: super::strips_of(weight.format) }
    }

    /// Whether activations are bf16 pairs, for products with `dot2_bf16`.
    fn has_pairs(&self) -> bool {
        packed::pairs::takes(self.weight.x)
    }

    /// Whether kernels unpack strips to a panel.
    fn has_panels(&self) -> bool {
        packed::unpacks(self.strips, self.weight.x, self.vectors)
    }

    /// Returns the candidates of a kernel. There is one for each of the `chunks`, the possible
    /// maximum numbers of rows of activations.
    fn candidates(
        &self,
        strategy: MatmulStrategy,
        chunks: &[u32],
        arithmetic: Arithmetic,
        reuse: impl Fn(u32) -> Vec<Reuse>,
    ) -> Vec<Candidate> {
        let Arithmetic { unpack, block, block_rows } = arithmetic;
        let most = chunks.last().map_or(1, |most| most / self.weight.products);
        let chunks = chunks.iter().filter(|&&chunk| chunk <= most);
        let candidate = |&row_chunk| {
            let (rows, reuse) = (self.rows, reuse(row_chunk));
            Candidate { strategy, rows, row_chunk, reuse, unpack, block: (block, block_rows) }
        };
        chunks.map(candidate).collect()
    }

    /// Returns the repeated reads of an item's rows of activations. Each row has `row` bytes.
    fn x_rows(&self, chunk: u32, row: u64, reads: f64) -> Reuse {
        Reuse { what: "rows of activations", fixed: 0, beside: 0, row: (row, chunk), shared: true, reads }
    }

    /// Returns the repeated reads of `fixed` bytes that do not depend on the rows of activations.
    fn fixed_reads(&self, what: &'static str, fixed: u64, chunk: u32, reads: f64) -> Reuse {
        Reuse { what, fixed, beside: 0, row: (0, chunk), shared: false, reads }
    }

    /// Returns the repeated reads of a vector kernel.
    fn vector_reads(&self, strategy: MatmulStrategy, chunk: u32) -> Vec<Reuse> {
        let Weight { x, k, .. } = *self.weight;
        let each = |format: Format| format.block_bytes() as f64 / format.block_len() as f64;
        let row = x.row_bytes(k).unwrap_or(u64::MAX);
        if self.has_panels() {
            return vec![self.x_rows(chunk, row, each(x) / STRIP as f64)];
        }
        if packed::unpacks_whole(self.strips, strategy, self.vectors) {
            let fixed = packed::unpacked_bytes(self.strips, k);
            let reads = fixed as f64 / (k * STRIP as u64).max(1) as f64 / f64::from(strategy.row_groups()[0]);
            let strip = self.fixed_reads("unpacked strip", fixed, chunk, reads);
            return vec![self.x_rows(chunk, row, each(x) / STRIP as f64), strip];
        }
        if self.has_pairs() {
            let together = packed::pairs::STRIPS_TOGETHER as f64 * STRIP as f64;
            let fixed = (each(self.strips) * packed::pairs::STRETCH as f64 * together) as u64;
            let weight =
                self.fixed_reads("weight rows", fixed, chunk, each(self.strips) / f64::from(packed::pairs::ROWS));
            return vec![self.x_rows(chunk, row, each(x) / together), weight];
        }
        let fixed = (each(self.strips) * k as f64 * self.rows as f64) as u64;
        let weight =
            self.fixed_reads("weight rows", fixed, chunk, each(self.strips) / f64::from(strategy.row_groups()[0]));
        vec![self.x_rows(chunk, row, each(x) / self.rows as f64), weight]
    }

    /// Returns the number of bytes of an item's sums.
    fn sum_bytes(&self, chunk: u32) -> u64 {
        u64::from(self.weight.products * chunk) * self.rows * size_of::<f32>() as u64
    }

    /// Returns the repeated reads of tile products with a weight that has a scale for each row.
    fn tile_reads_by_rows(&self, chunk: u32) -> Vec<Reuse> {
        let Weight { k, products, .. } = *self.weight;
        let fixed = by_rows::panel_bytes(k, self.rows);
        let of_panel = 1.0 / self.rows.min(TILES_ITEMS[1]) as f64;
        let panel = self.fixed_reads("panel", fixed, chunk, 1.0 / f64::from(MatmulStrategy::Tiles.row_groups()[0]));
        // If the kernel multiplies gate and up, their sums are stored in scratch memory.
        let sums = if products > 1 { self.sum_bytes(chunk) } else { 0 };
        vec![Reuse { beside: fixed + sums, ..self.x_rows(chunk, k, of_panel) }, panel]
    }

    /// Returns the repeated reads of tile products of bf16.
    fn tile_reads(&self, chunk: u32) -> Vec<Reuse> {
        let Weight { format, x, k, products, .. } = *self.weight;
        let columns = u32::try_from(k).unwrap_or(u32::MAX);
        let (of_chunk, leaves) = (tiles::chunk_bytes(format, x, columns), tiles::leaves(format, x, columns));
        let reads = BF16_BYTES / tiles::ROWS_AT_ONCE as f64;
        let beside = self.sum_bytes(chunk);
        let again = Reuse { what: "columns of activations", beside, ..self.x_rows(chunk, of_chunk, reads) };
        let of_row = k.saturating_mul(BF16_BYTES as u64);
        let all = Reuse { beside, ..self.x_rows(chunk, of_row, BF16_BYTES / self.rows as f64) };
        // For each chunk of columns, sums are loaded and stored; activations are read in between.
        let reads = (2 * leaves) as f64 * size_of::<f32>() as f64 / k.max(1) as f64;
        let row = u64::from(products) * self.rows * size_of::<f32>() as u64;
        let beside = of_chunk.saturating_mul(chunk.into());
        let sums = Reuse { what: "sums", fixed: 0, beside, row: (row, chunk), shared: false, reads };
        vec![all, again, sums]
    }
}

/// Rounds a number of rows down to whole strips, unless it is less than one strip.
pub fn whole_strips(rows: u64) -> u64 {
    if rows > STRIP as u64 { rows / STRIP as u64 * STRIP as u64 } else { rows }
}

/// Whether the target has tile products with the weight's activations.
fn has_tiles(weight: &Weight, target: Target) -> bool {
    target.isa().tile_registers > 0
        && weight.format.tile_activation() == Some(weight.x)
        && takes(weight.format, weight.x)
}

/// Whether a float weight is multiplied as bf16 pairs. If so, no unpacking is needed, so `gemm` has
/// no advantage.
fn packed_floats_by_pairs(weight: &Weight, target: Target) -> bool {
    !weight.format.activation().is_quantised() && has_tiles(weight, target)
}
