//! Matrices of integers in tiles, in the layout of AMX operands. kt-kernel (KTransformers) writes
//! experts in this form: the `BufferB` of its kernels for 8 and 4 bits.
//!
//! A matrix of `n` rows and `k` columns is cut into blocks of `block_rows` rows, and each of those
//! into blocks of `block_columns` columns. The last block in each direction has the remainder. The
//! rows of a block form *bands* of 32. In a band, 64 bytes of each row form a *tile* of 2048 bytes,
//! in two *halves* of 16 rows. In a half, 64 bytes of a row are 16 dwords. Dwords of all rows with
//! the same number are adjacent (the layout of TDPBSSD's second operand).
//!
//! ```text
//! nb = r - r % block_rows,    h = min(block_rows, n - nb)
//! kb = c - c % block_columns, w = min(block_columns, k - kb)
//! byte of row r and column c, 8 bits:
//!     nb * k + kb * h + (r - nb) / 32 * 32 * w + (c - kb) / 64 * 2048      the tile
//!     + r % 32 / 16 * 1024 + c % 64 / 4 * 64 + r % 16 * 4 + c % 4          in it
//! ```
//!
//! With four bits, a row's 64 bytes are 128 columns: byte `i` has column `i` in its low nibble and
//! column `i + 64` in its high one. All other terms of the formula are half as large. Integers are
//! in two's complement.

mod read;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Change, Extent, Fetch, Piece};
use crate::format::Format;
pub(super) use read::read;

/// Number of rows of a band of a block.
const BAND: u64 = 32;
/// Number of rows of half a tile, which are read together.
pub(super) const HALF_ROWS: u64 = 16;
/// Number of bytes of a row in a tile.
const ROW_BYTES: u64 = 64;
/// Number of bytes of half a tile.
const HALF_BYTES: usize = (HALF_ROWS * ROW_BYTES) as usize;
/// Number of bytes of one dword of a row.
const DWORD: usize = 4;

/// Layout of a matrix of integers in tiles. Views of the matrix count its integers row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tiles {
    /// Number of bits of an integer: 8 or 4.
    pub bits: u8,
    /// Number of rows of the matrix.
    pub rows: u64,
    /// Number of columns of the matrix.
    pub columns: u64,
    /// Number of rows of a block.
    pub block_rows: u64,
    /// Number of columns of a block.
    pub block_columns: u64,
}

impl Tiles {
    /// Returns the number of integers in a byte.
    pub(super) fn per_byte(self) -> u64 {
        if self.bits == 4 { 2 } else { 1 }
    }

    /// Returns the number of columns of a tile.
    fn tile_columns(self) -> u64 {
        ROW_BYTES * self.per_byte()
    }

    /// Returns the number of bytes of the matrix, or `None` if it does not divide into whole tiles,
    /// or on overflow.
    pub fn bytes(self) -> Option<u64> {
        let whole = |len: u64, of: u64| len > 0 && len.is_multiple_of(of);
        let tile = self.tile_columns();
        let is_whole = matches!(self.bits, 4 | 8)
            && whole(self.rows, BAND)
            && whole(self.block_rows, BAND)
            && whole(self.columns, tile)
            && whole(self.block_columns, tile);
        Some(self.rows.checked_mul(self.columns)? / self.per_byte()).filter(|_| is_whole)
    }

    /// Returns the byte range of the blocks of rows that contain `count` integers from `first` on:
    /// the offset and the number of bytes.
    pub(super) fn span(self, first: u64, count: u64) -> Option<(u64, u64)> {
        self.bytes()?;
        let end = first.checked_add(count)?.div_ceil(self.columns);
        if end > self.rows {
            return None;
        }
        let begin = first / self.columns / self.block_rows * self.block_rows;
        let end = end.div_ceil(self.block_rows).saturating_mul(self.block_rows).min(self.rows);
        let bytes = |rows: u64| rows * self.columns / self.per_byte();
        Some((bytes(begin), bytes(end.saturating_sub(begin))))
    }

