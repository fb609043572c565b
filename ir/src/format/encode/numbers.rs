//! Search for the scale with the least error, in formats where each element has its own code. Each
//! scale gives the nearest code of every element.
//!
//! The search handles several groups of elements in parallel, with one group in each lane
//! ([`Lanes`]).

use super::super::codec::{Quants, Values};
use super::lanes::{Any, Lanes, POSITIONS, Vector, positions, total};

/// Number of scales that are tried below, and above, the scale that fits the extreme element.
const STEPS: i32 = 9;
/// Steps to the scales that are tried around the one that fits, in formats with a minimum.
const STEPS_WITH_MINIMUM: std::ops::RangeInclusive<i32> = -5..=15;
/// Distance between two tried scales, in distances between two codes.
const STEP: f32 = 0.1;
/// Number of codes from which a search has no benefit. With 256 codes, the largest element
/// determines a scale, and least squares then correct it.
const BYTES: usize = 256;
/// Distance between consecutively tried scales. If scales are equally good, the first one tried is
/// kept.
const TRIAL_STRIDE: usize = 8;
/// Number of scales that are tried at once. Their sums must fit in registers.
const TRIAL_LANES: usize = 2;

/// The numbers that codes stand for.
pub(super) struct Numbers {
    /// Number that each code stands for, in the order of codes.
    pub of: Vec<f32>,
    /// Least and largest of these numbers.
    integers: Integers,
    /// Table of the numbers, if they are not consecutive integers.
    table: Option<Table>,
    /// Numbers that the extreme element of a group may be mapped to. Each gives a scale to try. Of
    /// equally good scales, the first is kept.
    tried: Vec<f32>,
    /// Numbers that the largest element may be mapped to in formats with a minimum, in the order of
    /// trials.
    tried_with_minimum: Vec<f32>,
}

/// Puts trials in order: every [`TRIAL_STRIDE`]th from the first on, then from the second on, and
/// so on. Repeats one trial until their number is a multiple of [`TRIAL_LANES`]; a repetition has
/// no effect.
fn in_order(tried: &[f32]) -> Vec<f32> {
    let first = |first: usize| tried.iter().skip(first).step_by(TRIAL_STRIDE).copied();
    let mut all: Vec<f32> = (0..TRIAL_STRIDE).flat_map(first).collect();
    all.resize(all.len().next_multiple_of(TRIAL_LANES), all.last().copied().unwrap_or(0.0));
    all
}

/// Rounding to the nearest number of a code.
trait Nearest {
    fn near<V: Vector>(&self, x: Lanes<V>) -> Lanes<V>;
}

/// All integers from a least to a largest one.
struct Integers {
    least: f32,
    most: f32,
}

impl Nearest for Integers {
    #[inline(always)]
    fn near<V: Vector>(&self, x: Lanes<V>) -> Lanes<V> {
        let (least, most) = (Lanes::splat(self.least), Lanes::splat(self.most));
        // NaN becomes the least number, as in [`Table`]. The conversion by bits would turn it into
        // an arbitrary number.
        let behind_the_point = Lanes::splat(BEHIND_THE_POINT);
        x.greatest(least).least(most) + behind_the_point - behind_the_point
    }
}

/// Numbers of a codebook, in ascending order.
struct Table {
    least: f32,
    /// Midpoint between each number and the next, and their difference.
    steps: Vec<(f32, f32)>,
    /// Code of each number. The index is the number plus 128.
    codes: Box<[u8; BYTES]>,
}

impl Table {
    fn from_numbers(numbers: &[f32]) -> Table {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable_by(f32::total_cmp);
        sorted.dedup();
        let steps = sorted.windows(2).map(|two| ((two[0] + two[1]) / 2.0, two[1] - two[0])).collect();
        let mut codes = Box::new([0; BYTES]);
        // If two codes have the same number, the table has the first of them.
        for (code, number) in numbers.iter().enumerate().rev() {
            codes[(number + 128.0) as usize] = code as u8;
        }
        Table { least: sorted[0], steps, codes }
    }
}

impl Nearest for Table {
    /// Rounds to the nearest number. If two numbers are equally near, takes the lesser.
    #[inline(always)]
    fn near<V: Vector>(&self, x: Lanes<V>) -> Lanes<V> {
        let mut numbers = Lanes::splat(self.least);
        for &(middle, step) in &self.steps {
            numbers = numbers + x.greater_or_zero(Lanes::splat(middle), Lanes::splat(step));
        }
        numbers
    }
}

