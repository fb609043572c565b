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
use super::{Codec, FORMATS, Format, K_BLOCK};

use entries::Entries;
use numbers::{LANES, Numbers, lanes, total};

/// Rounds of fitting `d` and `dmin` to codes, and codes to these.
const ROUNDS: usize = 2;
/// Most elements of a block, and most groups of one that have scales of their own.
const MOST: usize = K_BLOCK;
const MOST_GROUPS: usize = K_BLOCK / 16;

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
        match (self.codec(), self.quants()) {
            (Codec::Float(Float::F32), _) => floats(x, out, f32::to_le_bytes),
            (Codec::Float(Float::F16), _) => floats(x, out, |x| f16::from_f32(x).to_le_bytes()),
            (Codec::Float(Float::Bf16), _) => floats(x, out, |x| bf16::from_f32(x).to_le_bytes()),
            (_, Some(quants)) => Encoder::new(self, quants).row_by_widest(x, importance, out),
            (_, None) => unreachable!("checked above"),
        }
    }
}

fn floats<const N: usize>(x: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    let (out, _) = out.as_chunks_mut();
    out.iter_mut().zip(x).for_each(|(out, x)| *out = bytes(*x));
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
    /// Where the bits of each code are in a block, plane by plane: empty where there are no planes.
    places: Vec<Places>,
}

/// A plane's bits of a block's codes.
struct Places {
    /// Bits of a code that planes before this one have.
    below: usize,
    mask: u8,
    /// Byte of the block and bit of that byte, of each code.
    at: Vec<(usize, usize)>,
}