    /// Returns the offset of the half tile that contains a row and a column.
    fn half(self, row: u64, column: u64) -> u64 {
        let (in_rows, in_columns) = (row % self.block_rows, column % self.block_columns);
        let (block_row, block_column) = (row - in_rows, column - in_columns);
        let height = self.block_rows.min(self.rows - block_row);
        let width = self.block_columns.min(self.columns - block_column);
        let tile = in_columns / self.tile_columns();
        let integers = block_row * self.columns
            + block_column * height
            + in_rows / BAND * BAND * width
            + tile * BAND * self.tile_columns();
        integers / self.per_byte() + in_rows % BAND / HALF_ROWS * HALF_BYTES as u64
    }

    /// Reads the integers of some rows of one half tile, from `column` on, for the columns of whole
    /// tiles. `out` gets the bits of each integer in one byte, row by row.
    fn read(self, extent: &Extent, rows: Range<u64>, column: u64, out: &mut [u8], fetch: &Fetch<'_>) -> bool {
        const NIBBLES: u32 = 0x0f0f_0f0f;
        let tile = self.tile_columns() as usize;
        let width = out.len() / (rows.end - rows.start) as usize;
        let mut half = [0u8; HALF_BYTES];
        for from in (0..width).step_by(tile) {
            let at = self.half(rows.start, column + from as u64);
            let Some(place) = extent.part(at, HALF_BYTES as u64) else { return false };
            if !fetch(extent.file, place, &mut half) {
                return false;
            }
            let dwords = half.as_chunks::<DWORD>().0;
            for (number, out) in rows.clone().zip(out.chunks_exact_mut(width)) {
                let own = dwords[(number % HALF_ROWS) as usize..].iter().step_by(HALF_ROWS as usize);
                let out = out[from..][..tile].as_chunks_mut::<DWORD>().0;
                if self.bits == 4 {
                    let (low, high) = out.split_at_mut(out.len() / 2);
                    for ((low, high), dword) in low.iter_mut().zip(high).zip(own) {
                        let dword = u32::from_le_bytes(*dword);
                        (*low, *high) = ((dword & NIBBLES).to_le_bytes(), (dword >> 4 & NIBBLES).to_le_bytes());
                    }
                } else {
                    out.iter_mut().zip(own).for_each(|(out, dword)| *out = *dword);
                }
            }
        }
        true
    }
}

/// Returns the number of rows from `row` on that lie in the same half tile.
pub(super) fn together(piece: &Piece, tiles: Tiles, row: u64) -> u64 {
    let stored = piece.first / tiles.columns + row;
    (HALF_ROWS - stored % HALF_ROWS).min(piece.row_count().saturating_sub(row))
}

