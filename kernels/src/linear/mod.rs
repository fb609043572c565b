//! Matrix products with weights of every format.
//!
//! Each vector lane is a weight row, so no horizontal sums are needed. Packed weights have this
//! layout, and [`packed`] multiplies with strips of 16 rows. A product with a weight in its file
//! layout packs the weight itself, one strip at a time, in scratch memory. Both products therefore
//! give the same bits. All modules read the meaning of a block's bytes from the format's codec.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`strategy`] | kernels of a product, and their dims |
//! | [`candidates`] | kernels and item sizes for a weight's products, and their costs |
//! | [`tiling`] | the chosen kernels and item sizes, as text |
//! | [`cut`] | the fields of a product's spec that a tuner changes |
//! | [`pace`] | distance of prefetches, and unrolled loops |
//! | `swiglu` | two products and their gating, in one kernel |
//! | [`packed`] | products with strips, for few rows and many |
//! | [`tiles`] | many rows, by tile products |
//! | [`by_rows`] | all products with weights that have a scale for each row |
//! | [`pack`](mod@pack) | strips from rows in the file layout: a kernel, and a part of other
//! products |
//! | [`file`](mod@file) | reads of blocks in the file layout |
//! | [`dequantise`] | rows as f32, for the embedding |

mod by_rows;
pub mod candidates;
pub mod cut;
mod dequantise;
mod file;
pub mod pace;
mod pack;
mod packed;
mod strategy;
mod swiglu;
mod tiles;
pub mod tiling;

use ixc_ir::format::packed::{self as layout, STRIP};
use ixc_ir::format::{Codec, Format, Quants};
use ixc_ir::kernel::{Affine, BufferId, BufferKind, DimId, Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::buffer_offset::BufferOffset;
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, MAX_ROWS, Vectors, check, check_word};
use crate::generator::quantise;
use crate::generator::reference::{Mismatch, Run, UNIT, close, dot, floats};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Words, spec};
use crate::generator::vectors::for_vectors;
use crate::generator::work::{Arithmetic, Call, Work};

use self::pace::Pace;
pub use self::pack::Pack;
pub use self::strategy::MatmulStrategy;
pub use self::swiglu::Swiglu;
pub use dequantise::dequantise_row;

/// Number of f32 lanes of code that reads blocks in the file layout. Blocks of 32 bytes then fill
/// 256-bit registers.
const LANES: u16 = 8;
/// Number of columns of a sub-block.
const SUB: i64 = layout::SUB as i64;
/// Maximum number of rows of an item with a partial strip, for a kernel for few rows. The results
/// of partial strips pass through scratch memory.
const MAX_FEW_PARTIAL_ROWS: i64 = 1 << 4;
/// Maximum number of rows of an item with a partial strip, for a kernel for many rows.
const MAX_PARTIAL_ROWS: i64 = 1 << 8;

/// Rows of activations of an item, in groups of a few sizes: see [`MatmulStrategy::row_groups`].
struct Rows {
    /// Number of groups of each size, and the number of rows of such a group. The largest size
    /// comes first.
    groups: Vec<(DimId, u32)>,
    /// Dim that is 1 if the rows after the whole groups form a partial tile, for
    /// [`MatmulStrategy::Tiles`].
    partial: Option<DimId>,
}

impl Rows {
    fn dims(b: &mut KernelBuilder, strategy: MatmulStrategy, most: i64) -> Rows {
        let (sizes, names) = (strategy.row_groups(), strategy.dims());
        let dim = |(i, &size): (usize, &u32)| {
            let number = match i.checked_sub(1).map(|i| sizes[i]) {
                None => most / i64::from(size),
                Some(larger) => i64::from(larger / size) - 1,
            };
            (b.dim(names[i].name, i64::from(sizes.len() == 1), number), size)
        };
        let groups = sizes.iter().enumerate().map(dim).collect();
        let partial = (strategy == MatmulStrategy::Tiles).then(|| b.dim("partial", 0, 1));
        Rows { groups, partial }
    }

    fn count(&self) -> Affine {
        self.groups.iter().fold(Affine::constant(0), |sum, (groups, size)| sum + *groups * i64::from(*size))
    }

