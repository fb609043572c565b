//! Encoding: blocks of numbers in any format whose codec is [`Quants`] without a row's scale, as near to the numbers as a search for scales gets.
//!
//! ```text
//! 32 numbers, and how much each matters   ->   d and codes with the least sum of w (x - d * number)^2
//! ```
//!
//! The search follows what ggml's quantisers do, for every format the same: scales are tried around the one that the extreme number fits, a step of a tenth
//! of the distance of two codes each; of each the codes follow, and of these the best scale by least squares (and the best minimum, where there is one). Where
//! scales are integers themselves, they are rounded, `d` and `dmin` are fitted once more to what all codes of the block are then, and the better
//! of both is kept.
//!
//! How much a number matters is `importance * sqrt(2 mean(x^2) + x^2)`, importance being the mean square of the activations that its column is
//! multiplied with (an importance matrix), or 1: large weights matter more than their square alone says, which ggml found by trying.

use half::{bf16, f16};

use super::codec::{Codes, Float, Minimum, Number, Plane, Quants, ScaleCodes, ScaleNumber, Scales, Values};
use super::digits::Digits;
use super::{Codec, FORMATS, Format};

/// Steps that are tried below and above the scale that fits.
const STEPS: i32 = 9;
/// The same with a minimum, below and above.
const STEPS_WITH_MINIMUM: std::ops::RangeInclusive<i32> = -5..=15;
/// A step, in distances of two codes.
const STEP: f32 = 0.1;
/// Rounds of fitting `d` and `dmin` to codes, and codes to these.
const ROUNDS: usize = 2;

impl Format {
    /// All that [`Format::encode_row`] makes.
    pub fn encoded() -> impl Iterator<Item = Format> {
        FORMATS.iter().map(|row| row.format).filter(|format| format.encodes())
    }

    /// Whether [`Format::encode_row`] makes it: a format of files whose codec says all about it.
    pub fn encodes(self) -> bool {
        let whole = match self.codec() {
            Codec::Float(_) => true,
            Codec::Quants(quants) => quants.encodes(),
            Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => false,
        };
        whole && self.is_in_files() && self.is_weight()
    }

    /// Writes a row of numbers; `importance` is of each column.
    ///
    /// # Panics
    /// Where the format is none of those that [encode](Format::encodes), the row is no whole blocks, or `out` has not its length.
    pub fn encode_row(self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        assert!(self.encodes(), "{self} is not made of numbers");
        assert_eq!(Some(out.len() as u64), self.row_bytes(x.len() as u64), "{} numbers in {self}", x.len());
        assert!(importance.is_none_or(|importance| importance.len() == x.len()), "importance of other columns");
        let length = self.block_len();
        let ones = vec![1.0; length];
        for (index, (x, out)) in x.chunks_exact(length).zip(out.chunks_exact_mut(self.block_bytes())).enumerate() {
            match self.codec() {
                Codec::Float(float) => match float {
                    Float::F32 => out.copy_from_slice(&x[0].to_le_bytes()),
                    Float::F16 => out.copy_from_slice(&f16::from_f32(x[0]).to_le_bytes()),
                    Float::Bf16 => out.copy_from_slice(&bf16::from_f32(x[0]).to_le_bytes()),
                },
                Codec::Quants(quants) => {
                    let importance = importance.map_or(&ones[..], |all| &all[index * length..][..length]);
                    Encoder { format: self, quants, numbers: Numbers::of(quants) }.block(x, importance, out);
                }
                Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => unreachable!("checked above"),
            }
        }
    }
}

impl ScaleCodes {
    /// What is subtracted from a code, where that is what makes a scale of it.
    fn zero(&self) -> Option<u8> {
        match self.number {
            ScaleNumber::Less(zero) => Some(zero),
            ScaleNumber::Odd => None,
        }
    }
}

impl Quants {
    fn encodes(&self) -> bool {
        let scales = match self.scales {
            Scales::None | Scales::SixBits | Scales::Signed16 | Scales::Nibbles16 => true,
            Scales::Coded(codes) => codes.zero().is_some(),
            // Of rows, not of blocks: `requantise` makes them.
            Scales::Row | Scales::Multiples { .. } => false,
        };
        let codes = match self.codes {
            Codes::Planes | Codes::Digits(_) => true,
            // The nearest entry of a grid is another search.
            Codes::Grid(_) => false,
        };
        scales && codes
    }

