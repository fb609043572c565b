//! Scales of a stored matrix: one factor for each block of its rows and columns.

use serde::{Deserialize, Serialize};

use super::{Element, Extent, Fetch};

/// Factors of the numbers of a stored matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scales {
    /// Location of the scales, stored row by row.
    pub extent: Extent,
    /// Storage of each scale.
    pub kind: ScaleKind,
    /// Number of rows of the stored matrix that share a scale.
    pub block_rows: u64,
    /// Number of columns of the stored matrix that share a scale.
    pub block_columns: u64,
    /// Number of columns of the stored matrix.
    pub columns: u64,
}

/// Storage of scales.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ScaleKind {
    /// Scales are numbers in this element type, and factors of the matrix's numbers.
    Number(Element),
    /// Scales are powers of two in a byte, biased by 127 (E8M0).
    Power,
    /// Scales are bytes that belong to blocks of codes ([`Element::Mxfp4`], [`Element::Nvfp4`]).
    /// They are copied into the derived blocks together with the codes.
    OfBlock,
    /// Scales are quantised themselves, to codes of one byte.
    Coded(Box<CodedScales>),
}

/// Quantised scales (bitsandbytes' `nested_*`). The number of each code is multiplied by an outer
/// scale, and then `more` is added.
///
/// ```text
/// scale[i] = numbers[code[i]] * scales[i / block] + more
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CodedScales {
    /// The 256 numbers of the codes, `f32`.
    pub numbers: Extent,
    /// The outer scales, `f32`: one for every `block` scales.
    pub scales: Extent,
    /// Number of scales that share one outer scale.
    pub block: u64,
    /// Number that is added to each scale after the multiplication.
    pub more: f32,
}

/// Number of different codes of one byte.
const CODES: u64 = 256;

impl CodedScales {
    /// Whether the tensors have a number for every code, and an outer scale for each of `count`
    /// scales.
    fn is_whole(&self, count: u64) -> bool {
        let scales = count.checked_div(self.block).map(|_| count.div_ceil(self.block));
        let enough = |count: u64, extent: &Extent| count.checked_mul(4).is_some_and(|bytes| bytes <= extent.bytes);
        enough(CODES, &self.numbers) && scales.is_some_and(|scales| enough(scales, &self.scales))
    }

    /// Returns the scale at index `number`, which is stored as `code`.
    fn scale(&self, number: u64, code: u8, fetch: &Fetch<'_>) -> Option<f32> {
        let read = |extent: &Extent, at: u64| {
            let mut bytes = [0; 4];
            fetch(extent.file, extent.part(4 * at, 4)?, &mut bytes).then(|| f32::from_le_bytes(bytes))
        };
        Some(read(&self.numbers, code.into())? * read(&self.scales, number / self.block)? + self.more)
    }
}

impl Scales {
    /// Returns the stored tensors that the scales use.
    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> {
        let of_codes = match &self.kind {
            ScaleKind::Coded(coded) => [Some(coded.numbers), Some(coded.scales)],
            ScaleKind::Number(_) | ScaleKind::Power | ScaleKind::OfBlock => [None, None],
        };
        std::iter::once(self.extent).chain(of_codes.into_iter().flatten())
    }

    /// Whether there are at least `count` scales.
    pub(super) fn has(&self, count: u64) -> bool {
        let bytes = count.checked_mul(self.kind.bytes());
        let coded = match &self.kind {
            ScaleKind::Coded(coded) => coded.is_whole(count),
            ScaleKind::Number(_) | ScaleKind::Power | ScaleKind::OfBlock => true,
        };
        bytes.is_some_and(|bytes| bytes <= self.extent.bytes) && coded
    }
}

impl ScaleKind {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            ScaleKind::Number(element) => element.block().1,
            ScaleKind::Power | ScaleKind::OfBlock | ScaleKind::Coded(_) => 1,
        }
    }
}

/// Multiplies numbers of a stored matrix by their scales. `first` is the element index of `x[0]`.
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
        match &scales.kind {
            ScaleKind::Number(element) => element.floats(stored, &mut factor),
            ScaleKind::Coded(coded) => match coded.scale(number, stored[0], fetch) {
                Some(scale) => factor = [scale],
                None => return false,
            },
            ScaleKind::Power | ScaleKind::OfBlock => factor = [power(stored[0])],
        }
        let (part, rest) = std::mem::take(&mut left).split_at_mut(count as usize);
        part.iter_mut().for_each(|x| *x *= factor[0]);
        (element, left) = (element + count, rest);
    }
    true
}

/// Returns `2^(byte - 127)`; 255 is NaN.
pub(super) fn power(byte: u8) -> f32 {
    if byte == u8::MAX { f32::NAN } else { 2f64.powi(i32::from(byte) - 127) as f32 }
}
