//! The nearest number that a code stands for, where each element has a code of its own, and the scale with which these are nearest.
//!
//! Everything here is done to [`LANES`] numbers side by side, of which the compiler makes instructions on vectors.

use super::super::codec::{Quants, Values};

/// Steps that are tried below and above the scale that fits.
const STEPS: i32 = 9;
/// The same with a minimum, below and above.
const STEPS_WITH_MINIMUM: std::ops::RangeInclusive<i32> = -5..=15;
/// A step, in distances of two codes.
const STEP: f32 = 0.1;
/// Codes of which no scale is tried but the one that fits, and those that follow from its codes: between so many there is next to nothing to gain.
const BYTES: usize = 256;

/// Numbers side by side: elements of groups, which have a multiple of as many, or scales that are tried.
pub(super) const LANES: usize = 8;

/// The sum of what was added up lane by lane.
#[inline(always)]
pub(super) fn total([a, b, c, d, e, f, g, h]: [f32; LANES]) -> f32 {
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Numbers, [`LANES`] after [`LANES`].
#[inline(always)]
pub(super) fn lanes(x: &[f32]) -> &[[f32; LANES]] {
    let (lanes, rest) = x.as_chunks();
    debug_assert!(rest.is_empty(), "groups have multiples of {LANES} elements");
    lanes
}

/// The numbers that codes stand for.
pub(super) struct Numbers {
    /// Of each code.
    pub of: Vec<f32>,
    least: f32,
    most: f32,
    /// Where they are no sequence of integers.
    table: Option<Table>,
    /// The numbers that the extreme one of a group may get: of each, a scale is tried.
    tried: Vec<f32>,
}

/// Numbers of a codebook.
struct Table {
    /// What is half-way from each number to the next, and how far that is.
    steps: Vec<(f32, f32)>,
    /// The code of each number, by the integer that it is, from -128 on.
    codes: Box<[u8; BYTES]>,
}

impl Table {
    fn of(numbers: &[f32]) -> Table {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f32::total_cmp);
        sorted.dedup();
        let steps = sorted.windows(2).map(|two| ((two[0] + two[1]) / 2.0, two[1] - two[0])).collect();
        let mut codes = Box::new([0; BYTES]);
        // Of two codes with one number it is the first.
        for (code, number) in numbers.iter().enumerate().rev() {
            codes[(number + 128.0) as usize] = code as u8;
        }
        Table { steps, codes }
    }

    /// Makes numbers the nearest ones; of two as near the lesser.
    #[inline(always)]
    fn near(&self, least: f32, x: &mut [f32; LANES]) {
        let mut numbers = [least; LANES];
        for &(middle, step) in &self.steps {
            for lane in 0..LANES {
                numbers[lane] += if x[lane] > middle { step } else { 0.0 };
            }
        }
        *x = numbers;
    }
}

impl Numbers {
    pub fn of(quants: &Quants) -> Numbers {
        let codes = quants.count() as u16;
        let zero = f32::from(quants.zero());
        let of: Vec<f32> = (0..codes).map(|code| f32::from(quants.byte(code as u8)) - zero).collect();
        // The least byte has no counterpart, and no kernel of llama.cpp makes one.
        let signed = quants.values == Values::Signed;
        let least = if signed { -127.0 } else { of.iter().copied().fold(f32::INFINITY, f32::min) };
        let most = of.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let table = match quants.values {
            Values::Linear { .. } | Values::Signed => None,
            Values::Codebook(_) => Some(Table::of(&of)),
        };
        // The mean distance of two beside each other.
        let distance = (most - least) / f32::from(codes - 1);
        let bounds = if least == -most { &[most][..] } else { &[least, most] };
        let around = |bound: &f32| {
            let bound = *bound;
            (-STEPS..=STEPS).map(move |step| bound + step as f32 * STEP * distance)
        };
        let tried = if of.len() == BYTES { Vec::new() } else { bounds.iter().flat_map(around).collect() };
        Numbers { of, least, most, table, tried }
    }

