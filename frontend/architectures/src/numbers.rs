//! Constant tensors that no file has.

use ixc_ir::derived::{Axis, Change, Element, Extent, Piece};

/// Returns a matrix of `rows` rows and `columns` columns in which each element is `number`. A
/// derived tensor must refer to bytes of the file, so it refers to the first bytes and ignores
/// them.
pub(super) fn constant(number: f32, rows: u64, columns: u64) -> Piece {
    Piece {
        extent: Extent { file: 0, offset: 0, bytes: 4 },
        element: Element::F32,
        first: 0,
        rows: vec![Axis { len: rows, stride: 0 }],
        columns: vec![Axis { len: columns, stride: 0 }],
        scales: None,
        groups: None,
        change: Change::Number(number),
    }
}
