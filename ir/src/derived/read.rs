//! Conversion of stored elements into rows of a derived tensor.

use std::ops::Range;

use super::scales::scale;
use super::{Change, Derivation, Element, Extent, Fetch, Part, Piece, Slots, Tile, at, groups, store, tiles};
use crate::format::Format;

/// Number of elements that are converted at a time.
pub(super) const CHUNK: u64 = 2048;
/// Number of columns of a transposed matrix that are read before their elements are written to the
/// derived rows. In each row, 32 columns of bf16 fill one cache line of 64 bytes.
const TILE_COLUMNS: usize = 32;

impl Derivation {
    /// Reads columns of one row of a piece, from `column` on, which must be the start of an
    /// element.
    pub(super) fn row(&self, piece: &Piece, row: u64, mut column: u64, out: &mut [u8], fetch: &Fetch<'_>) -> bool {
        if piece.change == Change::Unit {
            return match self.with_unit_length(piece, row, fetch) {
                Some(divided) => self.row(&divided, row, column, out, fetch),
                None => false,
            };
        }
        let base = piece.first + at(&piece.rows, row);
        // An element is what one block of the derived format holds: a number, or the content of an
        // MX block.
        let each = self.format.block_bytes() as u64;
        let mut out = out;
        while !out.is_empty() {
            let count = piece.run(column).min(out.len() as u64 / each).min(CHUNK);
            if count == 0 {
                return false;
            }
            let (part, rest) = std::mem::take(&mut out).split_at_mut((count * each) as usize);
            if !self.run(piece, base + at(&piece.columns, column), part, count, fetch) {
                return false;
            }
            (column, out) = (column + count, rest);
        }
        true
    }

    /// Returns the piece with a factor that scales this row to length 1, or `None` if the row
    /// cannot be read.
    fn with_unit_length(&self, piece: &Piece, row: u64, fetch: &Fetch<'_>) -> Option<Piece> {
        let plain = Piece { change: Change::Keep, ..piece.clone() };
        let numbers = Derivation { format: Format::F32, columns: self.columns, pieces_per_row: 1, pieces: Vec::new() };
        let (mut squares, mut part) = (0.0, vec![0u8; 4 * CHUNK.min(self.columns) as usize]);
        for column in (0..self.columns).step_by(CHUNK as usize) {
            let part = &mut part[..4 * (self.columns - column).min(CHUNK) as usize];
            if !numbers.row(&plain, row, column, part, fetch) {
                return None;
            }
            let of = part.as_chunks::<4>().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
            squares += of.map(|x| x * x).sum::<f64>();
        }
        let factor = if squares > 0.0 { 1.0 / squares.sqrt() } else { 0.0 };
        Some(Piece { change: Change::Times([factor as f32, 1.0]), ..plain })
    }

    /// Reads the same columns of several rows from pieces that form rows together. With `ends`,
    /// `out` also has room for the tails of the rows.
    pub(super) fn rows_beside(
        &self,
        pieces: &[Piece],
        rows: Range<u64>,
        columns: Range<u64>,
        ends: bool,
        out: &mut [u8],
        fetch: &Fetch<'_>,
    ) -> bool {
        let (block_len, block_bytes) = (self.format.block_len() as u64, self.format.block_bytes() as u64);
        let bytes = |columns: u64| (columns / block_len * block_bytes) as usize;
        let stride = out.len() / (rows.end - rows.start) as usize;
        let mut first = 0;
        for piece in pieces {
            let behind = first + piece.column_count().unwrap_or(0);
            let (from, to) = (columns.start.max(first), columns.end.min(behind));
            let only_its_end = ends && columns.is_empty() && columns.start == behind;
            if from < to || only_its_end {
                let own = to.saturating_sub(from);
                let begin = from - columns.start;
                let end = if ends && to == behind && behind == self.columns { stride } else { bytes(begin + own) };
                let at = bytes(begin)..end;
                let own_columns = from - first..from - first + own;
                let column = own_columns.start / piece.element.columns();
                let part = Part { rows: rows.clone(), columns: own_columns, ends };
                let slots = Slots { out: &mut *out, stride, at: at.clone() };
                let read = match piece.element {
                    Element::Tiled(tiles) => tiles::read(piece, tiles, self.format, &part, fetch, slots),
                    Element::Integer(integers) => groups::read(piece, integers, self.format, &part, fetch, slots),
                    _ => {
                        let mut rows = rows.clone().zip(out.chunks_exact_mut(stride));
                        rows.all(|(row, out)| self.row(piece, row, column, &mut out[at.clone()], fetch))
                    }
                };
                if !read {
                    return false;
                }
            }
            first = behind;
        }
        true
    }

    /// Reads some rows of a matrix that is stored transposed, from `column` on.
    pub(super) fn tile(&self, piece: &Piece, tile: &Tile, column: u64, out: &mut [u8], fetch: &Fetch<'_>) -> bool {
        match self.format.block_bytes() {
            2 => self.tile_of::<2>(piece, tile, column, out, fetch),
            4 => self.tile_of::<4>(piece, tile, column, out, fetch),
            // All other formats consist of blocks, which this function does not write.
            _ => false,
        }
    }

