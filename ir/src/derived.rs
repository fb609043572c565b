//! Derived tensors: what a graph calls a weight and no file has as such, made of the bytes of files when it is read, a few rows at a time.
//!
//! Checkpoints of Hugging Face keep each expert's matrix for itself, rotate halves of heads where a graph turns neighbours, and store
//! numbers in formats that no kernel packs. A derived tensor says where each of its elements comes from: its rows are those of *pieces*, one
//! behind the other, and a piece is a strided view of one stored tensor, whose elements are converted on the way.
//!
//! ```text
//! rows of Q whose pairs lie side by side, of 8 heads of 64 whose pairs lie half a head apart, 512 columns:
//!     rows    [8 by 64*512] [32 by 512] [2 by 32*512]        row 3 is head 0, pair 1, second half: element (32 + 1) * 512
//!     columns [512 by 1]
//! ```
//!
//! Where columns of a matrix are stored apart, so many pieces stand *beside* each other, and make rows together. Integers in [tiles](Tiles) are moved, with the
//! scale of their row, into a format that has both.
//!
//! What is read is rounded nowhere but where a piece's numbers do not fit the derived format: FP8 numbers times their scales, as `f32`, become
//! the nearest `bf16`.
//!
//! Invariant: after [`Derived::check`], reading asks only for bytes inside of the files.

mod element;
mod indexed;
mod scales;
mod tiles;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::format::Format;
pub use element::Element;
pub use indexed::Indexed;
use scales::scale;
pub use scales::{ScaleKind, Scales};
pub use tiles::Tiles;
use tiles::{Part, Slots};

/// Elements of a block of MX formats, which share a scale.
const MX_BLOCK: u64 = 32;
/// Bytes of the codes of such a block of four-bit numbers.
const MX_CODES: u64 = 16;
/// Elements that are converted at a time.
const CHUNK: u64 = 2048;
/// Most rows of a transposed matrix that are read together: of bf16 the columns of so many fill two cache lines.
const TILE_ROWS: u64 = 64;
/// Columns of them that are read before they are put in rows: of bf16 a cache line of each row, and a few KiB of all.
const TILE_COLUMNS: usize = 32;
/// Farthest that such rows lie apart, in elements: gates and up in turns do by two.
const MAX_STEP: u64 = 4;
/// Most axes of a view: twice as many as any checkpoint needs.
const MAX_AXES: usize = 8;

/// What becomes of each number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Change {
    /// Nothing.
    #[default]
    Keep,
    /// One more: the weight of a norm that multiplies by `1 + w`.
    PlusOne,
    /// `-exp(x)`: the decay of a state whose logarithm is stored.
    MinusExp,
    /// Times one number, then times the other.
    Times([f32; 2]),
    /// `exp(x)`: the rate of a decay whose logarithm is stored.
    Exp,
    /// This number, whatever is stored.
    Number(f32),
    /// So much more: the weight of a norm that multiplies by `w` and a number that is not 1.
    Plus(f32),
    /// `exp(-x)`: what a frequency is divided by, of which the logarithm of a factor is stored.
    ExpMinus,
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
        }
    }
}

/// A digit of an index, and how many elements it moves by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// Values of the digit.
    pub len: u64,
    /// Elements from one to the next.
    pub stride: u64,
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The file's number.
    pub file: u32,
    /// The first byte.
    pub offset: u64,
    /// How many.
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
    /// How its elements are written.
    pub element: Element,
    /// The element of row 0 and column 0.
    pub first: u64,
    /// Digits of a row's number, the slowest first.
    pub rows: Vec<Axis>,
    /// Digits of a column's.
    pub columns: Vec<Axis>,
    /// Scales.
    pub scales: Option<Scales>,
    /// What becomes of each number, once it is scaled.
    pub change: Change,
}

fn len(axes: &[Axis]) -> Option<u64> {
    axes.iter().try_fold(1u64, |product, axis| product.checked_mul(axis.len))
}

/// The element that a number's digits move to, from 0.
fn at(axes: &[Axis], mut number: u64) -> u64 {
    let mut element = 0;
    for axis in axes.iter().rev() {
        element += number % axis.len * axis.stride;
        number /= axis.len;
    }
    element
}

impl Piece {
    /// How many rows it has.
    pub fn row_count(&self) -> u64 {
        len(&self.rows).unwrap_or(0)
    }

    /// Columns of the derived tensor that it has; `None` where they are too many.
    fn column_count(&self) -> Option<u64> {
        len(&self.columns)?.checked_mul(self.element.columns())
    }

