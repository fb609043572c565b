//! Reads of a derived tensor: finding the pieces of its rows, and the locations of their bytes.

use std::ops::Range;

use super::{Axis, Change, Derivation, Element, Extent, Fetch, Piece, at, groups, tiles};

/// A derived tensor, with the end of the rows of each piece, or of each set of pieces that form
/// rows together.
#[derive(Clone, Debug)]
pub struct Indexed {
    pub(super) derived: Derivation,
    pub(super) ends: Vec<u64>,
}

impl std::ops::Deref for Indexed {
    type Target = Derivation;

    fn deref(&self) -> &Derivation {
        &self.derived
    }
}

impl Indexed {
    /// Returns the pieces that form a row together, and the number of the first row of these
    /// pieces.
    fn adjacent_pieces(&self, row: u64) -> Option<(&[Piece], u64)> {
        let number = self.ends.partition_point(|end| *end <= row);
        let first = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        let pieces_per_row = self.derived.pieces_per_row as usize;
        Some((self.pieces.get(number.checked_mul(pieces_per_row)?..)?.get(..pieces_per_row)?, first))
    }

    /// Reads the bytes from `offset` on. Returns false if the range is not whole blocks of rows, or
    /// if `fetch` fails.
    #[must_use]
    pub fn read(&self, offset: u64, out: &mut [u8], fetch: &Fetch<'_>) -> bool {
        let Some(row_bytes) = self.format.row_bytes(self.columns).filter(|&bytes| bytes > 0) else { return false };
        let (mut offset, mut out) = (offset, out);
        while !out.is_empty() {
            let within = offset % row_bytes;
            let whole = if within == 0 { out.len() as u64 / row_bytes } else { 0 };
            // Number of bytes per row: whole rows, or the requested part of one row.
            let each = if whole > 0 { row_bytes } else { (row_bytes - within).min(out.len() as u64) };
            let bytes = each * whole.max(1);
            let (part, rest) = std::mem::take(&mut out).split_at_mut(bytes as usize);
            if !self.read_rows(offset, each, part, fetch) {
                return false;
            }
            (offset, out) = (offset + bytes, rest);
        }
        true
    }

    /// Reads `each` bytes of several rows, as many rows as `out` has room for. The same range of
    /// bytes is read from each row; it must be whole blocks. `offset` is the start of this range in
    /// the first row. Returns false in the same cases as [`Indexed::read`].
    #[must_use]
    pub fn read_rows(&self, offset: u64, each: u64, out: &mut [u8], fetch: &Fetch<'_>) -> bool {
        let (block_len, block_bytes) = (self.format.block_len() as u64, self.format.block_bytes() as u64);
        let Some(row_bytes) = self.format.row_bytes(self.columns).filter(|&bytes| bytes > 0) else { return false };
        let (mut row, within) = (offset / row_bytes, offset % row_bytes);
        let whole = |bytes: u64| bytes.is_multiple_of(block_bytes);
        let tail = self.format.tail_bytes() as u64;
        // Whether the requested bytes include the row's tail.
        let ends = within + each.min(row_bytes) == row_bytes;
        let blocks = if ends { each.saturating_sub(tail) } else { each };
        if each == 0
            || each > row_bytes - within
            || within + blocks > row_bytes - tail
            || !whole(within)
            || !whole(blocks)
            || !(out.len() as u64).is_multiple_of(each)
        {
            return out.is_empty();
        }
        let mut out = out;
        while !out.is_empty() {
            let Some((pieces, first)) = self.adjacent_pieces(row) else { return false };
            let (number, left) = (row - first, out.len() as u64 / each);
            let column = within / block_bytes * block_len;
            let one = match pieces {
                [piece] if !matches!(piece.element, Element::Tiled(_) | Element::Integer(_)) => Some(piece),
                _ => None,
            };
            let tile = one.and_then(|piece| piece.tile(number, left));
            let rows = match (&tile, one) {
                (Some(tile), _) => tile.rows,
                (None, Some(_)) => 1,
                (None, None) => left.min(together(pieces, number)),
            };
            let (part, rest) = std::mem::take(&mut out).split_at_mut((rows * each) as usize);
            let read = match (&tile, one) {
                (Some(tile), Some(piece)) => {
                    self.derived.tile(piece, tile, column / piece.element.columns(), part, fetch)
                }
                (_, Some(piece)) => self.derived.row(piece, number, column / piece.element.columns(), part, fetch),
                (_, None) => {
                    let columns = column..column + blocks / block_bytes * block_len;
                    self.derived.rows_beside(pieces, number..number + rows, columns, ends, part, fetch)
                }
            };
            if !read {
                return false;
            }
            (row, out) = (row + rows, rest);
        }
        true
    }

