//! Derived tensors: weights of a graph that no file has as such. They are computed from bytes of
//! files when they are read, a few rows at a time.
//!
//! Checkpoints of Hugging Face differ from graphs. They keep each expert's matrix separately, and
//! rotate halves of heads where a graph rotates neighbours. They also store numbers in formats that
//! no kernel packs. A derived tensor gives the source of each of its elements. Its rows are those
//! of *pieces*, one after another. A piece is a strided view of one stored tensor, with a
//! conversion of its elements.
//!
//! ```text
//! rows of Q with adjacent pairs, from 8 heads of 64 with pairs half a head apart, 512 columns:
//!     rows    [8 by 64*512] [32 by 512] [2 by 32*512]
//!     columns [512 by 1]
//! row 3 is head 0, pair 1, second half: element (32 + 1) * 512
//! ```
//!
//! If columns of a matrix are stored separately, several pieces stand *beside* each other and make
//! rows together. Integers in [tiles](Tiles) are moved, with the scale of their row, into a format
//! that has both. Integers with scales by [groups](Groups) of columns are also moved.
//!
//! Numbers are rounded only if they do not fit the derived format: FP8 numbers times their scales,
//! as `f32`, become the nearest `bf16`.
//!
//! Invariant: after [`Derived::check`], reads stay inside the files.

mod element;
mod groups;
mod indexed;
mod scales;
mod tiles;

use std::ops::Range;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::format::Format;
pub use element::Element;
pub use groups::{Groups, Integers, Order, View, Zeros};
pub use indexed::Indexed;
use scales::scale;
pub use scales::{Coded, ScaleKind, Scales};
pub use tiles::Tiles;

/// Number of elements that are converted at a time.
const CHUNK: u64 = 2048;
/// Maximum rows of a transposed matrix that are read together. With bf16, a column of this many
/// rows fills two cache lines.
const TILE_ROWS: u64 = 64;
/// Columns of them that are read before they are put in rows. With bf16, that is a cache line of
/// each row, and a few KiB in all.
const TILE_COLUMNS: usize = 32;
/// Maximum distance of such rows, in elements. Rows of interleaved gate and up matrices are two
/// apart.
const MAX_STEP: u64 = 4;
/// Maximum axes of a view: twice as many as any checkpoint needs.
const MAX_AXES: usize = 8;

/// Change of each number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Change {
    /// No change.
    #[default]
    Keep,
    /// `x + 1`: the weight of a norm that multiplies by `1 + w`.
    PlusOne,
    /// `-exp(x)`: the decay of a state whose logarithm is stored.
    MinusExp,
    /// `x` times the first number, then times the second.
    Times([f32; 2]),
    /// `exp(x)`: the rate of a decay whose logarithm is stored.
    Exp,
    /// This number, for any stored number.
    Number(f32),
    /// `x` plus this number: the weight of a norm that multiplies by `w` plus a number other than
    /// 1.
    Plus(f32),
    /// `exp(-x)`: the divisor of a frequency, from the stored logarithm of a factor.
    ExpMinus,
    /// `1 / x`: a factor, from a stored divisor.
    Inverse,
    /// `x / |row|`: rows of length 1. Rows of zeros stay.
    Unit,
}

impl Change {
    fn of(self, x: f32) -> f32 {
        match self {
            Change::Keep => x,
            Change::PlusOne => x + 1.0,
            Change::MinusExp => -f64::from(x).exp() as f32,
            Change::Times([first, second]) => x * first * second,
            Change::Exp => f64::from(x).exp() as f32,
            Change::Number(number) => number,
            Change::Plus(number) => x + number,
            Change::ExpMinus => (-f64::from(x)).exp() as f32,
            Change::Inverse => 1.0 / x,
            // The divisor depends on the whole row, so this change becomes `Times` for each row.
            Change::Unit => x,
        }
    }
}

/// A digit of an index, and the number of elements that it moves by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// Number of values of the digit.
    pub len: u64,
    /// Elements from one value to the next.
    pub stride: u64,
}

/// A range of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Number of the file.
    pub file: u32,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Extent {
    fn part(&self, offset: u64, bytes: u64) -> Option<u64> {
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes).then(|| self.offset.checked_add(offset)).flatten()
    }
}

