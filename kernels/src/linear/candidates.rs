//! The ways to cut a weight's products, with their costs: the candidates of the pass `tile`.
//!
//! A candidate is a kernel, the weight rows of an item and the most rows of activations of one. All of them read all columns of their
//! weight rows, so that sums stay in registers and every candidate of a quantised weight gives the same bits but for tiles, which multiply bf16;
//! `gemv` and `gemm` (`gemm6` alike) sum float weights otherwise. The time of a candidate is the larger of two:
//! that of its arithmetic, and that of moving the bytes that it reads repeatedly from the cache, or the memory, in which they lie:
//!
//! | kernel | reads again | how often |
//! | --- | --- | --- |
//! | `gemv`, `gemm`, strips unpacked on the fly | the item's weight rows | for each 4, or 8 rows of activations |
//! | | its rows of activations | for each item |
//! | `gemv`, `gemm`, `gemm6`, strips unpacked to a panel | its rows of activations | for each strip of 16 weight rows |
//! | `gemm`, whole strips unpacked | its rows of activations | for each strip of 16 weight rows |
//! | | the strip | for each 8 rows |
//! | `tiles` | its rows of activations | once |
//! | | of these rows a chunk of columns | for each 32 weight rows |
//! | | its sums | for each chunk of columns |
//! | `tiles` of weights with a scale for each row | its rows of activations | for each panel of 64 weight rows |
//! | | the panel | for each 32 rows |
//! | `gemv`, `gemm`, pairs of bf16 | its rows of activations | for each two strips |
//! | | a stretch of two strips | for each 4 rows |
//!
//! Of few rows a kernel takes the time that its weight rows take to come from memory, and what counts is that threads have as many of them. So
//! items for few rows can be divided in bands ([`bands`]).
//!
//! Costs are in [`UNIT`]s of a cycle for each element of the weight. They were measured on AVX-512 with byte products (Zen 4, Sapphire
//! Rapids), as kernels meet: unpacking pays from 6 rows; 16 rows by vectors take an eighth of a cycle, and so does a block of 16 rows by
//! tiles, of which three quarters go into making bf16 of the weight. Where a vector is shorter, or a product of bytes takes two
//! instructions, all of it takes so much longer.

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_targets::{CoreCaches, Target};

use super::{MatmulStrategy, by_rows, packed, takes, tiles};
use crate::generate::Vectors;

/// Costs are in so many parts of a cycle.
pub const UNIT: f64 = 1.0 / 2048.0;
/// A row of activations by `gemv`: a strip is unpacked for each four of them, which `gemm` does for each eight.
const GEMV_ROW: f64 = 18.0;
/// The same where nothing is unpacked: pairs of bf16 in a float weight. 16 rows take an eighth of a cycle.
const PAIRS_ROW: f64 = 16.0;
/// A row of activations by `gemm`, or `gemm6`, whose bits are the same: `gemv` gives way to both at as many rows.
const GEMM_ROW: f64 = 15.0;
/// What `gemm` takes before its first row; with it, it meets `gemv` at 6 rows.
const GEMM_UNPACK: f64 = 16.0;
/// A block of 16 rows by tiles: 1/32 of a cycle, whether all of its rows are there or not.
const TILES_BLOCK: f64 = 64.0;
/// Making bf16 of the weight: three times as much.
const TILES_UNPACK: f64 = 192.0;
/// Making bytes of four bits for tiles.
const TILES_BYTES: f64 = 48.0;
/// Making them multiples of their numbers: of 128 bytes, four instructions more.
const TILES_MULTIPLES: f64 = 32.0;
/// Bytes of a bf16.
const BF16_BYTES: f64 = 2.0;
/// Products of f32 take a multiply-add each where bytes take a quarter of an instruction.
const FLOAT_PRODUCTS: f64 = 4.0;
/// Products of bf16 in pairs take half of one.
const BF16_PRODUCTS: f64 = 2.0;
/// Bytes without an instruction for four products take one for pairs and one that adds those.
const PAIRS_OF_PRODUCTS: f64 = 2.0;
/// Bytes of the vectors that costs were measured with.
const MEASURED_VECTOR: f64 = 64.0;

/// Bytes that vectors of a core read in a cycle from L1, L2 and L3, and from memory: two loads of 32 bytes; half of that; half of that again; and
/// a core's part of a socket's memory. Assumed, but for the first two. Reads of several levels go on beside each other.
const BYTES_PER_CYCLE: [f64; 4] = [64.0, 32.0, 16.0, 3.0];
/// The same of tile loads, measured on an Emerald Rapids: a tile of 1 KiB takes 8 cycles of the load ports, 17 to 40 from L2, 107 to 127 from
/// L3.
const TILE_BYTES_PER_CYCLE: [f64; 4] = [128.0, 36.0, 9.0, 3.0];
/// Cores at least that read the same rows of activations, each with other weight rows: they lie in the third level once.
const SHARING: u64 = 8;

