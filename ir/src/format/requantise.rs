//! Requantisation of rows of any weight format to a format with a scale for the whole row. This
//! code is the reference for the results.
//!
//! ```text
//! q4_k row: 8 scales and minimums for every 256 columns
//!     ->  x, f32
//!     ->  i4_row: q in -8..=7, one d
//!     or  i4_g128: q in -8..=7, one d, and a multiple of d for every 128 columns
//! ```
//!
//! With eight bits, the largest magnitude becomes 127. With four bits, a scale that fits the
//! largest magnitude would give most elements of a long row only a few codes. The search therefore
//! also tries smaller scales, which clip large elements. It takes the codes with the least squared
//! error, and then the scale that is best for these codes: `d = sum(x q) / sum(q q)`.
//!
//! Except with a few outliers, the error is a smooth function of the scale's logarithm with one
//! minimum. A few coarse steps, and then finer ones around the best scale, are therefore enough. A
//! test checks that the error of rows of a few hundred numbers is within 1 % of the best of 600
//! scales.
//!
//! In `i4_g128`, the search first finds a scale for each group of 128 columns. It needs fewer
//! trials, since the largest of 128 numbers is seldom an outlier. The largest group scale becomes
//! the largest multiple. Each group takes the better of the two multiples next to its own scale.
//! Finally, `d` becomes the factor with the least error for the whole row.
//!
//! Functions are `inline`, so that the optimisations of the calling crate apply.

use super::codec::{MOST_MULTIPLE, Quants, Values};
use super::{Codec, Format};

/// First scales that are tried, as fractions of the scale that fits the largest magnitude: powers
/// of `sqrt(1/2)`.
const COARSE: [f32; 5] = [1.0, std::f32::consts::FRAC_1_SQRT_2, 0.5, 0.353_553_38, 0.25];
/// Factors on the best scale so far. The search tries each factor and its inverse: the 4th, 8th and
/// 16th root of 2.
const FINE: [f32; 3] = [1.189_207_1, 1.090_507_7, 1.044_273_8];
/// Scales that are tried for a group, as fractions of the scale that fits its largest magnitude.
/// Only about four bits of a group's scale are stored, so few trials are enough.
const OF_GROUPS: [f32; 3] = [1.0, 0.875, 0.75];

/// Converts rows of `row_len` elements in `from` to rows in `to`, one of
/// [`Format::requantisation_formats`].
///
/// # Panics
/// The bytes are not whole rows, or `to` is another format. Callers have checked both.
pub fn requantise(from: Format, to: Format, rows: &[u8], row_len: usize) -> Vec<u8> {
    of_floats(to, &from.dequantise_rows(rows, row_len), row_len)
}

/// Converts rows of numbers to `to`, one of [`Format::requantisation_formats`].
///
/// # Panics
/// See [`requantise`].
#[inline]
pub fn of_floats(to: Format, x: &[f32], row_len: usize) -> Vec<u8> {
    let Codec::Quants(quants) = to.codec() else { panic!("{to} does not store integers") };
    assert!(to.has_row_scale() && to.rows() == 1, "{to} has no scale for each row");
    let row_bytes = to.row_bytes(row_len as u64).map_or(0, |bytes| bytes as usize);
    let mut out = vec![0; x.len() / row_len * row_bytes];
    for (x, out) in x.chunks_exact(row_len).zip(out.chunks_exact_mut(row_bytes)) {
        row(to, quants, x, out);
    }
    out
}

