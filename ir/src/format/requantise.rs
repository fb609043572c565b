//! Requantising: rows of any weight format in one with a scale for the whole row. The definition, and what does it.
//!
//! ```text
//! q4_k row: 8 scales and minimums for each 256 columns   ->   x, f32   ->   i4_row: q in -8..=7, one d
//! ```
//!
//! With eight bits the largest magnitude becomes 127. With four, a scale that the largest magnitude fits would leave most of a long row
//! to few codes, so scales that clip are tried, and the one whose row is nearest in squares is taken, with the factor that makes it nearer still:
//! `d = sum(x q) / sum(q q)`.

use super::codec::{Quants, Values};
use super::{Codec, Format};

/// Scales that are tried where codes are few: this part of the one that fits, up to all of it.
const SMALLEST: f32 = 0.5;
const TRIED: u32 = 21;

/// Rows of `row_len` elements in `from` become such rows in `to`, one of [`Format::requantised`].
///
/// # Panics
/// When the bytes are no whole rows, or `to` is another format; callers have checked both.
pub fn requantise(from: Format, to: Format, rows: &[u8], row_len: usize) -> Vec<u8> {
    of_floats(to, &from.dequantise_rows(rows, row_len), row_len)
}

/// The same of rows of numbers.
///
/// # Panics
/// As [`requantise`].
pub fn of_floats(to: Format, x: &[f32], row_len: usize) -> Vec<u8> {
    let Codec::Quants(quants) = to.codec() else { panic!("{to} has no integers") };
    assert!(to.has_row_scale() && to.rows() == 1, "{to} has no scale for each row");
    let row_bytes = to.row_bytes(row_len as u64).map_or(0, |bytes| bytes as usize);
    let mut out = vec![0; x.len() / row_len * row_bytes];
    for (x, out) in x.chunks_exact(row_len).zip(out.chunks_exact_mut(row_bytes)) {
        row(to, quants, x, out);
    }
    out
}

/// A row.
fn row(to: Format, quants: &Quants, x: &[f32], out: &mut [u8]) {
    let range = Range::of(quants);
    let (d, inverse) = range.scale(x);
    let (blocks, tail) = out.split_at_mut(x.len() / to.block_len() * to.block_bytes());
    tail[to.tail_field("d")..][..4].copy_from_slice(&d.to_le_bytes());
    let at = to.field(quants.low.field);
    for (x, block) in x.chunks_exact(to.block_len()).zip(blocks.chunks_exact_mut(to.block_bytes())) {
        for (i, &x) in x.iter().enumerate() {
            let (byte, shift) = quants.low.place(i);
            block[at + byte] |= range.code(quants, range.quant(x, inverse)) << shift;
        }
    }
}

/// The numbers that codes can be.
struct Range {
    least: f32,
    most: f32,
}

impl Range {
    fn of(quants: &Quants) -> Range {
        match quants.values {
            // As activations are: two products of -128 would exceed a 16-bit word.
            Values::Signed => Range { least: -127.0, most: 127.0 },
            Values::Linear { zero } => {
                Range { least: -f32::from(zero), most: f32::from(quants.max()) - f32::from(zero) }
            }
            Values::Codebook(_) => unreachable!("no requantised format has a table"),
        }
    }

    fn quant(&self, x: f32, inverse: f32) -> f32 {
        // Added to this, what is after the point is rounded away, to nearest even: an instruction of its own is not on every x86-64.
        const ROUNDS: f32 = 12_582_912.0;
        (x * inverse).clamp(self.least, self.most) + ROUNDS - ROUNDS
    }

    fn code(&self, quants: &Quants, q: f32) -> u8 {
        match quants.values {
            Values::Signed => q as i8 as u8,
            Values::Linear { zero } => (q as i16 + i16::from(zero)) as u8,
            Values::Codebook(_) => unreachable!("no requantised format has a table"),
        }
    }

