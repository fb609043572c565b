//! What numbers of a stored matrix are multiplied with: a scale for each block of its rows and columns.

use serde::{Deserialize, Serialize};

use super::{Element, Extent, Fetch};

/// What numbers of a stored matrix are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scales {
    /// Where they are, row by row.
    pub extent: Extent,
    /// How they are written.
    pub kind: ScaleKind,
    /// Rows of the stored matrix that share a scale.
    pub block_rows: u64,
    /// Columns that do.
    pub block_columns: u64,
    /// Columns of the stored matrix.
    pub columns: u64,
}

/// How scales are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ScaleKind {
    /// As numbers, which multiply.
    Number(Element),
    /// Powers of two in a byte, 127 too large (E8M0), which multiply.
    Power,
    /// The bytes of blocks of codes ([`Element::Mxfp4`], [`Element::Nvfp4`]), which are moved with these.
    OfBlock,
}

impl ScaleKind {
    pub(super) fn bytes(self) -> u64 {
        match self {
            ScaleKind::Number(element) => element.block().1,
            ScaleKind::Power | ScaleKind::OfBlock => 1,
        }
    }
}

/// Multiplies numbers of a stored matrix, from an element on, by their scales.
pub(super) fn scale(scales: &Scales, first: u64, x: &mut [f32], fetch: &Fetch<'_>) -> bool {
    let each = scales.columns.div_ceil(scales.block_columns);
    let (mut element, mut left) = (first, x);
    while !left.is_empty() {
        let (row, column) = (element / scales.columns, element % scales.columns);
        let end = (column / scales.block_columns + 1).saturating_mul(scales.block_columns).min(scales.columns);
        let count = (end - column).min(left.len() as u64);
        let number = row / scales.block_rows * each + column / scales.block_columns;
        let bytes = scales.kind.bytes();
        let mut stored = [0u8; 4];
        let stored = &mut stored[..bytes as usize];
        let Some(place) = scales.extent.part(number * bytes, bytes) else { return false };
        if !fetch(scales.extent.file, place, stored) {
            return false;
        }
        let mut factor = [0f32];
        match scales.kind {
            ScaleKind::Number(element) => element.floats(stored, &mut factor),
            ScaleKind::Power | ScaleKind::OfBlock => factor = [power(stored[0])],
        }
        let (part, rest) = std::mem::take(&mut left).split_at_mut(count as usize);
        part.iter_mut().for_each(|x| *x *= factor[0]);
        (element, left) = (element + count, rest);
    }
    true
}

/// `2^(byte - 127)`; 255 is NaN.
pub(super) fn power(byte: u8) -> f32 {
    if byte == u8::MAX { f32::NAN } else { 2f64.powi(i32::from(byte) - 127) as f32 }
}
