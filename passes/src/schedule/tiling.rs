//! How a product is cut into items, and which kernel does how many rows: every such number stands here.
//!
//! An item is a tile of weight rows times a chunk of activation rows. Which kernel an item gets depends on the rows of its axis;
//! for routed rows, on the rows of its expert.
//!
//! | weight | up to rows | kernel | rows of an item |
//! | --- | --- | --- | --- |
//! | as in the file | [`GEMV_ROWS`] | `Gemv` | [`GEMV_ROWS`] |
//! | | all | `Gemm` | [`GEMM_CHUNK`], SwiGLU [`SWIGLU_CHUNK`] |
//! | packed | [`GEMV_ROWS`] | `Gemv` | [`GEMV_ROWS`] |
//! | | all, with tiles [`VECTOR_ROWS`] | `Gemm` | [`GEMM_CHUNK`], SwiGLU [`SWIGLU_CHUNK`] |
//! | | all | `Tiles` | [`TILES_CHUNK`], SwiGLU [`TILES_SWIGLU_CHUNK`] |
//! | packed floats of 16 bits, with tiles | [`VECTOR_ROWS`] | `Gemv` | [`VECTOR_ROWS`] |
//! | | all | `Tiles` | as above |
//!
//! A tile of 16 rows, the tail of a packed weight, is too small for `Tiles`: the kernel before it does all rows.

use ixc_ir::format::Format;
use ixc_ir::format::packed::STRIP;
use ixc_kernels::Shape;

use super::MatrixTarget;

/// Weight rows of an item where there are enough: 32 rows of a `q4_k` weight of 2048 columns are 36 KiB, about an L1.
const TILE: u64 = 32;
/// Columns that a product should have, so that a few threads stay busy with a single row.
const MIN_COLUMNS: u64 = 16;
/// Up to this many rows dot products win: unpacking a strip pays from about one group of `Gemm`'s rows.
const GEMV_ROWS: u32 = 5;
/// Rows of a `Gemm` item: 16 groups for each unpacked strip; 96 rows of 2048 in `a8_super` are 230 KiB, which L2 holds.
const GEMM_CHUNK: u32 = 96;
/// Rows of a SwiGLU item: half, since two products and their f32 results share the cache.
const SWIGLU_CHUNK: u32 = 48;
/// Weight rows of a `Tiles` item, at least: two tiles of 16.
const TILES_TILE: u64 = 32;
/// Weight rows of a `Tiles` item where there are enough: four tiles, so that a block of 16 rows has four sums in flight.
const TILES_WIDE: u64 = 64;
/// Up to this many rows vector kernels win over tile products. A block of 16 rows costs a tile product the same whether its
/// rows are there or not, 1/32 of a cycle for each element of the weight; but that element must become bf16 first, which takes
/// three times as long, and a vector kernel does 16 rows in 1/8 of a cycle with hardly any unpacking. So they meet at about 16.
const VECTOR_ROWS: u32 = 15;
/// Rows of a `Tiles` item: unpacking takes about 0.1 cycles for each element of the weight and the product 1/512 for each
/// row, so that with 256 rows a sixth goes into unpacking. 256 rows of 2048 bf16 are 1 MiB, half of an L2.
const TILES_CHUNK: u32 = 256;
/// Rows of a SwiGLU item: half, as for `Gemm`.
const TILES_SWIGLU_CHUNK: u32 = 128;

/// A kernel for a range of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) shape: Shape,
    pub(super) up_to_rows: u32,
    pub(super) row_chunk: u32,
}

/// Weight rows of an item for a weight of `n` rows in `format`, a multiple of `block`.
pub(super) fn tile(format: Format, n: u64, block: u64, target: MatrixTarget) -> u64 {
    let wanted = match target.tiles && format.tile_activation().is_some() {
        true if n / TILES_WIDE >= MIN_COLUMNS => TILES_WIDE,
        true => TILES_TILE,
        false => [TILE, TILE / 2].into_iter().find(|tile| n / tile >= MIN_COLUMNS).unwrap_or(STRIP as u64),
    };
    whole_strips(wanted.next_multiple_of(block).min(n))
}

/// A part of a product: `columns` tiles from weight row `first`.
pub(super) struct Part {
    pub(super) tile: u64,
    pub(super) first: u64,
    pub(super) columns: u64,
}

/// Full tiles, then the rest.
pub(super) fn parts(n: u64, tile: u64) -> Vec<Part> {
    let full = Part { tile, first: 0, columns: n / tile };
    let rest = Part { tile: n % tile, first: n - n % tile, columns: 1 };
    [full, rest].into_iter().filter(|part| part.tile > 0 && part.columns > 0).collect()
}

