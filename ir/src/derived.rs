//! Derived tensors: weights of a graph that files store in another form. They are computed from
//! bytes of files when they are read, a few rows at a time.
//!
//! Hugging Face checkpoints store some weights in a form that a graph cannot use. They keep each
//! expert's matrix separately, and RoPE rotates the two halves of a head where a graph rotates
//! neighbours. They also use number formats that no kernel packs. A derived tensor gives the source
//! of each of its elements. Its rows are the rows of its *pieces*, one piece after another. A piece
//! is a strided view of one stored tensor, with a conversion of its elements.
//!
//! ```text
//! rows of Q with adjacent pairs, from 8 heads of 64 with pairs half a head apart, 512 columns:
//!     rows    [8 by 64*512] [32 by 512] [2 by 32*512]
//!     columns [512 by 1]
//! row 3 is head 0, pair 1, second half: element (32 + 1) * 512
//! ```
//!
//! If columns of a matrix are stored separately, several pieces lie side by side and form rows
//! together. Integers in [tiles](Tiles) are copied, with their row's scale, into a format that has
//! row scales. Integers with scales by [groups](Groups) of columns are copied in the same way.
//!
//! Numbers are rounded only if they do not fit the derived format: FP8 numbers times their scales,
//! as `f32`, become the nearest `bf16`.
//!
//! Invariant: after [`Derivation::check`], reads stay inside the files.

mod check;
mod element;
mod groups;
mod indexed;
mod integers;
mod read;
mod scales;
mod tiles;

use std::ops::Range;

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::format::Format;
pub use check::DerivedError;
pub use element::Element;
pub use groups::{Groups, Order, View, Zeros};
pub use indexed::Indexed;
pub use integers::Integers;
pub use scales::{CodedScales, ScaleKind, Scales};
pub use tiles::Tiles;

/// Maximum rows of a transposed matrix that are read together. With bf16, a column of this many
/// rows fills two cache lines.
const TILE_ROWS: u64 = 64;
/// Maximum distance, in elements, of neighbouring rows of a transposed matrix that are read
/// together. Rows of interleaved gate and up matrices are two elements apart.
const MAX_STEP: u64 = 4;
/// Maximum number of axes of a view. Known checkpoints need at most half as many.
const MAX_AXES: usize = 8;

/// Conversion of each number of a piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Change {
    /// No change.
    #[default]
    Keep,
    /// `x + 1`: the weight of a norm that multiplies by `1 + w`.
    PlusOne,
    /// `-exp(x)`: the decay of a recurrent state, from its stored logarithm.
    MinusExp,
    /// `x` times the first number, then times the second.
    Times([f32; 2]),
    /// `exp(x)`: the rate of a decay, from its stored logarithm.
    Exp,
    /// This constant, for any stored number.
    Number(f32),
    /// `x` plus this number: the weight of a norm that multiplies by `w` plus a number other
    /// than 1.
    Plus(f32),
    /// `exp(-x)`: the divisor of a RoPE frequency, from the stored logarithm of a factor.
    ExpMinus,
    /// `1 / x`: a factor, from a stored divisor.
    Inverse,
    /// `x / |row|`: each row is scaled to length 1. Rows of zeros stay zero.
    Unit,
}

impl Change {
    fn apply(self, x: f32) -> f32 {
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

/// An axis of a strided view: one digit of an index, and its stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// Number of values of the digit.
    pub len: u64,
    /// Distance, in elements, from one value of the digit to the next.
    pub stride: u64,
}

/// A range of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Index of the file in the list of the model's files.
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
    /// Storage of the tensor's elements.
    pub element: Element,
    /// Index of the element at row 0 and column 0.
    pub first: u64,
    /// Digits of a row's number in a mixed base, the slowest digit first.
    pub rows: Vec<Axis>,
    /// Digits of a column's number in a mixed base, the slowest digit first.
    pub columns: Vec<Axis>,
    /// Scales of the elements. `None` if the elements have none.
    pub scales: Option<Scales>,
    /// Scales, and optional zero points, of integers.
    pub groups: Option<Box<Groups>>,
    /// Change of each number, after scaling.
    pub change: Change,
}

fn len(axes: &[Axis]) -> Option<u64> {
    axes.iter().try_fold(1u64, |product, axis| product.checked_mul(axis.len))
}

/// Returns the offset, in elements, of an index. `axes` divide the index into digits.
fn at(axes: &[Axis], mut number: u64) -> u64 {
    let mut element = 0;
    for axis in axes.iter().rev() {
        element += number % axis.len * axis.stride;
        number /= axis.len;
    }
    element
}