    /// The last element of any row and column.
    fn last(&self) -> Option<u64> {
        self.rows.iter().chain(&self.columns).try_fold(self.first, |element, axis| {
            element.checked_add(axis.len.checked_sub(1)?.checked_mul(axis.stride)?)
        })
    }

    /// Rows from `row` on, of at most `whole`, that are read together: those of a matrix that is stored transposed, whose neighbours lie a few
    /// elements apart where columns do not.
    fn tile(&self, row: u64, whole: u64) -> Option<Tile> {
        let (rows, columns) = (self.rows.last()?, self.columns.last()?);
        if self.element.columns() > 1
            || self.element.tiles().is_some()
            || columns.stride <= 1
            || rows.stride == 0
            || rows.stride > MAX_STEP
            || rows.stride >= columns.stride
        {
            return None;
        }
        let left = rows.len - row % rows.len;
        let count = left.min(whole).min(TILE_ROWS);
        (count > 1).then_some(Tile { first: row, rows: count, step: rows.stride })
    }

    /// Elements from `column` on that lie one behind another.
    fn run(&self, column: u64) -> u64 {
        match self.columns.last() {
            Some(axis) if axis.stride == 1 => axis.len - column % axis.len,
            _ => 1,
        }
    }
}

/// Rows of a piece whose elements of a column lie `step` elements apart.
struct Tile {
    first: u64,
    rows: u64,
    step: u64,
}

/// A tensor that is made of others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Derived {
    /// Format of its rows.
    pub format: Format,
    /// Numbers of a row.
    pub columns: u64,
    /// Pieces that stand beside each other: so many have a row's columns together.
    pub beside: u32,
    /// Its rows, one behind the other; of those that stand beside each other the leftmost first.
    pub pieces: Vec<Piece>,
}

/// Why a derived tensor is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DerivedError {
    /// A file that is not there.
    #[error("piece {piece} is of file {file}; there are {files}")]
    File {
        /// Which piece.
        piece: usize,
        /// The file.
        file: u32,
        /// How many there are.
        files: usize,
    },
    /// Bytes or elements outside of what they are in.
    #[error("piece {piece}: {what} ends outside of the {available} bytes that it is in")]
    Outside {
        /// Which piece.
        piece: usize,
        /// What.
        what: &'static str,
        /// Bytes that there are.
        available: u64,
    },
    /// What does not go together.
    #[error("piece {piece}: {what}")]
    Shape {
        /// Which piece.
        piece: usize,
        /// What is wrong.
        what: &'static str,
    },
}

/// Gives bytes of a file by its number and the first of them; false where they are not there.
pub type Fetch<'f> = dyn Fn(u32, u64, &mut [u8]) -> bool + 'f;

impl Derived {
    /// A vector of numbers that nothing stores: each is made of the first four bytes of the first file, whatever those are.
    pub fn of_numbers(numbers: &[f32]) -> Derived {
        let one = || vec![Axis { len: 1, stride: 0 }];
        let piece = |&number: &f32| Piece {
            extent: Extent { file: 0, offset: 0, bytes: 4 },
            element: Element::F32,
            first: 0,
            rows: one(),
            columns: one(),
            scales: None,
            change: Change::Number(number),
        };
        let pieces: Vec<Piece> = numbers.iter().map(piece).collect();
        Derived { format: Format::F32, columns: pieces.len() as u64, beside: pieces.len() as u32, pieces }
    }

    /// Bytes of all its rows; `None` where they are too many.
    pub fn bytes(&self) -> Option<u64> {
        let mut leftmost = self.pieces.iter().step_by((self.beside as usize).max(1));
        let rows = leftmost.try_fold(0u64, |rows, piece| rows.checked_add(len(&piece.rows)?))?;
        rows.checked_mul(self.format.row_bytes(self.columns)?)
    }

    /// Bytes of the stored elements that it is made of, scales not counted; `None` where they are too many.
    pub fn stored_bytes(&self) -> Option<u64> {
        self.pieces.iter().try_fold(0u64, |sum, piece| {
            let elements = len(&piece.rows)?.checked_mul(len(&piece.columns)?)?;
            sum.checked_add(piece.element.bytes_of(elements)?)
        })
    }