/// Converts one row of numbers.
#[inline]
fn row(to: Format, quants: &Quants, x: &[f32], out: &mut [u8]) {
    let range = Range::from_quants(quants);
    let group_len = quants.multiples().unwrap_or(x.len());
    let (d, groups) = match quants.multiples() {
        Some(columns) => range.multiples(x, columns),
        None => {
            let Scale { d, inverse } = range.scale(x);
            (d, vec![Group { multiple: 1, inverse }])
        }
    };
    let (blocks, tail) = out.split_at_mut(x.len() / to.block_len() * to.block_bytes());
    tail[to.tail_field("d")..][..4].copy_from_slice(&d.to_le_bytes());
    let mut codes = vec![0u8; x.len()];
    for ((x, codes), group) in x.chunks(group_len).zip(codes.chunks_mut(group_len)).zip(&groups) {
        range.codes(quants, x, group.inverse, codes);
    }
    put_codes(to, quants, &codes, blocks);
    if let Some(columns) = quants.multiples() {
        let each = to.block_len() / columns;
        let at = to.field("scales");
        for (groups, block) in groups.chunks_exact(each).zip(blocks.chunks_exact_mut(to.block_bytes())) {
            block[at..].iter_mut().zip(groups).for_each(|(scale, group)| *scale = group.multiple as u8);
        }
    }
}

/// Writes codes into the plane of blocks. The plane's bits must be zero.
#[inline]
pub(super) fn put_codes(to: Format, quants: &Quants, codes: &[u8], blocks: &mut [u8]) {
    let at = to.field(quants.low.field);
    let (bits, run) = (quants.low.bits, quants.low.run);
    for (codes, block) in codes.chunks_exact(to.block_len()).zip(blocks.chunks_exact_mut(to.block_bytes())) {
        // Places are those of [`Plane::place`], byte after byte.
        for (codes, bytes) in codes.chunks_exact(run * 8 / bits).zip(block[at..].chunks_exact_mut(run)) {
            for (i, codes) in codes.chunks_exact(run).enumerate() {
                bytes.iter_mut().zip(codes).for_each(|(byte, code)| *byte |= code << (i * bits));
            }
        }
    }
}

/// A scale with its inverse, the factor that turns elements into codes. The inverse is rounded.
#[derive(Clone, Copy)]
struct Scale {
    d: f32,
    inverse: f32,
}

/// Scale of a group of columns: its multiple of the row's scale, and the inverse.
struct Group {
    multiple: i8,
    inverse: f32,
}

/// Sums over the elements: of each element times its code's number, and of the squares of these
/// numbers.
#[derive(Clone, Copy)]
struct Sums {
    with_x: f64,
    squares: f64,
}

impl Sums {
    /// Returns the reduction of the squared error with the best scale for these codes. The squared
    /// error is the sum of squares of x minus this reduction.
    fn error_reduction(self) -> f64 {
        self.with_x * self.with_x / self.squares
    }

    /// Returns the reduction of the squared error with this scale.
    fn gained_with(self, scale: f64) -> f64 {
        scale * (2.0 * self.with_x - scale * self.squares)
    }
}

/// The best scale so far.
struct Best {
    scale: Scale,
    gained: f64,
    tried: f32,
}

impl Best {
    /// Tries a scale, and keeps it if it is better than all earlier ones. Returns whether it is.
    #[inline]
    fn takes(&mut self, range: &Range, x: &[f32], tried: f32) -> bool {
        let inverse = tried.recip();
        let sums = range.sums(x, inverse);
        // The comparison is false for NaN, which comes from a scale that is not finite.
        let better = sums.error_reduction() > self.gained;
        if better {
            let d = (sums.with_x / sums.squares) as f32;
            *self = Best { scale: Scale { d, inverse }, gained: sums.error_reduction(), tried };
        }
        better
    }
}

/// Range of the numbers that codes stand for.
struct Range {
    least: f32,
    most: f32,
}

/// Constant that rounds to the nearest integer, halves to even, when it is added. The lowest bits
/// of the sum are then those of the integer. Some x86-64 processors have no rounding instruction.
const ROUNDS: f32 = 12_582_912.0;
/// Number of parallel partial sums. The order of additions is then the same on every machine, and
/// compilers use vectors.
const LANES: usize = 16;
/// Number of elements after which the f32 partial sums are added to an f64 sum.
const EXACT: usize = 1024;