    /// Returns the maximum number of rows after the whole groups of the largest size.
    fn max_rest(&self) -> i64 {
        self.groups.first().map_or(0, |(_, size)| i64::from(*size))
    }

    /// Emits `body` for every size of groups. `body` gets the first row of these groups, their
    /// number and their size.
    fn for_sizes(&self, b: &mut KernelBuilder, mut body: impl FnMut(&mut KernelBuilder, Affine, DimId, u32)) {
        let mut first = Affine::constant(0);
        for (groups, size) in &self.groups {
            body(b, first.clone(), *groups, *size);
            first = first + *groups * i64::from(*size);
        }
    }

    /// Emits `body` in loops over all groups. `body` gets the group's first row and its number of
    /// rows.
    fn for_each(&self, b: &mut KernelBuilder, mut body: impl FnMut(&mut KernelBuilder, Affine, u32)) {
        self.for_sizes(b, |b, first, groups, size| {
            let name = if size == 1 { "row" } else { "group" };
            b.for_each(name, groups, |b, group| body(b, first + group * i64::from(size), size));
        });
    }
}

/// Destination of a product. The sum of row `r` and weight row `n` is at
/// `offset + r * row_bytes + 4 * n`.
#[derive(Clone)]
struct Destination {
    buffer: BufferId,
    offset: Affine,
    row_bytes: i64,
    /// Whether the memory has no initial values. If so, products are stored instead of added.
    fresh: bool,
}

/// A product of weight rows and rows of activations.
#[derive(Clone)]
struct Product {
    format: Format,
    k: u32,
    tile: u32,
    x: BufferId,
    x_format: Format,
    /// Buffer of the weight, and the offset of its first byte.
    w: BufferOffset,
    strategy: MatmulStrategy,
    vectors: Vectors,
    /// Buffer of the scratch memory, and the offset of its first byte.
    scratch: Option<BufferOffset>,
}

/// Whether a product with a weight in `format` can read activations in `x`. It can read the weight
/// format's activation format, and the form of that format for tile products if it begins with the
/// same fields. Products with packed floats read both forms. Only gemv and gemm read bf16 pairs.
fn takes(format: Format, x: Format) -> bool {
    let own = format.activation();
    x == own
        || format.pair_activation() == Some(x)
        || own.row().tiles == Some(x) && (own.is_quantised() || format.tile_activation() == Some(x))
}

fn check_strategy(
    name: &str,
    format: Format,
    x: Format,
    k: u32,
    tile: u32,
    strategy: MatmulStrategy,
    vectors: Vectors,
) -> Result<(i64, i64), GenerateError> {
    let Vectors { lanes, tiles: has_tiles, .. } = vectors;
    if strategy == MatmulStrategy::Tiles {
        check(name, "tile registers of the target", has_tiles.into(), has_tiles, "8, for products by tiles")?;
    }
    let w = quantise::row_bytes(name, format, k)?;
    check_word(name, "format of the activations", x, takes(format, x), format.activation().name())?;
    let x_row = quantise::row_bytes(name, x, k)?;
    if strategy == MatmulStrategy::Gemm6 {
        let floats = !format.is_quantised() && matches!(x.codec(), Codec::Float(_));
        check_word(name, "format of the weight", format, floats, "floats, with activations in f32")?;
    }
    check(name, "tile", u64::from(tile), tile > 0, "at least 1")?;
    if format.has_row_scale() {
        let most = by_rows::MAX_COLUMNS;
        check(
            name,
            "dot product length",
            u64::from(k),
            k <= most,
            format!("at most {most}, with a scale for each row"),
        )?;
    }
    if strategy == MatmulStrategy::Tiles {
        let expected = "packed, with activations for tiles";
        check_word(name, "format of the weight", format, tiles::takes(format, x), expected)?;
        check(name, "tile", u64::from(tile), tile.is_multiple_of(32), "a multiple of 32")?;
        check(name, "dot product length", u64::from(k), k.is_multiple_of(32), "a multiple of 32")?;
    } else {
        // An item has whole strips, or fewer rows than one strip. Code for whole strips and a
        // partial strip in one kernel would be twice as long.
        let whole = tile.is_multiple_of(STRIP as u32) || format.rows() == 1 && tile < STRIP as u32;
        let expected = if format.rows() == 1 { "a multiple of 16, or less" } else { "a multiple of 16" };
        check(name, "tile", u64::from(tile), whole, expected)?;
        let ok = [STRIP, STRIP / 2].contains(&usize::from(lanes));
        check(name, "lanes of the target", u64::from(lanes), ok, "8 or 16")?;
    }
    Ok((x_row, w))
}