    /// The integers that a scale can be; `None` where `d` is the scale.
    fn scale_range(&self) -> Option<(f32, f32)> {
        match self.scales {
            Scales::None | Scales::Row => None,
            Scales::SixBits => Some((0.0, 63.0)),
            Scales::Nibbles16 => Some((0.0, 15.0)),
            Scales::Signed16 => Some((-128.0, 127.0)),
            Scales::Coded(codes) => {
                let bits = codes.bits.width();
                let zero = f32::from(codes.zero().unwrap_or(0));
                Some((-zero, ((1u32 << bits) - 1) as f32 - zero))
            }
            Scales::Multiples { .. } => None,
        }
    }
}

/// The numbers that codes stand for.
struct Numbers {
    /// Of each code.
    of: Vec<f32>,
    least: f32,
    most: f32,
    /// The mean distance of two beside each other.
    distance: f32,
    /// The nearest code of each integer from -128 on, where numbers are no sequence of integers.
    nearest: Option<Box<[u8; 256]>>,
}

impl Numbers {
    fn of(quants: &Quants) -> Numbers {
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
        let distance = (most - least) / f32::from(codes - 1);
        Numbers { of, least, most, distance, nearest }
    }

    /// The code whose number is nearest to `x`.
    #[inline]
    fn code(&self, x: f32) -> u8 {
        let whole = rounded(x.clamp(self.least, self.most));
        match &self.nearest {
            // The first code is the least number's, of bytes in two's complement too.
            None if self.of[0] == self.least => (whole - self.least) as u8,
            None => whole as i8 as u8,
            Some(nearest) => nearest[(whole + 128.0) as usize],
        }
    }

    #[inline]
    fn near(&self, x: f32) -> f32 {
        match &self.nearest {
            None => rounded(x.clamp(self.least, self.most)),
            Some(_) => self.of[usize::from(self.code(x))],
        }
    }

    /// The scale with which the numbers are nearest to `x`, each difference's square times `w`.
    fn fit(&self, x: &[f32], w: &[f32]) -> f32 {
        let extreme = x.iter().fold(0f32, |extreme, &x| if x.abs() > extreme.abs() { x } else { extreme });
        if extreme == 0.0 || !extreme.is_finite() {
            return 0.0;
        }
        // Bytes are as near as it matters.
        let steps = if self.of.len() == 256 { 0 } else { STEPS };
        let bounds = if self.least == -self.most { &[self.most][..] } else { &[self.least, self.most] };
        let (mut best, mut most_gained) = (extreme / bounds[0], f32::NEG_INFINITY);
        for &bound in bounds {
            for step in -steps..=steps {
                let inverse = (bound + step as f32 * STEP * self.distance) / extreme;
                let (mut with_x, mut squares) = (0f32, 0f32);
                for (&x, &w) in x.iter().zip(w) {
                    let number = self.near(x * inverse);
                    with_x += w * x * number;
                    squares += w * number * number;
                }
                // The sum of squares of the differences, with the best scale for these codes, is that of x less this.
                let gained = with_x * with_x / squares;
                if gained > most_gained {
                    (best, most_gained) = (with_x / squares, gained);
                }
            }
        }
        best
    }

