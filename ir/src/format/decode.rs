//! Decoding of a block's bytes into numbers.
//!
//! Numbers are decoded run by run. A *run* is consecutive elements of a block that share all
//! scales:
//!
//! ```text
//! q4_k, a block of 256   ->   8 runs of 32: d * scale and dmin * minimum are computed once a run
//! q6_k, a block of 256   ->  16 runs of 16
//! ```

use half::{bf16, f16};

use super::codec::{Codec, Float, Minimum, Number, Quants, Scales, f32_at, offset};
use super::reader::{Block, Offsets, Reader};
use super::{FormatRow, packed};

/// Maximum elements of a run.
const MOST_OF_RUN: usize = 256;

/// One row of a block, with the tail of its row or strip.
pub(super) struct Place<'a> {
    pub row: &'a FormatRow,
    pub offsets: &'a Offsets,
    pub block: &'a [u8],
    pub tail: &'a [u8],
    pub r: usize,
}

impl Place<'_> {
    /// Returns the scale of the whole row, from its tail.
    fn row_scale(&self) -> f32 {
        f32_at(self.tail, offset(&self.row.tail, "d") + 4 * self.r)
    }
}

impl Codec {
    /// Writes a row's elements of a block. Every operation is rounded, in the order of the codec's
    /// formula.
    pub(super) fn dequantise(&self, place: &Place<'_>, out: &mut [f32]) {
        let &Place { row, offsets, block, r, .. } = place;
        match self {
            Codec::Float(float) => {
                let bytes = &block[float.bytes() * r..];
                out[0] = match float {
                    Float::F32 => f32_at(bytes, 0),
                    Float::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
                    Float::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
                };
            }
            Codec::Quants(quants) => {
                let len = quants.run_len(row, out.len());
                let d = row.format.has_row_scale().then(|| place.row_scale());
                match row.rows {
                    1 => quants.dequantise(&Block { row, offsets, block }, d, len, out),
                    _ => quants.dequantise(&packed::Strip { row, offsets, block, r }, d, len, out),
                }
            }
            Codec::Row => {
                let d = place.row_scale();
                out.iter_mut().zip(block).for_each(|(y, &q)| *y = d * f32::from(q as i8));
            }
            Codec::Bytes { scaled } => {
                let quants = &block[offset(&row.fields, "quants")..];
                for (i, (out, quants)) in out.chunks_mut(*scaled).zip(quants.chunks(*scaled)).enumerate() {
                    let d = f32_at(block, offsets.d + 4 * i);
                    out.iter_mut().zip(quants).for_each(|(y, &q)| *y = d * f32::from(q as i8));
                }
            }
            Codec::Bf16 { parts } => {
                let at = |i: usize| bf16::from_le_bytes([block[i], block[i + 1]]).to_f32();
                for (part, name) in ["high", "low"].into_iter().take(*parts).enumerate() {
                    let first = offset(&row.fields, name);
                    for (i, y) in out.iter_mut().enumerate() {
                        let number = at(first + 2 * i);
                        *y = if part == 0 { number } else { *y + number };
                    }
                }
            }
        }
    }
}

impl Quants {
    /// Returns the number of consecutive elements, in a block of `len`, that share all scales.
    fn run_len(&self, row: &FormatRow, len: usize) -> usize {
        let shared = if row.format.has_row_scale() { len } else { row.format.d_columns() };
        shared.min(self.scale_group_len().unwrap_or(len)).min(MOST_OF_RUN)
    }

    /// Writes the elements of a block, in runs of `len`. `row_scale` is the scale of its row, if
    /// there is one.
    fn dequantise(&self, block: &impl Reader, row_scale: Option<f32>, len: usize, out: &mut [f32]) {
        let (offsets, zero) = (block.offsets(), f32::from(self.zero()));
        let mut codes = [0; MOST_OF_RUN];
        for (first, out) in (0..).step_by(len).zip(out.chunks_mut(len)) {
            let codes = &mut codes[..out.len()];
            block.codes(self, first, codes);
            let numbers = codes.iter().map(|&code| f32::from(self.byte(code)) - zero);
            let pairs = out.iter_mut().zip(numbers);
            let (scale, minimum) = block.scale(self.scales, first);
            if let Some(d) = row_scale {
                pairs.for_each(|(y, number)| *y = d * (scale * number));
                continue;
            }
            let own = block.float(self.d, offsets.d, first);
            let d = match self.scales {
                Scales::None | Scales::Row => own,
                Scales::SixBits
                | Scales::Signed16
                | Scales::Nibbles16
                | Scales::Coded(_)
                | Scales::Multiples { .. } => own * scale,
            };
            match self.minimum {
                Minimum::None => pairs.for_each(|(y, number)| *y = d * number),
                Minimum::Half => {
                    let m = block.float(Number::Half, offsets.m, first);
                    pairs.for_each(|(y, number)| *y = d * number + m);
                }
                Minimum::Scaled => {
                    let less = block.float(Number::Half, offsets.dmin, first) * minimum;
                    pairs.for_each(|(y, number)| *y = d * number - less);
                }
            }
        }
    }
}
