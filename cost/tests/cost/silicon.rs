//! Comparison of tile products with measurements on an Emerald Rapids, by layout of the activations
//! and order of the loops.
//!
//! The products have 64 weight rows of 2048 columns, and rows of bf16 activations. The kernel IR
//! follows `product.c` of the measurements, statement by statement.

use std::fmt::Write;

use ixc_codegen::x64;
use ixc_cost::memory::{Levels, levels};
use ixc_cost::{self as cost, analyse};
use ixc_ir::kernel::{BufferId, BufferKind, Elem, Kernel, KernelBuilder, Op, Type, ValueId, VarId, verify};
use ixc_targets::Target;
use ixc_targets::memory::Level;

/// Numbers of activation rows that were measured.
const ROWS: [i64; 4] = [32, 128, 256, 512];
/// Columns of weights in one chunk, in tiles of 32 columns.
const CHUNK: i64 = 8;
/// Number of tiles that all 2048 columns take.
const TILES: i64 = 64;
/// Bytes of a tile.
const TILE: i64 = 1024;
/// Cycles of a tile product without any other work.
const BARE: f64 = 16.0;
/// Maximum relative error of the model. Repeated measurements differed by less on an idle machine,
/// and by twice as much on a busy one.
const TOLERANCE: f64 = 0.30;

const SUM: Type = Type::tile(Elem::F32, 16, 16);
const BF16: Type = Type::tile(Elem::Bf16, 16, 32);

/// Layout of the activations in a product.
#[derive(Clone, Copy, PartialEq)]
enum X {
    /// Row after row; rows are `row` bytes apart, and the chunks of a row's columns `chunk` bytes.
    Rows { row: i64, chunk: i64 },
    /// Tile after tile: all columns of the first 16 rows, then of the next 16 rows.
    Tiles,
}

/// Rows of the format `a8_super_tile`: blocks of 896 bytes, each with 512 bytes of bf16 numbers.
const SUPER: X = X::Rows { row: 7168, chunk: 896 };
/// Rows of bf16, padded by one cache line.
const PADDED: X = X::Rows { row: 4160, chunk: 512 };

/// Time at which the sums in tile registers are stored to memory.
#[derive(Clone, Copy)]
enum Order {
    /// After each chunk of columns, to rows that are this many bytes apart. The next chunk loads
    /// the sums again.
    Chunks(i64),
    /// After all chunks; the sums stay in tile registers.
    ChunksStay,
    /// After all columns, without chunks, to rows that are this many bytes apart.
    Whole(i64),
}

/// Measurements: description, order, layout, and the time of a product relative to a bare one for
/// each of [`ROWS`].
const MEASURED: [(&str, Order, X, [f64; 4]); 7] = [
    (
        "chunks of 256 columns, x at stride 7168, C in and out at stride 8192",
        Order::Chunks(8192),
        SUPER,
        [1.9, 1.9, 2.3, 3.6],
    ),
    ("the same, C at stride 8256", Order::Chunks(8256), SUPER, [1.6, 1.7, 1.8, 2.8]),
    ("the same, sums never leave", Order::ChunksStay, SUPER, [1.2, 1.15, 1.2, 2.5]),
    ("chunks, x in contiguous tiles, C compact", Order::Chunks(256), X::Tiles, [1.4, 1.6, 1.6, 2.2]),
    ("all columns at once, x at stride 7168, C out once", Order::Whole(8192), SUPER, [1.5, 1.5, 1.75, 3.5]),
    ("all columns, x at stride 4160", Order::Whole(8192), PADDED, [1.4, 1.4, 1.6, 2.3]),
    ("all columns, x in contiguous tiles", Order::Whole(8192), X::Tiles, [1.4, 1.4, 1.6, 2.4]),
];

struct Product {
    x: BufferId,
    panel: BufferId,
    y: BufferId,
    layout: X,
    /// Number of column tiles in the panel of weights.
    panel_tiles: i64,
}

