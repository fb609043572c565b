//! Keys and values of a KV cache in a quantised block format: rounding and memory layout.
//!
//! A head's key or value is cut into blocks of the format along the head. Each block has a half `d`
//! and integers from `least` to `most` ([`Codes`]). The element with the largest magnitude gets the
//! integer `least`:
//!
//! ```text
//! d = half(x of largest magnitude / least), at most the largest finite half
//! q = x / d to nearest even, within least..=most, or 0 if d is 0
//!     q8_0: -127..=127, q4_0: -8..=7
//! ```
//!
//! ggml rounds these formats in the same way, with two differences: `q` is computed with the stored
//! `d`, and `d` is always finite. A cache therefore holds no infinity and no NaN. Stale bytes of a
//! dropped position thus contribute 0 if their attention weight is 0.
//!
//! In memory, [`KEY_LANES`] positions lie together, with a *panel* for each block of the head. A
//! panel has as many bytes as the same blocks have in a file:
//!
//! ```text
//! panel     16 halves d, one of each position; then the codes
//! keys      dwords of codes of position 0, 1, .. 15, then the next dword of each:
//!           a vector lane is a position
//! values    all codes of position 0, then of position 1, ..: a vector lane is an element
//! ```
//!
//! The format's [`Plane`] gives the place of codes in their dwords and bytes. Codes of keys are
//! unsigned: the integer plus `zero`, because products of bytes need one unsigned factor. Codes of
//! values are those of the block format.

use half::f16;

use crate::format::{Format, Plane, Quants, Values};
use crate::plan::KEY_LANES;
use crate::state::STATES;

const LANES: usize = KEY_LANES as usize;
/// Number of bytes of an `f16`.
const HALF: usize = 2;

/// Integer codes of a block format that a KV cache can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codes {
    /// Number of elements of a block.
    pub len: usize,
    /// The smallest integer.
    pub least: i32,
    /// The largest integer.
    pub most: i32,
    /// Place of an element's bits in a block.
    pub plane: Plane,
    /// Difference between an unsigned code and its integer.
    pub zero: i32,
    /// Whether the format's own codes are two's complement.
    pub signed: bool,
}

impl Codes {
    /// Returns the codes of a format. Returns `None` for a format without blocks. Also returns
    /// `None` if the format's blocks have more fields than an f16 scale and one plane of
    /// consecutive integers.
    pub fn from_format(format: Format) -> Option<Codes> {
        let quants = format.quants()?;
        let Quants { low: plane, values, .. } = *quants;
        let zero = i32::from(quants.zero());
        let (least, signed) = match values {
            // Symmetric: the range has the same number of integers below 0 as above.
            Values::Signed => (1 - zero, true),
            Values::Linear { .. } => (-zero, false),
            Values::Codebook(_) => return None,
        };
        let plain = *quants == Quants::new(plane, values) && format.rows() == 1 && format.is_in_files();
        let most = (1 << plane.bits) - 1 - zero;
        plain.then_some(Codes { len: format.block_len(), least, most, plane, zero, signed })
    }

    /// Returns the number of bytes of a block's codes.
    pub fn bytes(&self) -> usize {
        self.len * self.plane.bits / 8
    }

    /// Returns the number of bytes of a panel.
    pub fn panel(&self) -> usize {
        LANES * (HALF + self.bytes())
    }

    /// Returns the byte offset of the first code in a panel: the bytes of the scales before it.
    pub fn first(&self) -> usize {
        LANES * HALF
    }

    /// Returns the scale `d` of a block.
    fn scale(&self, x: &[f32]) -> f16 {
        let top = x.iter().copied().fold(f32::MIN, f32::max);
        let bottom = x.iter().copied().fold(f32::MAX, f32::min);
        let extreme = if top < 0.0 - bottom { bottom } else { top };
        let largest = f16::MAX.to_f32();
        f16::from_f32((extreme * (self.least as f32).recip()).clamp(-largest, largest))
    }

    /// Quantises the elements of a block with the scale `d`.
    fn integers<'x>(&self, d: f16, x: &'x [f32]) -> impl Iterator<Item = i32> + use<'x> {
        let d = d.to_f32();
        let inverse = if d.abs() > 0.0 { 1.0 / d } else { 0.0 };
        let Codes { least, most, .. } = *self;
        x.iter().map(move |x| ((x * inverse).round_ties_even() as i32).clamp(least, most))
    }

    /// Returns the integer of element `i`, from the codes of a block of keys or values.
    fn integer(&self, codes: impl Fn(usize) -> u8, i: usize, keys: bool) -> i32 {
        let (byte, shift) = self.plane.place(i);
        let code = (codes(byte) >> shift) & (u8::MAX >> (8 - self.plane.bits));
        if self.signed && !keys { i32::from(code as i8) } else { i32::from(code) - self.zero }
    }
}

