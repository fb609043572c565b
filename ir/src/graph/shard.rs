//! Slices of weights: a rank ([`super::ranks`]) may have only a part of each weight.
//!
//! ```text
//! weight @down : q4_k[256, 512]
//! ```
//! split by columns for two ranks, is on the second rank:
//! ```text
//! weight @down : q4_k[256, 256] {shard = "down", dim = 1, of = 512, ranges = "256..512"}
//! ```
//!
//! IR text may be hostile, so [`Shard::check`] must run before any other use of a slice.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::format::Format;

/// A rank's slice of a weight along one dimension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Name of the whole weight.
    pub weight: String,
    /// Index of the dimension that is split, from 0.
    pub dim: u32,
    /// Size of the dimension in the whole weight.
    pub of: u64,
    /// Ranges of the dimension that the slice contains, in rising order.
    pub ranges: Vec<Range<u64>>,
}

/// Maximum number of ranges. It bounds the memory that hostile text can use.
const MAX_RANGES: usize = 1 << 12;

impl Shard {
    /// Checks that a weight with this shape and these formats can be this slice.
    ///
    /// # Errors
    /// Returns the problem, and the expectation.
    pub(super) fn check(&self, shape: &[u64], format: Format, stored: Format) -> Result<(), String> {
        let Shard { dim, of, ranges, .. } = self;
        let Some(&own) = shape.get(*dim as usize) else {
            return Err(format!("is a slice of dimension {dim}; it has only {} dimensions", shape.len()));
        };
        if ranges.len() > MAX_RANGES {
            return Err(format!("has more than {MAX_RANGES} ranges"));
        }
        let mut end = 0;
        for range in ranges {
            if range.start < end || range.is_empty() || range.end > *of {
                let Range { start, end } = range;
                return Err(format!(
                    "has the range {start}..{end}; ranges must rise, not be empty, and end at most at {of}"
                ));
            }
            end = range.end;
        }
        let sum = ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        if sum != own {
            return Err(format!("has ranges of {sum} numbers in dimension {dim}, which has {own}"));
        }
        if *dim as usize + 1 < shape.len() {
            return Ok(());
        }
        if format.has_row_scale() {
            return Err(format!("is cut by columns, but a row of {format} has one scale"));
        }
        let block = stored.block_len() as u64;
        let whole = ranges.iter().flat_map(|range| [range.start, range.end]).all(|end| end.is_multiple_of(block));
        match whole && of.is_multiple_of(block) {
            true => Ok(()),
            false => Err(format!("is cut within a block; a block of {stored} has {block} elements")),
        }
    }

    /// Returns the bytes of the slice. `shape` and `stored` describe the slice, and `bytes` are
    /// those of the whole weight. Returns `None` if there are too few bytes.
    pub fn cut(&self, shape: &[u64], stored: Format, bytes: &[u8]) -> Option<Vec<u8>> {
        let dim = self.dim as usize;
        let (last, lead) = shape.split_last()?;
        // Number of bytes of the first `n` indices of the split dimension.
        let bytes_of = |n: u64| match dim < lead.len() {
            true => lead[dim + 1..]
                .iter()
                .try_fold(stored.row_bytes(*last)?, |bytes, &n| bytes.checked_mul(n))?
                .checked_mul(n),
            false => stored.row_bytes(n),
        };
        let stride = usize::try_from(bytes_of(self.of)?).ok()?;
        let outer: u64 = lead[..dim.min(lead.len())].iter().product();
        let mut out = Vec::new();
        for at in 0..usize::try_from(outer).ok()? {
            let whole = bytes.get(at.checked_mul(stride)?..)?.get(..stride)?;
            for range in &self.ranges {
                let [start, end] = [bytes_of(range.start)?, bytes_of(range.end)?].map(|n| n as usize);
                out.extend_from_slice(whole.get(start..end)?);
            }
        }
        Some(out)
    }
}

/// Parses the ranges of a slice, such as `0..64 128..192`. Returns `None` if the text is invalid.
pub(super) fn ranges_from(text: &str) -> Option<Vec<Range<u64>>> {
    let range = |text: &str| {
        let (start, end) = text.split_once("..")?;
        Some(start.parse().ok()?..end.parse().ok()?)
    };
    text.split(' ').take(MAX_RANGES + 1).map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_takes_its_ranges_of_each_dimension() {
        let shard = |dim, of, ranges: &[(u64, u64)]| {
            let ranges = ranges.iter().map(|&(start, end)| start..end).collect();
            Shard { weight: "w".to_string(), dim, of, ranges }
        };
        // Elements of f32[2, 3, 2]. The first byte of each element is its index.
        let bytes: Vec<u8> = (0..12).flat_map(|i| [i, 0, 0, 0]).collect();
        let first = |shard: Shard, shape: &[u64]| -> Vec<u8> {
            shard.check(shape, Format::F32, Format::F32).unwrap();
            shard.cut(shape, Format::F32, &bytes).unwrap().chunks(4).map(|x| x[0]).collect()
        };
        assert_eq!(first(shard(0, 2, &[(1, 2)]), &[1, 3, 2]), [6, 7, 8, 9, 10, 11]);
        assert_eq!(first(shard(1, 3, &[(0, 1), (2, 3)]), &[2, 2, 2]), [0, 1, 4, 5, 6, 7, 10, 11]);
        assert_eq!(first(shard(2, 2, &[(1, 2)]), &[2, 3, 1]), [1, 3, 5, 7, 9, 11]);
        assert_eq!(shard(0, 3, &[(1, 2)]).cut(&[1, 3, 2], Format::F32, &bytes), None);
        assert_eq!(shard(2, 2, &[(1, 2)]).cut(&[2, 3, 1], Format::F32, &bytes[1..]), None);
    }
}
