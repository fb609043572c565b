//! The nearest code of a number, where each element has its own, and the scale with which the numbers of codes are nearest.

use super::super::codec::{Quants, Values};

/// Steps that are tried below and above the scale that fits.
const STEPS: i32 = 9;
/// The same with a minimum, below and above.
const STEPS_WITH_MINIMUM: std::ops::RangeInclusive<i32> = -5..=15;
/// A step, in distances of two codes.
const STEP: f32 = 0.1;

/// The numbers that codes stand for.
pub(super) struct Numbers {
    /// Of each code.
    pub of: Vec<f32>,
    least: f32,
    most: f32,
    /// The nearest code of each integer from -128 on, where numbers are no sequence of integers.
    nearest: Option<Box<[u8; 256]>>,
    /// The numbers that the extreme one of a group may get: of each, a scale is tried.
    tried: Vec<f32>,
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
        let nearest = match quants.values {
            Values::Linear { .. } | Values::Signed => None,
            Values::Codebook(_) => {
                let near = |x: f32| {
                    let distance = |code: &u8| (of[usize::from(*code)] - x).abs();
                    (0..codes as u8).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
                };
                Some(Box::new(std::array::from_fn(|i| near(i as f32 - 128.0))))
            }
        };
        // The mean distance of two beside each other.
        let distance = (most - least) / f32::from(codes - 1);
        // Bytes are as near as it matters.
        let steps = if of.len() == 256 { 0 } else { STEPS };
        let bounds = if least == -most { &[most][..] } else { &[least, most] };
        let around = |bound: &f32| {
            let bound = *bound;
            (-steps..=steps).map(move |step| bound + step as f32 * STEP * distance)
        };
        let tried = bounds.iter().flat_map(around).collect();
        Numbers { of, least, most, nearest, tried }
    }

    /// The code whose number is nearest to `x`.
    #[inline]
    pub fn code(&self, x: f32) -> u8 {
        let whole = rounded(x.clamp(self.least, self.most));
        match &self.nearest {
            // The first code is the least number's, of bytes in two's complement too.
            None if self.of[0] == self.least => (whole - self.least) as u8,
            None => whole as i8 as u8,
            Some(nearest) => nearest[(whole + 128.0) as usize],
        }
    }

    /// The codes of numbers less an addend, times the inverse of a scale.
    #[inline]
    pub fn codes(&self, x: &[f32], addend: f32, inverse: f32, out: &mut [u8]) {
        let near = |x: f32| rounded(((x - addend) * inverse).clamp(self.least, self.most));
        let pairs = out.iter_mut().zip(x);
        match &self.nearest {
            None if self.of[0] == self.least => pairs.for_each(|(code, x)| *code = (near(*x) - self.least) as u8),
            None => pairs.for_each(|(code, x)| *code = near(*x) as i8 as u8),
            Some(nearest) => pairs.for_each(|(code, x)| *code = nearest[(near(*x) + 128.0) as usize]),
        }
    }

    /// The scale with which the numbers are nearest to `x`, each difference's square times `w`.
    pub fn fit(&self, x: &[f32], w: &[f32]) -> f32 {
        let extreme = extreme(x);
        if extreme == 0.0 || !extreme.is_finite() {
            return 0.0;
        }
        let first = if self.least == -self.most { self.most } else { self.least };
        let (mut best, mut most_gained) = (extreme / first, f32::NEG_INFINITY);
        let mut try_all = |with_x: &[f32], squares: &[f32]| {
            for (with_x, squares) in with_x.iter().zip(squares) {
                // The sum of squares of the differences, with the best scale for these codes, is that of x less this.
                let gained = with_x * with_x / squares;
                if gained > most_gained {
                    (best, most_gained) = (with_x / squares, gained);
                }
            }
        };
        if let [number] = self.tried[..] {
            let Sums { with_x, squares, .. } = self.sums::<1>(x, w, 0.0, &[number / extreme]);
            try_all(&with_x, &squares);
            return best;
        }
        let mut inverses = [0f32; MOST_TRIED];
        let inverses = &mut inverses[..self.tried.len()];
        inverses.iter_mut().zip(&self.tried).for_each(|(inverse, number)| *inverse = number / extreme);
        for inverses in inverses.chunks(LANES) {
            let Sums { with_x, squares, .. } = self.sums::<LANES>(x, w, 0.0, inverses);
            try_all(&with_x[..inverses.len()], &squares);
        }
        best
    }

    /// The same with something that is added; `negative` if that is at most 0.
    pub fn fit_with_minimum(&self, x: &[f32], w: &[f32], negative: bool) -> (f32, f32) {
        let least = x.iter().copied().fold(if negative { 0.0 } else { f32::INFINITY }, f32::min);
        let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !(most > least && (most - least).is_finite()) {
            return (0.0, if least.is_finite() { least } else { 0.0 });
        }
        let (mut best, mut least_lost) = (((most - least) / self.most, least), f32::INFINITY);
        // Of w, of w times x, and its square.
        let (mut sw, mut sx, mut sxx) = (0f32, 0f32, 0f32);
        for (&x, &w) in x.iter().zip(w) {
            sw += w;
            sx += w * x;
            sxx += w * x * x;
        }
        let tried = STEPS_WITH_MINIMUM.map(|step| (self.most + step as f32 * STEP) / (most - least));
        let mut inverses = [0f32; MOST_TRIED];
        let count = STEPS_WITH_MINIMUM.count();
        inverses.iter_mut().zip(tried).for_each(|(inverse, tried)| *inverse = tried);
        let sums = inverses[..count].chunks(LANES).flat_map(|inverses| {
            let Sums { numbers, squares, with_x } = self.sums::<LANES>(x, w, least, inverses);
            let all = numbers.into_iter().zip(squares).zip(with_x);
            all.take(inverses.len())
        });
        for ((sq, sqq), sxq) in sums {
            let determinant = sw * sqq - sq * sq;
            if determinant <= 0.0 {
                continue;
            }
            let mut scale = (sw * sxq - sx * sq) / determinant;
            let mut minimum = (sqq * sx - sq * sxq) / determinant;
            if negative && minimum > 0.0 {
                (scale, minimum) = (sxq / sqq, 0.0);
            }
            let lost = sxx + scale * scale * sqq + minimum * minimum * sw
                - 2.0 * (scale * sxq + minimum * sx - scale * minimum * sq);
            if lost < least_lost {
                (best, least_lost) = ((scale, minimum), lost);
            }
        }
        best
    }
}

