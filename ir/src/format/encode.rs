//! Encoding: blocks of numbers in any format whose codec is [`Quants`] without a row's scale, as near to the numbers as a search for scales gets.
//!
//! ```text
//! 32 numbers, and how much each matters   ->   d and codes with the least sum of w (x - d * number)^2
//! ```
//!
//! The search follows what ggml's quantisers do, for every format the same: scales are tried around the one that the extreme number fits, a step of a tenth
//! of the distance of two codes each; of each the codes follow, and of these the best scale by least squares (and the best minimum, where there is one). Where
//! scales are integers themselves, they are rounded, `d` and `dmin` are fitted once more to what all codes of the block are then, and the better
//! of both is kept. Where codes are those of a grid, a table's nearest entries are looked for in place of each element's nearest code ([`entries`]).
//!
//! How much a number matters is `importance * sqrt(2 mean(x^2) + x^2)`, importance being the mean square of the activations that its column is
//! multiplied with (an importance matrix), or 1: large weights matter more than their square alone says, which ggml found by trying.

mod entries;
mod numbers;

use half::{bf16, f16};

use super::codec::{Codes, Float, Minimum, Number, Plane, Quants, ScaleCodes, ScaleNumber, Scales};
use super::digits::Digits;
use super::{Codec, FORMATS, Format};

use entries::Entries;
use numbers::Numbers;

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
        let encoder = self.quants().map(|quants| Encoder::new(self, quants));
        for (index, (x, out)) in x.chunks_exact(length).zip(out.chunks_exact_mut(self.block_bytes())).enumerate() {
            match (self.codec(), &encoder) {
                (Codec::Float(Float::F32), _) => out.copy_from_slice(&x[0].to_le_bytes()),
                (Codec::Float(Float::F16), _) => out.copy_from_slice(&f16::from_f32(x[0]).to_le_bytes()),
                (Codec::Float(Float::Bf16), _) => out.copy_from_slice(&bf16::from_f32(x[0]).to_le_bytes()),
                (_, Some(encoder)) => {
                    let importance = importance.map_or(&ones[..], |all| &all[index * length..][..length]);
                    encoder.block(x, importance, out);
                }
                (_, None) => unreachable!("checked above"),
            }
        }
    }
}

impl ScaleCodes {
    /// The code of a scale that there is.
    fn code(&self, scale: f32) -> u16 {
        match self.number {
            ScaleNumber::Less(zero) => (scale as i16 + i16::from(zero)) as u16,
            ScaleNumber::Odd => scale as u16 / 2,
        }
    }

    /// All scales: the least, the largest, and from one to the next.
    fn range(&self) -> ScaleRange {
        let codes = (1u32 << self.bits.width()) as f32;
        match self.number {
            ScaleNumber::Less(zero) => {
                ScaleRange { least: -f32::from(zero), most: codes - 1.0 - f32::from(zero), step: 1.0 }
            }
            ScaleNumber::Odd => ScaleRange { least: 1.0, most: 2.0 * codes - 1.0, step: 2.0 },
        }
    }
}

/// The integers that a scale can be.
#[derive(Clone, Copy)]
struct ScaleRange {
    least: f32,
    most: f32,
    step: f32,
}

impl ScaleRange {
    const fn of(least: f32, most: f32) -> ScaleRange {
        ScaleRange { least, most, step: 1.0 }
    }

    /// The nearest.
    fn near(&self, scale: f32) -> f32 {
        // Of steps of 2 the odd ones.
        let odd = self.step - 1.0;
        (((scale - odd) / self.step).round_ties_even() * self.step + odd).clamp(self.least, self.most)
    }
}

impl Quants {
    fn encodes(&self) -> bool {
        match self.scales {
            Scales::None | Scales::SixBits | Scales::Signed16 | Scales::Nibbles16 | Scales::Coded(_) => true,
            // Of rows, not of blocks: `requantise` makes them.
            Scales::Row | Scales::Multiples { .. } => false,
        }
    }

    /// The integers that a scale can be; `None` where `d` is the scale.
    fn scale_range(&self) -> Option<ScaleRange> {
        match self.scales {
            Scales::None | Scales::Row => None,
            Scales::SixBits => Some(ScaleRange::of(0.0, 63.0)),
            Scales::Nibbles16 => Some(ScaleRange::of(0.0, 15.0)),
            Scales::Signed16 => Some(ScaleRange::of(-128.0, 127.0)),
            Scales::Coded(codes) => Some(codes.range()),
            Scales::Multiples { .. } => None,
        }
    }
}

/// What encodes blocks of a format.
struct Encoder<'a> {
    format: Format,
    quants: &'a Quants,
    numbers: Numbers,
    /// Where codes are those of a grid.
    entries: Option<Entries>,
}

/// What is nearest to the numbers of a group.
#[derive(Clone, Copy, Default)]
struct Fit {
    scale: f32,
    minimum: f32,
    /// The sum of the squares of its codes' numbers, each times its weight: with these codes, what another scale adds to the error is the square of
    /// its distance times this.
    squares: f32,
}

/// Scales and minimums of a block's groups: integers, where `d` and `dmin` are their units, or as many ones.
struct Scaled {
    d: f32,
    /// What the minimums are multiplied with; where there are no integers, what is added.
    minimum: f32,
    scales: Vec<f32>,
    minimums: Vec<f32>,
}

