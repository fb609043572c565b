//! Candidates of the pass `tile`: kernels and item sizes for a weight's products, with their costs.
//!
//! A candidate is a kernel, the weight rows of an item and the max rows of activations of an item.
//! All candidates read all columns of their weight rows, so sums stay in registers. Every candidate
//! of a quantised weight gives the same bits, except tiles, which multiply bf16. For float weights,
//! `gemv` sums in another order than `gemm` and `gemm6`. The time of a candidate is the larger of
//! two times: the arithmetic, and the repeated reads from the cache level or memory that holds the
//! bytes:
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
//! With few rows, the time of a kernel is the time to read its weight rows from memory. So all
//! threads need equal shares of them. Items for few rows can therefore be divided in bands
//! ([`bands`]).
//!
//! Costs are in [`UNIT`]s of a cycle for each element of the weight. They were measured on AVX-512
//! with byte products (Zen 4, Sapphire Rapids), at the row counts where two kernels take the same
//! time. Unpacking pays from 6 rows. By vectors, 16 rows take an eighth of a cycle. A block of 16
//! rows by tiles takes as long; three quarters of that convert the weight to bf16. All costs grow
//! in proportion for shorter vectors, and where a product of bytes takes two instructions.

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_targets::{CoreCaches, Target};

use super::{MatmulStrategy, by_rows, packed, takes, tiles};
use crate::generator::generate::Vectors;

/// Unit of costs, as a fraction of a cycle.
pub const UNIT: f64 = 1.0 / 2048.0;
/// Cost of a row of activations by `gemv`, which unpacks a strip for every four rows (`gemm`: for
/// every eight).
const GEMV_ROW: f64 = 18.0;
/// Cost of a row without unpacking: pairs of bf16 in a float weight. 16 rows take an eighth of a
/// cycle.
const PAIRS_ROW: f64 = 16.0;
/// Cost of a row of activations by `gemm`, or by `gemm6`, which gives the same bits. Both become
/// better than `gemv` at the same number of rows.
const GEMM_ROW: f64 = 15.0;
/// Cost of `gemm` before its first row. With this value, `gemm` and `gemv` cost the same at 6 rows.
const GEMM_UNPACK: f64 = 16.0;
/// Cost of a block of 16 rows by tiles: 1/32 of a cycle, even if the block is partial.
const TILES_BLOCK: f64 = 64.0;
/// Cost of converting the weight to bf16: three times the cost of a block of rows.
const TILES_UNPACK: f64 = 192.0;
/// Cost of unpacking four bits to bytes for tiles.
const TILES_BYTES: f64 = 48.0;
/// Cost of multiplying codes by their multiples: four more instructions for 128 bytes.
const TILES_MULTIPLES: f64 = 32.0;
/// Bytes of a bf16.
const BF16_BYTES: f64 = 2.0;
/// Cost factor of f32: a product takes a multiply-add, while a byte takes a quarter of an
/// instruction.
const FLOAT_PRODUCTS: f64 = 4.0;
/// Cost factor of bf16 in pairs: a product takes half a multiply-add.
const BF16_PRODUCTS: f64 = 2.0;
/// Cost factor of bytes on targets without an instruction for four products. They take one
/// instruction for pairs of products, and one that adds the pairs.
const PAIRS_OF_PRODUCTS: f64 = 2.0;
/// Vector length in bytes for which costs were measured.
const MEASURED_VECTOR: f64 = 64.0;

/// Bytes that a core's vectors read in a cycle from L1, L2, L3 and memory. L1 has two loads of 32
/// bytes; L2 has half of that, and L3 half again. Memory is a core's share of a socket's. The last
/// two are assumptions. Reads of several levels run in parallel.
const BYTES_PER_CYCLE: [f64; 4] = [64.0, 32.0, 16.0, 3.0];
/// Bytes that a core's tile loads read in a cycle, measured on an Emerald Rapids. A tile of 1 KiB
/// takes 8 cycles of the load ports, 17 to 40 from L2, and 107 to 127 from L3.
const TILE_BYTES_PER_CYCLE: [f64; 4] = [128.0, 36.0, 9.0, 3.0];
/// Minimum cores that read the same rows of activations, each with other weight rows. L3 holds
/// these rows once.
const SHARING: u64 = 8;

/// Weight rows of an item of vector kernels: 32 rows of a `q4_k` weight of 2048 columns are 36 KiB.
const VECTOR_ITEMS: [u64; 2] = [16, 32];
/// Weight rows of an item of tile products: two or four tiles of 16; with four, a block of 16 rows
/// has four sums in flight.
const TILES_ITEMS: [u64; 2] = [32, 64];
/// Max rows of an item of vector kernels. More than 12 groups of 8 rows give no further gain from
/// an unpacked strip.
const VECTOR_CHUNKS: [u32; 7] = [8, 16, 24, 32, 48, 64, 96];
/// Max rows of an item of `gemm6`, whose groups are 12 rows.
const SIXES_CHUNKS: [u32; 5] = [12, 24, 36, 48, 96];
/// Max rows of an item of tile products: with 256 rows a fifth of the time is unpacking.
const TILES_CHUNKS: [u32; 5] = [32, 64, 128, 256, tiles::MAX_TASK_ROWS as u32];