    /// Reads rows of a transposed matrix with elements of `BYTES` bytes. It reads a few stored
    /// columns at a time, which are contiguous, and then writes them row by row. This way, neither
    /// reads nor writes access a new cache line for each element.
    fn tile_of<const BYTES: usize>(
        &self,
        piece: &Piece,
        tile: &Tile,
        column: u64,
        out: &mut [u8],
        fetch: &Fetch<'_>,
    ) -> bool {
        let base = piece.first + at(&piece.rows, tile.first);
        let (rows, step) = (tile.rows as usize, tile.step as usize);
        // Number of stored elements from the first to the last row, including elements between
        // them.
        let count = (rows - 1) * step + 1;
        let row_bytes = out.len() / rows;
        let mut columns = vec![0u8; TILE_COLUMNS * count * BYTES];
        for (block, from) in (0u64..).zip((0..row_bytes).step_by(TILE_COLUMNS * BYTES)) {
            let width = (row_bytes - from).min(TILE_COLUMNS * BYTES);
            let first = column + block * TILE_COLUMNS as u64;
            let stored = columns.chunks_exact_mut(count * BYTES).take(width / BYTES);
            for (number, column) in (first..).zip(stored) {
                if !self.run(piece, base + at(&piece.columns, number), column, count as u64, fetch) {
                    return false;
                }
            }
            let elements = columns.as_chunks::<BYTES>().0;
            for (row, out) in out.chunks_exact_mut(row_bytes).enumerate() {
                let of_row = elements[row * step..].iter().step_by(count);
                let out = out[from..from + width].as_chunks_mut::<BYTES>().0;
                out.iter_mut().zip(of_row).for_each(|(out, element)| *out = *element);
            }
        }
        true
    }

    /// Reads `count` contiguous elements and converts them to the derived format.
    fn run(&self, piece: &Piece, first: u64, out: &mut [u8], count: u64, fetch: &Fetch<'_>) -> bool {
        let Piece { element, extent, scales, .. } = piece;
        if let Element::Block(format) = *element {
            let Some(x) = numbers(extent, format, first, count, fetch) else { return false };
            let each = self.format.block_bytes();
            return x
                .iter()
                .zip(out.chunks_exact_mut(each))
                .all(|(&x, out)| store(self.format, piece.change.apply(x), out));
        }
        let Some((from, bytes)) = element.span(first, count) else { return false };
        let Some(place) = extent.part(from, bytes) else { return false };
        if element.format() == Some(self.format) && piece.change == Change::Keep && scales.is_none() {
            return fetch(extent.file, place, out);
        }
        let mut stored = vec![0u8; bytes as usize];
        if !fetch(extent.file, place, &mut stored) {
            return false;
        }
        if let (Some(codes), Some(scales)) = (element.codes_apart(), scales) {
            let (each, shared) = (codes.scales as usize, codes.shared as usize);
            let mut bytes = vec![0u8; count as usize * each];
            let Some(place) = scales.extent.part(first * codes.scales, bytes.len() as u64) else { return false };
            if !fetch(scales.extent.file, place, &mut bytes) {
                return false;
            }
            let blocks = out.chunks_exact_mut(each + codes.bytes() as usize);
            let stored = stored.chunks_exact(codes.bytes() as usize);
            for ((block, codes), scales) in blocks.zip(stored).zip(bytes.chunks_exact(each)) {
                let (to, codes_to) = block.split_at_mut(each);
                to.copy_from_slice(scales);
                let of_scales = codes_to.chunks_exact_mut(shared / 2).zip(codes.chunks_exact(shared / 2));
                of_scales.for_each(|(to, codes)| halves_apart(codes, to));
            }
            return true;
        }
        // Number of elements in the first byte before the requested ones.
        let skipped = (first % element.block().0) as usize;
        let mut x = vec![0f32; skipped + count as usize];
        element.floats(&stored, &mut x);
        let x = &mut x[skipped..];
        if let Some(scales) = scales
            && !scale(scales, first, x, fetch)
        {
            return false;
        }
        let each = self.format.block_bytes();
        x.iter().zip(out.chunks_exact_mut(each)).all(|(&x, out)| store(self.format, piece.change.apply(x), out))
    }
}

/// Reads `count` numbers of contiguous blocks, from the number `first` on.
fn numbers(extent: &Extent, format: Format, first: u64, count: u64, fetch: &Fetch<'_>) -> Option<Vec<f32>> {
    let (from, bytes) = Element::Block(format).span(first, count)?;
    let mut stored = vec![0u8; bytes as usize];
    if !fetch(extent.file, extent.part(from, bytes)?, &mut stored) {
        return None;
    }
    let len = format.block_len();
    let mut x = vec![0f32; stored.len() / format.block_bytes() * len];
    format.dequantise(&stored, &mut x);
    let skipped = (first % len as u64) as usize;
    Some(x.get(skipped..skipped + count as usize)?.to_vec())
}

/// Reorders codes that share a scale. In the input, a byte has two neighbours. In the output, it
/// has one code of the first half and one of the second half, as in ggml's formats.
fn halves_apart(codes: &[u8], out: &mut [u8]) {
    let code = |element: usize| codes[element / 2] >> (element % 2 * 4) & 15;
    let half = out.len();
    out.iter_mut().enumerate().for_each(|(at, byte)| *byte = code(at) | code(at + half) << 4);
}
