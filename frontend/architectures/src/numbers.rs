//! Tensors of one number that no file has.

use ixc_ir::derived::{Axis, Change, Element, Extent, Piece};

/// Rows of `columns` times the same number: in place of the first bytes of the model, none of which counts, whatever its tensors are.
pub(super) fn all(number: f32, rows: u64, columns: u64) -> Piece {
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