/// A strided view of a stored tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// The stored tensor.
    pub extent: Extent,
    /// Storage of its elements.
    pub element: Element,
    /// Number of the element of row 0 and column 0.
    pub first: u64,
    /// Digits of a row's number, the slowest first.
    pub rows: Vec<Axis>,
    /// Digits of a column's number, the slowest first.
    pub columns: Vec<Axis>,
    /// Scales.
    pub scales: Option<Scales>,
    /// Scales of integers.
    pub groups: Option<Box<Groups>>,
    /// Change of each number, after scaling.
    pub change: Change,
}

fn len(axes: &[Axis]) -> Option<u64> {
    axes.iter().try_fold(1u64, |product, axis| product.checked_mul(axis.len))
}

/// Returns the offset of a number's digits, in elements.
fn at(axes: &[Axis], mut number: u64) -> u64 {
    let mut element = 0;
    for axis in axes.iter().rev() {
        element += number % axis.len * axis.stride;
        number /= axis.len;
    }
    element
}

/// Returns the largest element of any row and column of a view. Returns `None` if an axis has no
/// length, or on overflow.
fn last(first: u64, rows: &[Axis], columns: &[Axis]) -> Option<u64> {
    rows.iter()
        .chain(columns)
        .try_fold(first, |element, axis| element.checked_add(axis.len.checked_sub(1)?.checked_mul(axis.stride)?))
}

impl Piece {
    /// Returns the number of its rows.
    pub fn row_count(&self) -> u64 {
        len(&self.rows).unwrap_or(0)
    }

    /// Returns the number of columns of the derived tensor that it fills, or `None` on overflow.
    fn column_count(&self) -> Option<u64> {
        len(&self.columns)?.checked_mul(self.element.columns())
    }

    /// Returns rows from `row` on, at most `whole`, that are read together. They are rows of a
    /// matrix that is stored transposed: neighbouring rows lie a few elements apart, and columns do
    /// not.
    fn tile(&self, row: u64, whole: u64) -> Option<Tile> {
        let (rows, columns) = (self.rows.last()?, self.columns.last()?);
        if !self.element.is_number()
            || columns.stride <= 1
            || rows.stride == 0
            || rows.stride > MAX_STEP
            || rows.stride >= columns.stride
            || self.change == Change::Unit
        {
            return None;
        }
        let left = rows.len - row % rows.len;
        let count = left.min(whole).min(TILE_ROWS);
        (count > 1).then_some(Tile { first: row, rows: count, step: rows.stride })
    }

    /// Returns the number of contiguous elements from `column` on.
    fn run(&self, column: u64) -> u64 {
        match self.columns.last() {
            Some(axis) if axis.stride == 1 => axis.len - column % axis.len,
            _ => 1,
        }
    }
}

/// Rows of a piece whose elements in one column lie `step` elements apart.
struct Tile {
    first: u64,
    rows: u64,
    step: u64,
}

/// A tensor that is made of other tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Derived {
    /// Format of its rows.
    pub format: Format,
    /// Numbers of a row.
    pub columns: u64,
    /// Number of pieces that stand beside each other: together they have a row's columns.
    pub beside: u32,
    /// Pieces in order of rows. Of pieces beside each other, the leftmost comes first.
    pub pieces: Vec<Piece>,
}

/// Reason why a derived tensor is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DerivedError {
    /// A file that does not exist.
    #[error("piece {piece} is in file {file}; the model has {files} files")]
    File {
        /// Number of the piece.
        piece: usize,
        /// The file.
        file: u32,
        /// Number of files.
        files: usize,
    },
    /// Bytes or elements outside their file or tensor.
    #[error("piece {piece}: the end of {what} is after the {available} available bytes")]
    Outside {
        /// Number of the piece.
        piece: usize,
        /// Name of the bytes.
        what: &'static str,
        /// Number of bytes in the file or tensor.
        available: u64,
    },
    /// Properties that do not fit together.
    #[error("piece {piece}: {what}")]
    Shape {
        /// Number of the piece.
        piece: usize,
        /// The problem.
        what: &'static str,
    },
}

/// A part of some rows of a piece, for a format that takes their integers.
pub(super) struct Part {
    /// First row of the piece, and number of rows, at most those that are read together.
    pub rows: (u64, u64),
    /// First column and number of columns: whole blocks of the format.
    pub columns: (u64, u64),
    /// Whether the part has the ends of its rows, so that their tails are read too.
    pub ends: bool,
}

/// Place to write the rows of a part.
pub(super) struct Slots<'o> {
    pub out: &'o mut [u8],
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Bytes of a row that belong to the part.
    pub at: Range<usize>,
}