/// Weight rows of an item of vector kernels: 32 rows of a `q4_k` weight of 2048 columns are 36 KiB.
const VECTOR_ITEMS: [u64; 2] = [16, 32];
/// Weight rows of an item of tile products: two tiles of 16, or four, so that a block of 16 rows has four sums in flight.
const TILES_ITEMS: [u64; 2] = [32, 64];
/// Rows of an item of vector kernels at most. Beyond 12 groups of 8 rows an unpacked strip gains nothing more.
const VECTOR_CHUNKS: [u32; 7] = [8, 16, 24, 32, 48, 64, 96];
/// The same of `gemm6`, whose groups are 12 rows.
const SIXES_CHUNKS: [u32; 5] = [12, 24, 36, 48, 96];
/// Rows of an item of tile products at most: with 256 rows a fifth of the time goes into unpacking.
const TILES_CHUNKS: [u32; 5] = [32, 64, 128, 256, tiles::MOST_ROWS as u32];

/// Most columns of weights with a scale for each row: their integer sums fit 32 bits.
pub const MAX_COLUMNS_BY_ROWS: u64 = by_rows::MAX_COLUMNS as u64;

/// A weight, as its products read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weight {
    /// The format that kernels read.
    pub format: Format,
    /// The activations' format.
    pub x: Format,
    /// Its rows; of each expert.
    pub n: u64,
    /// Its columns.
    pub k: u64,
    /// Weights that a kernel multiplies with together: 2 for gate and up. Their sums share the cache, so that an item has half the rows.
    pub products: u32,
    /// Weight rows of an item are a multiple of this, the block that results are quantised in.
    pub block: u64,
    /// And those of a band a multiple of this: so many results are quantised without others.
    pub sub_block: u64,
}

impl Weight {
    /// Bytes that an item of so many weight rows reads of all its weights.
    pub fn bytes(&self, rows: u64) -> u64 {
        let row = self.format.row_bytes(self.k).unwrap_or(u64::MAX);
        row.saturating_mul(rows).saturating_mul(self.products.into())
    }
}

/// Bytes that an item reads again and again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reuse {
    /// What they are, for people.
    pub what: &'static str,
    /// Bytes that are to stay in a cache, whatever rows of activations the item has.
    fixed: u64,
    /// Bytes of something else that is to stay there beside them.
    beside: u64,
    /// The same for each row that it has at most, and for how many.
    row: (u64, u32),
    /// Whether other cores read them, too.
    shared: bool,
    /// Bytes that are read for each element of the weight and row of activations.
    reads: f64,
}

impl Reuse {
    /// Bytes that are to stay in a cache, where the item has all its rows.
    pub fn bytes(&self) -> u64 {
        self.of(self.row.1)
    }

    fn of(&self, rows: u32) -> u64 {
        self.row.0.saturating_mul(rows.into()).saturating_add(self.fixed)
    }

    /// Where they lie then.
    pub fn level(&self, caches: &CoreCaches) -> Level {
        let l3 = caches.l3.saturating_mul(if self.shared { SHARING } else { 1 });
        [(Level::L1, caches.l1d), (Level::L2, caches.l2), (Level::L3, l3)]
            .into_iter()
            .find(|(_, size)| self.bytes().saturating_add(self.beside) <= *size)
            .map_or(Level::Memory, |(level, _)| level)
    }
}

/// A way to cut a weight's products.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The kernel.
    pub strategy: MatmulStrategy,
    /// Weight rows of an item.
    pub rows: u64,
    /// Most rows of activations of an item.
    pub row_chunk: u32,
    /// What it reads again, once it has all its rows.
    pub reuse: Vec<Reuse>,
    /// Units for an element of the weight, before the first row.
    unpack: f64,
    /// Units for an element and so many rows.
    block: (f64, u32),
}

/// Where a set of bytes lies that is read again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// First-level data cache.
    L1,
    /// Second-level cache.
    L2,
    /// A core's share of the third.
    L3,
    /// No cache holds it.
    Memory,
}

impl Candidate {
    /// Units that arithmetic takes for an element of the weight and so many rows of activations.
    pub fn arithmetic(&self, rows: u32) -> f64 {
        let (block, size) = self.block;
        self.unpack + block * f64::from(rows.div_ceil(size))
    }