/// Whether a piece consists of whole rows of a matrix with one scale for each row, and the format
/// can hold the integers.
pub(super) fn fits(piece: &Piece, tiles: Tiles, format: Format) -> bool {
    let changes = match piece.change {
        Change::Keep | Change::Times(_) => true,
        Change::PlusOne
        | Change::MinusExp
        | Change::Exp
        | Change::ExpMinus
        | Change::Number(_)
        | Change::Plus(_)
        | Change::Inverse
        | Change::Unit => false,
    };
    // A view of one row has no axis of rows.
    let rows = piece.rows.iter().all(|axis| axis.stride == tiles.columns) && piece.rows.len() <= 1;
    let columns = piece.columns.iter().all(|axis| axis.stride == 1) && piece.columns.len() == 1;
    // A view may begin at any row, but must have all columns.
    let columns = columns && piece.first.is_multiple_of(tiles.columns) && piece.columns[0].len == tiles.columns;
    changes && rows && columns && tiles.bytes().is_some() && format.takes_integers(tiles.bits.into())
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, Derivation, Element, ScaleKind, Scales};
    use super::*;

    /// Packs a matrix as kt-kernel does: block by block, band by band, tile by tile. In each half
    /// tile, rows are transposed by dwords.
    fn pack(integers: &[i8], tiles: Tiles) -> Vec<u8> {
        let Tiles { bits, rows, columns, block_rows, block_columns } = tiles;
        let each = if bits == 4 { 128 } else { 64 };
        let at = |row: u64, column: u64| integers[(row * columns + column) as usize] as u8;
        let mut out = Vec::new();
        for block_row in (0..rows).step_by(block_rows as usize) {
            let last_row = (block_row + block_rows).min(rows);
            for block_column in (0..columns).step_by(block_columns as usize) {
                let last_column = (block_column + block_columns).min(columns);
                for band in (block_row..last_row).step_by(32) {
                    for tile in (block_column..last_column).step_by(each) {
                        for half in [band, band + 16] {
                            let byte = |row: u64, byte: u64| match bits {
                                4 => at(row, tile + byte) & 15 | at(row, tile + byte + 64) << 4,
                                _ => at(row, tile + byte),
                            };
                            let dwords = (0..16).flat_map(|dword| (0..16).map(move |row| (dword, row)));
                            out.extend(
                                dwords.flat_map(|(dword, row)| [0, 1, 2, 3].map(|b| byte(half + row, 4 * dword + b))),
                            );
                        }
                    }
                }
            }
        }
        out
    }

    struct Matrix {
        tiles: Tiles,
        integers: Vec<i8>,
        scales: Vec<f32>,
    }

    fn matrix(bits: u8, [rows, columns]: [u64; 2], seed: u64) -> Matrix {
        let mut random = crate::random::Random::new(seed);
        let (block_rows, block_columns) = (64, if bits == 4 { 384 } else { 192 });
        let tiles = Tiles { bits, rows, columns, block_rows, block_columns };
        let most = f32::from(1i16 << (bits - 1));
        let integers = (0..rows * columns).map(|_| (random.signed() * most).floor() as i8).collect();
        Matrix { tiles, integers, scales: (0..rows).map(|_| random.signed()).collect() }
    }

    /// Appends the matrix and its scales to a file, and returns a piece of all rows.
    fn piece(matrix: &Matrix, file: &mut Vec<u8>) -> Piece {
        let mut add = |bytes: &[u8]| {
            let offset = file.len() as u64;
            file.extend(bytes);
            Extent { file: 0, offset, bytes: bytes.len() as u64 }
        };
        let Tiles { rows, columns, .. } = matrix.tiles;
        let extent = add(&pack(&matrix.integers, matrix.tiles));
        let scales = add(&matrix.scales.iter().flat_map(|d| d.to_le_bytes()).collect::<Vec<_>>());
        let kind = ScaleKind::Number(Element::F32);
        let axis = |len, stride| vec![Axis { len, stride }];
        Piece {
            extent,
            element: Element::Tiled(matrix.tiles),
            first: 0,
            rows: axis(rows, columns),
            columns: axis(columns, 1),
            scales: Some(Scales { extent: scales, kind, block_rows: 1, block_columns: columns, columns }),
            groups: None,
            change: Change::Keep,
        }
    }

    fn numbers(matrix: &Matrix, row: u64) -> Vec<f32> {
        let columns = matrix.tiles.columns as usize;
        let integers = &matrix.integers[row as usize * columns..][..columns];
        integers.iter().map(|q| matrix.scales[row as usize] * f32::from(*q)).collect()
    }

    fn read(derived: &Derivation, file: &[u8], step: usize) -> Vec<u8> {
        let fetch = |_: u32, offset: u64, out: &mut [u8]| {
            out.copy_from_slice(&file[offset as usize..][..out.len()]);
            true
        };
        let derived = derived.clone().with_index();
        let mut all = vec![0xee; derived.bytes().unwrap() as usize];
        for (at, part) in (0..).step_by(step).zip(all.chunks_mut(step)) {
            assert!(derived.read(at, part, &fetch), "{step} bytes from {at} on");
        }
        all
    }

    /// Tests whole and partial blocks, rows of two matrices, and reads that begin and end at
    /// arbitrary offsets.
    #[test]
    fn ktransformers_tiles_become_rows() {
        for (bits, format) in [(8, Format::I8Row), (4, Format::I4Row)] {
            let columns = if bits == 4 { 640 } else { 320 };
            let matrices = [matrix(bits, [160, columns], 1), matrix(bits, [64, columns], 2)];
            let mut file = vec![1, 2, 3];
            let pieces = matrices.iter().map(|matrix| piece(matrix, &mut file)).collect();
            let derived = Derivation { format, columns, pieces_per_row: 1, pieces };
            derived.check(&[file.len() as u64]).unwrap();
            let expected: Vec<f32> = matrices
                .iter()
                .flat_map(|matrix| (0..matrix.tiles.rows).flat_map(move |row| numbers(matrix, row)))
                .collect();
            let row_bytes = format.row_bytes(columns).unwrap() as usize;
            let all = read(&derived, &file, row_bytes);
            assert_eq!(format.dequantise_rows(&all, columns as usize), expected);
            for step in [5 * row_bytes, 16 * row_bytes, 33 * row_bytes, all.len()] {
                assert!(read(&derived, &file, step) == all, "{step} bytes at a time");
            }
            // Reads a row's blocks, and its tail.
            let fetch = |_: u32, offset: u64, out: &mut [u8]| {
                out.copy_from_slice(&file[offset as usize..][..out.len()]);
                true
            };
            let indexed = derived.with_index();
            let block = format.block_bytes();
            for (from, bytes) in [(0, block), (3 * block, block), (block, row_bytes - block), (row_bytes - 4, 4)] {
                let mut out = vec![0xee; bytes];
                assert!(indexed.read((7 * row_bytes + from) as u64, &mut out, &fetch));
                assert_eq!(out, all[7 * row_bytes + from..][..bytes], "{format}: {bytes} bytes from {from} on");
            }
            assert!(!indexed.read(0, &mut vec![0; block + 1], &fetch) && !indexed.read(1, &mut vec![0; block], &fetch));
            assert_eq!(indexed.place(0, row_bytes as u64), None);
            // Rows 32 to 95 of the tensor lie in two blocks of rows of the first matrix.
            let bytes = |rows: u64| rows * columns * u64::from(bits) / 8;
            let spans = indexed.spans(32 * row_bytes as u64, 64 * row_bytes as u64);
            assert_eq!(spans, [Extent { file: 0, offset: 3, bytes: bytes(128) }]);
        }
    }

    /// Tests a matrix whose columns are divided between several NUMA nodes, each with its own
    /// scales.
    #[test]
    fn adjacent_parts_keep_their_scales() {
        for (bits, format) in [(8, Format::I8D64), (4, Format::I4D128)] {
            let columns = if bits == 4 { 640 } else { 320 };
            let matrices = [1, 2, 3, 4].map(|seed| matrix(bits, [96, columns], seed));
            let mut file = Vec::new();
            let pieces = matrices.iter().map(|matrix| piece(matrix, &mut file)).collect();
            let derived = Derivation { format, columns: 2 * columns, pieces_per_row: 2, pieces };
            derived.check(&[file.len() as u64]).unwrap();
            let row_bytes = format.row_bytes(2 * columns).unwrap() as usize;
            let all = read(&derived, &file, 192 * row_bytes);
            let expected: Vec<f32> = matrices
                .chunks(2)
                .flat_map(|pair| (0..96).flat_map(move |row| pair.iter().flat_map(move |matrix| numbers(matrix, row))))
                .collect();
            assert_eq!(format.dequantise_rows(&all, 2 * columns as usize), expected);
            for step in [format.block_bytes(), 3 * format.block_bytes(), row_bytes, 17 * row_bytes] {
                assert!(read(&derived, &file, step) == all, "{step} bytes at a time");
            }
            // The middle columns of some rows, from both pieces.
            let each = 4 * format.block_bytes();
            let within = (3 * format.block_bytes()) as u64;
            let fetch = |_: u32, offset: u64, out: &mut [u8]| {
                out.copy_from_slice(&file[offset as usize..][..out.len()]);
                true
            };
            let mut out = vec![0xee; 21 * each];
            let offset = 90 * row_bytes as u64 + within;
            assert!(derived.clone().with_index().read_rows(offset, each as u64, &mut out, &fetch));
            for (row, out) in (90..).zip(out.chunks(each)) {
                assert_eq!(out, &all[row * row_bytes + within as usize..][..each], "row {row}");
            }
            let mut bad = derived.clone();
            bad.pieces.swap_remove(3);
            assert!(bad.check(&[file.len() as u64]).unwrap_err().to_string().contains("the pieces side by side"));
            let mut bad = derived.clone();
            bad.pieces[1].rows[0].len = 64;
            assert!(
                bad.check(&[file.len() as u64])
                    .unwrap_err()
                    .to_string()
                    .contains("rows do not match the pieces next to it")
            );
            let bad = Derivation { format: if bits == 4 { Format::I4Row } else { Format::I8Row }, ..derived };
            assert!(bad.check(&[file.len() as u64]).unwrap_err().to_string().contains("one scale for the whole row"));
        }
    }

    #[test]
    fn invalid_tiled_matrices_are_refused() {
        let mut file = Vec::new();
        let good = piece(&matrix(8, [64, 128], 1), &mut file);
        let with = |change: &dyn Fn(&mut Piece, &mut Tiles)| {
            let mut piece = good.clone();
            let Element::Tiled(mut tiles) = piece.element else { unreachable!("it is in tiles") };
            change(&mut piece, &mut tiles);
            piece.element = if piece.element == good.element { Element::Tiled(tiles) } else { piece.element };
            let derived = Derivation { format: Format::I8Row, columns: 128, pieces_per_row: 1, pieces: vec![piece] };
            derived.check(&[file.len() as u64]).map_err(|error| error.to_string())
        };
        with(&|_, _| ()).unwrap();
        // A piece with only some of the matrix's rows is valid.
        with(&|piece, _| (piece.first, piece.rows[0].len) = (128 * 5, 20)).unwrap();
        let says = |change: &dyn Fn(&mut Piece, &mut Tiles), says: &str| {
            let found = with(change);
            assert!(found.clone().unwrap_err().contains(says), "{found:?}: {says}");
        };
        let tiled = "tiles must be whole";
        says(&|_, tiles| tiles.bits = 3, "the end of its view is after");
        says(&|_, tiles| tiles.bits = 0, "the end of its view is after");
        says(&|_, tiles| tiles.block_rows = 48, "the end of its view is after");
        says(&|_, tiles| tiles.block_columns = 0, "the end of its view is after");
        says(&|_, tiles| tiles.rows = 32, "the end of its view is after");
        says(&|_, tiles| tiles.rows = !31, "the end of its view is after");
        says(&|_, tiles| tiles.columns = 0, "the end of its view is after");
        says(&|piece, _| piece.first = 128, "the end of its view is after");
        says(&|piece, _| (piece.first, piece.rows[0].len) = (1, 3), tiled);
        says(&|piece, _| piece.rows[0].stride = 64, tiled);
        says(&|piece, _| piece.change = Change::PlusOne, tiled);
        says(&|_, tiles| (tiles.bits, tiles.block_columns) = (4, 128), tiled);
        says(&|piece, _| piece.scales = None, "tiles lack an f32 scale for each row");
        says(&|piece, _| piece.scales.as_mut().unwrap().block_rows = 2, "tiles lack an f32 scale for each row");
        says(&|piece, _| piece.scales.as_mut().unwrap().columns = 64, "tiles lack an f32 scale for each row");
        says(&|piece, _| piece.scales.as_mut().unwrap().extent.bytes = 255, "the end of its scales is after");
        says(&|piece, _| piece.extent.bytes -= 1, "the end of its view is after");
    }
}