impl Range {
    fn from_quants(quants: &Quants) -> Range {
        match quants.values {
            // Activations have the same limit: the sum of two products of -128 would exceed a
            // 16-bit word.
            Values::Signed => Range { least: -127.0, most: 127.0 },
            Values::Linear { zero } => {
                Range { least: -f32::from(zero), most: f32::from(quants.max()) - f32::from(zero) }
            }
            Values::Codebook(_) => unreachable!("a requantised format has no codebook"),
        }
    }

    /// Returns the number of an element's code plus [`ROUNDS`].
    #[inline]
    fn rounded_code(&self, x: f32, inverse: f32) -> f32 {
        (x * inverse).clamp(self.least, self.most) + ROUNDS
    }

    /// Writes the code of each element of `x`. `inverse` is the factor from elements to codes.
    #[inline]
    fn codes(&self, quants: &Quants, x: &[f32], inverse: f32, codes: &mut [u8]) {
        let zero = match quants.values {
            Values::Signed => 0,
            Values::Linear { zero } => zero,
            Values::Codebook(_) => unreachable!("a requantised format has no codebook"),
        };
        // The mask also limits NaN to the bits of a code.
        let mask = ((1u16 << quants.low.bits) - 1) as u8;
        for (x, code) in x.iter().zip(codes) {
            *code = (self.rounded_code(*x, inverse).to_bits() as u8).wrapping_add(zero) & mask;
        }
    }

    #[inline]
    fn sums(&self, x: &[f32], inverse: f32) -> Sums {
        let mut sums = Sums { with_x: 0.0, squares: 0.0 };
        for x in x.chunks(EXACT) {
            let (mut with_x, mut squares) = ([0f32; LANES], [0f32; LANES]);
            let whole = x.chunks_exact(LANES);
            let rest = whole.remainder();
            let mut add = |lane: usize, x: f32| {
                let q = self.rounded_code(x, inverse) - ROUNDS;
                with_x[lane] += x * q;
                squares[lane] += q * q;
            };
            for x in whole {
                (0..LANES).for_each(|lane| add(lane, x[lane]));
            }
            rest.iter().enumerate().for_each(|(lane, x)| add(lane, *x));
            sums.with_x += with_x.iter().map(|x| f64::from(*x)).sum::<f64>();
            sums.squares += squares.iter().map(|x| f64::from(*x)).sum::<f64>();
        }
        sums
    }

    /// Returns the scale with which no element is clipped. The range may have a number whose
    /// negative is outside the range; the extreme element gets this number.
    #[inline]
    fn fits(&self, x: &[f32]) -> Scale {
        let extreme = x.iter().fold(0f32, |extreme, &x| if x.abs() > extreme.abs() { x } else { extreme });
        let (extreme, number) =
            if self.least == -self.most { (extreme.abs(), self.most) } else { (extreme, self.least) };
        Scale { d: extreme / number, inverse: number / extreme }
    }

    /// Returns the best scale of a row.
    #[inline]
    fn scale(&self, x: &[f32]) -> Scale {
        let fits = self.fits(x);
        if fits.d == 0.0 || !fits.d.is_finite() {
            return Scale { inverse: 0.0, ..fits };
        }
        if self.least == -self.most {
            return fits;
        }
        let mut best = self.best(x, fits, &COARSE);
        for factor in FINE {
            let tried = best.tried;
            if !best.takes(self, x, tried * factor) {
                best.takes(self, x, tried / factor);
            }
        }
        best.scale
    }

    /// Returns the best scale among `parts`, which are fractions of the scale `fits`. Tries them in
    /// descending order, until two in a row are worse than the best.
    #[inline]
    fn best(&self, x: &[f32], fits: Scale, parts: &[f32]) -> Best {
        let mut best = Best { scale: fits, gained: f64::NEG_INFINITY, tried: fits.d };
        let mut worse = 0;
        for part in parts {
            worse = if best.takes(self, x, fits.d * part) { 0 } else { worse + 1 };
            if worse == 2 {
                break;
            }
        }
        best
    }