/// Returns the distance in bytes from one row to the next. The number of columns must have been
/// checked.
fn row_bytes(format: Format, k: u32) -> i64 {
    quantise::row_bytes("", format, k).unwrap_or(0)
}

/// Returns the format of a product's strips: the weight's format if it is packed, otherwise its
/// packed form.
fn strips_of(format: Format) -> Format {
    format.packed_format().unwrap_or(format)
}

/// Returns the codec of a packed format of integers. Float formats have other readers.
pub fn quants(format: Format) -> &'static Quants {
    format.quants().unwrap_or_else(|| unreachable!("{format} has no integers"))
}

/// Returns the number of bytes of a strip of rows with `k` columns. The last block has its full
/// size, even if the row ends in it.
fn strip_bytes(format: Format, k: u32) -> i64 {
    let blocks = (k as usize).div_ceil(format.block_len()) * format.block_bytes();
    (STRIP * (blocks + format.tail_bytes())) as i64
}

/// Returns the number of bytes of scratch memory that a product needs for items of at most `rows`
/// rows. Returns `None` if it needs none.
fn scratch_bytes(
    format: Format,
    x: Format,
    k: u32,
    tile: u32,
    strategy: MatmulStrategy,
    rows: i64,
    vectors: Vectors,
) -> Option<i64> {
    let strips = strips_of(format);
    let bytes = match strategy {
        MatmulStrategy::Tiles if strips.has_row_scale() => Some(by_rows::scratch_bytes(strips, x, k, tile)),
        MatmulStrategy::Tiles => Some(tiles::scratch_bytes(strips, x, k, tile, rows)),
        _ => packed::scratch_bytes(strips, x, k, strategy, rows, vectors),
    };
    match format.rows() {
        1 => Some(strip_bytes(strips, k) + bytes.unwrap_or(0)),
        _ => bytes,
    }
}

/// Whether a product can store its results instead of adding them: see [`Destination::fresh`].
fn stores(format: Format, strategy: MatmulStrategy) -> bool {
    format.has_row_scale() || strategy == MatmulStrategy::Tiles
}

/// Adds the product to the destination, or stores it if [`Destination::fresh`] is set. If the
/// weight is in its file layout, the destination must have room for whole strips.
fn multiply(b: &mut KernelBuilder, product: &Product, rows: &Rows, to: &Destination) {
    match (product.scratch, rows.partial) {
        (Some(scratch), Some(partial)) => {
            let rows = tiles::Rows::from_rows(rows, partial);
            match product.format.has_row_scale() {
                true => by_rows::multiply_tiles(b, product, scratch, &rows, to),
                false => tiles::multiply(b, product, scratch, &rows, to),
            }
        }
        (Some(scratch), None) if product.format.rows() == 1 => by_packing(b, product, scratch, rows, to),
        _ => packed::multiply(b, product, rows, to),
    }
}