    /// The same with something that is added; `negative` if that is at most 0.
    fn fit_with_minimum(&self, x: &[f32], w: &[f32], negative: bool) -> (f32, f32) {
        let least = x.iter().copied().fold(if negative { 0.0 } else { f32::INFINITY }, f32::min);
        let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !(most > least && (most - least).is_finite()) {
            return (0.0, if least.is_finite() { least } else { 0.0 });
        }
        let (mut best, mut least_lost) = (((most - least) / self.most, least), f32::INFINITY);
        for step in STEPS_WITH_MINIMUM {
            let inverse = (self.most + step as f32 * STEP) / (most - least);
            // Sums of w, of w times the number, its square, x, and both.
            let (mut sw, mut sq, mut sqq, mut sx, mut sxq, mut sxx) = (0f32, 0f32, 0f32, 0f32, 0f32, 0f32);
            for (&x, &w) in x.iter().zip(w) {
                let number = self.near((x - least) * inverse);
                sw += w;
                sq += w * number;
                sqq += w * number * number;
                sx += w * x;
                sxq += w * x * number;
                sxx += w * x * x;
            }
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

/// The nearest integer, of two as near the even one, of numbers below 2^22: an instruction of its own is not on every x86-64, and a call for each number
/// took most of the time.
#[inline]
fn rounded(x: f32) -> f32 {
    const BEHIND_THE_POINT: f32 = 12_582_912.0;
    x + BEHIND_THE_POINT - BEHIND_THE_POINT
}

/// What encodes blocks of a format.
struct Encoder<'a> {
    format: Format,
    quants: &'a Quants,
    numbers: Numbers,
}

/// Scales and minimums of a block's groups: integers, where `d` and `dmin` are their units, or as many ones.
struct Scaled {
    d: f32,
    /// What the minimums are multiplied with; where there are no integers, what is added.
    minimum: f32,
    scales: Vec<f32>,
    minimums: Vec<f32>,
}

impl Encoder<'_> {
    fn block(&self, x: &[f32], importance: &[f32], out: &mut [u8]) {
        // Elements with another `d` are others' alone.
        let columns = self.format.d_columns();
        let parts = x.chunks_exact(columns).zip(importance.chunks_exact(columns));
        let (codes, scaled): (Vec<Vec<u8>>, Vec<Scaled>) = parts.filter_map(|(x, w)| self.best(x, w)).unzip();
        if let Some(first) = scaled.first() {
            self.write(&codes.concat(), first, out);
            let d = |i: usize| self.format.field("d") + i * self.quants.d.bytes();
            scaled.iter().enumerate().for_each(|(i, scaled)| self.quants.d.put(scaled.d, &mut out[d(i)..]));
        }
    }

    /// Codes and scales of elements with one `d`.
    fn best(&self, x: &[f32], importance: &[f32]) -> Option<(Vec<u8>, Scaled)> {
        let mean = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
        let w: Vec<f32> =
            x.iter().zip(importance).map(|(x, importance)| importance * (2.0 * mean + x * x).sqrt()).collect();
        // A column that nothing was ever multiplied with matters to nobody, but a block has a scale all the same.
        let w = if w.iter().all(|&w| w == 0.0) { vec![1.0; w.len()] } else { w };
        let group = self.quants.scaled().unwrap_or(x.len());
        let negative = self.quants.minimum == Minimum::Scaled;
        let fits: Vec<(f32, f32)> = x
            .chunks_exact(group)
            .zip(w.chunks_exact(group))
            .map(|(x, w)| match self.quants.minimum {
                Minimum::None => (self.numbers.fit(x, w), 0.0),
                Minimum::Half | Minimum::Scaled => self.numbers.fit_with_minimum(x, w, negative),
            })
            .collect();
        let (mut best, mut least_lost) = (None, f32::INFINITY);
        for mut scaled in self.stored(self.rounded(&fits)) {
            for round in 0..=ROUNDS {
                let codes = self.codes(x, &scaled, group);
                let lost = self.lost(x, &w, &codes, &scaled, group);
                let fitted = (round < ROUNDS).then(|| self.fitted(x, &w, &codes, &scaled, group));
                // What is no number is lost whatever is kept.
                if lost < least_lost || best.is_none() {
                    (best, least_lost) = (Some((codes, scaled)), lost);
                }
                match fitted {
                    Some(Some(next)) => scaled = next,
                    Some(None) | None => break,
                }
            }
        }
        best
    }

    /// Integers for the scales and minimums of groups, with their units.
    fn rounded(&self, fits: &[(f32, f32)]) -> Scaled {
        let Some((least, most)) = self.quants.scale_range() else {
            let (d, minimum) = fits[0];
            return Scaled { d, minimum, scales: vec![1.0], minimums: vec![1.0] };
        };
        let extreme = fits.iter().fold(0f32, |a, (b, _)| if b.abs() > a.abs() { *b } else { a });
        // The extreme gets the integer that has no counterpart, where there is one.
        let d = extreme / if least < 0.0 { least } else { most };
        let lowest = fits.iter().fold(0f32, |a, (_, b)| a.min(*b));
        let minimum = -lowest / most;
        let over = |value: f32, unit: f32, least: f32| match unit {
            0.0 => 0.0,
            unit => (value / unit).round_ties_even().clamp(least, most),
        };
        Scaled {
            d,
            minimum,
            scales: fits.iter().map(|(scale, _)| over(*scale, d, least)).collect(),
            minimums: fits.iter().map(|(_, lowest)| over(-lowest, minimum, 0.0)).collect(),
        }
    }

    /// With the floats that can be stored, and are near.
    fn stored(&self, scaled: Scaled) -> Vec<Scaled> {
        let minimum = f16::from_f32(scaled.minimum).to_f32();
        let d = match self.quants.d {
            Number::Half | Number::PartOfHalf { .. } | Number::TopsOfWords { .. } => vec![self.quants.d.near(scaled.d)],
            Number::HalfOfE4m3 => vec![self.quants.d.near(scaled.d)],
            Number::HalfOfPower => {
                let below = self.quants.d.near(scaled.d);
                vec![below, 2.0 * below]
            }
        };
        let with = |d: f32| Scaled { d, minimum, scales: scaled.scales.clone(), minimums: scaled.minimums.clone() };
        d.into_iter().map(with).collect()
    }

    /// Scale and addend of a group.
    fn of_group(&self, scaled: &Scaled, group: usize) -> (f32, f32) {
        let addend = match self.quants.minimum {
            Minimum::None => 0.0,
            Minimum::Half => scaled.minimum,
            Minimum::Scaled => -scaled.minimum * scaled.minimums[group],
        };
        (scaled.d * scaled.scales[group], addend)
    }

    fn codes(&self, x: &[f32], scaled: &Scaled, group: usize) -> Vec<u8> {
        let groups = x.chunks_exact(group).enumerate();
        let codes = groups.flat_map(|(index, x)| {
            let (scale, addend) = self.of_group(scaled, index);
            // Of a scale below the normal numbers there may be none.
            let inverse = if scale.recip().is_finite() { scale.recip() } else { 0.0 };
            x.iter().map(move |x| self.numbers.code((x - addend) * inverse))
        });
        codes.collect()
    }

    fn lost(&self, x: &[f32], w: &[f32], codes: &[u8], scaled: &Scaled, group: usize) -> f32 {
        let elements = x.iter().zip(w).zip(codes).enumerate();
        let lost = elements.map(|(i, ((x, w), code))| {
            let (scale, addend) = self.of_group(scaled, i / group);
            let difference = scale * self.numbers.of[usize::from(*code)] + addend - x;
            w * difference * difference
        });
        lost.sum()
    }

    /// The best `d` and minimum for these codes; `None` where any is as good, or none can be fitted.
    fn fitted(&self, x: &[f32], w: &[f32], codes: &[u8], scaled: &Scaled, group: usize) -> Option<Scaled> {
        // x is nearly d * a - minimum * b.
        let (mut aa, mut ab, mut bb, mut xa, mut xb) = (0f32, 0f32, 0f32, 0f32, 0f32);
        for (i, ((x, w), code)) in x.iter().zip(w).zip(codes).enumerate() {
            let a = scaled.scales[i / group] * self.numbers.of[usize::from(*code)];
            let b = match self.quants.minimum {
                Minimum::None => 0.0,
                Minimum::Half => -1.0,
                Minimum::Scaled => scaled.minimums[i / group],
            };
            aa += w * a * a;
            ab += w * a * b;
            bb += w * b * b;
            xa += w * x * a;
            xb += w * x * b;
        }
        let determinant = aa * bb - ab * ab;
        // Of powers the two that are near were tried.
        if self.quants.d == Number::HalfOfPower {
            return None;
        }
        let (d, minimum) = if bb > 0.0 && determinant > 1e-6 * aa * bb {
            let minimum = (xa * ab - xb * aa) / determinant;
            let minimum = if self.quants.minimum == Minimum::Scaled { minimum.max(0.0) } else { minimum };
            ((xa + minimum * ab) / aa, minimum)
        } else {
            (xa / aa, scaled.minimum)
        };
        if !d.is_finite() || !minimum.is_finite() {
            return None;
        }
        let found = Scaled {
            d: self.quants.d.near(d),
            minimum: f16::from_f32(minimum).to_f32(),
            scales: scaled.scales.clone(),
            minimums: scaled.minimums.clone(),
        };
        (found.d != scaled.d || found.minimum != scaled.minimum).then_some(found)
    }

    fn write(&self, codes: &[u8], scaled: &Scaled, out: &mut [u8]) {
        out.fill(0);
        let mut put = |plane: &Plane, i: usize, bits: u8| {
            let (byte, shift) = plane.place(i);
            let mask = ((1u16 << plane.bits) - 1) as u8;
            out[self.format.field(plane.field) + byte] |= (bits & mask) << shift;
        };
        match self.quants.codes {
            Codes::Planes => {
                for (i, &code) in codes.iter().enumerate() {
                    put(&self.quants.low, i, code);
                    if let Some(high) = &self.quants.high {
                        put(high, i, code >> self.quants.low.bits);
                    }
                }
            }
            Codes::Digits(_) | Codes::Grid(_) => {}
        }
        if let Scales::Coded(codes) = &self.quants.scales {
            let zero = i16::from(codes.zero().unwrap_or(0));
            for (i, &scale) in scaled.scales.iter().enumerate() {
                let mut code = (scale as i16 + zero) as u16;
                for (field, byte, shift, width) in codes.bits.parts(i) {
                    let bits = (code & ((1 << width) - 1)) << shift;
                    let own = &mut out[self.format.field(field) + byte..];
                    own.iter_mut().zip(bits.to_le_bytes()).for_each(|(byte, bits)| *byte |= bits);
                    code >>= width;
                }
            }
        }
        let field = |name: &str| self.format.field(name);
        if let Codes::Digits(all) = self.quants.codes {
            let mut first = codes;
            for digits in all {
                let (own, rest) = first.split_at(digits.run * digits.each);
                for j in 0..digits.run {
                    let of: Vec<u8> = own.iter().skip(j).step_by(digits.run).copied().collect();
                    out[field(digits.field) + digits.at + j] = Digits::byte(&of);
                }
                first = rest;
            }
        }
        let both = scaled.scales.iter().zip(&scaled.minimums).enumerate();
        match self.quants.scales {
            Scales::None | Scales::Coded(_) | Scales::Row | Scales::Multiples { .. } => {}
            Scales::SixBits => {
                let at = field("scales");
                for (i, (scale, minimum)) in both {
                    put_six_bits(&mut out[at..], i, *scale as u8, *minimum as u8);
                }
            }
            Scales::Nibbles16 => {
                let at = field("scales");
                both.for_each(|(i, (scale, minimum))| out[at + i] = *scale as u8 | ((*minimum as u8) << 4));
            }
            Scales::Signed16 => {
                let at = field("scales");
                both.for_each(|(i, (scale, _))| out[at + i] = *scale as i8 as u8);
            }
        }
        let mut float = |name: &str, x: f32| self.quants.number(name).put(x, &mut out[self.format.field(name)..]);
        match self.quants.minimum {
            Minimum::None => {}
            Minimum::Half => float("m", scaled.minimum),
            Minimum::Scaled => float("dmin", scaled.minimum),
        }
    }
}

/// As [`six_bits`](super::codec::six_bits) reads them.
fn put_six_bits(scales: &mut [u8], s: usize, scale: u8, minimum: u8) {
    if s < 4 {
        scales[s] |= scale;
        scales[s + 4] |= minimum;
    } else {
        scales[s + 4] = (scale & 15) | (minimum << 4);
        scales[s - 4] |= (scale >> 4) << 6;
        scales[s] |= (minimum >> 4) << 6;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn normal(random: &mut Random, len: usize) -> Vec<f32> {
        (0..len).map(|_| (0..6).map(|_| random.signed()).sum::<f32>() / 60.0).collect()
    }

    fn encoded(format: Format, x: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
        let mut out = vec![0xa5; format.row_bytes(x.len() as u64).unwrap() as usize];
        format.encode_row(x, importance, &mut out);
        out
    }

    fn lost(x: &[f32], y: &[f32], w: impl Fn(usize) -> f64) -> f64 {
        let square = |x: f32| f64::from(x) * f64::from(x);
        let lost: f64 = x.iter().zip(y).enumerate().map(|(i, (x, y))| w(i) * square(x - y)).sum();
        lost / x.iter().enumerate().map(|(i, x)| w(i) * square(*x)).sum::<f64>()
    }

    fn made() -> impl Iterator<Item = Format> {
        Format::encoded()
    }

    #[test]
    fn every_format_of_files_that_is_made_is_near() {
        let mut random = Random::new(3);
        // Of a size at which bytes of E4M3 have all their bits; to others it makes no difference.
        let x: Vec<f32> = normal(&mut random, 1 << 14).iter().map(|x| 32.0 * x).collect();
        for format in made() {
            let y = format.dequantise_rows(&encoded(format, &x, None), x.len());
            let bits = format.block_bytes() as f64 * 8.0 / format.block_len() as f64;
            let found = lost(&x, &y, |_| 1.0);
            println!("{format} {bits:.3} bits: {found:.5}");
            // Rate distortion theory's least for normal numbers is 4^-bits; blocks with scales come within 5 of it, which is a bit and a bit more,
            // those whose scales are powers of two within 6.
            assert!(found < 6.0 * 4f64.powf(-bits) || bits >= 16.0, "{format}: {found}");
            assert!(found < 1e-5 || bits < 16.0);
        }
        assert!(made().count() >= 15, "{}", made().count());
    }

    /// What is near already stays: blocks of a format give themselves, or what is as near.
    #[test]
    fn numbers_that_a_format_has_are_kept() {
        let mut random = Random::new(4);
        for format in made() {
            let x = normal(&mut random, 2048);
            let once = format.dequantise_rows(&encoded(format, &x, None), x.len());
            let twice = format.dequantise_rows(&encoded(format, &once, None), x.len());
            let (first, second) = (lost(&x, &once, |_| 1.0), lost(&once, &twice, |_| 1.0));
            assert!(second <= 0.35 * first, "{format}: {first} and then {second}");
        }
    }

    #[test]
    fn columns_of_importance_are_nearer() {
        let mut random = Random::new(5);
        let x = normal(&mut random, 4096);
        let importance: Vec<f32> = (0..x.len()).map(|i| if i % 4 == 0 { 100.0 } else { 1.0 }).collect();
        for format in made().filter(|format| format.is_quantised()) {
            let of = |importance| format.dequantise_rows(&encoded(format, &x, importance), x.len());
            let w = |i: usize| f64::from(importance[i]);
            let (with, without) = (lost(&x, &of(Some(&importance)), w), lost(&x, &of(None), w));
            // Bytes are as near as it matters, and powers of two and few codes leave little to choose.
            let alike = [Format::Q8_0, Format::Mxfp4, Format::Tq1_0, Format::Q1_0];
            let gain = if alike.contains(&format) { 1.0 } else { 0.97 };
            assert!(with <= gain * without, "{format}: {with} with importance, {without} without");
        }
    }

    #[test]
    fn what_is_no_ordinary_block_is_made_all_the_same() {
        type Numbers = fn(usize) -> f32;
        let special: [(&str, Numbers); 7] = [
            ("zeros", |_| 0.0),
            ("equal", |_| 0.5),
            ("negative", |i| -1.0 - (i % 7) as f32),
            ("one", |i| if i == 17 { 3.0 } else { 0.0 }),
            ("tiny", |i| (i % 5) as f32 * 1e-38),
            ("huge", |i| (i as f32 - 100.0) * 1e36),
            ("no numbers", |i| if i % 3 == 0 { f32::NAN } else { f32::INFINITY }),
        ];
        for format in made() {
            // Between 0 and the largest there is nothing where codes are three, and no 0 where they are two.
            let most = match format.quants().map(Quants::count) {
                Some(2) => 0.3,
                Some(3) => 0.2,
                _ => 0.06,
            };
            for (name, of) in special {
                let x: Vec<f32> = (0..512).map(of).collect();
                let y = format.dequantise_rows(&encoded(format, &x, None), x.len());
                match name {
                    "zeros" => assert!(y.iter().all(|&y| y == 0.0), "{format} {name}"),
                    "equal" | "negative" => assert!(lost(&x, &y, |_| 1.0) < most, "{format} {name}: {:?}", &y[..32]),
                    "one" if most < 0.3 => {
                        assert!(y.iter().enumerate().all(|(i, &y)| (y - x[i]).abs() < 0.3), "{format} {name}")
                    }
                    _ => {}
                }
            }
            // A column that nothing is multiplied with.
            let nothing = vec![0.0; 512];
            let x: Vec<f32> = (0..512).map(|i| i as f32).collect();
            let y = format.dequantise_rows(&encoded(format, &x, Some(&nothing)), x.len());
            assert!(lost(&x, &y, |_| 1.0) < most, "{format}");
        }
    }
}