/// Whether a cache may store keys or values in this format.
pub fn is_cached(format: Format) -> bool {
    STATES.iter().flat_map(|row| row.fields).any(|field| field.positions && field.formats.contains(&format))
}

/// Rounds a row of heads to numbers that the format can represent. Formats without blocks leave the
/// row unchanged: see [`crate::graph::interpret`].
pub fn round(format: Format, row: &mut [f32]) {
    let Some(codes) = Codes::from_format(format) else { return };
    for block in row.chunks_mut(codes.len) {
        let d = codes.scale(block);
        let rounded: Vec<f32> = codes.integers(d, block).map(|q| q as f32 * d.to_f32()).collect();
        block.copy_from_slice(&rounded);
    }
}

/// Keys or values of one head in memory, for reading.
#[derive(Clone, Copy, Debug)]
pub struct CachedHead<'a> {
    /// Format of the elements.
    pub format: Format,
    /// Number of elements of the head's key or value at one position.
    pub width: usize,
    /// Whether the bytes hold keys; otherwise they hold values.
    pub keys: bool,
    /// Bytes of the head, from the first position of a group of [`KEY_LANES`] positions on.
    pub bytes: &'a [u8],
}

impl CachedHead<'_> {
    /// Returns an element of a position. The position and the element must exist.
    pub fn at(&self, position: usize, element: usize) -> f32 {
        let (strip, lane) = (position / LANES, position % LANES);
        let half = |at: usize| f16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]).to_f32();
        let Some(codes) = Codes::from_format(self.format) else {
            let at =
                if self.keys { (strip * self.width + element) * LANES + lane } else { position * self.width + element };
            return half(at * HALF);
        };
        let panel = (strip * (self.width / codes.len) + element / codes.len) * codes.panel();
        let byte = |byte: usize| {
            let at = if self.keys { (byte / 4 * LANES + lane) * 4 + byte % 4 } else { lane * codes.bytes() + byte };
            self.bytes[panel + codes.first() + at]
        };
        codes.integer(byte, element % codes.len, self.keys) as f32 * half(panel + lane * HALF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn cached_blocks_round_as_their_format_decodes() {
        let mut random = Random::new(7);
        for name in ["q8_0", "q4_0"] {
            let format = Format::from_name(name).unwrap();
            let codes = Codes::from_format(format).unwrap();
            assert!(is_cached(format) && codes.panel() == LANES * format.block_bytes());
            for size in [1.0, 1e-3, 1e4] {
                let x: Vec<f32> = (0..4 * codes.len).map(|_| random.signed() * size).collect();
                let mut rounded = x.clone();
                round(format, &mut rounded);
                for (x, rounded) in x.chunks(codes.len).zip(rounded.chunks(codes.len)) {
                    let mut bytes = vec![0; format.block_bytes()];
                    let d = codes.scale(x);
                    bytes[format.field("d")..][..2].copy_from_slice(&d.to_le_bytes());
                    for (i, q) in codes.integers(d, x).enumerate() {
                        let (byte, shift) = codes.plane.place(i);
                        let code = if codes.signed { q as u8 } else { (q + codes.zero) as u8 };
                        bytes[format.field("quants") + byte] |= code << shift;
                    }
                    let mut decoded = vec![0.0; codes.len];
                    format.dequantise(&bytes, &mut decoded);
                    assert_eq!(decoded, rounded);
                    // The error is at most half a step between codes, plus the rounding of the
                    // scale. At the end of the range that lacks the largest magnitude, it is a
                    // whole step.
                    let largest = x.iter().fold(0f32, |most, x| most.max(x.abs()));
                    let step = largest / -codes.least as f32;
                    let close = |(x, y): (&f32, &f32)| {
                        (x - y).abs() <= step * if codes.signed { 0.51 } else { 1.01 } + largest / 2048.0
                    };
                    assert!(x.iter().zip(rounded).all(close), "{x:?} {rounded:?}");
                }
            }
        }
    }

    #[test]
    fn cached_rows_are_finite_for_any_input() {
        let format = Format::from_name("q8_0").unwrap();
        for x in [f32::INFINITY, f32::NAN, 3e38, -3e38, 0.0, 1e-30] {
            let mut row = vec![x; 32];
            round(format, &mut row);
            assert!(row.iter().all(|x| x.is_finite()), "{x}: {row:?}");
        }
    }

    #[test]
    fn formats_with_more_than_one_scale_have_no_codes() {
        for name in ["f16", "q4_k", "q4_1", "q5_0", "iq4_nl", "mxfp4", "i8_row", "q8_0_r16", "a8_super"] {
            assert_eq!(Codes::from_format(Format::from_name(name).unwrap()), None, "{name}");
        }
    }
}