/// Returns the largest element index of a view. Returns `None` if an axis has length 0, or on
/// overflow.
fn last(first: u64, rows: &[Axis], columns: &[Axis]) -> Option<u64> {
    rows.iter()
        .chain(columns)
        .try_fold(first, |element, axis| element.checked_add(axis.len.checked_sub(1)?.checked_mul(axis.stride)?))
}

impl Piece {
    /// Returns the number of rows.
    pub fn row_count(&self) -> u64 {
        len(&self.rows).unwrap_or(0)
    }

    /// Returns the number of columns of the derived tensor that the piece fills, or `None` on
    /// overflow.
    fn column_count(&self) -> Option<u64> {
        len(&self.columns)?.checked_mul(self.element.columns())
    }

    /// Returns the rows from `row` on that are read together, at most `whole` of them. Returns
    /// `None` unless the stored matrix is transposed: neighbouring rows lie a few elements apart,
    /// and neighbouring columns lie farther apart.
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

    /// Returns the number of contiguous stored elements of a row, from `column` on.
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

/// A tensor that is computed from stored tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Derivation {
    /// Format of the tensor's rows.
    pub format: Format,
    /// Number of elements of a row.
    pub columns: u64,
    /// Number of neighbouring pieces that together have all columns of a row.
    pub pieces_per_row: u32,
    /// Pieces in the order of their rows. If several pieces form a row together, the leftmost comes
    /// first.
    pub pieces: Vec<Piece>,
}

/// Some rows and columns of a piece, whose integers are copied unchanged to the derived format.
pub(super) struct Part {
    /// Rows of the piece. At most as many as are read together.
    pub rows: Range<u64>,
    /// Columns of the piece: whole blocks of the derived format.
    pub columns: Range<u64>,
    /// Whether the columns include the ends of the rows. If so, the tails of the rows are written
    /// too.
    pub ends: bool,
}

/// Place in the output for the rows of a [`Part`].
pub(super) struct Slots<'o> {
    pub out: &'o mut [u8],
    /// Bytes from one output row to the next.
    pub stride: usize,
    /// Bytes of an output row that the part fills.
    pub at: Range<usize>,
}

/// Reads bytes of a file, by its number and the offset of the first byte. Returns false if they do
/// not exist.
pub type Fetch<'f> = dyn Fn(u32, u64, &mut [u8]) -> bool + 'f;

impl Derivation {
    /// Returns a vector of numbers that no file stores. Each element is a piece whose source is the
    /// first four bytes of the first file. Its conversion ignores these bytes.
    pub fn of_numbers(numbers: &[f32]) -> Derivation {
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
        Derivation { format: Format::F32, columns: pieces.len() as u64, pieces_per_row: pieces.len() as u32, pieces }
    }

    /// Returns the number of bytes of all rows of the derived tensor, or `None` on overflow.
    pub fn bytes(&self) -> Option<u64> {
        let mut leftmost = self.pieces.iter().step_by((self.pieces_per_row as usize).max(1));
        let rows = leftmost.try_fold(0u64, |rows, piece| rows.checked_add(len(&piece.rows)?))?;
        rows.checked_mul(self.format.row_bytes(self.columns)?)
    }

    /// Returns the number of bytes of the stored elements without their scales, or `None` on
    /// overflow.
    pub fn stored_bytes(&self) -> Option<u64> {
        self.pieces.iter().try_fold(0u64, |sum, piece| {
            let elements = len(&piece.rows)?.checked_mul(len(&piece.columns)?)?;
            sum.checked_add(piece.element.bytes_of(elements)?)
        })
    }

    /// Returns the tensor with the number of the last row of each piece. Reads then find a row's
    /// piece by binary search.
    pub fn with_index(self) -> Indexed {
        let mut rows = 0u64;
        let end = |piece: &Piece| {
            rows = rows.saturating_add(piece.row_count());
            rows
        };
        let ends = self.pieces.iter().step_by((self.pieces_per_row as usize).max(1)).map(end).collect();
        Indexed { derived: self, ends }
    }
}

/// Writes a number in a float format. Returns false for other formats, which [`Derivation::check`]
/// rejects.
fn store(format: Format, x: f32, out: &mut [u8]) -> bool {
    match format {
        Format::F32 => out.copy_from_slice(&x.to_le_bytes()),
        Format::F16 => out.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
        Format::Bf16 => out.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests;