    /// The codes of numbers that there are.
    #[inline(always)]
    pub fn codes(&self, numbers: &[f32], out: &mut [u8]) {
        let pairs = out.iter_mut().zip(numbers);
        match &self.table {
            // The first code is the least number's, of bytes in two's complement too.
            None if self.of[0] == self.least => pairs.for_each(|(code, x)| *code = low_byte(x - self.least)),
            None => pairs.for_each(|(code, x)| *code = low_byte(*x)),
            Some(table) => pairs.for_each(|(code, x)| *code = table.codes[usize::from(low_byte(x + 128.0))]),
        }
    }

    /// The numbers nearest to `x` less an addend, times the inverse of a scale.
    #[inline(always)]
    pub fn near(&self, x: &[f32], addend: f32, inverse: f32, out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = (x - addend) * inverse;
        }
        match &self.table {
            None => out.iter_mut().for_each(|x| *x = self.nearest_integer(*x)),
            Some(table) => out.as_chunks_mut().0.iter_mut().for_each(|x| table.near(self.least, x)),
        }
    }

    #[inline(always)]
    fn nearest_integer(&self, x: f32) -> f32 {
        // What is no number is the least, as in a table: its bits say nothing.
        rounded(if x >= self.least { x.min(self.most) } else { self.least })
    }

    /// The scale with which the numbers are nearest to `x`, each difference's square times `w`.
    #[inline(always)]
    pub fn fit(&self, x: &[f32], w: &[f32]) -> f32 {
        let extreme = extreme(x);
        if extreme == 0.0 || !extreme.is_finite() {
            return 0.0;
        }
        let fits = extreme / if self.least == -self.most { self.most } else { self.least };
        let (mut best, mut most_gained) = ([fits; LANES], [f32::NEG_INFINITY; LANES]);
        for tried in self.tried.chunks(LANES) {
            let mut inverses = [0f32; LANES];
            inverses.iter_mut().zip(tried).for_each(|(inverse, number)| *inverse = number / extreme);
            let Sums { squares, with_x, .. } = self.sums(x, w, 0.0, inverses);
            for lane in 0..LANES {
                // The sum of squares of the differences, with the best scale for these codes, is that of x less this.
                let gained = with_x[lane] * with_x[lane] / squares[lane];
                let more = gained > most_gained[lane];
                best[lane] = if more { with_x[lane] / squares[lane] } else { best[lane] };
                most_gained[lane] = if more { gained } else { most_gained[lane] };
            }
        }
        let most = (0..LANES).fold(0, |most, lane| if most_gained[lane] > most_gained[most] { lane } else { most });
        best[most]
    }

    /// The same with something that is added; `negative` if that is at most 0.
    #[inline(always)]
    pub fn fit_with_minimum(&self, x: &[f32], w: &[f32], negative: bool) -> (f32, f32) {
        let least = x.iter().copied().fold(if negative { 0.0 } else { f32::INFINITY }, f32::min);
        let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !(most > least && (most - least).is_finite()) {
            return (0.0, if least.is_finite() { least } else { 0.0 });
        }
        // Of w, of w times x, and its square.
        let (mut sw, mut sx, mut sxx) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
        for (x, w) in lanes(x).iter().zip(lanes(w)) {
            for lane in 0..LANES {
                let with_x = w[lane] * x[lane];
                sw[lane] += w[lane];
                sx[lane] += with_x;
                sxx[lane] += with_x * x[lane];
            }
        }
        let (sw, sx, sxx) = (total(sw), total(sx), total(sxx));
        let first = ((most - least) / self.most, least);
        let (mut scales, mut minimums, mut least_lost) = ([first.0; LANES], [first.1; LANES], [f32::INFINITY; LANES]);
        let mut steps = STEPS_WITH_MINIMUM;
        while !steps.is_empty() {
            let mut inverses = [0f32; LANES];
            for (inverse, step) in inverses.iter_mut().zip(&mut steps) {
                *inverse = (self.most + step as f32 * STEP) / (most - least);
            }
            let Sums { numbers, squares, with_x } = self.sums(x, w, least, inverses);
            for lane in 0..LANES {
                let (sq, sqq, sxq) = (numbers[lane], squares[lane], with_x[lane]);
                let determinant = sw * sqq - sq * sq;
                let scale = (sw * sxq - sx * sq) / determinant;
                let minimum = (sqq * sx - sq * sxq) / determinant;
                let none = negative && minimum > 0.0;
                let (scale, minimum) = (if none { sxq / sqq } else { scale }, if none { 0.0 } else { minimum });
                let lost = sxx + scale * scale * sqq + minimum * minimum * sw
                    - 2.0 * (scale * sxq + minimum * sx - scale * minimum * sq);
                let less = determinant > 0.0 && lost < least_lost[lane];
                scales[lane] = if less { scale } else { scales[lane] };
                minimums[lane] = if less { minimum } else { minimums[lane] };
                least_lost[lane] = if less { lost } else { least_lost[lane] };
            }
        }
        let least = (0..LANES).fold(0, |least, lane| if least_lost[lane] < least_lost[least] { lane } else { least });
        (scales[least], minimums[least])
    }

    /// The sums with each of some scales, of which the inverses are given: of the numbers nearest to `x` less `least`.
    #[inline(always)]
    fn sums(&self, x: &[f32], w: &[f32], least: f32, inverses: [f32; LANES]) -> Sums {
        match &self.table {
            None => sums(x, w, least, inverses, |x| {
                for x in x {
                    *x = self.nearest_integer(*x);
                }
            }),
            Some(table) => sums(x, w, least, inverses, |x| table.near(self.least, x)),
        }
    }
}