/// Packs one strip after another, and multiplies with each of them.
fn by_packing(b: &mut KernelBuilder, product: &Product, scratch: BufferOffset, rows: &Rows, to: &Destination) {
    let BufferOffset { buffer, at } = scratch;
    let format = strips_of(product.format);
    let row_bytes = quantise::row_bytes("", product.format, product.k).unwrap_or(0);
    let bytes = strip_bytes(format, product.k);
    // The layout of scratch memory does not depend on the number of rows, so 0 rows are enough
    // here.
    let needs = packed::scratch_bytes(format, product.x_format, product.k, product.strategy, 0, product.vectors);
    let strip = |b: &mut KernelBuilder, strip: Affine, count: i64| {
        let first = strip.clone() * (STRIP as i64 * row_bytes) + product.w.at;
        let strip_rows = pack::Rows { buffer: product.w.buffer, first, row_bytes: row_bytes.into(), count };
        let place = pack::Place { format, buffer, offset: at.into() };
        pack::pack_columns(b, &strip_rows, product.k.into(), &place);
        let own_scratch = needs.map(|_| BufferOffset { buffer, at: at + bytes });
        let packed = Product { format, w: scratch, tile: STRIP as u32, scratch: own_scratch, ..product.clone() };
        let to = Destination { offset: to.offset.clone() + strip * (4 * STRIP as i64), ..to.clone() };
        packed::multiply(b, &packed, rows, &to);
    };
    match i64::from(product.tile) / STRIP as i64 {
        0 => strip(b, 0.into(), product.tile.into()),
        strips => b.for_each("strip", strips, |b, i| strip(b, i.into(), STRIP as i64)),
    }
}