impl<'a> Encoder<'a> {
    fn new(format: Format, quants: &'a Quants) -> Encoder<'a> {
        let numbers = Numbers::of(quants);
        let entries = quants.grid().map(|grid| Entries::of(grid, &numbers));
        Encoder { format, quants, numbers, entries }
    }

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
        let groups = x.chunks_exact(group).zip(w.chunks_exact(group));
        let fits: Vec<Fit> = groups
            .map(|(x, w)| match (&self.entries, self.quants.minimum) {
                (Some(entries), _) => entries.fit(x, w),
                (None, Minimum::None) => Fit { scale: self.numbers.fit(x, w), ..Fit::default() },
                (None, Minimum::Half | Minimum::Scaled) => {
                    let (scale, minimum) = self.numbers.fit_with_minimum(x, w, negative);
                    Fit { scale, minimum, ..Fit::default() }
                }
            })
            .collect();
        let (mut best, mut least_lost) = (None, f32::INFINITY);
        for mut scaled in self.stored(self.rounded(&fits)) {
            for round in 0..=ROUNDS {
                let codes = self.codes(x, &w, &scaled, group);
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
    fn rounded(&self, fits: &[Fit]) -> Scaled {
        let Some(range) = self.quants.scale_range() else {
            let Fit { scale: d, minimum, .. } = fits[0];
            return Scaled { d, minimum, scales: vec![1.0], minimums: vec![1.0] };
        };
        let extreme = fits.iter().fold(0f32, |a, b| if b.scale.abs() > a.abs() { b.scale } else { a });
        // The extreme gets the integer that has no counterpart, where there is one.
        let d = extreme / if range.least < 0.0 { range.least } else { range.most };
        let d = if self.entries.is_some() { unit(fits, range, d) } else { d };
        let lowest = fits.iter().fold(0f32, |a, b| a.min(b.minimum));
        let minimum = -lowest / range.most;
        let minimums = ScaleRange::of(0.0, range.most);
        let over = |value: f32, unit: f32, range: ScaleRange| {
            if unit == 0.0 { range.near(0.0) } else { range.near(value / unit) }
        };
        Scaled {
            d,
            minimum,
            scales: fits.iter().map(|fit| over(fit.scale, d, range)).collect(),
            minimums: fits.iter().map(|fit| over(-fit.minimum, minimum, minimums)).collect(),
        }
    }

    /// With the floats that can be stored, and are near.
    fn stored(&self, scaled: Scaled) -> Vec<Scaled> {
        let minimum = f16::from_f32(scaled.minimum).to_f32();
        let d = match self.quants.d {
            Number::Half | Number::PartOfHalf { .. } | Number::TopsOfWords { .. } => vec![self.quants.d.near(scaled.d)],
            Number::HalfOfE4m3 | Number::Single => vec![self.quants.d.near(scaled.d)],
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

    fn codes(&self, x: &[f32], w: &[f32], scaled: &Scaled, group: usize) -> Vec<u8> {
        if let Some(entries) = &self.entries {
            let groups = x.chunks_exact(group).zip(w.chunks_exact(group)).enumerate();
            return groups.flat_map(|(index, (x, w))| entries.codes(self.of_group(scaled, index).0, x, w)).collect();
        }
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
        if let Some(entries) = &self.entries {
            entries.write(codes, |field, byte, bits| out[self.format.field(field) + byte] |= bits);
        }
        if let Scales::Coded(codes) = &self.quants.scales {
            for (i, &scale) in scaled.scales.iter().enumerate() {
                let mut code = codes.code(scale);
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
        if self.format.has_field("s") {
            let sum: f32 = codes.iter().map(|&code| self.numbers.of[usize::from(code)]).sum();
            Number::Half.put(scaled.d * sum, &mut out[field("s")..]);
        }
        let mut float = |name: &str, x: f32| self.quants.number(name).put(x, &mut out[self.format.field(name)..]);
        match self.quants.minimum {
            Minimum::None => {}
            Minimum::Half => float("m", scaled.minimum),
            Minimum::Scaled => float("dmin", scaled.minimum),
        }
    }
}

/// The unit of scales with which these are least far from what they are rounded to: the largest gets any of the upper half of the integers.
fn unit(fits: &[Fit], range: ScaleRange, first: f32) -> f32 {
    let (mut best, mut least_lost) = (first, f32::INFINITY);
    let largest = fits.iter().fold(0f32, |a, b| a.max(b.scale));
    let mut top = range.most + range.step;
    while 2.0 * top > range.most {
        let tried = largest / top;
        // The best unit for the integers that follow from the one that is tried.
        let (mut with_scale, mut squares) = (0f32, 0f32);
        for fit in fits {
            let integer = range.near(fit.scale / tried);
            with_scale += fit.squares * integer * fit.scale;
            squares += fit.squares * integer * integer;
        }
        let found = with_scale / squares;
        let lost = fits.iter().map(|fit| fit.squares * (range.near(fit.scale / found) * found - fit.scale).powi(2));
        let lost = lost.sum::<f32>();
        if lost < least_lost {
            (best, least_lost) = (found, lost);
        }
        top -= range.step / 2.0;
    }
    best
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
mod tests;