/// Sums of each scale.
struct Sums {
    /// Of w times the number.
    numbers: [f32; LANES],
    /// Of w times its square.
    squares: [f32; LANES],
    /// Of w times x and the number.
    with_x: [f32; LANES],
}

#[inline(always)]
fn sums(x: &[f32], w: &[f32], least: f32, inverses: [f32; LANES], near: impl Fn(&mut [f32; LANES])) -> Sums {
    let [mut of_numbers, mut squares, mut of_x] = [[0f32; LANES]; 3];
    for (&x, &w) in x.iter().zip(w) {
        let (from_least, with_w) = (x - least, w * x);
        let mut numbers = [0f32; LANES];
        for lane in 0..LANES {
            numbers[lane] = from_least * inverses[lane];
        }
        near(&mut numbers);
        for lane in 0..LANES {
            of_numbers[lane] += w * numbers[lane];
            squares[lane] += w * numbers[lane] * numbers[lane];
            of_x[lane] += with_w * numbers[lane];
        }
    }
    Sums { numbers: of_numbers, squares, with_x: of_x }
}

/// The number farthest from 0, the first of those; 0 where there is none. By bits, of which several are compared at once.
#[inline(always)]
fn extreme(x: &[f32]) -> f32 {
    const INFINITY: i32 = f32::INFINITY.to_bits() as i32;
    let size = |x: f32| {
        let bits = x.abs().to_bits() as i32;
        if bits > INFINITY { 0 } else { bits }
    };
    let most = x.iter().fold(0, |most, &x| most.max(size(x)));
    x.iter().copied().find(|&x| size(x) == most && most > 0).unwrap_or(0.0)
}

/// A number to which this is added is rounded to an integer, which the low bits are then.
const BEHIND_THE_POINT: f32 = 12_582_912.0;

/// The nearest integer, of two as near the even one, of numbers below 2^22: an instruction of its own is not on every x86-64, and a call for each number
/// took most of the time.
#[inline(always)]
fn rounded(x: f32) -> f32 {
    x + BEHIND_THE_POINT - BEHIND_THE_POINT
}

/// The low byte of an integer, which saturates nowhere: that would be done one by one.
#[inline(always)]
fn low_byte(x: f32) -> u8 {
    (x + BEHIND_THE_POINT).to_bits() as u8
}