/// Max columns of weights with a scale for each row: their integer sums fit 32 bits.
pub const MAX_COLUMNS_BY_ROWS: u64 = by_rows::MAX_COLUMNS as u64;

/// A weight with the properties that its products depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weight {
    /// Format that kernels read.
    pub format: Format,
    /// Format of the activations.
    pub x: Format,
    /// Rows of the weight, or of each expert.
    pub n: u64,
    /// Columns of the weight.
    pub k: u64,
    /// Weights that a kernel multiplies together: 2 for gate and up. Their sums share the cache, so
    /// an item has half the rows.
    pub products: u32,
    /// Weight rows of an item are a multiple of this block length, in which results are quantised.
    pub block: u64,
    /// Weight rows of a band are a multiple of this: the number of results that are quantised
    /// together.
    pub sub_block: u64,
}

impl Weight {
    /// Returns the number of bytes that an item of `rows` weight rows reads from all its weights.
    pub fn bytes(&self, rows: u64) -> u64 {
        let row = self.format.row_bytes(self.k).unwrap_or(u64::MAX);
        row.saturating_mul(rows).saturating_mul(self.products.into())
    }
}

/// Bytes that an item reads repeatedly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reuse {
    /// Name of the bytes, for messages.
    pub what: &'static str,
    /// Bytes that must stay in a cache for any number of rows of activations.
    fixed: u64,
    /// Bytes of other data that must fit in the same cache.
    beside: u64,
    /// Bytes per row of activations that must stay in the cache, and the max rows.
    row: (u64, u32),
    /// Whether other cores read the same bytes.
    shared: bool,
    /// Bytes read for each element of the weight and row of activations.
    reads: f64,
}

impl Reuse {
    /// Returns the number of bytes that must stay in a cache for an item with its max rows.
    pub fn bytes(&self) -> u64 {
        self.bytes_of_rows(self.row.1)
    }

    fn bytes_of_rows(&self, rows: u32) -> u64 {
        self.row.0.saturating_mul(rows.into()).saturating_add(self.fixed)
    }

    /// Returns the cache level that holds the bytes.
    pub fn level(&self, caches: &CoreCaches) -> Level {
        let l3 = caches.l3.saturating_mul(if self.shared { SHARING } else { 1 });
        [(Level::L1, caches.l1d), (Level::L2, caches.l2), (Level::L3, l3)]
            .into_iter()
            .find(|(_, size)| self.bytes().saturating_add(self.beside) <= *size)
            .map_or(Level::Memory, |(level, _)| level)
    }
}

/// A kernel and the sizes of its items, for a weight's products.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Kernel for the products of the weight.
    pub strategy: MatmulStrategy,
    /// Weight rows of an item.
    pub rows: u64,
    /// Max rows of activations of an item.
    pub row_chunk: u32,
    /// Bytes that an item with the max rows reads repeatedly.
    pub reuse: Vec<Reuse>,
    /// Arithmetic, in units per element of the weight, before the first row.
    unpack: f64,
    /// Arithmetic, in units per element of the weight, for a block of rows; and the rows of a
    /// block.
    block: (f64, u32),
}

/// Cache level of bytes that are read repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// L1 data cache.
    L1,
    /// L2 cache.
    L2,
    /// A core's share of the L3 cache.
    L3,
    /// Memory: no cache holds the bytes.
    Memory,
}

impl Candidate {
    /// Returns the arithmetic for an element of the weight and `rows` rows of activations, in
    /// [`UNIT`]s.
    pub fn arithmetic(&self, rows: u32) -> f64 {
        let (block, size) = self.block;
        self.unpack + block * f64::from(rows.div_ceil(size))
    }