impl Product {
    /// Emits four tile products: the block's 32 rows times two strips of the weight. `c` is the
    /// chunk, `k` the tile in the chunk.
    fn multiply(
        &self,
        b: &mut KernelBuilder,
        sums: &[ValueId],
        [block, strips, k]: [VarId; 3],
        c: Option<VarId>,
    ) -> Vec<ValueId> {
        let chunk = |by: i64| c.map_or(ixc_ir::kernel::Affine::constant(0), |c| c * by);
        let (at, next, stride) = match self.layout {
            X::Rows { row, chunk: by } => (block * (32 * row) + k * 64 + chunk(by), 16 * row, row),
            X::Tiles => (block * (2 * TILES * TILE) + k * TILE + chunk(CHUNK * TILE), TILES * TILE, 64),
        };
        let x = [0, next].map(|next| b.tile_load(BF16, self.x, at.clone() + next, stride));
        let strip = self.panel_tiles * TILE;
        let w = [0, strip].map(|next| b.tile_load(BF16, self.panel, strips * (2 * strip) + k * TILE + next, 64));
        let products = [(0, 0), (0, 1), (1, 0), (1, 1)];
        products.iter().zip(sums).map(|(&(i, j), &sum)| b.tile_dot(Op::TileDotBf16, sum, x[i], w[j])).collect()
    }

    fn corners(&self, block: VarId, strips: VarId, stride: i64) -> [ixc_ir::kernel::Affine; 4] {
        let at = block * (32 * stride) + strips * 128;
        [0, 64, 16 * stride, 16 * stride + 64].map(|next| at.clone() + next)
    }

    fn store(&self, b: &mut KernelBuilder, [block, strips]: [VarId; 2], stride: i64, sums: &[ValueId]) {
        let corners = self.corners(block, strips, stride);
        corners.into_iter().zip(sums).for_each(|(at, &sum)| b.tile_store(self.y, at, sum, stride));
    }
}

/// Returns the kernel `chunked` or `whole` of `product.c`, over the dim `%blocks` of 32 rows each.
fn product(order: Order, layout: X) -> Kernel {
    let mut b = KernelBuilder::new("product");
    let blocks = b.dim("blocks", 1, 32);
    let row = if let X::Rows { row, .. } = layout { row } else { TILES * 64 };
    let (panel_tiles, stride) = match order {
        Order::Chunks(stride) => (CHUNK, stride),
        Order::ChunksStay => (CHUNK, 256),
        Order::Whole(stride) => (TILES, stride),
    };
    let x = b.read("x", blocks * (32 * row));
    let panel = b.read("panel", 4 * panel_tiles * TILE);
    let y = b.buffer("y", BufferKind::ReadWrite, blocks * (32 * stride));
    let product = Product { x, panel, y, layout, panel_tiles };
    let zeros = |b: &mut KernelBuilder| -> Vec<ValueId> { (0..4).map(|_| b.tile_zero(SUM)).collect() };
    let chunks = TILES / CHUNK;
    match order {
        Order::Chunks(_) => b.for_each("chunk", chunks, |b, c| {
            b.for_each("block", blocks, |b, block| {
                b.for_each("strips", 2, |b, strips| {
                    let corners = product.corners(block, strips, stride);
                    let sums = corners.map(|at| b.tile_load(SUM, y, at, stride));
                    let step = |b: &mut KernelBuilder, k, sums: &[ValueId]| {
                        product.multiply(b, sums, [block, strips, k], Some(c))
                    };
                    let sums = b.for_carry("k", CHUNK, &sums, step);
                    product.store(b, [block, strips], stride, &sums);
                });
            });
        }),
        Order::ChunksStay => {
            let sums = zeros(&mut b);
            let sums = b.for_carry("chunk", chunks, &sums, |b, c, sums| {
                b.for_carry("block", blocks, sums, |b, block, sums| {
                    b.for_carry("strips", 2, sums, |b, strips, sums| {
                        let step = |b: &mut KernelBuilder, k, sums: &[ValueId]| {
                            product.multiply(b, sums, [block, strips, k], Some(c))
                        };
                        b.for_carry("k", CHUNK, sums, step)
                    })
                })
            });
            sums.iter().zip([0, 64, 16 * 256, 16 * 256 + 64]).for_each(|(&sum, at)| b.tile_store(y, at, sum, 256));
        }
        Order::Whole(_) => b.for_each("block", blocks, |b, block| {
            b.for_each("strips", 2, |b, strips| {
                let sums = zeros(b);
                let step =
                    |b: &mut KernelBuilder, k, sums: &[ValueId]| product.multiply(b, sums, [block, strips, k], None);
                let sums = b.for_carry("k", TILES, &sums, step);
                product.store(b, [block, strips], stride, &sums);
            });
        }),
    }
    b.finish()
}