/// Reads bytes of a file, by its number and the offset of the first byte. Returns false if they do
/// not exist.
pub type Fetch<'f> = dyn Fn(u32, u64, &mut [u8]) -> bool + 'f;

impl Derived {
    /// Returns a vector of numbers that no file stores. Each is made of the first four bytes of the
    /// first file, with any content.
    pub fn of_numbers(numbers: &[f32]) -> Derived {
        let one = || vec![Axis { len: 1, stride: 0 }];
        let piece = |&number: &f32| Piece {
            extent: Extent { file: 0, offset: 0, bytes: 4 },
            element: Element::F32,
            first: 0,
            rows: one(),
            columns: one(),
            scales: None,
            groups: None,
            change: Change::Number(number),
        };
        let pieces: Vec<Piece> = numbers.iter().map(piece).collect();
        Derived { format: Format::F32, columns: pieces.len() as u64, beside: pieces.len() as u32, pieces }
    }

    /// Returns the bytes of all its rows, or `None` on overflow.
    pub fn bytes(&self) -> Option<u64> {
        let mut leftmost = self.pieces.iter().step_by((self.beside as usize).max(1));
        let rows = leftmost.try_fold(0u64, |rows, piece| rows.checked_add(len(&piece.rows)?))?;
        rows.checked_mul(self.format.row_bytes(self.columns)?)
    }

    /// Returns the bytes of its stored elements, without scales, or `None` on overflow.
    pub fn stored_bytes(&self) -> Option<u64> {
        self.pieces.iter().try_fold(0u64, |sum, piece| {
            let elements = len(&piece.rows)?.checked_mul(len(&piece.columns)?)?;
            sum.checked_add(piece.element.bytes_of(elements)?)
        })
    }