impl Numbers {
    pub fn from_quants(quants: &Quants) -> Numbers {
        let codes = quants.count() as u16;
        let zero = f32::from(quants.zero());
        let of: Vec<f32> = (0..codes).map(|code| f32::from(quants.byte(code as u8)) - zero).collect();
        // The byte -128 has no positive counterpart, and llama.cpp never writes it.
        let signed = quants.values == Values::Signed;
        let least = if signed { -127.0 } else { of.iter().copied().fold(f32::INFINITY, f32::min) };
        let most = of.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let table = match quants.values {
            Values::Linear { .. } | Values::Signed => None,
            Values::Codebook(_) => Some(Table::from_numbers(&of)),
        };
        // Mean distance between two adjacent numbers that codes stand for.
        let distance = (most - least) / f32::from(codes - 1);
        let bounds = if least == -most { &[most][..] } else { &[least, most] };
        let around = |bound: &f32| {
            let bound = *bound;
            (-STEPS..=STEPS).map(move |step| bound + step as f32 * STEP * distance)
        };
        let mut tried: Vec<f32> = if of.len() == BYTES { Vec::new() } else { bounds.iter().flat_map(around).collect() };
        // With a scale of 0, all elements get the number nearest to 0.
        let nothing = table.as_ref().map_or(0.0, |table| table.near(Lanes::<Any<1>>::zero()).all()[0]);
        if nothing != 0.0 && !tried.len().is_multiple_of(TRIAL_STRIDE) {
            tried.push(0.0);
        }
        let with_minimum: Vec<f32> = STEPS_WITH_MINIMUM.map(|step| most + step as f32 * STEP).collect();
        Numbers {
            of,
            integers: Integers { least, most },
            table,
            tried: in_order(&tried),
            tried_with_minimum: in_order(&with_minimum),
        }
    }

    /// Writes the codes of numbers. Each number must be one that a code stands for.
    #[inline(always)]
    pub fn codes(&self, numbers: &[f32], out: &mut [u8]) {
        let least = self.integers.least;
        let pairs = out.iter_mut().zip(numbers);
        match &self.table {
            // The code of the least number is 0, also for bytes in two's complement.
            None if self.of[0] == least => pairs.for_each(|(code, x)| *code = low_byte(x - least)),
            None => pairs.for_each(|(code, x)| *code = low_byte(*x)),
            Some(table) => pairs.for_each(|(code, x)| *code = table.codes[usize::from(low_byte(x + 128.0))]),
        }
    }

    /// Computes `(x - addend) * inverse` for whole vectors, and writes the nearest numbers that
    /// codes stand for. `inverse` is the inverse of the scale.
    #[inline(always)]
    pub fn near<V: Vector>(&self, x: &[f32], addend: f32, inverse: f32, out: &mut [f32]) {
        let (addend, inverse) = (Lanes::<V>::splat(addend), Lanes::splat(inverse));
        for (out, x) in out.chunks_exact_mut(V::COUNT).zip(x.chunks_exact(V::COUNT)) {
            self.near_lanes(Lanes::load(x), addend, inverse).store(out);
        }
    }

    /// Computes `(x - addend) * inverse` for one vector, and returns the nearest numbers that codes
    /// stand for.
    #[inline(always)]
    pub fn near_lanes<V: Vector>(&self, x: Lanes<V>, addend: Lanes<V>, inverse: Lanes<V>) -> Lanes<V> {
        let scaled = (x - addend) * inverse;
        match &self.table {
            None => self.integers.near(scaled),
            Some(table) => table.near(scaled),
        }
    }

    /// Returns the scale with the least sum of squared errors of `x`. The weights of the squares
    /// are `w`.
    #[inline(always)]
    pub fn fit<V: Vector>(&self, x: &[Lanes<V>], w: &[Lanes<V>]) -> Lanes<V> {
        let Integers { least, most } = self.integers;
        let extreme = extreme(x);
        // Numerator and denominator of the best scale so far.
        let (mut above, mut below) = (extreme, Lanes::splat(if least == -most { most } else { least }));
        let mut most_gained = Lanes::splat(f32::NEG_INFINITY);
        for tried in self.tried.as_chunks::<TRIAL_LANES>().0 {
            let inverses = tried.map(|number| Lanes::splat(number) / extreme);
            for Sums { squares, with_x, .. } in self.sums::<V, false>(x, w, Lanes::zero(), inverses) {
                // With the best scale for these codes, the weighted squared error is the weighted
                // sum of squares of x minus this gain.
                let gained = with_x * with_x / squares;
                above = gained.greater(most_gained, with_x, above);
                below = gained.greater(most_gained, squares, below);
                most_gained = gained.greater(most_gained, gained, most_gained);
            }
        }
        let zero = Lanes::zero();
        extreme.size().greater_or_zero(zero, extreme.finite(above / below, zero))
    }