/// Returns a kernel's cost on Sapphire Rapids, the predecessor of the measured CPU with the same
/// caches.
pub fn cost(kernel: &Kernel, dims: &[i64]) -> Levels {
    verify::verify(kernel).unwrap();
    let target = Target::from_name("sapphire-rapids").unwrap();
    let compiled = x64::compile(kernel, target).unwrap_or_else(|error| panic!("{}: {error}", kernel.name));
    let code = &compiled.code[..compiled.code_bytes];
    let report = analyse(code, &compiled.lines, kernel, cost::model(target).unwrap());
    levels(&report, kernel, target.row().memory(), dims, &[]).unwrap()
}

/// Returns the time of a tile product relative to a bare one. The product has all columns of 64
/// weight rows, in blocks of 32 rows.
fn ratio(order: Order, layout: X, rows: i64) -> f64 {
    let levels = cost(&product(order, layout), &[rows / 32]);
    levels.cycles / (rows / 16 * 4 * TILES) as f64 / BARE
}

/// Returns the documentation's table of modelled and measured ratios.
pub fn table() -> String {
    let rows: Vec<_> = ROWS.iter().map(|rows| format!("{rows} rows")).collect();
    let mut out = format!("| | {} |\n| --- |{}\n", rows.join(" | "), " --- |".repeat(ROWS.len()));
    for (what, order, layout, measured) in MEASURED {
        let cell = |(&rows, measured)| format!("{:.2} ({measured})", ratio(order, layout, rows));
        let cells: Vec<_> = ROWS.iter().zip(measured).map(cell).collect();
        let _ = writeln!(out, "| {what} | {} |", cells.join(" | "));
    }
    out
}

#[test]
fn product_layouts_match_measured_times() {
    for (what, order, layout, measured) in MEASURED {
        for (rows, measured) in ROWS.into_iter().zip(measured) {
            let ours = ratio(order, layout, rows);
            println!("{what}, {rows} rows: {ours:.2}, measured {measured}: {:+.0} %", 100.0 * (ours / measured - 1.0));
            assert!((ours / measured - 1.0).abs() <= TOLERANCE, "{what}, {rows} rows: {ours:.2}, measured {measured}");
        }
    }
}

/// Returns a kernel of 2 x 2 tile products that load all four tiles each time, from `bytes` bytes.
fn loads_from(bytes: i64) -> Kernel {
    let mut b = KernelBuilder::new("loads");
    let (x, y) = (b.read("x", bytes), b.write("y", 4 * TILE));
    let sums: Vec<ValueId> = (0..4).map(|_| b.tile_zero(SUM)).collect();
    let sums = b.for_carry("i", bytes / (4 * TILE), &sums, |b, i, sums| {
        let tiles: Vec<ValueId> = (0..4).map(|n| b.tile_load(BF16, x, i * (4 * TILE) + n * TILE, 64)).collect();
        let products = [(0, 2), (0, 3), (1, 2), (1, 3)];
        let product =
            |(&(i, j), &sum): (&(usize, usize), &ValueId)| b.tile_dot(Op::TileDotBf16, sum, tiles[i], tiles[j]);
        products.iter().zip(sums).map(product).collect()
    });
    sums.iter().zip(0..).for_each(|(&sum, n)| b.tile_store(y, n * TILE, sum, 64));
    b.finish()
}

#[test]
fn tile_products_match_measured_cycles_per_level() {
    // Measured cycles per tile product: 16.2 from L1, 17 to 40 from L2 (512 KiB to 1.5 MiB), 107 to
    // 127 from L3.
    for (kib, cycles, level) in [
        (32, 16.0..=16.5, None),
        (512, 17.0..=40.0, Some(Level::L2)),
        (1024, 17.0..=40.0, Some(Level::L2)),
        (3072, 80.0..=127.0, Some(Level::L3)),
    ] {
        let levels = cost(&loads_from(kib * 1024), &[]);
        // One KiB of loaded bytes is one tile and one product.
        let of_product = levels.loops[0].cycles / kib as f64;
        println!("{kib} KiB: {of_product:.1} cycles a product\n{levels}");
        assert!(cycles.contains(&of_product), "{kib} KiB: {of_product}\n{levels}");
        assert_eq!(levels.bound.level, level, "{levels}");
    }
}
