//! Ranges of a sequence's memory that became zero when their pages were released.

use std::ops::Range;

/// Memory of a sequence that became zero because its pages were released.
#[derive(Debug)]
pub(crate) enum ZeroedMemory {
    /// No memory became zero.
    Nothing,
    /// All memory of the sequence.
    All,
    /// Byte ranges that became zero, for each column.
    Parts(Vec<Vec<Range<u64>>>),
}

impl ZeroedMemory {
    /// Returns the parts of a column's byte range that did not become zero.
    pub(crate) fn rest(&self, column: Option<usize>, range: Range<u64>) -> Vec<Range<u64>> {
        match (self, column) {
            (ZeroedMemory::All, _) => Vec::new(),
            (ZeroedMemory::Parts(parts), Some(column)) => gaps(range, parts.get(column).into_iter().flatten().cloned()),
            (ZeroedMemory::Nothing | ZeroedMemory::Parts(_), _) => vec![range],
        }
    }
}

/// Returns the parts of `range` that are not in `covered`, whose ranges are in ascending order.
pub(super) fn gaps(range: Range<u64>, covered: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let (mut gaps, mut at) = (Vec::new(), range.start);
    for part in covered {
        let (start, end) = (part.start.clamp(at, range.end.max(at)), part.end.min(range.end));
        if start > at {
            gaps.push(at..start);
        }
        at = at.max(end);
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
    gaps
}