impl Numbers {
    /// The sums with each of some scales, of which the inverses are given: of the numbers nearest to `x` less `least`.
    fn sums<const LANES: usize>(&self, x: &[f32], w: &[f32], least: f32, inverses: &[f32]) -> Sums<LANES> {
        match &self.nearest {
            None => sums(x, w, least, inverses, |x| rounded(x.clamp(self.least, self.most))),
            Some(_) => sums(x, w, least, inverses, |x| self.of[usize::from(self.code(x))]),
        }
    }
}

/// Scales whose sums are made side by side: each alone is a chain of additions, which wait for each other.
const LANES: usize = 8;

/// Most scales that are tried.
const MOST_TRIED: usize = 2 * (2 * STEPS as usize + 1);

/// Sums of each scale.
struct Sums<const LANES: usize> {
    /// Of w times the number.
    numbers: [f32; LANES],
    /// Of w times its square.
    squares: [f32; LANES],
    /// Of w times x and the number.
    with_x: [f32; LANES],
}

#[inline]
fn sums<const LANES: usize>(
    x: &[f32],
    w: &[f32],
    least: f32,
    inverses: &[f32],
    near: impl Fn(f32) -> f32,
) -> Sums<LANES> {
    let mut sums = Sums { numbers: [0.0; LANES], squares: [0.0; LANES], with_x: [0.0; LANES] };
    let mut scales = [0f32; LANES];
    scales[..inverses.len()].copy_from_slice(inverses);
    for (&x, &w) in x.iter().zip(w) {
        let (from_least, with_w) = (x - least, w * x);
        for (lane, &scale) in scales.iter().enumerate() {
            let number = near(from_least * scale);
            sums.numbers[lane] += w * number;
            sums.squares[lane] += w * number * number;
            sums.with_x[lane] += with_w * number;
        }
    }
    sums
}

/// The number farthest from 0, the first of those; 0 where there is none. By bits, of which several are compared at once.
fn extreme(x: &[f32]) -> f32 {
    const INFINITY: i32 = f32::INFINITY.to_bits() as i32;
    let size = |x: f32| {
        let bits = x.abs().to_bits() as i32;
        if bits > INFINITY { 0 } else { bits }
    };
    let most = x.iter().fold(0, |most, &x| most.max(size(x)));
    x.iter().copied().find(|&x| size(x) == most && most > 0).unwrap_or(0.0)
}

/// The nearest integer, of two as near the even one, of numbers below 2^22: an instruction of its own is not on every x86-64, and a call for each number
/// took most of the time.
#[inline]
fn rounded(x: f32) -> f32 {
    const BEHIND_THE_POINT: f32 = 12_582_912.0;
    x + BEHIND_THE_POINT - BEHIND_THE_POINT
}