/// What is found of a block's elements, where it is found: nobody fills that with zeros for each block.
struct Scratch {
    /// How much each matters.
    weights: [f32; MOST],
    /// The nearest numbers with scales that are tried, and their codes.
    numbers: [f32; MOST],
    codes: [u8; MOST],
    /// The nearest with the best scales so far.
    nearest: [f32; MOST],
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
#[derive(Clone, Copy)]
struct Scaled {
    d: f32,
    /// What the minimums are multiplied with; where there are no integers, what is added.
    minimum: f32,
    scales: [f32; MOST_GROUPS],
    minimums: [f32; MOST_GROUPS],
    groups: usize,
}

impl Scaled {
    fn scales(&self) -> &[f32] {
        &self.scales[..self.groups]
    }
}

/// What is lost with some codes, and the sums of which the best scale for them follows: x is nearly `d * a - minimum * b`.
#[derive(Default)]
struct Passed {
    lost: f32,
    aa: f32,
    ab: f32,
    bb: f32,
    xa: f32,
    xb: f32,
}

impl<'a> Encoder<'a> {
    fn new(format: Format, quants: &'a Quants) -> Encoder<'a> {
        let numbers = Numbers::of(quants);
        let entries = quants.grid().map(|grid| Entries::of(grid, &numbers));
        let mut below = 0;
        let place = |plane: &Plane| {
            let field = format.field(plane.field);
            let at = (0..format.block_len()).map(|i| {
                let (byte, shift) = plane.place(i);
                (field + byte, shift)
            });
            let mask = ((1u16 << plane.bits) - 1) as u8;
            let places = Places { below, mask, at: at.collect() };
            below += plane.bits;
            places
        };
        let planes = match quants.codes {
            Codes::Planes => [Some(&quants.low), quants.high.as_ref()],
            Codes::Digits(_) | Codes::Grid(_) => [None, None],
        };
        let places = planes.into_iter().flatten().map(place).collect();
        Encoder { format, quants, numbers, entries, places }
    }

    /// [`row`](Encoder::row), compiled for vectors as wide as this processor's. No sum is contracted or put in another order: the bytes are the same.
    fn row_by_widest(&self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                // SAFETY: the processor has both.
                return unsafe { self.row_by_avx512(x, importance, out) };
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has it.
                return unsafe { self.row_by_avx2(x, importance, out) };
            }
        }
        self.row(x, importance, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn row_by_avx512(&self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        self.row(x, importance, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn row_by_avx2(&self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        self.row(x, importance, out);
    }

    /// The blocks of a row. What it calls for each number is inlined, so that it is compiled for the same vectors.
    #[inline(always)]
    fn row(&self, x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
        let length = self.format.block_len();
        let ones = [1.0; MOST];
        let mut scratch = Scratch { weights: ones, numbers: ones, codes: [0; MOST], nearest: ones };
        for (index, (x, out)) in x.chunks_exact(length).zip(out.chunks_exact_mut(self.format.block_bytes())).enumerate()
        {
            let importance = importance.map_or(&ones[..length], |all| &all[index * length..][..length]);
            self.block(x, importance, out, &mut scratch);
        }
    }

    #[inline(always)]
    fn block(&self, x: &[f32], importance: &[f32], out: &mut [u8], scratch: &mut Scratch) {
        // Elements with another `d` are others' alone.
        let columns = self.format.d_columns();
        let mut codes = [0u8; MOST];
        let codes = &mut codes[..x.len()];
        let parts = x.chunks_exact(columns).zip(importance.chunks_exact(columns)).zip(codes.chunks_exact_mut(columns));
        let mut all = [None; MOST_GROUPS];
        for (((x, w), codes), scaled) in parts.zip(&mut all) {
            *scaled = Some(self.best(x, w, codes, scratch));
        }
        if let Some(first) = &all[0] {
            self.write(codes, first, out);
            let d = |i: usize| self.format.field("d") + i * self.quants.d.bytes();
            let all = all.iter().flatten().enumerate();
            all.for_each(|(i, scaled)| self.quants.d.put(scaled.d, &mut out[d(i)..]));
        }
    }

    /// Codes and scales of elements with one `d`.
    #[inline(always)]
    fn best(&self, x: &[f32], importance: &[f32], best: &mut [u8], scratch: &mut Scratch) -> Scaled {
        let Scratch { weights: w, numbers, codes, nearest } = scratch;
        let (w, numbers) = (&mut w[..x.len()], &mut numbers[..x.len()]);
        let (codes, nearest) = (&mut codes[..x.len()], &mut nearest[..x.len()]);
        let mut squares = [0f32; LANES];
        for x in lanes(x) {
            squares.iter_mut().zip(x).for_each(|(sum, x)| *sum += x * x);
        }
        let mean = total(squares) / x.len() as f32;
        let mut matters = false;
        for ((w, x), importance) in w.iter_mut().zip(x).zip(importance) {
            *w = importance * (2.0 * mean + x * x).sqrt();
            matters |= *w != 0.0;
        }
        // A column that nothing was ever multiplied with matters to nobody, but a block has a scale all the same.
        if !matters {
            w.fill(1.0);
        }
        let group = self.quants.scaled().unwrap_or(x.len());
        let negative = self.quants.minimum == Minimum::Scaled;
        let groups = x.chunks_exact(group).zip(w.chunks_exact(group));
        let mut fits = [Fit::default(); MOST_GROUPS];
        for (fit, (x, w)) in fits.iter_mut().zip(groups) {
            *fit = match (&self.entries, self.quants.minimum) {
                (Some(entries), _) => entries.fit(x, w),
                (None, Minimum::None) => Fit { scale: self.numbers.fit(x, w), ..Fit::default() },
                (None, Minimum::Half | Minimum::Scaled) => {
                    let (scale, minimum) = self.numbers.fit_with_minimum(x, w, negative);
                    Fit { scale, minimum, ..Fit::default() }
                }
            };
        }
        let first = self.rounded(&fits[..x.len() / group]);
        // Of powers the two that are near are tried, and none follows from the codes.
        let fits_more = self.quants.d != Number::HalfOfPower;
        let (mut kept, mut least_lost) = (None, f32::INFINITY);
        for mut scaled in self.stored(first) {
            for round in 0..=ROUNDS {
                self.near(x, w, &scaled, group, codes, numbers);
                let more = round < ROUNDS && fits_more;
                let passed = match (more, self.quants.minimum) {
                    (false, _) => self.passed::<false, false>(x, w, numbers, &scaled, group),
                    (true, Minimum::None) => self.passed::<true, false>(x, w, numbers, &scaled, group),
                    (true, Minimum::Half | Minimum::Scaled) => self.passed::<true, true>(x, w, numbers, &scaled, group),
                };
                // What is no number is lost whatever is kept.
                if passed.lost < least_lost || kept.is_none() {
                    (kept, least_lost) = (Some(scaled), passed.lost);
                    nearest.copy_from_slice(numbers);
                    best.copy_from_slice(codes);
                }
                match more.then(|| self.fitted(&passed, &scaled)) {
                    Some(Some(next)) => scaled = next,
                    Some(None) | None => break,
                }
            }
        }
        if self.entries.is_none() {
            self.numbers.codes(nearest, best);
        }
        kept.unwrap_or(first)
    }

    /// Integers for the scales and minimums of groups, with their units.
    fn rounded(&self, fits: &[Fit]) -> Scaled {
        let mut all = Scaled {
            d: 0.0,
            minimum: 0.0,
            scales: [1.0; MOST_GROUPS],
            minimums: [1.0; MOST_GROUPS],
            groups: fits.len(),
        };
        let Some(range) = self.quants.scale_range() else {
            let Fit { scale: d, minimum, .. } = fits[0];
            return Scaled { d, minimum, ..all };
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
        for ((fit, scale), low) in fits.iter().zip(&mut all.scales).zip(&mut all.minimums) {
            (*scale, *low) = (over(fit.scale, d, range), over(-fit.minimum, minimum, minimums));
        }
        Scaled { d, minimum, ..all }
    }

    /// With the floats that can be stored, and are near.
    fn stored(&self, scaled: Scaled) -> impl Iterator<Item = Scaled> + use<> {
        let minimum = f16::from_f32(scaled.minimum).to_f32();
        let near = self.quants.d.near(scaled.d);
        let above = match self.quants.d {
            Number::Half
            | Number::PartOfHalf { .. }
            | Number::TopsOfWords { .. }
            | Number::HalfOfE4m3
            | Number::Single => None,
            Number::HalfOfPower => Some(2.0 * near),
        };
        let with = move |d: f32| {
            let all: Scaled = scaled;
            Scaled { d, minimum, ..all }
        };
        std::iter::once(near).chain(above).map(with)
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

    /// The nearest numbers, and of grids the codes that stand for them.
    #[inline(always)]
    fn near(&self, x: &[f32], w: &[f32], scaled: &Scaled, group: usize, codes: &mut [u8], numbers: &mut [f32]) {
        for (index, first) in (0..x.len()).step_by(group).enumerate() {
            let own = first..first + group;
            let (scale, addend) = self.of_group(scaled, index);
            match &self.entries {
                Some(entries) => {
                    codes[own.clone()].copy_from_slice(&entries.codes(scale, &x[own.clone()], &w[own.clone()]));
                    let of = numbers[own.clone()].iter_mut().zip(&codes[own]);
                    of.for_each(|(number, code)| *number = self.numbers.of[usize::from(*code)]);
                }
                None => {
                    // Of a scale below the normal numbers there may be none.
                    let inverse = if scale.recip().is_finite() { scale.recip() } else { 0.0 };
                    self.numbers.near(&x[own.clone()], addend, inverse, &mut numbers[own]);
                }
            }
        }
    }

    /// What is lost with these numbers, and with `FIT` the sums that the best scale follows from, with `MINIMUM` those of the minimum, too.
    #[inline(always)]
    fn passed<const FIT: bool, const MINIMUM: bool>(
        &self,
        x: &[f32],
        w: &[f32],
        numbers: &[f32],
        scaled: &Scaled,
        group: usize,
    ) -> Passed {
        let [mut lost, mut aa, mut ab, mut bb, mut xa, mut xb] = [[0f32; LANES]; 6];
        let groups = x.chunks_exact(group).zip(w.chunks_exact(group)).zip(numbers.chunks_exact(group)).enumerate();
        for (index, ((x, w), numbers)) in groups {
            let (scale, addend) = self.of_group(scaled, index);
            let unit = scaled.scales[index];
            let b = match self.quants.minimum {
                Minimum::None => 0.0,
                Minimum::Half => -1.0,
                Minimum::Scaled => scaled.minimums[index],
            };
            for ((x, w), numbers) in lanes(x).iter().zip(lanes(w)).zip(lanes(numbers)) {
                for lane in 0..LANES {
                    let (x, w) = (x[lane], w[lane]);
                    let difference = scale * numbers[lane] + addend - x;
                    lost[lane] += w * difference * difference;
                    if FIT {
                        let a = unit * numbers[lane];
                        aa[lane] += w * a * a;
                        xa[lane] += w * x * a;
                        if MINIMUM {
                            ab[lane] += w * a * b;
                            bb[lane] += w * b * b;
                            xb[lane] += w * x * b;
                        }
                    }
                }
            }
        }
        let [lost, aa, ab, bb, xa, xb] = [lost, aa, ab, bb, xa, xb].map(total);
        Passed { lost, aa, ab, bb, xa, xb }
    }

    /// The best `d` and minimum for the codes that these are the sums of; `None` where any is as good, or none can be fitted.
    fn fitted(&self, sums: &Passed, scaled: &Scaled) -> Option<Scaled> {
        let &Passed { aa, ab, bb, xa, xb, .. } = sums;
        let determinant = aa * bb - ab * ab;
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
        let found = Scaled { d: self.quants.d.near(d), minimum: f16::from_f32(minimum).to_f32(), ..*scaled };
        (found.d != scaled.d || found.minimum != scaled.minimum).then_some(found)
    }

    fn write(&self, codes: &[u8], scaled: &Scaled, out: &mut [u8]) {
        out.fill(0);
        for Places { below, mask, at } in &self.places {
            for (&code, &(byte, shift)) in codes.iter().zip(at) {
                out[byte] |= (code >> below & mask) << shift;
            }
        }
        if let Some(entries) = &self.entries {
            entries.write(codes, |field, byte, bits| out[self.format.field(field) + byte] |= bits);
        }
        if let Scales::Coded(codes) = &self.quants.scales {
            for (i, &scale) in scaled.scales().iter().enumerate() {
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
        let both = scaled.scales().iter().zip(&scaled.minimums).enumerate();
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