    /// The scale of a row, and what its elements are multiplied with to get codes.
    fn scale(&self, x: &[f32]) -> (f32, f32) {
        let extreme = x.iter().fold(0f32, |extreme, &x| if x.abs() > extreme.abs() { x } else { extreme });
        if extreme == 0.0 || !extreme.is_finite() {
            return (if extreme == 0.0 { 0.0 } else { extreme }, 0.0);
        }
        if self.least == -self.most {
            return (extreme.abs() / self.most, self.most / extreme.abs());
        }
        // The extreme gets the number that has no counterpart.
        let fits = extreme / self.least;
        let mut best = (fits, fits.recip(), f64::NEG_INFINITY);
        for i in 0..TRIED {
            let tried = fits * (SMALLEST + (1.0 - SMALLEST) * i as f32 / (TRIED - 1) as f32);
            let inverse = tried.recip();
            let (mut with_x, mut squares) = (0f64, 0f64);
            for x in x.chunks(64) {
                let (mut a, mut b) = (0f32, 0f32);
                for &x in x {
                    let q = self.quant(x, inverse);
                    a += x * q;
                    b += q * q;
                }
                with_x += f64::from(a);
                squares += f64::from(b);
            }
            // The squared distance is that of x less this.
            let gained = with_x * with_x / squares;
            if gained > best.2 {
                best = ((with_x / squares) as f32, inverse, gained);
            }
        }
        (best.0, best.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn rows(x: &[f32]) -> Vec<u8> {
        x.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    fn back(to: Format, x: &[f32]) -> Vec<f32> {
        to.dequantise_rows(&requantise(Format::F32, to, &rows(x), x.len()), x.len())
    }

    #[test]
    fn a_row_is_as_near_as_its_codes_allow() {
        let mut random = Random::new(7);
        let x: Vec<f32> = (0..2048).map(|_| (0..6).map(|_| random.signed()).sum::<f32>() / 6.0).collect();
        let error = |to: Format| -> f64 {
            let square = |x: f32| f64::from(x) * f64::from(x);
            let lost: f64 = x.iter().zip(back(to, &x)).map(|(x, y)| square(x - y)).sum();
            lost / x.iter().map(|x| square(*x)).sum::<f64>()
        };
        // Of a uniform error of a step: (amax / 127)^2 / 12, and with 16 codes a hundredth of a normal row's energy.
        let amax = x.iter().fold(0f32, |m, x| m.max(x.abs()));
        let mean_square = x.iter().map(|x| f64::from(x * x)).sum::<f64>() / x.len() as f64;
        let uniform = f64::from(amax / 127.0).powi(2) / 12.0 / mean_square;
        assert!(error(Format::I8Row) < uniform * 1.1 && error(Format::I8Row) > uniform * 0.8);
        assert!((0.008..0.014).contains(&error(Format::I4Row)), "{}", error(Format::I4Row));
    }

    #[test]
    fn numbers_of_a_row_that_codes_have_stay_as_they_are() {
        let x: Vec<f32> = (0..128).map(|i| (i % 16 - 8) as f32 * 0.5).collect();
        assert_eq!(back(Format::I4Row, &x), x);
        let x: Vec<f32> = (0..256).map(|i| (i % 255 - 127) as f32).collect();
        assert_eq!(back(Format::I8Row, &x), x);
        assert_eq!(back(Format::I4Row, &[0.0; 64]), [0.0; 64]);
        assert_eq!(back(Format::I8Row, &[0.0; 64]), [0.0; 64]);
    }

    #[test]
    fn rows_of_blocks_are_read_as_the_numbers_that_they_are() {
        let mut random = Random::new(3);
        for from in [Format::Q4K, Format::Q6K, Format::Q8_0, Format::Bf16] {
            let bytes = crate::graph::random::weight_bytes(&mut random, from, 4 * 512);
            let x = from.dequantise_rows(&bytes, 512);
            for to in Format::requantised() {
                assert_eq!(
                    requantise(from, to, &bytes, 512),
                    requantise(Format::F32, to, &rows(&x), 512),
                    "{from} {to}"
                );
            }
        }
    }
}