/// [`parts`] of a weight's rows, of which a rest is whole strips, and then what is none.
pub(super) fn weight_parts(n: u64, tile: u64) -> Vec<Part> {
    let split = |part: Part| {
        let strips = part.tile / STRIP as u64 * STRIP as u64;
        if part.columns > 1 || strips == 0 || strips == part.tile {
            return vec![part];
        }
        let rest = Part { tile: part.tile - strips, first: part.first + strips, columns: 1 };
        vec![Part { tile: strips, ..part }, rest]
    };
    parts(n, tile).into_iter().flat_map(split).collect()
}

/// So many rows, or fewer: whole strips, or less than one.
pub(super) fn whole_strips(rows: u64) -> u64 {
    if rows > STRIP as u64 { rows / STRIP as u64 * STRIP as u64 } else { rows }
}

/// The kernels for tiles of `tile` weight rows, by rows, and why these.
pub(super) fn ways(format: Format, tile: u64, swiglu: bool, target: MatrixTarget) -> (Vec<Way>, &'static str) {
    let chunk = |gemm: u32, swiglu_chunk: u32| if swiglu { swiglu_chunk } else { gemm };
    let few = |rows: u32| Way { shape: Shape::Gemv, up_to_rows: rows, row_chunk: rows };
    let last = |shape, row_chunk| Way { shape, up_to_rows: u32::MAX, row_chunk };
    let gemm = last(Shape::Gemm, chunk(GEMM_CHUNK, SWIGLU_CHUNK));
    let gemv = Way { shape: Shape::Gemv, ..gemm };
    if format.rows() == 1 {
        return (vec![few(GEMV_ROWS), gemm], "as in the file: each strip is packed by the item that reads it");
    }
    let tiles = last(Shape::Tiles, chunk(TILES_CHUNK, TILES_SWIGLU_CHUNK));
    let floats = format.activation() == Format::F32;
    match (target.tiles && format.tile_activation().is_some(), tile.is_multiple_of(TILES_TILE), floats) {
        (false, _, _) => {
            (vec![few(GEMV_ROWS), gemm], "packed: a lane is a row; one row of activations at a time, then groups")
        }
        (true, false, false) => {
            (vec![few(GEMV_ROWS), gemm], "packed, but fewer rows than two tiles have: vectors only")
        }
        (true, false, true) => (vec![gemv], "packed floats, but fewer rows than two tiles have: vectors only"),
        (true, true, false) => (
            vec![few(GEMV_ROWS), Way { up_to_rows: VECTOR_ROWS, row_chunk: VECTOR_ROWS, ..gemm }, tiles],
            "packed: vectors until a block of 16 rows is full, tile products above",
        ),
        (true, true, true) => (
            vec![few(VECTOR_ROWS), tiles],
            "packed floats: vectors until a block of 16 rows is full, tile products above",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGETS: [MatrixTarget; 3] = [
        MatrixTarget { packed: false, tiles: false },
        MatrixTarget { packed: true, tiles: false },
        MatrixTarget { packed: true, tiles: true },
    ];

    #[test]
    fn parts_cover_every_row_once() {
        for (format, target) in [(Format::Q4K, TARGETS[0]), (Format::Q4KR16, TARGETS[1]), (Format::Q4KR16, TARGETS[2])]
        {
            for n in (1..2000).filter(|n| n % format.rows() as u64 == 0) {
                for block in [1, 32, 256] {
                    if n % block != 0 {
                        continue;
                    }
                    let tile = tile(format, n, block, target);
                    let parts = weight_parts(n, tile);
                    let end = parts.iter().fold(0, |at, part| {
                        assert_eq!(part.first, at, "n {n}");
                        assert_eq!(part.tile % block, 0, "n {n}");
                        assert_eq!(part.tile % format.rows() as u64, 0, "n {n}");
                        at + part.tile * part.columns
                    });
                    assert_eq!(end, n);
                }
            }
        }
    }

    #[test]
    fn ways_ascend_and_end_with_all_rows() {
        for target in TARGETS {
            for format in [Format::Q4K, Format::F16, Format::Q4KR16, Format::F16R16] {
                for tile in [32, 16, 7] {
                    for swiglu in [false, true] {
                        let (ways, _) = ways(format, tile, swiglu, target);
                        assert!(ways.windows(2).all(|pair| pair[0].up_to_rows < pair[1].up_to_rows));
                        assert_eq!(ways.last().map(|way| way.up_to_rows), Some(u32::MAX));
                        let tiles = ways.iter().any(|way| way.shape == Shape::Tiles);
                        assert_eq!(tiles, format.rows() > 1 && target.tiles && tile == 32);
                    }
                }
            }
        }
    }
}