    /// Returns the scale of a row, and the multiple of each group of `columns` elements.
    #[inline]
    fn multiples(&self, x: &[f32], columns: usize) -> (f32, Vec<Group>) {
        let own = |x: &[f32]| match self.fits(x) {
            Scale { d, .. } if d == 0.0 || !d.is_finite() => d,
            fits => self.best(x, fits, &OF_GROUPS).scale.d,
        };
        let own: Vec<f32> = x.chunks(columns).map(own).collect();
        let largest = own.iter().fold(0f32, |largest, d| if d.abs() > largest { d.abs() } else { largest });
        if largest == 0.0 || !largest.is_finite() {
            let groups = own.iter().map(|_| Group { multiple: 1, inverse: 0.0 });
            return (largest, groups.collect());
        }
        let d = largest / f32::from(MOST_MULTIPLE);
        let mut all = Sums { with_x: 0.0, squares: 0.0 };
        let group = |(x, own): (&[f32], &f32)| {
            let below = ((own.abs() / d) as i8).clamp(1, MOST_MULTIPLE);
            let tried = [below, (below + 1).min(MOST_MULTIPLE)].map(|size| {
                let multiple = if *own < 0.0 { -size } else { size };
                let scale = d * f32::from(multiple);
                let inverse = scale.recip();
                let sums = self.sums(x, inverse);
                (sums.gained_with(scale.into()), Group { multiple, inverse }, sums)
            });
            let [low, high] = tried;
            let (_, group, sums) = if high.0 > low.0 { high } else { low };
            let multiple = f64::from(group.multiple);
            all.with_x += multiple * sums.with_x;
            all.squares += multiple * multiple * sums.squares;
            group
        };
        let groups: Vec<Group> = x.chunks(columns).zip(&own).map(group).collect();
        let d = if all.squares > 0.0 { (all.with_x / all.squares) as f32 } else { d };
        (d, groups)
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
    fn requantised_rows_meet_the_error_bound() {
        let mut random = Random::new(7);
        let x: Vec<f32> = (0..2048).map(|_| (0..6).map(|_| random.signed()).sum::<f32>() / 6.0).collect();
        let error = |to: Format| -> f64 {
            let square = |x: f32| f64::from(x) * f64::from(x);
            let lost: f64 = x.iter().zip(back(to, &x)).map(|(x, y)| square(x - y)).sum();
            lost / x.iter().map(|x| square(*x)).sum::<f64>()
        };
        // With a step of amax / 127, a uniform rounding error gives (amax / 127)^2 / 12. With 16
        // codes, the error is a hundredth of the energy of a row of normally distributed numbers.
        let amax = x.iter().fold(0f32, |m, x| m.max(x.abs()));
        let mean_square = x.iter().map(|x| f64::from(x * x)).sum::<f64>() / x.len() as f64;
        let uniform = f64::from(amax / 127.0).powi(2) / 12.0 / mean_square;
        assert!(error(Format::I8Row) < uniform * 1.1 && error(Format::I8Row) > uniform * 0.8);
        assert!((0.008..0.014).contains(&error(Format::I4Row)), "{}", error(Format::I4Row));
        // The largest of 128 numbers is smaller than the largest of a row, so the steps of groups
        // are smaller.
        assert!((0.006..0.0105).contains(&error(Format::I4G128)), "{}", error(Format::I4G128));
    }

    /// Rows with outliers, or with columns of different sizes, have a smaller error with scales by
    /// groups.
    #[test]
    fn an_outlier_costs_its_group_alone() {
        let mut random = Random::new(9);
        let normal = |random: &mut Random| (0..6).map(|_| random.signed()).sum::<f32>() / 6.0;
        let square = |x: f32| f64::from(x) * f64::from(x);
        let lost = |to: Format, x: &[f32]| -> f64 { x.iter().zip(back(to, x)).map(|(x, y)| square(x - y)).sum() };
        let mut x: Vec<f32> = (0..2048).map(|_| normal(&mut random)).collect();
        let before = lost(Format::I4G128, &x);
        x[700] = 12.0;
        let [by_row, by_groups] = [Format::I4Row, Format::I4G128].map(|to| lost(to, &x));
        // Error of the 127 other elements in the outlier's group, which have most of the error.
        let beside: f64 = x[640..768].iter().map(|x| square(*x)).sum::<f64>() - square(x[700]);
        assert!(
            by_groups < beside + 3.0 * before && by_groups < by_row / 5.0,
            "{beside} {before} {by_groups} {by_row}"
        );
        let x: Vec<f32> = (0..2048).map(|i| normal(&mut random) * [1.0, 0.3, 0.1][i / 128 % 3]).collect();
        let [by_row, by_groups] = [Format::I4Row, Format::I4G128].map(|to| lost(to, &x));
        assert!(by_groups < by_row / 2.0, "{by_groups} {by_row}");
    }

    /// The search for a scale with few tries has the same error as a search with many tries.
    #[test]
    fn short_scale_search_matches_a_long_one() {
        const ROWS: usize = 24;
        let mut random = Random::new(11);
        let square = |x: f32| f64::from(x) * f64::from(x);
        for len in [128, 512, 2048] {
            // Uniformly distributed numbers, then distributions with ever longer tails.
            for power in [1, 3, 5] {
                let (mut lost, mut least) = (0.0, 0.0);
                for _ in 0..ROWS {
                    let x: Vec<f32> = (0..len).map(|_| random.signed().powi(power)).collect();
                    lost += x.iter().zip(back(Format::I4Row, &x)).map(|(x, y)| square(x - y)).sum::<f64>();
                    let range = Range::from_quants(Format::I4Row.quants().unwrap());
                    let fits = range.fits(&x);
                    let gained = |i: usize| range.sums(&x, (fits.d * i as f32 / 600.0).recip()).error_reduction();
                    least += x.iter().map(|x| square(*x)).sum::<f64>() - (60..=600).map(gained).fold(0.0, f64::max);
                }
                assert!(lost <= least * 1.01, "{len} numbers to the power of {power}: {lost}, not {least}");
            }
        }
    }

    #[test]
    fn representable_row_values_survive_requantising() {
        let x: Vec<f32> = (0..128).map(|i| (i % 16 - 8) as f32 * 0.5).collect();
        assert_eq!(back(Format::I4Row, &x), x);
        let x: Vec<f32> = (0..256).map(|i| (i % 255 - 127) as f32).collect();
        assert_eq!(back(Format::I8Row, &x), x);
        assert_eq!(back(Format::I4Row, &[0.0; 64]), [0.0; 64]);
        assert_eq!(back(Format::I8Row, &[0.0; 64]), [0.0; 64]);
        assert_eq!(back(Format::I4G128, &[0.0; 128]), [0.0; 128]);
        // Groups whose scales are multiples of one number, of both signs, and a group of zeros. The
        // only error is the rounding of a scale.
        let scales = [7.5, 4.0, -0.5, 0.0, -7.5];
        let x: Vec<f32> =
            (0..scales.len() * 128).map(|i| (i % 16) as f32 * scales[i / 128] - 8.0 * scales[i / 128]).collect();
        let near = x.iter().zip(back(Format::I4G128, &x)).all(|(x, y)| (x - y).abs() <= x.abs() * f32::EPSILON);
        assert!(near, "{x:?}");
    }

    #[test]
    fn nan_does_not_affect_other_codes() {
        for to in Format::requantisation_formats() {
            let mut x = vec![0.5f32; 256];
            x[3] = f32::NAN;
            let y = back(to, &x);
            assert!((0..256).all(|i| i == 3 || (y[i] - 0.5).abs() < 0.05), "{to}: {y:?}");
        }
    }
}