    /// Checks that every element lies inside files with these lengths, and that all parts fit
    /// together.
    ///
    /// # Errors
    /// The first problem.
    pub fn check(&self, files: &[u64]) -> Result<(), DerivedError> {
        if self.bytes().is_none() || self.columns == 0 {
            return Err(DerivedError::Shape { piece: 0, what: "no columns, or too many rows" });
        }
        self.check_beside()?;
        for (number, piece) in self.pieces.iter().enumerate() {
            let wrong = |what| Err(DerivedError::Shape { piece: number, what });
            let outside = |what, available| Err(DerivedError::Outside { piece: number, what, available });
            let of_groups = piece.groups.iter().flat_map(|groups| groups.extents());
            let of_scales = piece.scales.iter().flat_map(Scales::extents);
            for extent in [piece.extent].into_iter().chain(of_scales).chain(of_groups) {
                let Some(&available) = files.get(extent.file as usize) else {
                    return Err(DerivedError::File { piece: number, file: extent.file, files: files.len() });
                };
                if extent.offset.checked_add(extent.bytes).is_none_or(|end| end > available) {
                    return outside("a stored tensor", available);
                }
            }
            if piece.rows.len() > MAX_AXES || piece.columns.len() > MAX_AXES {
                return wrong("too many axes");
            }
            if piece.rows.iter().chain(&piece.columns).any(|axis| axis.len == 0) {
                return wrong("an axis of no length");
            }
            let element = piece.element;
            let elements = last(piece.first, &piece.rows, &piece.columns).and_then(|last| last.checked_add(1));
            let end = elements.and_then(|elements| element.bytes_of(elements));
            let (Some(elements), true) = (elements, end.is_some_and(|end| end <= piece.extent.bytes)) else {
                return outside("its view", piece.extent.bytes);
            };
            let is_float = [Format::F32, Format::F16, Format::Bf16].contains(&self.format);
            if piece.change == Change::Unit && (self.beside > 1 || !is_float) {
                return wrong("rows of length 1 that are not whole rows, or not numbers");
            }
            match (element, piece.scales.as_ref()) {
                (Element::Integer(integers), _) => {
                    if let Some(what) = groups::wrong(piece, integers, self.format) {
                        return wrong(what);
                    }
                }
                _ if piece.groups.is_some() => return wrong("groups without integers"),
                (Element::Tiled(tiles), _) if !tiles::fits(piece, tiles, self.format) => {
                    return wrong(
                        "tiles that are not whole, not read row by row, or in a format without such integers",
                    );
                }
                (
                    Element::Tiled(Tiles { rows, columns, .. }),
                    Some(Scales {
                        kind: ScaleKind::Number(Element::F32),
                        extent,
                        block_rows: 1,
                        block_columns,
                        columns: of,
                    }),
                ) if [*block_columns, *of] == [columns; 2] => {
                    if rows.checked_mul(4).is_none_or(|bytes| bytes > extent.bytes) {
                        return outside("its scales", extent.bytes);
                    }
                }
                (Element::Tiled(_), _) => return wrong("tiles without an f32 for each row"),
                (Element::Mxfp4 | Element::Nvfp4, Some(Scales { kind: ScaleKind::OfBlock, extent, .. })) => {
                    if self.format != element.scaled_format() || piece.change != Change::Keep {
                        return wrong("blocks of another format");
                    }
                    let each = element.codes_apart().map_or(0, |codes| codes.scales);
                    if elements.checked_mul(each).is_none_or(|bytes| bytes > extent.bytes) {
                        return outside("its scales", extent.bytes);
                    }
                }
                (Element::Mxfp4 | Element::Nvfp4, _) => return wrong("blocks without a scale for each"),
                (_, Some(Scales { kind: ScaleKind::OfBlock, .. })) => return wrong("scales of blocks without blocks"),
                (Element::Block(format), _) if format.row().gguf_id.is_none() => {
                    return wrong("blocks of a format that files cannot have");
                }
                (Element::Block(_), Some(_)) => return wrong("scales for a format that has its own"),
                (
                    _,
                    Some(Scales {
                        kind:
                            ScaleKind::Number(
                                Element::Mxfp4
                                | Element::Nvfp4
                                | Element::F8E4m3
                                | Element::Block(_)
                                | Element::Tiled(_)
                                | Element::Integer(_)
                                | Element::Nf4
                                | Element::Fp4,
                            ),
                        ..
                    }),
                ) => {
                    return wrong("scales that are not numbers of two or four bytes");
                }
                _ if !is_float => {
                    return wrong("a format that numbers are not converted to");
                }
                (_, None) => {}
                (_, Some(scales)) => {
                    if scales.block_rows == 0 || scales.block_columns == 0 || scales.columns == 0 {
                        return wrong("scales for no rows or columns");
                    }
                    let last_row = (elements - 1) / scales.columns / scales.block_rows;
                    let each = scales.columns.div_ceil(scales.block_columns);
                    let count = last_row.checked_add(1).and_then(|rows| rows.checked_mul(each));
                    if !count.is_some_and(|count| scales.has(count)) {
                        return outside("its scales", scales.extent.bytes);
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks that pieces beside each other have equal numbers of rows, and together a row's
    /// columns.
    fn check_beside(&self) -> Result<(), DerivedError> {
        let beside = self.beside as usize;
        let wrong = |piece, what| Err(DerivedError::Shape { piece, what });
        if beside == 0 || !self.pieces.len().is_multiple_of(beside) {
            return wrong(self.pieces.len(), "the number of pieces is not a multiple of the pieces side by side");
        }
        if beside > 1 && self.format.tail_bytes() > 0 {
            return wrong(0, "pieces side by side in a format with one scale for the whole row");
        }
        let block = self.format.block_len() as u64;
        for (number, group) in self.pieces.chunks_exact(beside).enumerate() {
            let columns = group.iter().try_fold(0u64, |columns, piece| {
                let own = piece.column_count().filter(|own| beside == 1 || own.is_multiple_of(block))?;
                columns.checked_add(own)
            });
            if columns != Some(self.columns) {
                return wrong(number * beside, "other columns than the derived tensor");
            }
            if group.iter().any(|piece| len(&piece.rows) != len(&group[0].rows)) {
                return wrong(number * beside, "a different number of rows than the pieces next to it");
            }
        }
        Ok(())
    }

    /// Adds the end of the rows of each piece, so that a row is found fast among any number of
    /// pieces.
    pub fn indexed(self) -> Indexed {
        let mut rows = 0u64;
        let end = |piece: &Piece| {
            rows = rows.saturating_add(piece.row_count());
            rows
        };
        let ends = self.pieces.iter().step_by((self.beside as usize).max(1)).map(end).collect();
        Indexed { derived: self, ends }
    }

    /// Reads a part of a piece's row, from an element's column on.
    fn row(&self, piece: &Piece, row: u64, mut column: u64, out: &mut [u8], fetch: &Fetch<'_>) -> bool {
        if piece.change == Change::Unit {
            return match self.divided(piece, row, fetch) {
                Some(divided) => self.row(&divided, row, column, out, fetch),
                None => false,
            };
        }
        let base = piece.first + at(&piece.rows, row);
        // An element is a block of the format: a number, or the content of an MX block.
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

    /// Returns the piece with the numbers of one row divided by its length, or `None` if the row
    /// cannot be read.
    fn divided(&self, piece: &Piece, row: u64, fetch: &Fetch<'_>) -> Option<Piece> {
        let plain = Piece { change: Change::Keep, ..piece.clone() };
        let numbers = Derived { format: Format::F32, columns: self.columns, beside: 1, pieces: Vec::new() };
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

    /// Reads the same part of several rows of pieces beside each other: `columns` columns from
    /// `column` on. With `ends` there is also room for the rows' tails.
    fn rows_beside(
        &self,
        pieces: &[Piece],
        (row, rows): (u64, u64),
        (column, columns): (u64, u64),
        ends: bool,
        out: &mut [u8],
        fetch: &Fetch<'_>,
    ) -> bool {
        let (block_len, block_bytes) = (self.format.block_len() as u64, self.format.block_bytes() as u64);
        let bytes = |columns: u64| (columns / block_len * block_bytes) as usize;
        let stride = out.len() / rows as usize;
        let mut first = 0;
        for piece in pieces {
            let behind = first + piece.column_count().unwrap_or(0);
            let (from, to) = (column.max(first), (column + columns).min(behind));
            let only_its_end = ends && columns == 0 && column == behind;
            if from < to || only_its_end {
                let own = to.saturating_sub(from);
                let end =
                    if ends && to == behind && behind == self.columns { stride } else { bytes(from - column + own) };
                let at = bytes(from - column)..end;
                let columns = (from - first, own);
                let part = Part { rows: (row, rows), columns, ends };
                let slots = Slots { out: &mut *out, stride, at: at.clone() };
                let read = match piece.element {
                    Element::Tiled(tiles) => tiles::read(piece, tiles, self.format, &part, fetch, slots),
                    Element::Integer(integers) => groups::read(piece, integers, self.format, &part, fetch, slots),
                    _ => {
                        let mut rows = (row..).zip(out.chunks_exact_mut(stride));
                        let column = columns.0 / piece.element.columns();
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

    /// Reads rows of a matrix that is stored transposed, from a column on.
    fn tile(&self, piece: &Piece, tile: &Tile, column: u64, out: &mut [u8], fetch: &Fetch<'_>) -> bool {
        match self.format.block_bytes() {
            2 => self.tile_of::<2>(piece, tile, column, out, fetch),
            4 => self.tile_of::<4>(piece, tile, column, out, fetch),
            // No other format consists of single numbers.
            _ => false,
        }
    }

    /// Reads such rows, with elements of `BYTES` bytes. It reads some columns at a time, which are
    /// contiguous, and then writes them row by row. Neither reads nor writes then jump from cache
    /// line to cache line.
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
        // Number of elements of a column, including those between the rows.
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

    /// Reads contiguous elements.
    fn run(&self, piece: &Piece, first: u64, out: &mut [u8], count: u64, fetch: &Fetch<'_>) -> bool {
        let Piece { element, extent, scales, .. } = piece;
        if let Element::Block(format) = *element {
            let Some(x) = numbers(extent, format, first, count, fetch) else { return false };
            let each = self.format.block_bytes();
            return x
                .iter()
                .zip(out.chunks_exact_mut(each))
                .all(|(&x, out)| store(self.format, piece.change.of(x), out));
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
        // Elements of the first byte before the requested ones.
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
        x.iter().zip(out.chunks_exact_mut(each)).all(|(&x, out)| store(self.format, piece.change.of(x), out))
    }
}

/// Reads numbers of contiguous blocks, from an element on.
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

/// Writes a number in a float format. Returns false for any other format, which `check` rejects.
fn store(format: Format, x: f32, out: &mut [u8]) -> bool {
    match format {
        Format::F32 => out.copy_from_slice(&x.to_le_bytes()),
        Format::F16 => out.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
        Format::Bf16 => out.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
        _ => return false,
    }
    true
}

/// Reorders codes that share a scale. Input has neighbours in a byte. Output pairs each code of the
/// first half with one of the second half, as ggml does.
fn halves_apart(codes: &[u8], out: &mut [u8]) {
    let code = |element: usize| codes[element / 2] >> (element % 2 * 4) & 15;
    let half = out.len();
    out.iter_mut().enumerate().for_each(|(at, byte)| *byte = code(at) | code(at + half) << 4);
}

#[cfg(test)]
mod tests;