    /// Returns the approximate sources of a range of bytes. Each piece that provides some of these
    /// bytes gives the extent from its first byte to its last.
    pub fn spans(&self, offset: u64, bytes: u64) -> Vec<Extent> {
        let mut spans = Vec::new();
        let Some(row_bytes) = self.format.row_bytes(self.columns).filter(|&bytes| bytes > 0) else { return spans };
        let (mut row, end) = (offset / row_bytes, offset.saturating_add(bytes).div_ceil(row_bytes));
        while row < end {
            let Some((pieces, before)) = self.adjacent_pieces(row) else { break };
            let behind = before.saturating_add(pieces.first().map_or(0, Piece::row_count));
            let (first, last) = (row - before, end.min(behind) - 1 - before);
            for piece in pieces {
                let elements: Vec<u64> = [first, last].iter().map(|&row| piece.first + at(&piece.rows, row)).collect();
                let width: u64 = piece.columns.iter().map(|axis| (axis.len - 1) * axis.stride).sum();
                let from = elements[0].min(elements[1]);
                let count = elements[0].max(elements[1]) + width + 1 - from;
                if let Some((from, bytes)) = piece.element.span(from, count)
                    && let Some(offset) = piece.extent.part(from, bytes)
                {
                    spans.push(Extent { file: piece.extent.file, offset, bytes });
                }
            }
            row = behind;
        }
        spans
    }

    /// Returns the file and the offset of bytes that a file stores unchanged. Returns `None` if the
    /// bytes need a conversion.
    pub fn place(&self, offset: u64, bytes: u64) -> Option<(u32, u64)> {
        let row_bytes = self.format.row_bytes(self.columns).filter(|&row| row > 0)?;
        if !offset.is_multiple_of(row_bytes) || !bytes.is_multiple_of(row_bytes) {
            return None;
        }
        let ([piece], before) = self.adjacent_pieces(offset / row_bytes)? else { return None };
        let (row, count) = (offset / row_bytes - before, bytes / row_bytes);
        let kept =
            piece.element.format() == Some(self.format) && piece.scales.is_none() && piece.change == Change::Keep;
        if !kept || row + count > piece.row_count() {
            return None;
        }
        let first = piece.first + at(&piece.rows, row);
        let width = self.columns / piece.element.columns().max(1);
        if !follow(&piece.columns, 1, 0..width) || !follow(&piece.rows, width, row..row + count) {
            return None;
        }
        let (first, _) = piece.element.span(first, 0)?;
        Some((piece.extent.file, piece.extent.part(first, bytes)?))
    }
}

/// Whether neighbouring indices of a range are elements `step` apart. An axis whose digit is the
/// same in the whole range does not matter.
fn follow(axes: &[Axis], step: u64, range: Range<u64>) -> bool {
    let (mut step, mut inner) = (step, 1u64);
    for axis in axes.iter().rev() {
        if range.start % inner + (range.end - range.start) <= inner {
            return true;
        }
        if axis.len > 1 && axis.stride != step {
            return false;
        }
        (step, inner) = (step.saturating_mul(axis.len), inner.saturating_mul(axis.len));
    }
    true
}

/// Returns the number of rows from `row` on that are read together from pieces that form rows
/// together.
fn together(pieces: &[Piece], row: u64) -> u64 {
    let each = pieces.iter().map(|piece| match piece.element {
        Element::Tiled(tiles) => tiles::together(piece, tiles, row),
        Element::Integer(_) => groups::together(piece, row),
        _ => 1,
    });
    each.min().unwrap_or(1).max(1)
}