spec! {
    /// `y = x w' [+ bias] [+ residual]` for `tile` rows of the weight and the rows of an item. Rows
    /// of `y` and of `residual` are `n` elements apart.
    pub struct Linear "linear" {
        /// Format of the weight.
        pub format: Format,
        /// Format of the activations.
        pub x: Format = format.activation(),
        /// Number of elements of a dot product.
        pub k: u32,
        /// Number of weight rows of an item.
        pub tile: u32,
        /// Number of rows of the whole weight, which is the distance between rows of y and of
        /// residual.
        pub n: u32,
        /// Whether a bias is added.
        pub bias: bool,
        /// Whether a residual is added.
        pub residual: bool,
        /// Kernel of the product.
        pub strategy as "shape": MatmulStrategy,
        /// Prefetch distance and unrolling of the innermost loops, if tuned. The pace does not
        /// change the bits of the result.
        pub pace: Pace = Pace::default(),
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("gemv_f32", 1, "linear format=f32 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_f16", 1, "linear format=f16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_bf16", 1, "linear format=bf16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q8_0", 1, "linear format=q8_0 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q4_0", 1, "linear format=q4_0 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q4_k", 1, "linear format=q4_k k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q5_k", 1, "linear format=q5_k k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q6_k", 1, "linear format=q6_k k=2048 tile=32 n=2048 shape=gemv"),
    row("gemm_f32", 96, "linear format=f32 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_f16", 96, "linear format=f16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_bf16", 96, "linear format=bf16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q8_0", 96, "linear format=q8_0 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q4_0", 96, "linear format=q4_0 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q4_k", 96, "linear format=q4_k k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q5_k", 96, "linear format=q5_k k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q6_k", 96, "linear format=q6_k k=2048 tile=32 n=2048 shape=gemm"),
    row("gemv_q6_k_ffn_down", 1, "linear format=q6_k k=5632 tile=32 n=2048 residual shape=gemv"),
    row("gemm_q6_k_ffn_down", 96, "linear format=q6_k k=5632 tile=32 n=2048 residual shape=gemm"),
    row("gemv_q8_0_bias", 1, "linear format=q8_0 k=2048 tile=32 n=2048 bias shape=gemv"),
    row("gemm_q8_0_bias", 96, "linear format=q8_0 k=2048 tile=32 n=2048 bias shape=gemm"),
    row("gemv_q4_k_expert_down", 1, "linear format=q4_k k=768 tile=32 n=2048 shape=gemv"),
    row("gemm_q4_k_expert_down", 24, "linear format=q4_k k=768 tile=32 n=2048 shape=gemm"),
    row("gemv_f32_r16", 1, "linear format=f32_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemm_f32_r16", 96, "linear format=f32_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemv_f16_r16", 1, "linear format=f16_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_bf16_r16", 1, "linear format=bf16_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_bf16_r16_pairs", 1, "linear format=bf16_r16 x=bf16x1 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q8_0_r16", 1, "linear format=q8_0_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q4_0_r16", 1, "linear format=q4_0_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q4_k_r16", 1, "linear format=q4_k_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q5_k_r16", 1, "linear format=q5_k_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q6_k_r16", 1, "linear format=q6_k_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_mxfp4_r16", 1, "linear format=mxfp4_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_iq4_xs_r16", 1, "linear format=iq4_xs_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q2_k_r16", 1, "linear format=q2_k_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q3_k_r16", 1, "linear format=q3_k_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_iq3_s_r16", 1, "linear format=iq3_s_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_iq2_s_r16", 1, "linear format=iq2_s_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_q4_k_r16_band", 1, "linear format=q4_k_r16 k=2048 tile=16 n=2048 shape=gemv"),
    row("gemv_q6_k_r16_ffn_down_band", 1, "linear format=q6_k_r16 k=5632 tile=16 n=2048 residual shape=gemv"),
    row("gemm_f16_r16", 96, "linear format=f16_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm6_f16_r16", 96, "linear format=f16_r16 k=2048 tile=32 n=2048 shape=gemm6"),
    row("gemm_bf16_r16", 96, "linear format=bf16_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_bf16_r16_pairs", 96, "linear format=bf16_r16 x=bf16x1 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q8_0_r16", 96, "linear format=q8_0_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q4_0_r16", 96, "linear format=q4_0_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q4_k_r16", 96, "linear format=q4_k_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q5_k_r16", 96, "linear format=q5_k_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q6_k_r16", 96, "linear format=q6_k_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_mxfp4_r16", 96, "linear format=mxfp4_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_iq4_xs_r16", 96, "linear format=iq4_xs_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q2_k_r16", 96, "linear format=q2_k_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_q3_k_r16", 96, "linear format=q3_k_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_iq3_s_r16", 96, "linear format=iq3_s_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_iq2_s_r16", 96, "linear format=iq2_s_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("tiles_f16_r16", 48, "linear format=f16_r16 x=bf16x2 k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_bf16_r16", 48, "linear format=bf16_r16 x=bf16x2 k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_q8_0_r16", 48, "linear format=q8_0_r16 x=a8_small_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_q4_0_r16", 48, "linear format=q4_0_r16 x=a8_small_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_q4_k_r16", 48, "linear format=q4_k_r16 x=a8_super_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_q5_k_r16", 48, "linear format=q5_k_r16 x=a8_super_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("gemv_i8_row_r16", 1, "linear format=i8_row_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_i4_row_r16", 1, "linear format=i4_row_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemv_i4_g128_r16", 1, "linear format=i4_g128_r16 k=2048 tile=32 n=2048 shape=gemv"),
    row("gemm_i8_row_r16", 96, "linear format=i8_row_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_i4_row_r16", 96, "linear format=i4_row_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("gemm_i4_g128_r16", 96, "linear format=i4_g128_r16 k=2048 tile=32 n=2048 shape=gemm"),
    row("tiles_i8_row_r16", 48, "linear format=i8_row_r16 k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_i4_row_r16", 48, "linear format=i4_row_r16 k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_i4_g128_r16", 48, "linear format=i4_g128_r16 k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_q6_k_r16", 48, "linear format=q6_k_r16 x=a8_super_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_mxfp4_r16", 48, "linear format=mxfp4_r16 x=a8_small_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_iq4_xs_r16", 48, "linear format=iq4_xs_r16 x=a8_super_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_q2_k_r16", 48, "linear format=q2_k_r16 x=a8_super_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_q3_k_r16", 48, "linear format=q3_k_r16 x=a8_super_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_iq3_s_r16", 48, "linear format=iq3_s_r16 x=a8_super_tile k=2048 tile=64 n=2048 shape=tiles"),
    row("tiles_iq2_s_r16", 48, "linear format=iq2_s_r16 x=a8_super_tile k=2048 tile=64 n=2048 shape=tiles"),
];

impl Definition for Linear {
    fn name(&self) -> String {
        let Linear { format, x, k, tile, n, bias, residual, strategy, pace } = *self;
        let (bias, residual) = (if bias { "_bias" } else { "" }, if residual { "_add" } else { "" });
        format!("{}_{format}_{x}_t{tile}n{n}k{k}{bias}{residual}{}", strategy.word(), pace.suffix())
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", BufferContents::Activations(self.x, "x"))
            .read("w", BufferContents::Weight(self.format, "format"))
            .read_if(self.bias, "bias", BufferContents::Floats)
            .read_if(self.residual, "residual", BufferContents::Floats)
            .write("y", BufferContents::Floats)
            .optional_scratch("scratch")
            .dims(self.strategy.dims())
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let Linear { format, x, k, tile, n, bias, residual, strategy, pace } = *self;
        pace.check(&name)?;
        let (x_row, w_row) = check_strategy(&name, format, x, k, tile, strategy, vectors)?;
        let x_format = x;
        check(&name, "rows of the weight", u64::from(n), n >= tile, format!("at least {tile}"))?;
        let mut b = KernelBuilder::new(name);
        // Results of partial strips are computed in scratch memory, and then copied to the output.
        let partial = !tile.is_multiple_of(STRIP as u32);
        let most = max_rows(strategy, tile);
        let rows = Rows::dims(&mut b, strategy, most);
        let (tile_bytes, row_bytes) = (i64::from(tile) * 4, i64::from(n) * 4);
        let x = b.read("x", rows.count() * x_row);
        let w = b.read("w", i64::from(tile) * w_row);
        let bias = bias.then(|| b.read("bias", tile_bytes));
        // The last row ends after the item's weight rows. With 0 rows, the size is negative, which
        // means an empty buffer.
        let size = rows.count() * row_bytes + (tile_bytes - row_bytes);
        let residual = residual.then(|| b.read("residual", size.clone()));
        let y = b.buffer("y", BufferKind::ReadWrite, size);
        let bytes = scratch_bytes(format, x_format, k, tile, strategy, most, vectors);
        let sums_row = i64::from(tile.next_multiple_of(STRIP as u32)) * 4;
        let sums_bytes = if partial { (most + rows.max_rest()) * sums_row } else { 0 };
        let scratch = bytes.map(|bytes| BufferOffset {
            buffer: b.buffer("scratch", BufferKind::Scratch, bytes + sums_bytes),
            at: sums_bytes,
        });
        let fresh = bias.is_none() && residual.is_none() && stores(format, strategy);
        let result = Destination { buffer: y, offset: 0.into(), row_bytes, fresh };
        let sums = match scratch {
            Some(BufferOffset { buffer, .. }) if partial => {
                Destination { buffer, offset: 0.into(), row_bytes: sums_row, fresh }
            }
            _ => result.clone(),
        };

        // Writes the initial values, to which the products are added.
        let before = |b: &mut KernelBuilder, row: Affine, count: u32| {
            b.for_each("r", i64::from(count), |b, r| {
                for_vectors(b, lanes, tile, |b, at, lanes| {
                    let offset = (row.clone() + r) * row_bytes + at.clone() * 4;
                    let v = match (bias, residual) {
                        (Some(bias), Some(residual)) => {
                            let (u, v) = (
                                b.load(Type::f32(lanes), bias, at.clone() * 4),
                                b.load(Type::f32(lanes), residual, offset),
                            );
                            b.add(u, v)
                        }
                        (Some(bias), None) => b.load(Type::f32(lanes), bias, at.clone() * 4),
                        (None, Some(residual)) => b.load(Type::f32(lanes), residual, offset),
                        (None, None) => b.splat_f32(lanes, 0.0),
                    };
                    b.store(sums.buffer, (row.clone() + r) * sums.row_bytes + at * 4, v);
                });
                // Lanes of a partial strip that have no weight row get no bias.
                if partial {
                    let zero = b.splat_f32(1, 0.0);
                    for at in i64::from(tile)..sums_row / 4 {
                        b.store(sums.buffer, (row.clone() + r) * sums_row + at * 4, zero);
                    }
                }
            });
        };
        if !fresh {
            rows.for_each(&mut b, before);
        }
        let w = BufferOffset { buffer: w, at: 0 };
        let product = Product { format, k, tile, x, x_format, w, strategy, vectors, scratch };
        multiply(&mut b, &product, &rows, &sums);
        if partial {
            rows.for_each(&mut b, |b, row, count| {
                b.for_each("r", i64::from(count), |b, r| {
                    let row = row.clone() + r;
                    for_vectors(b, lanes, tile, |b, at, lanes| {
                        let v = b.load(Type::f32(lanes), sums.buffer, row.clone() * sums.row_bytes + at.clone() * 4);
                        b.store(y, row.clone() * row_bytes + at * 4, v);
                    });
                });
            });
        }
        Ok(pace.apply(b.finish()))
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let Linear { format, x, k, tile, n, .. } = *self;
        let (input, output) = (run.input(), run.output());
        let rows = self.strategy.rows(run.dims) as usize;
        let (k, tile, n) = (k as usize, tile as usize, n as usize);
        let (x, w, y) = (input.rows("x", x, k)?, input.weight("w", format, k)?, output.floats("y")?);
        let bias = input.find("bias").map(floats);
        let residual = input.find("residual").map(floats);
        for r in 0..rows {
            for c in 0..tile {
                let (sum, magnitude) = dot(&x[r * k..][..k], &w[c * k..][..k]);
                let added = bias.as_ref().map_or(0.0, |b| b[c]) + residual.as_ref().map_or(0.0, |v| v[r * n + c]);
                // The bound covers minimums and offsets, which are subtracted from sums of up to
                // four times the magnitude.
                let bound = (magnitude + added.abs() + 1.0) * relative(format, k, self.strategy);
                close(format_args!("y[{r}, {c}]"), y[r * n + c], sum + added, bound)?;
            }
        }
        Ok(())
    }

    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        self.strategy.dim_values(rows)
    }

    fn max_rows(&self) -> u32 {
        max_rows(self.strategy, self.tile) as u32
    }

    fn work(&self, call: &Call<'_>) -> Work {
        let multiply_adds = multiply_adds(self.strategy, self.k, self.tile, call.dims);
        Work { bytes: call.bytes("w"), multiply_adds, arithmetic: arithmetic(self.x, self.strategy) }
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

/// Returns the maximum number of rows of activations of an item with `tile` weight rows.
fn max_rows(strategy: MatmulStrategy, tile: u32) -> i64 {
    let partial = !tile.is_multiple_of(STRIP as u32);
    match strategy {
        MatmulStrategy::Gemv if partial => MAX_FEW_PARTIAL_ROWS,
        MatmulStrategy::Gemm if partial => MAX_PARTIAL_ROWS,
        // The sums of `gemm6` are stored in scratch memory, too.
        MatmulStrategy::Gemm6 => MAX_PARTIAL_ROWS,
        MatmulStrategy::Gemv | MatmulStrategy::Gemm => MAX_ROWS,
        MatmulStrategy::Tiles => tiles::MAX_TASK_ROWS,
    }
}

/// Returns the error bound of a product with `k` columns, relative to the sum of magnitudes.
fn relative(format: Format, k: usize, strategy: MatmulStrategy) -> f64 {
    let rounding = match strategy {
        MatmulStrategy::Tiles if format.has_row_scale() => 0.0,
        MatmulStrategy::Tiles => tiles::rounding(format),
        MatmulStrategy::Gemv | MatmulStrategy::Gemm | MatmulStrategy::Gemm6 => 0.0,
    };
    k as f64 * UNIT * 4.0 + rounding
}

/// Returns the number of multiply-adds of a product.
fn multiply_adds(strategy: MatmulStrategy, k: u32, tile: u32, dims: &[i64]) -> u64 {
    u64::from(k) * u64::from(tile) * strategy.rows(dims).max(0).unsigned_abs()
}

/// Returns the number format of a product's multiply-adds.
fn arithmetic(x: Format, strategy: MatmulStrategy) -> Arithmetic {
    match strategy {
        MatmulStrategy::Tiles if !x.has_row_scale() => Arithmetic::Bf16,
        _ if packed::pairs::takes(x) => Arithmetic::Bf16,
        _ if x.is_quantised() => Arithmetic::Int8,
        _ => Arithmetic::F32,
    }
}