    /// Units for an element and a row, where an item has all its rows: those of arithmetic or of what is read, whatever is more.
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

/// Weight rows that an item can have, in ascending order.
pub fn item_rows(weight: &Weight, target: Target) -> Vec<u64> {
    let sizes = if has_tiles(weight, target) { TILES_ITEMS } else { VECTOR_ITEMS };
    let mut rows: Vec<u64> = sizes.map(|rows| whole_strips(rows.next_multiple_of(weight.block).min(weight.n))).to_vec();
    rows.dedup();
    rows
}

/// Weight rows of the bands that items of `rows` weight rows can be divided in, in ascending order.
pub fn bands(weight: &Weight, rows: u64) -> Vec<u64> {
    let smallest = VECTOR_ITEMS[0].next_multiple_of(weight.sub_block.max(1));
    let sizes = std::iter::successors(Some(smallest), |band| band.checked_mul(2)).take_while(|band| *band < rows);
    sizes.filter(|band| rows.is_multiple_of(*band)).collect()
}

/// All candidates of items of so many weight rows, in the order in which they take over as rows of activations become more.
pub fn candidates(weight: &Weight, rows: u64, target: Target) -> Vec<Candidate> {
    let Weight { format, x, k, products, .. } = *weight;
    let vectors = Vectors::of(target);
    let floats = !format.activation().is_quantised();
    let vector_bytes = f64::from(target.isa().vector_bytes);
    let dot2 = packed::pairs::takes(x);
    let few = packed_floats_by_pairs(weight, target);
    let instructions = match (few, floats, vectors.dot4) {
        (true, _, _) | (false, false, true) => 1.0,
        (false, true, _) if dot2 => BF16_PRODUCTS,
        (false, true, _) => FLOAT_PRODUCTS,
        (false, false, false) => PAIRS_OF_PRODUCTS,
    };
    let slower = MEASURED_VECTOR / vector_bytes * instructions;
    let each = |format: Format| format.block_bytes() as f64 / format.block_len() as f64;
    let row_bytes = |format: Format| format.row_bytes(k).unwrap_or(u64::MAX);
    let strips = super::strips_of(format);
    let partial = !rows.is_multiple_of(STRIP as u64);
    let mut found = Vec::new();
    let mut add = |strategy: MatmulStrategy,
                   chunks: &[u32],
                   unpack: f64,
                   block: (f64, u32),
                   slower: f64,
                   reuse: &dyn Fn(u32) -> Vec<Reuse>| {
        let most = chunks.last().map_or(1, |most| most / products);
        for &row_chunk in chunks.iter().filter(|&&chunk| chunk <= most) {
            let (unpack, block) = (unpack * slower, (block.0 * slower, block.1));
            found.push(Candidate { strategy, rows, row_chunk, reuse: reuse(row_chunk), unpack, block });
        }
    };
    let x_rows = |chunk: u32, row: u64, reads: f64| Reuse {
        what: "rows of activations",
        fixed: 0,
        beside: 0,
        row: (row, chunk),
        shared: true,
        reads,
    };
    let panels = packed::unpacks(strips, x, vectors);
    let vector_reuse = |strategy: MatmulStrategy, chunk: u32| match panels {
        true => vec![x_rows(chunk, row_bytes(x), each(x) / STRIP as f64)],
        false if packed::unpacks_whole(strips, strategy, vectors) => {
            let fixed = packed::unpacked_bytes(strips, k);
            let reads = fixed as f64 / (k * STRIP as u64).max(1) as f64 / f64::from(strategy.row_groups()[0]);
            let strip = Reuse { what: "unpacked strip", fixed, beside: 0, row: (0, chunk), shared: false, reads };
            vec![x_rows(chunk, row_bytes(x), each(x) / STRIP as f64), strip]
        }
        false if dot2 => {
            let together = packed::pairs::TOGETHER as f64 * STRIP as f64;
            let fixed = (each(strips) * packed::pairs::STRETCH as f64 * together) as u64;
            let reads = each(strips) / f64::from(packed::pairs::ROWS);
            let weight = Reuse { what: "weight rows", fixed, beside: 0, row: (0, chunk), shared: false, reads };
            vec![x_rows(chunk, row_bytes(x), each(x) / together), weight]
        }
        false => {
            let fixed = (each(strips) * k as f64 * rows as f64) as u64;
            let reads = each(strips) / f64::from(strategy.row_groups()[0]);
            let weight = Reuse { what: "weight rows", fixed, beside: 0, row: (0, chunk), shared: false, reads };
            vec![x_rows(chunk, row_bytes(x), each(x) / rows as f64), weight]
        }
    };
    let gemv_row = if few { PAIRS_ROW } else { GEMV_ROW };
    let gemv_chunks = if partial { &VECTOR_CHUNKS[..2] } else { &VECTOR_CHUNKS[..] };
    add(MatmulStrategy::Gemv, gemv_chunks, 0.0, (gemv_row, 1), slower, &|chunk| {
        vector_reuse(MatmulStrategy::Gemv, chunk)
    });
    if !few {
        let (strategy, chunks) = match floats && panels {
            true => (MatmulStrategy::Gemm6, &SIXES_CHUNKS[..]),
            false => (MatmulStrategy::Gemm, &VECTOR_CHUNKS[..]),
        };
        add(strategy, chunks, GEMM_UNPACK, (GEMM_ROW, 1), slower, &|chunk| vector_reuse(strategy, chunk));
    }
    if has_tiles(weight, target) && rows.is_multiple_of(TILES_ITEMS[0]) {
        let sums = |chunk: u32| u64::from(products * chunk) * rows * size_of::<f32>() as u64;
        match format.has_row_scale() {
            // Bytes take half of the products. Four bits become bytes by two instructions for 128 of them.
            true => {
                let (fixed, block) = (by_rows::panel_bytes(k, rows), (TILES_BLOCK / 2.0, 16));
                let multiplied = strips.quants().is_some_and(|codec| codec.multiples().is_some());
                let bytes = if by_rows::unpacks(strips) { TILES_BYTES } else { 0.0 };
                let unpack = bytes + if multiplied { TILES_MULTIPLES } else { 0.0 };
                add(MatmulStrategy::Tiles, &TILES_CHUNKS, unpack, block, 1.0, &|chunk| {
                    let of_panel = 1.0 / rows.min(TILES_ITEMS[1]) as f64;
                    let reads = 1.0 / f64::from(MatmulStrategy::Tiles.row_groups()[0]);
                    let panel = Reuse { what: "panel", fixed, beside: 0, row: (0, chunk), shared: false, reads };
                    // Of gate and up the sums wait in scratch memory.
                    let sums = if products > 1 { sums(chunk) } else { 0 };
                    vec![Reuse { beside: fixed + sums, ..x_rows(chunk, k, of_panel) }, panel]
                });
            }
            // The others multiply bf16, whatever the weight is stored in: of a chunk of columns all weight rows, then of the next one.
            false => add(MatmulStrategy::Tiles, &TILES_CHUNKS, TILES_UNPACK, (TILES_BLOCK, 16), 1.0, &|chunk| {
                let columns = u32::try_from(k).unwrap_or(u32::MAX);
                let (of_chunk, leaves) = (tiles::chunk_bytes(format, x, columns), tiles::leaves(format, x, columns));
                let reads = BF16_BYTES / tiles::ROWS_AT_ONCE as f64;
                let again =
                    Reuse { what: "columns of activations", beside: sums(chunk), ..x_rows(chunk, of_chunk, reads) };
                let of_row = k.saturating_mul(BF16_BYTES as u64);
                let all = Reuse { beside: sums(chunk), ..x_rows(chunk, of_row, BF16_BYTES / rows as f64) };
                // Loaded and stored, and while they wait a chunk of activations passes by.
                let reads = (2 * leaves) as f64 * size_of::<f32>() as f64 / k.max(1) as f64;
                let row = products as u64 * rows * size_of::<f32>() as u64;
                let beside = of_chunk.saturating_mul(chunk.into());
                let sums = Reuse { what: "sums", fixed: 0, beside, row: (row, chunk), shared: false, reads };
                vec![all, again, sums]
            }),
        }
    }
    found
}

/// So many rows, or fewer: whole strips, or less than one.
pub fn whole_strips(rows: u64) -> u64 {
    if rows > STRIP as u64 { rows / STRIP as u64 * STRIP as u64 } else { rows }
}

/// Whether activations are such that tiles can multiply with them.
fn has_tiles(weight: &Weight, target: Target) -> bool {
    target.isa().tile_registers > 0
        && weight.format.tile_activation() == Some(weight.x)
        && takes(weight.format, weight.x)
}

/// Whether a float weight is multiplied with pairs of bf16, of which nothing is unpacked: there is nothing for `gemm` to save.
fn packed_floats_by_pairs(weight: &Weight, target: Target) -> bool {
    !weight.format.activation().is_quantised() && has_tiles(weight, target)
}