    /// Returns the cost of an element and a row at an item's maximum rows, in [`UNIT`]s: arithmetic
    /// or reads, whichever is larger.
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

/// Returns the possible weight rows of an item, in ascending order.
pub fn item_rows(weight: &Weight, target: Target) -> Vec<u64> {
    let sizes = if has_tiles(weight, target) { TILES_ITEMS } else { VECTOR_ITEMS };
    let mut rows: Vec<u64> = sizes.map(|rows| whole_strips(rows.next_multiple_of(weight.block).min(weight.n))).to_vec();
    rows.dedup();
    rows
}

/// Returns the weight rows of the possible bands of items with `rows` weight rows, in ascending
/// order.
pub fn bands(weight: &Weight, rows: u64) -> Vec<u64> {
    let smallest = VECTOR_ITEMS[0].next_multiple_of(weight.sub_block.max(1));
    let sizes = std::iter::successors(Some(smallest), |band| band.checked_mul(2)).take_while(|band| *band < rows);
    sizes.filter(|band| rows.is_multiple_of(*band)).collect()
}

/// Returns all candidates of items with `rows` weight rows, in the order in which they become the
/// fastest as rows of activations increase.
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
            // A product of bytes costs half of a product of bf16. Four-bit codes become bytes in
            // two instructions for 128 of them.
            true => {
                let multiplied = items.strips.quants().is_some_and(|codec| codec.multiples().is_some());
                let bytes = if by_rows::unpacks(items.strips) { TILES_BYTES } else { 0.0 };
                let unpack = bytes + if multiplied { TILES_MULTIPLES } else { 0.0 };
                let arithmetic = Arithmetic { unpack, block: TILES_BLOCK / 2.0, block_rows: 16 };
                items.candidates(MatmulStrategy::Tiles, chunks, arithmetic, |chunk| items.tile_reads_by_rows(chunk))
            }
            // The other formats multiply bf16, for any format of the weight: all weight rows of a
            // chunk of columns, then the next chunk.
            false => {
                let arithmetic = Arithmetic { unpack: TILES_UNPACK, block: TILES_BLOCK, block_rows: 16 };
                items.candidates(MatmulStrategy::Tiles, chunks, arithmetic, |chunk| items.tile_reads(chunk))
            }
        });
    }
    found
}

/// Units of arithmetic for an element of the weight.
#[derive(Clone, Copy)]
struct Arithmetic {
    /// Units before the first row of activations.
    unpack: f64,
    /// Units for a block of rows.
    block: f64,
    /// Rows of a block.
    block_rows: u32,
}

/// Items with a given number of weight rows, for a target.
struct Items<'a> {
    weight: &'a Weight,
    rows: u64,
    vectors: Vectors,
    /// Format of the weight's strips.
    strips: Format,
}

impl Items<'_> {
    fn new(weight: &Weight, rows: u64, target: Target) -> Items<'_> {
        Items { weight, rows, vectors: Vectors::for_target(target), strips: super::strips_of(weight.format) }
    }

    /// Whether activations are pairs of bf16, for `dot2_bf16`.
    fn has_pairs(&self) -> bool {
        packed::pairs::takes(self.weight.x)
    }

    /// Whether strips are unpacked to a panel.
    fn has_panels(&self) -> bool {
        packed::unpacks(self.strips, self.weight.x, self.vectors)
    }

    /// Returns the candidates of a kernel: one for each of the `chunks`, the max rows of
    /// activations of an item.
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

    /// Returns reads of a chunk's rows of activations, of `row` bytes each.
    fn x_rows(&self, chunk: u32, row: u64, reads: f64) -> Reuse {
        Reuse { what: "rows of activations", fixed: 0, beside: 0, row: (row, chunk), shared: true, reads }
    }

    /// Returns reads of `fixed` bytes for each chunk of rows of activations.
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

    /// Returns the number of bytes of a chunk's sums.
    fn sum_bytes(&self, chunk: u32) -> u64 {
        u64::from(self.weight.products * chunk) * self.rows * size_of::<f32>() as u64
    }

    /// Returns the repeated reads of tile products of a weight with a scale for each row.
    fn tile_reads_by_rows(&self, chunk: u32) -> Vec<Reuse> {
        let Weight { k, products, .. } = *self.weight;
        let fixed = by_rows::panel_bytes(k, self.rows);
        let of_panel = 1.0 / self.rows.min(TILES_ITEMS[1]) as f64;
        let panel = self.fixed_reads("panel", fixed, chunk, 1.0 / f64::from(MatmulStrategy::Tiles.row_groups()[0]));
        // The sums of gate and up are kept in scratch memory.
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
        // Sums are loaded and stored, and a chunk of activations is read in between.
        let reads = (2 * leaves) as f64 * size_of::<f32>() as f64 / k.max(1) as f64;
        let row = u64::from(products) * self.rows * size_of::<f32>() as u64;
        let beside = of_chunk.saturating_mul(chunk.into());
        let sums = Reuse { what: "sums", fixed: 0, beside, row: (row, chunk), shared: false, reads };
        vec![all, again, sums]
    }
}

/// Rounds down to whole strips, unless there is less than one strip.
pub fn whole_strips(rows: u64) -> u64 {
    if rows > STRIP as u64 { rows / STRIP as u64 * STRIP as u64 } else { rows }
}

/// Whether tiles can multiply with these activations.
fn has_tiles(weight: &Weight, target: Target) -> bool {
    target.isa().tile_registers > 0
        && weight.format.tile_activation() == Some(weight.x)
        && takes(weight.format, weight.x)
}

/// Whether a float weight is multiplied with pairs of bf16. If so, nothing is unpacked, so `gemm`
/// has no advantage.
fn packed_floats_by_pairs(weight: &Weight, target: Target) -> bool {
    !weight.format.activation().is_quantised() && has_tiles(weight, target)
}