    /// Whether every element is inside of files with these lengths, and all parts fit each other.
    ///
    /// # Errors
    /// The first thing that does not.
    pub fn check(&self, files: &[u64]) -> Result<(), DerivedError> {
        if self.bytes().is_none() || self.columns == 0 {
            return Err(DerivedError::Shape { piece: 0, what: "no columns, or too many rows" });
        }
        self.check_beside()?;
        for (number, piece) in self.pieces.iter().enumerate() {
            let wrong = |what| Err(DerivedError::Shape { piece: number, what });
            let outside = |what, available| Err(DerivedError::Outside { piece: number, what, available });
            for extent in [Some(piece.extent), piece.scales.map(|scales| scales.extent)].into_iter().flatten() {
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
            let elements = piece.last().and_then(|last| last.checked_add(1));
            let end = elements.and_then(|elements| element.bytes_of(elements));
            let (Some(elements), true) = (elements, end.is_some_and(|end| end <= piece.extent.bytes)) else {
                return outside("its view", piece.extent.bytes);
            };
            let is_float = [Format::F32, Format::F16, Format::Bf16].contains(&self.format);
            match (element, piece.scales) {
                (Element::Tiled(tiles), _) if !tiles::fits(piece, tiles, self.format) => {
                    return wrong(
                        "tiles that are no whole ones, or not seen row by row, or of a format without their integers",
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
                ) if [block_columns, of] == [columns; 2] => {
                    if rows.checked_mul(4).is_none_or(|bytes| bytes > extent.bytes) {
                        return outside("its scales", extent.bytes);
                    }
                }
                (Element::Tiled(_), _) => return wrong("tiles without an f32 for each row"),
                (Element::Mxfp4, Some(Scales { kind: ScaleKind::OfBlock, extent, .. })) => {
                    if self.format != Format::Mxfp4 || piece.change != Change::Keep {
                        return wrong("blocks of another format");
                    }
                    if elements > extent.bytes {
                        return outside("its scales", extent.bytes);
                    }
                }
                (Element::Mxfp4, _) | (Element::Int4, None | Some(Scales { kind: ScaleKind::OfBlock, .. })) => {
                    return wrong("blocks without a scale for each");
                }
                (Element::Int4, _) if self.format != Format::Q4_0 || piece.change != Change::Keep => {
                    return wrong("blocks of another format");
                }
                (_, Some(Scales { kind: ScaleKind::OfBlock, .. })) => return wrong("scales of blocks, and no blocks"),
                (Element::Block(format), _) if format.row().gguf_id.is_none() => {
                    return wrong("blocks of a format that no file has");
                }
                (Element::Block(_), Some(_)) => return wrong("scales of a format that has its own"),
                (
                    _,
                    Some(Scales {
                        kind:
                            ScaleKind::Number(
                                Element::Mxfp4
                                | Element::Int4
                                | Element::F8E4m3
                                | Element::Block(_)
                                | Element::Tiled(_),
                            ),
                        ..
                    }),
                ) => {
                    return wrong("scales that are no numbers of two or four bytes");
                }
                _ if !is_float && element != Element::Int4 => {
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
                    if count.and_then(|n| n.checked_mul(scales.kind.bytes())).is_none_or(|n| n > scales.extent.bytes) {
                        return outside("its scales", scales.extent.bytes);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the pieces that stand beside each other have as many rows, and a row's columns together.
    fn check_beside(&self) -> Result<(), DerivedError> {
        let beside = self.beside as usize;
        let wrong = |piece, what| Err(DerivedError::Shape { piece, what });
        if beside == 0 || !self.pieces.len().is_multiple_of(beside) {
            return wrong(self.pieces.len(), "no whole number of pieces beside each other");
        }
        if beside > 1 && self.format.tail_bytes() > 0 {
            return wrong(0, "pieces beside each other, of a format that has a scale for all of a row");
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
                return wrong(number * beside, "other rows than the pieces beside it");
            }
        }
        Ok(())
    }

    /// With where the rows of each piece end, so that a row is found at once however many pieces there are.
    pub fn indexed(self) -> Indexed {
        let mut rows = 0u64;
        let end = |piece: &Piece| {
            rows = rows.saturating_add(piece.row_count());
            rows
        };
        let ends = self.pieces.iter().step_by((self.beside as usize).max(1)).map(end).collect();
        Indexed { derived: self, ends }
    }

    /// A part of a piece's row, from an element's column on.
    fn row(&self, piece: &Piece, row: u64, mut column: u64, out: &mut [u8], fetch: &Fetch<'_>) -> bool {
        let base = piece.first + at(&piece.rows, row);
        // An element is a block of the format: a number, or what MX blocks are made of.
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

    /// Parts of rows of pieces that stand beside each other, the same of each: from a column on, and so many. With `ends` there is room for what a row
    /// has behind its blocks.
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
                let read = match piece.element.tiles() {
                    Some(tiles) => {
                        let part = Part { rows: (row, rows), columns, ends };
                        tiles::read(piece, tiles, self.format, &part, fetch, Slots { out: &mut *out, stride, at })
                    }
                    None => {
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

    /// Rows of a matrix that is stored transposed, from a column on.
    fn tile(&self, piece: &Piece, tile: &Tile, column: u64, out: &mut [u8], fetch: &Fetch<'_>) -> bool {
        match self.format.block_bytes() {
            2 => self.tile_of::<2>(piece, tile, column, out, fetch),
            4 => self.tile_of::<4>(piece, tile, column, out, fetch),
            // No other format is made of numbers.
            _ => false,
        }
    }

    /// The same, of elements of `BYTES` bytes: some columns of the rows at a time, each of which lies together, and then those row by row, so that neither
    /// side jumps from cache line to cache line.
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
        // Elements of a column, those between the rows' included.
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

    /// Elements that lie one behind another.
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
        if let (Element::Mxfp4, Some(scales)) = (element, scales) {
            let mut bytes = vec![0u8; count as usize];
            let Some(place) = scales.extent.part(first, count) else { return false };
            if !fetch(scales.extent.file, place, &mut bytes) {
                return false;
            }
            let blocks = out.chunks_exact_mut(1 + MX_CODES as usize);
            for ((block, codes), scale) in blocks.zip(stored.as_chunks().0).zip(bytes) {
                block[0] = scale;
                block[1..].copy_from_slice(&halves_apart(codes));
            }
            return true;
        }
        if let (Element::Int4, Some(scales)) = (element, scales) {
            let mut each = vec![1f32; count as usize];
            if !scale(scales, first, &mut each, fetch) {
                return false;
            }
            let blocks = out.chunks_exact_mut(2 + MX_CODES as usize);
            for ((block, codes), each) in blocks.zip(stored.as_chunks().0).zip(each) {
                let (to, codes_to) = block.split_at_mut(2);
                if !store(Format::F16, each, to) {
                    return false;
                }
                codes_to.copy_from_slice(&halves_apart(codes));
            }
            return true;
        }
        let mut x = vec![0f32; count as usize];
        element.floats(&stored, &mut x);
        if let Some(scales) = scales
            && !scale(scales, first, &mut x, fetch)
        {
            return false;
        }
        let each = self.format.block_bytes();
        x.iter().zip(out.chunks_exact_mut(each)).all(|(&x, out)| store(self.format, piece.change.of(x), out))
    }
}

/// Numbers of blocks that lie one behind another, from an element on.
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

/// Writes a number in a format of whole numbers; false where it is another, which the check refuses.
fn store(format: Format, x: f32, out: &mut [u8]) -> bool {
    match format {
        Format::F32 => out.copy_from_slice(&x.to_le_bytes()),
        Format::F16 => out.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
        Format::Bf16 => out.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
        _ => return false,
    }
    true
}

/// Codes of a block, neighbours in a byte, as ggml has them: element `i` with element `i + 16`.
fn halves_apart(codes: &[u8; MX_CODES as usize]) -> [u8; MX_CODES as usize] {
    let code = |element: usize| codes[element / 2] >> (element % 2 * 4) & 15;
    std::array::from_fn(|byte| code(byte) | code(byte + MX_CODES as usize) << 4)
}

#[cfg(test)]
mod tests {
    use super::element::f8_e4m3;
    use super::scales::power;
    use super::*;

    fn extent(offset: u64, bytes: u64) -> Extent {
        Extent { file: 0, offset, bytes }
    }

    fn axes(axes: &[(u64, u64)]) -> Vec<Axis> {
        axes.iter().map(|&(len, stride)| Axis { len, stride }).collect()
    }

    fn piece(element: Element, extent: Extent, rows: &[(u64, u64)], columns: &[(u64, u64)]) -> Piece {
        Piece {
            extent,
            element,
            first: 0,
            rows: axes(rows),
            columns: axes(columns),
            scales: None,
            change: Change::Keep,
        }
    }

    /// All of it, in reads of so many bytes.
    fn read(derived: &Derived, file: &[u8], step: usize) -> Vec<u8> {
        derived.check(&[file.len() as u64]).unwrap();
        let fetch = |_: u32, offset: u64, out: &mut [u8]| {
            out.copy_from_slice(&file[offset as usize..][..out.len()]);
            true
        };
        let derived = derived.clone().indexed();
        let mut all = vec![0; derived.bytes().unwrap() as usize];
        for (at, part) in (0..).step_by(step).zip(all.chunks_mut(step)) {
            assert!(derived.read(at, part, &fetch));
        }
        all
    }

    #[test]
    fn numbers_are_of_no_file() {
        let numbers = [0.5, -3.25, f32::MIN_POSITIVE];
        let vector = Derived::of_numbers(&numbers);
        assert_eq!((vector.check(&[4]), vector.bytes()), (Ok(()), Some(12)));
        assert!(vector.check(&[3]).is_err() && vector.check(&[]).is_err());
        let expected: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        for file in [[0; 4], [0xff; 4]] {
            assert_eq!(read(&vector, &file, 12), expected);
            assert_eq!(read(&vector, &file, 4), expected);
        }
    }

    /// The transposes of parts of two heads' matrices, whose rows are blocks: numbers of a row of the derived tensor are of as many blocks.
    #[test]
    fn transposed_parts_of_blocks_have_their_numbers() {
        let (rows, columns, kept) = (10u64, 64u64, 3u64);
        let values: Vec<f32> = (0..rows * columns).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
        let row_bytes = Format::Q8_0.row_bytes(columns).unwrap() as usize;
        let mut file = vec![0; row_bytes * rows as usize];
        for (row, out) in values.chunks_exact(columns as usize).zip(file.chunks_exact_mut(row_bytes)) {
            Format::Q8_0.encode_row(row, None, out);
        }
        let stored = Format::Q8_0.dequantise_rows(&file, columns as usize);
        let extent = Extent { file: 0, offset: 0, bytes: file.len() as u64 };
        let axis = |len, stride| Axis { len, stride };
        // Rows 2 to 4 and 7 to 9, turned.
        let piece = Piece {
            extent,
            element: Element::Block(Format::Q8_0),
            first: 2 * columns,
            rows: vec![axis(2, 5 * columns), axis(columns, 1)],
            columns: vec![axis(kept, columns)],
            scales: None,
            change: Change::Keep,
        };
        let derived = Derived { format: Format::F32, columns: kept, beside: 1, pieces: vec![piece] };
        derived.check(&[file.len() as u64]).unwrap();
        let fetch = |_: u32, offset: u64, out: &mut [u8]| {
            out.copy_from_slice(&file[offset as usize..][..out.len()]);
            true
        };
        let right = |number: u64| {
            let (head, column) = (number / columns, number % columns);
            (0..kept).map(move |i| (2 + 5 * head + i) * columns + column)
        };
        let expected: Vec<f32> = (0..2 * columns).flat_map(right).map(|i| stored[i as usize]).collect();
        let expected: Vec<u8> = expected.iter().flat_map(|x| x.to_le_bytes()).collect();
        let indexed = derived.clone().indexed();
        for (from, count) in [(0, 2 * columns), (5, 16), (60, 9), (127, 1)] {
            let (from, bytes) = ((from * kept * 4) as usize, (count * kept * 4) as usize);
            let mut out = vec![0; bytes];
            assert!(indexed.read(from as u64, &mut out, &fetch));
            assert_eq!(out, expected[from..from + bytes]);
        }
        // A part of a row.
        let mut out = [0; 4];
        assert!(indexed.read(8, &mut out, &fetch) && out == expected[8..12]);
        let wrong = Derived { format: Format::Q8_0, ..derived.clone() };
        assert!(wrong.check(&[file.len() as u64]).is_err());
        assert!(derived.check(&[file.len() as u64 - 1]).is_err());
    }

    #[test]
    fn rows_are_put_in_another_order_and_behind_each_other() {
        // 8 rows of 3 columns, 2 heads of 4: halves become neighbours, and one more; behind them row 7 again, of a view that begins there, six times.
        let file: Vec<u8> = (0..24u16).flat_map(|i| f16::from_f32(i.into()).to_le_bytes()).collect();
        let turned = piece(Element::F16, extent(0, 48), &[(2, 12), (2, 3), (2, 6)], &[(3, 1)]);
        let turned = Piece { change: Change::PlusOne, ..turned };
        let change = Change::Times([3.0, 2.0]);
        let last = Piece { first: 21, change, ..piece(Element::F16, extent(0, 48), &[], &[(3, 1)]) };
        let derived = Derived { format: Format::F32, columns: 3, beside: 1, pieces: vec![turned, last] };
        let rows: Vec<f32> = [0, 2, 1, 3, 4, 6, 5, 7]
            .iter()
            .flat_map(|r| (0..3).map(move |c| (3 * r + c + 1) as f32))
            .chain([126.0, 132.0, 138.0])
            .collect();
        let right: Vec<u8> = rows.iter().flat_map(|x| x.to_le_bytes()).collect();
        for step in [4, 8, 12, 20, 108] {
            assert_eq!(read(&derived, &file, step), right, "{step} bytes at a time");
        }
        assert_eq!(derived.indexed().place(0, 12), None);
        // As they lie, from row 2 on.
        let plain = Derived {
            format: Format::F16,
            columns: 3,
            beside: 1,
            pieces: vec![piece(Element::F16, extent(0, 48), &[(8, 3)], &[(3, 1)])],
        };
        let plain = plain.indexed();
        assert_eq!((plain.place(12, 36), plain.place(0, 54), plain.place(2, 6)), (Some((0, 12)), None, None));
        assert_eq!(plain.spans(6, 12), [extent(6, 12)]);
    }

    #[test]
    fn columns_are_transposed() {
        let file: Vec<u8> = (0..6u16).flat_map(u16::to_le_bytes).collect();
        let pieces = vec![piece(Element::Bf16, extent(0, 12), &[(3, 1)], &[(2, 3)])];
        let derived = Derived { format: Format::Bf16, columns: 2, beside: 1, pieces };
        let right: Vec<u8> = [0u16, 3, 1, 4, 2, 5].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(read(&derived, &file, 2), right);
        assert_eq!(read(&derived, &file, 12), right);
        assert_eq!(derived.indexed().spans(0, 12), [extent(0, 12)]);
    }

    /// As element by element: of every kind of element, with gates and up in turns, in reads that begin and end within tiles.
    #[test]
    fn tiles_of_transposed_matrices_are_their_elements() {
        // Two experts of 6 stored rows of 150: columns 0, 2, 4, ... are rows of gates.
        let numbers: Vec<f32> = (0..1800u32).map(|i| (i * 7919 % 251) as f32 - 120.0).collect();
        for (element, format) in [
            (Element::F32, Format::F32),
            (Element::Bf16, Format::Bf16),
            (Element::F16, Format::F32),
            (Element::F8E4m3, Format::Bf16),
        ] {
            let file: Vec<u8> = match element {
                Element::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
                Element::F16 => numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
                Element::Bf16 => numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
                Element::F8E4m3 | Element::Mxfp4 | Element::Int4 | Element::Block(_) | Element::Tiled(_) => {
                    (0..1800u32).map(|i| (i * 31 % 126) as u8).collect()
                }
            };
            for step in [1, 2] {
                let rows = 150 / step;
                let views = axes(&[(2, 900), (rows, step)]);
                let whole = extent(0, file.len() as u64);
                let mut transposed = piece(element, whole, &[], &[(6, 150)]);
                transposed.rows = views.clone();
                let pieces = vec![transposed];
                let derived = Derived { format, columns: 6, beside: 1, pieces };
                let each = format.block_bytes();
                // A row's part at a time is never a tile.
                let right = read(&derived, &file, each);
                for bytes in [6 * each, 7 * each, 12 * each, 100 * each, 6 * 64 * each, right.len()] {
                    assert_eq!(
                        read(&derived, &file, bytes),
                        right,
                        "{element:?}, step {step}: {bytes} bytes at a time"
                    );
                }
                let indexed = derived.clone().indexed();
                let fetch = |_: u32, offset: u64, out: &mut [u8]| {
                    out.copy_from_slice(&file[offset as usize..][..out.len()]);
                    true
                };
                // Columns 2 to 4 of rows on both sides of an expert's end.
                let (row, count) = (rows as usize - 20, 40);
                let mut parts = vec![0; count * 3 * each];
                assert!(indexed.read_rows((row * 6 + 2) as u64 * each as u64, 3 * each as u64, &mut parts, &fetch));
                for (number, part) in parts.chunks(3 * each).enumerate() {
                    assert_eq!(
                        part,
                        &right[((row + number) * 6 + 2) * each..][..3 * each],
                        "{element:?}: row {number}"
                    );
                }
                let element_at = |row: u64, column: u64| at(&views, row) + column * 150;
                let stored = |row, column| {
                    let mut x = [0f32];
                    element.floats(
                        &file[(element_at(row, column) * element.bytes_of(1).unwrap()) as usize..]
                            [..element.bytes_of(1).unwrap() as usize],
                        &mut x,
                    );
                    x[0]
                };
                let made: Vec<f32> = match format {
                    Format::F32 => right.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect(),
                    _ => right.as_chunks().0.iter().map(|x| bf16::from_le_bytes(*x).to_f32()).collect(),
                };
                for (row, made) in (0..).zip(made.chunks(6)) {
                    let expected: Vec<f32> = (0..6).map(|column| stored(row, column)).collect();
                    assert_eq!(made, expected, "{element:?}, step {step}: row {row}");
                }
            }
        }
    }

    /// The row of any piece is found without going through those before it.
    #[test]
    fn rows_of_many_pieces_are_found_at_once() {
        let count = 1u64 << 20;
        let one = Piece { columns: axes(&[(1, 1)]), ..piece(Element::F32, extent(0, 4), &[], &[]) };
        let pieces = vec![one; count as usize];
        let derived = Derived { format: Format::F32, columns: 1, beside: 1, pieces }.indexed();
        let fetch = |_: u32, _: u64, out: &mut [u8]| {
            out.fill(7);
            true
        };
        // Going through them would take 10^12 steps.
        for row in 0..count {
            let mut out = [0; 4];
            assert!(derived.read(4 * row, &mut out, &fetch) && out == [7; 4]);
            assert_eq!(derived.place(4 * row, 4), Some((0, 0)));
        }
        assert_eq!(derived.spans(4 * (count - 2), 8), [extent(0, 4), extent(0, 4)]);
        assert!(!derived.read(4 * count, &mut [0; 4], &fetch));
    }

    /// Every number of the format, by its definition.
    #[test]
    fn bytes_of_e4m3_are_their_numbers() {
        let at = |byte: u8| f8_e4m3(byte);
        assert_eq!(
            [at(0), at(0x38), at(0x7e), at(0xfe), at(0x01), at(0x08)],
            [0.0, 1.0, 448.0, -448.0, 1.0 / 512.0, 1.0 / 64.0]
        );
        assert!(at(0x7f).is_nan() && at(0xff).is_nan() && at(0x80).is_sign_negative());
        let rising: Vec<f32> = (0..0x7f).map(at).collect();
        assert!(rising.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn scales_are_those_of_the_stored_place() {
        // 3 rows of 5 columns of 1.0, scales of 2 rows and 3 columns; rows are read from the last to the first, columns from 1 on.
        let mut file = vec![0x38u8; 15];
        file.push(0);
        file.extend([1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()));
        let scales = Scales {
            extent: extent(16, 16),
            kind: ScaleKind::Number(Element::F32),
            block_rows: 2,
            block_columns: 3,
            columns: 5,
        };
        let row = |row: u64| Piece {
            first: 5 * row + 1,
            scales: Some(scales),
            ..piece(Element::F8E4m3, extent(0, 15), &[], &[(4, 1)])
        };
        let derived = Derived { format: Format::F32, columns: 4, beside: 1, pieces: vec![row(2), row(1), row(0)] };
        let right: Vec<u8> = [3.0f32, 3.0, 4.0, 4.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        assert_eq!(read(&derived, &file, 48), right);
        assert_eq!(read(&derived, &file, 4), right);
        assert_eq!((power(127), power(130), power(0)), (1.0, 8.0, 2f32.powi(-127)));
    }

    #[test]
    fn neighbours_of_mx_blocks_are_taken_apart() {
        let codes: [u8; 16] = std::array::from_fn(|byte| ((2 * (byte as u8)) & 15) | ((2 * (byte as u8) + 1) << 4));
        let mut file = codes.to_vec();
        file.push(121);
        let scales =
            Scales { extent: extent(16, 1), kind: ScaleKind::OfBlock, block_rows: 1, block_columns: 1, columns: 1 };
        let pieces = vec![Piece { scales: Some(scales), ..piece(Element::Mxfp4, extent(0, 16), &[], &[]) }];
        let derived = Derived { format: Format::Mxfp4, columns: 32, beside: 1, pieces };
        let made = read(&derived, &file, 17);
        let right: Vec<u8> = std::iter::once(121).chain((0..16).map(|i| i | i << 4)).collect();
        assert_eq!(made, right);
    }

    #[test]
    fn four_bit_integers_have_the_scale_of_their_blocks() {
        // Two rows of two blocks, with a scale for each row; element i of a block is i modulo 16, less 8.
        let codes: [u8; 16] = std::array::from_fn(|byte| ((2 * (byte as u8)) & 15) | ((2 * (byte as u8) + 1) << 4));
        let mut file = codes.repeat(4);
        file.extend([1.5f32, -3.0].iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()));
        let kind = ScaleKind::Number(Element::Bf16);
        let scales = Scales { extent: extent(64, 4), kind, block_rows: 1, block_columns: 2, columns: 2 };
        let views = (axes(&[(2, 2)]), axes(&[(2, 1)]));
        let piece = Piece {
            scales: Some(scales),
            rows: views.0,
            columns: views.1,
            ..piece(Element::Int4, extent(0, 64), &[], &[])
        };
        let derived = Derived { format: Format::Q4_0, columns: 64, beside: 1, pieces: vec![piece] };
        derived.check(&[68]).unwrap();
        let made = read(&derived, &file, 36);
        let mut x = vec![0f32; 128];
        Format::Q4_0.dequantise(&made, &mut x);
        let right: Vec<f32> = (0..128).map(|i| (i % 16 - 8) as f32 * if i < 64 { 1.5 } else { -3.0 }).collect();
        assert_eq!(x, right);
        let refused = |change: &dyn Fn(&mut Derived)| {
            let mut bad = derived.clone();
            change(&mut bad);
            bad.check(&[68]).unwrap_err().to_string()
        };
        assert!(refused(&|d| d.pieces[0].scales = None).contains("without a scale"));
        assert!(refused(&|d| d.format = Format::Q4_1).contains("another format"));
        assert!(
            refused(&|d| d.pieces[0].scales = Some(Scales { block_columns: 1, ..scales })).contains("its scales end")
        );
    }

    #[test]
    fn what_is_outside_is_refused() {
        let good = Derived {
            format: Format::F16,
            columns: 3,
            beside: 1,
            pieces: vec![piece(Element::F16, extent(0, 48), &[(8, 3)], &[(3, 1)])],
        };
        good.check(&[48]).unwrap();
        let with = |change: &dyn Fn(&mut Derived)| {
            let mut bad = good.clone();
            change(&mut bad);
            bad.check(&[48]).map_err(|error| error.to_string())
        };
        let piece_of = |change: &dyn Fn(&mut Piece)| with(&|derived: &mut Derived| change(&mut derived.pieces[0]));
        let says = |found: Result<(), String>, says: &str| {
            assert!(found.clone().unwrap_err().contains(says), "{found:?}: {says}")
        };
        says(piece_of(&|p| p.extent.file = 1), "of file 1; there are 1");
        says(piece_of(&|p| p.extent.bytes = 49), "a stored tensor ends outside");
        says(piece_of(&|p| p.extent.offset = u64::MAX), "a stored tensor ends outside");
        says(piece_of(&|p| p.first = 1), "its view ends outside");
        says(piece_of(&|p| p.rows[0].len = 9), "its view ends outside");
        says(piece_of(&|p| p.rows[0].stride = u64::MAX), "its view ends outside");
        says(piece_of(&|p| p.rows[0].len = 0), "an axis of no length");
        says(piece_of(&|p| p.columns[0].len = 2), "other columns");
        says(piece_of(&|p| p.rows = axes(&[(1, 1); 9])), "too many axes");
        says(piece_of(&|p| p.element = Element::Mxfp4), "other columns");
        says(with(&|d| d.format = Format::Q8_0), "no columns");
        says(with(&|d| d.columns = 0), "no columns");
        let scales = |kind, bytes, block| Scales {
            extent: extent(0, bytes),
            kind,
            block_rows: block,
            block_columns: 1,
            columns: 3,
        };
        let number = ScaleKind::Number(Element::F32);
        says(piece_of(&|p| p.scales = Some(scales(number, 48, 0))), "scales for no rows");
        says(piece_of(&|p| p.scales = Some(scales(number, 48, 1))), "its scales end");
        says(piece_of(&|p| p.scales = Some(scales(ScaleKind::OfBlock, 48, 1))), "scales of blocks, and no blocks");
        says(
            piece_of(&|p| p.scales = Some(scales(ScaleKind::Number(Element::Mxfp4), 48, 1))),
            "no numbers of two or four bytes",
        );
        piece_of(&|p| p.scales = Some(scales(number, 48, 2))).unwrap();
    }
}