    /// Returns the best scale and the best addend. With `negative`, the addend is at most 0.
    #[inline(always)]
    pub fn fit_with_minimum<V: Vector>(&self, x: &[Lanes<V>], w: &[Lanes<V>], negative: bool) -> (Lanes<V>, Lanes<V>) {
        let zero = Lanes::<V>::zero();
        let mut least = Lanes::splat(if negative { 0.0 } else { f32::INFINITY });
        let mut most = Lanes::splat(f32::NEG_INFINITY);
        for &x in x {
            (least, most) = (x.least(least), x.greatest(most));
        }
        let range = most - least;
        // Sums of w, of w times x, and of w times the square of x.
        let [mut sw, mut sx, mut sxx] = [[zero; POSITIONS]; 3];
        for (x, w) in positions(x).iter().zip(positions(w)) {
            for (position, (&x, &w)) in x.iter().zip(w).enumerate() {
                let with_x = w * x;
                sw[position] = sw[position] + w;
                sx[position] = sx[position] + with_x;
                sxx[position] = sxx[position] + with_x * x;
            }
        }
        let (sw, sx, sxx) = (total(sw), total(sx), total(sxx));
        let mut scale = range / Lanes::splat(self.integers.most);
        let (mut minimum, mut least_lost) = (least, Lanes::splat(f32::INFINITY));
        for tried in self.tried_with_minimum.as_chunks::<TRIAL_LANES>().0 {
            let inverses = tried.map(|number| Lanes::splat(number) / range);
            for Sums { numbers: sq, squares: sqq, with_x: sxq } in self.sums::<V, true>(x, w, least, inverses) {
                let determinant = sw * sqq - sq * sq;
                let mut tried = (sw * sxq - sx * sq) / determinant;
                let mut low = (sqq * sx - sq * sxq) / determinant;
                if negative {
                    tried = low.greater(zero, sxq / sqq, tried);
                    low = low.greater(zero, zero, low);
                }
                let lost = sxx + tried * tried * sqq + low * low * sw
                    - Lanes::splat(2.0) * (tried * sxq + low * sx - tried * low * sq);
                let lost = determinant.greater(zero, lost, Lanes::splat(f32::INFINITY));
                scale = least_lost.greater(lost, tried, scale);
                minimum = least_lost.greater(lost, low, minimum);
                least_lost = least_lost.greater(lost, lost, least_lost);
            }
        }
        // Equal elements have the scale 0. Elements that are not finite have the scale 0 too.
        let of_least = least.finite(least, zero);
        let (some, low) = (range.finite(scale, zero), range.finite(minimum, of_least));
        (most.greater(least, some, zero), most.greater(least, low, of_least))
    }

    /// Returns the sums for several scales, given by their inverses. The quantised number is the
    /// one nearest to `x - least` times the inverse.
    #[inline(always)]
    fn sums<V: Vector, const MINIMUM: bool>(
        &self,
        x: &[Lanes<V>],
        w: &[Lanes<V>],
        least: Lanes<V>,
        inverses: [Lanes<V>; TRIAL_LANES],
    ) -> [Sums<V>; TRIAL_LANES] {
        match &self.table {
            None => sums::<V, MINIMUM>(x, w, least, inverses, &self.integers),
            Some(table) => sums::<V, MINIMUM>(x, w, least, inverses, table),
        }
    }
}

/// Sums for one scale.
#[derive(Clone, Copy)]
struct Sums<V: Vector> {
    /// Sum of `w` times the quantised number. Computed only for formats with a minimum.
    numbers: Lanes<V>,
    /// Sum of `w` times the square of the quantised number.
    squares: Lanes<V>,
    /// Sum of `w` times `x` times the quantised number.
    with_x: Lanes<V>,
}

#[inline(always)]
fn sums<V: Vector, const MINIMUM: bool>(
    x: &[Lanes<V>],
    w: &[Lanes<V>],
    least: Lanes<V>,
    inverses: [Lanes<V>; TRIAL_LANES],
    nearest: &impl Nearest,
) -> [Sums<V>; TRIAL_LANES] {
    let mut all = [Sums { numbers: Lanes::zero(), squares: Lanes::zero(), with_x: Lanes::zero() }; TRIAL_LANES];
    for (&x, &w) in x.iter().zip(w) {
        let (from_least, with_w) = (if MINIMUM { x - least } else { x }, w * x);
        for (sums, inverse) in all.iter_mut().zip(inverses) {
            let number = nearest.near(from_least * inverse);
            let with_number = w * number;
            if MINIMUM {
                sums.numbers = sums.numbers + with_number;
            }
            sums.squares = sums.squares + with_number * number;
            sums.with_x = sums.with_x + with_w * number;
        }
    }
    all
}

/// Returns the element farthest from 0. Of several such elements, returns the first. Returns 0 if
/// all elements are NaN.
#[inline(always)]
fn extreme<V: Vector>(x: &[Lanes<V>]) -> Lanes<V> {
    let (mut extreme, mut most) = (Lanes::zero(), Lanes::zero());
    for &x in x {
        let size = x.size();
        extreme = size.greater(most, x, extreme);
        most = size.greater(most, size, most);
    }
    extreme
}

/// Constant that rounds a number below 2^22 to the nearest integer, halves to even, when it is
/// added. The low bits of the sum are then those of the integer. Some x86-64 processors have no
/// rounding instruction, and a function call for each number took most of the time.
const BEHIND_THE_POINT: f32 = 12_582_912.0;

/// Returns the low byte of an integer. A cast with saturation would not be vectorised by the
/// compiler.
#[inline(always)]
fn low_byte(x: f32) -> u8 {
    (x + BEHIND_THE_POINT).to_bits() as u8
}
