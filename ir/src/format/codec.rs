//! Codecs: what the bytes of a block mean, as data.
//!
//! A quantised weight is small integers, *codes*, whose bits lie in one or two *planes*, and scales:
//!
//! ```text
//! x = d [* scale] * (value - zero) [+ m | - dmin * min]
//! ```
//!
//! The fields `d`, `dmin` and `m` are found by these names (and `s`, the sum of the numbers, which follows from them: it is written and not read); `dmin` and `m` are half-precision numbers, and so is `d` unless the codec says otherwise
//! ([`Number`]). A scale `d` of a whole row is an f32 behind its blocks, which the integer `scale * (value - zero)` is multiplied with. Everything else that computes with a block, packing, kernels, bounds of sums and registers, follows from what is said here.
//!
//! ```text
//! plane of 4 bits, run 16: byte j holds elements j (low bits) and j + 16          q4_0
//! plane of 4 bits, run 32: the same for each 64 elements in 32 bytes              q4_k
//! plane of 1 bit,  run 1:  bit i of a little-endian word is element i             q5_0
//! plane of 2 bits, run 32: byte j holds elements j, j + 32, j + 64 and j + 96     q2_k
//! ```
//!
//! Or a block has something else that codes are made of ([`Codes`]): digits, which its packed form has in planes, or indices of a grid, which that has, too.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::Field;
use super::digits::Digits;
use super::grids::Grid;

/// How a block's bytes make numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// A weight or value, or an activation, in one element.
    Float(Float),
    /// Weights in small integers.
    Quants(Quants),
    /// Activations: signed bytes in -127..=127 in `quants`, of which so many share an f32 scale in `d`. `sums` are those of 32 elements,
    /// `sums16` (where the format has it) the integer sums of 16, `bf16` (likewise) the elements again.
    Bytes {
        /// Elements with a scale in common: 16 or 32.
        scaled: usize,
    },
    /// Activations: signed bytes in -127..=127 in `quants`; behind a row's blocks their f32 scale `d` and their integer `sum`.
    Row,
    /// Activations as a bf16 `high`, or the sum of that and another, `low`.
    Bf16 {
        /// Numbers of an element: 1 or 2.
        parts: usize,
    },
}

/// A float of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// Upper half of an IEEE single.
    Bf16,
}

impl Float {
    /// Bytes of one.
    pub const fn bytes(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::Bf16 => 2,
        }
    }

    /// bf16 numbers whose sum it is; `None` where two are too few.
    pub const fn bf16_parts(self) -> Option<usize> {
        match self {
            Float::F32 => None,
            Float::F16 => Some(2),
            Float::Bf16 => Some(1),
        }
    }

    /// Numbers as f32: all at once, since processors convert several together.
    pub(super) fn widen(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Float::F32 => {
                let (bytes, _) = bytes.as_chunks();
                out.iter_mut().zip(bytes).for_each(|(out, &bytes)| *out = f32::from_le_bytes(bytes));
            }
            Float::Bf16 => {
                let (bytes, _) = bytes.as_chunks();
                out.iter_mut().zip(bytes).for_each(|(out, &bytes)| *out = bf16::from_le_bytes(bytes).to_f32());
            }
            Float::F16 => {
                let mut halves = [f16::ZERO; 64];
                for (out, bytes) in out.chunks_mut(halves.len()).zip(bytes.chunks(2 * halves.len())) {
                    let (bytes, _) = bytes.as_chunks();
                    halves.iter_mut().zip(bytes).for_each(|(half, &bytes)| *half = f16::from_le_bytes(bytes));
                    halves[..out.len()].convert_to_f32_slice(out);
                }
            }
        }
    }
}

/// Bits of every code of a block.
///
/// A byte holds those of `8 / bits` elements that lie `run` apart: of `run * 8 / bits` elements, the first `run` have the lowest
/// bits of `run` bytes, the next the bits above them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// The field that holds it.
    pub field: &'static str,
    /// Bits of an element: 1, 2, 4 or 8.
    pub bits: usize,
    /// Consecutive elements in consecutive bytes.
    pub run: usize,
}

impl Plane {
    /// A plane in a field.
    pub const fn new(field: &'static str, bits: usize, run: usize) -> Plane {
        Plane { field, bits, run }
    }

    /// Byte of the field, and bit in that byte, that element `i` begins at.
    pub const fn place(&self, i: usize) -> (usize, usize) {
        let shared = 8 / self.bits;
        (i / (self.run * shared) * self.run + i % self.run, i / self.run % shared * self.bits)
    }
}

/// What number a code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// The code less the zero point.
    Linear {
        /// The code of 0.
        zero: u8,
    },
    /// A byte in two's complement.
    Signed,
    /// An entry of a table.
    Codebook(&'static [i8; 16]),
}

/// How a block's float is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// IEEE half.
    Half,
    /// IEEE half, of which the number is a part: divided by 2 so many times.
    PartOfHalf {
        /// How often.
        halved: u8,
    },
    /// The same, of which the highest four bits of four 16-bit words are a half each, the lowest first. What stands below them is something else.
    TopsOfWords {
        /// How often.
        halved: u8,
    },
    /// A byte `e` that stands for `2^(e - 128)`: half of the number that E8M0 of the OCP microscaling formats has, beside a codebook of doubled
    /// values. (`e = 255` is no number there; here, as in ggml, it is the next power.)
    HalfOfPower,
    /// A byte of E4M3 without its sign (OCP 8-bit floating point, 5.1; ggml's UE4M3), of which the number is half: beside a codebook of doubled values.
    /// What is no number there is 0, as in ggml.
    HalfOfE4m3,
    /// IEEE single.
    Single,
}

/// The byte of E4M3 that is no number.
const E4M3_NAN: u8 = 0x7f;

impl Number {
    /// Bytes of one.
    pub const fn bytes(self) -> usize {
        match self {
            Number::Half | Number::PartOfHalf { .. } => 2,
            Number::TopsOfWords { .. } => 8,
            Number::HalfOfPower | Number::HalfOfE4m3 => 1,
            Number::Single => 4,
        }
    }

    /// How packed blocks have it: alone.
    pub const fn packed(self) -> Number {
        match self {
            Number::TopsOfWords { halved } => Number::PartOfHalf { halved },
            Number::Half | Number::PartOfHalf { .. } | Number::HalfOfPower | Number::HalfOfE4m3 | Number::Single => {
                self
            }
        }
    }

    /// Bytes of [`Number::packed`] that are the same number.
    pub(super) fn pack(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Number::TopsOfWords { .. } => {
                let tops = bytes.chunks_exact(2).take(4).map(|word| word[1] >> 4).collect::<Vec<_>>();
                tops.chunks_exact(2).map(|tops| tops[0] | (tops[1] << 4)).collect()
            }
            Number::Half | Number::PartOfHalf { .. } | Number::HalfOfPower | Number::HalfOfE4m3 | Number::Single => {
                bytes[..self.bytes()].to_vec()
            }
        }
    }

    /// What is left of 1 that is divided by 2 so many times.
    pub fn part(halved: u8) -> f32 {
        f32::from(1u16 << halved).recip()
    }

    /// The number that bytes stand for.
    pub(super) fn at(self, bytes: &[u8], at: usize) -> f32 {
        match self {
            Number::Half => f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
            Number::PartOfHalf { halved } => Number::Half.at(bytes, at) * Number::part(halved),
            Number::TopsOfWords { .. } => self.packed().at(&self.pack(&bytes[at..]), 0),
            Number::HalfOfPower => f32::from_bits(match bytes[at] {
                // Below the normal numbers.
                e @ 0..2 => 0x0020_0000 << e,
                e => u32::from(e - 1) << 23,
            }),
            Number::HalfOfE4m3 => match bytes[at] & E4M3_NAN {
                E4M3_NAN => 0.0,
                // Of a half-precision number that has the same bits the exponent is 8 less.
                byte => f16::from_bits(u16::from(byte) << 7).to_f32() * HALF_OF_E4M3,
            },
            Number::Single => f32_at(bytes, at),
        }
    }

    /// Writes a number near this one, of its sign where there are signs, to the bytes that it has in a block: for who makes blocks.
    pub fn put(self, x: f32, bytes: &mut [u8]) {
        match self {
            Number::Half => bytes[..2].copy_from_slice(&f16::from_f32(x).to_le_bytes()),
            Number::PartOfHalf { halved } => Number::Half.put(x / Number::part(halved), bytes),
            Number::TopsOfWords { .. } => {
                let mut half = [0; 2];
                self.packed().put(x, &mut half);
                for (i, word) in bytes.chunks_exact_mut(2).take(4).enumerate() {
                    word[1] = (word[1] & 15) | ((half[i / 2] >> (i % 2 * 4)) << 4);
                }
            }
            Number::HalfOfPower => bytes[0] = (x.abs().log2().floor() + 128.0).clamp(0.0, 254.0) as u8,
            Number::HalfOfE4m3 => {
                // To the nearest of three bits of a mantissa.
                let x = (x.abs() / HALF_OF_E4M3).min(2.0);
                let half = f16::from_f32(x).to_bits() & 0x7fff;
                bytes[0] = ((half + (1 << 6)) >> 7).min(u16::from(E4M3_NAN - 1)) as u8;
            }
            Number::Single => bytes[..4].copy_from_slice(&x.to_le_bytes()),
        }
    }

    /// The number that is stored for one near this.
    pub(super) fn near(self, x: f32) -> f32 {
        let mut bytes = [0; 8];
        self.put(x, &mut bytes);
        self.at(&bytes, 0)
    }

    /// Makes of any bytes those of a number that is small, and none that is infinite or no number: for who makes blocks of all bits there are.
    pub fn tame(self, bytes: &mut [u8]) {
        match self {
            Number::Half | Number::PartOfHalf { .. } => bytes[1] &= 0xbb,
            Number::TopsOfWords { .. } => bytes[7] &= 0xbf,
            Number::HalfOfPower => {}
            Number::HalfOfE4m3 => bytes[0] &= E4M3_NAN,
            // Between 2^-7 and 2^-5, of either sign.
            Number::Single => bytes[3] = bytes[3] & 0x80 | 0x3c,
        }
    }
}

/// What a half-precision number with the bits of E4M3 is multiplied with to be [`Number::HalfOfE4m3`].
pub const HALF_OF_E4M3: f32 = 128.0;

/// Integer scales of sub-blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// None: `d` is the scale.
    None,
    /// Of 32 elements, six bits, and minimums likewise: twelve bytes `scales` for eight of both (ggml `get_scale_min_k4`).
    SixBits,
    /// Of 16 elements, signed bytes `scales`.
    Signed16,
    /// Of 16 elements, four low bits of the bytes `scales`, and minimums in the high ones.
    Nibbles16,
    /// Codes in planes, as those of elements are.
    Coded(ScaleCodes),
    /// None, and `d` is one f32 for the whole row, behind its blocks.
    Row,
    /// Of so many elements, signed bytes `scales` in -[`MOST_MULTIPLE`]..=[`MOST_MULTIPLE`]: multiples of `d`, one f32 for the whole row, behind
    /// its blocks. A number times its scale is a byte, so that sums of a whole row stay integers.
    Multiples {
        /// Elements with a scale in common: whole sub-blocks of 32.
        columns: usize,
    },
}

/// Integer scales whose bits lie in planes: number `i` of these is the scale of the elements from `i * columns` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleCodes {
    /// Elements with a scale in common: 16 or 32.
    pub columns: usize,
    /// Where the bits of codes are.
    pub bits: ScaleBits,
    /// What scale a code is.
    pub number: ScaleNumber,
}

/// Where the bits of scales are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleBits {
    /// In a plane.
    Plane(Plane),
    /// In a plane of which other codes or other bits stand between them.
    Spread(Plane, Spread),
    /// In two planes, the low bits first.
    Planes(Plane, Plane),
    /// In 16-bit words, one above the other.
    Words {
        /// The field that holds the words.
        field: &'static str,
        /// Codes in a word.
        each: usize,
        /// Bits of a code.
        width: usize,
        /// The lowest bit of the first.
        first: usize,
    },
}

impl ScaleBits {
    /// Bits of a code.
    pub const fn width(&self) -> usize {
        match self {
            ScaleBits::Plane(plane) | ScaleBits::Spread(plane, _) => plane.bits,
            ScaleBits::Planes(low, high) => low.bits + high.bits,
            ScaleBits::Words { width, .. } => *width,
        }
    }

    /// The parts of code `i`: the field, a byte of it, the lowest bit there and how many, which may go on in the next byte; those of the code's
    /// low bits first.
    pub(super) fn parts(&self, i: usize) -> impl Iterator<Item = (&'static str, usize, usize, usize)> {
        let of = |plane: &Plane, i: usize| {
            let (byte, shift) = plane.place(i);
            (plane.field, byte, shift, plane.bits)
        };
        let (first, second) = match self {
            ScaleBits::Plane(plane) => (of(plane, i), None),
            ScaleBits::Spread(plane, spread) => (of(plane, spread.place(i)), None),
            ScaleBits::Planes(low, high) => (of(low, i), Some(of(high, i))),
            ScaleBits::Words { field, each, width, first } => {
                let bit = first + i % each * width;
                ((*field, i / each * 2 + bit / 8, bit % 8, *width), None)
            }
        };
        std::iter::once(first).chain(second)
    }
}

/// Where codes are among all of a plane: number `i` is number `first + i * each`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// From one to the next.
    pub each: usize,
    /// The first.
    pub first: usize,
}

impl Spread {
    /// The place of code `i`.
    pub const fn place(&self, i: usize) -> usize {
        self.first + i * self.each
    }
}

/// What scale a code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleNumber {
    /// The code less so much.
    Less(u8),
    /// One more than twice the code.
    Odd,
}

impl ScaleCodes {
    /// The scale of a code: a signed byte.
    pub(super) const fn number(&self, code: u8) -> i8 {
        match self.number {
            ScaleNumber::Less(zero) => code.wrapping_sub(zero) as i8,
            ScaleNumber::Odd => (2 * code + 1) as i8,
        }
    }

    /// The largest magnitude of a scale.
    const fn largest(&self) -> u8 {
        let codes = 1u16 << self.bits.width();
        let (least, most) = (self.number(0).unsigned_abs(), self.number((codes - 1) as u8).unsigned_abs());
        if most > least { most } else { least }
    }
}

/// The largest multiple: up to 8 times it, above [`ZERO`] or below, is an unsigned byte. 8 times 16 is not, above.
pub const MOST_MULTIPLE: i8 = 15;
/// The zero point of signed bytes that are multiplied as unsigned ones.
const ZERO: u8 = 128;

/// What is added to all elements with a scale in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Minimum {
    /// Nothing.
    None,
    /// The field `m`.
    Half,
    /// Less `dmin` times the minimum that stands beside the scale.
    Scaled,
}

/// How a file's block has codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// In planes.
    Planes,
    /// By indices of a table.
    Grid(&'static Grid),
    /// As digits of bytes.
    Digits(&'static [Digits]),
}

/// Small integers with scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quants {
    /// All bits of a code, or its four low ones.
    pub low: Plane,
    /// The bits above those.
    pub high: Option<Plane>,
    /// What number a code is.
    pub values: Values,
    /// How a file's block has codes.
    pub codes: Codes,
    /// How `d` is stored.
    pub d: Number,
    /// Elements that share a `d`, where a file's block has several.
    pub columns_of_d: Option<u8>,
    /// Integer scales.
    pub scales: Scales,
    /// What is added.
    pub minimum: Minimum,
}

impl Quants {
    /// Codes in one plane, with a scale for all elements of a block.
    pub const fn new(low: Plane, values: Values) -> Quants {
        let (d, scales, minimum) = (Number::Half, Scales::None, Minimum::None);
        Quants { low, high: None, values, codes: Codes::Planes, d, columns_of_d: None, scales, minimum }
    }

    /// Codes that are digits of base 3, which are two bits.
    pub const fn by_digits(digits: &'static [Digits], values: Values) -> Quants {
        Quants { codes: Codes::Digits(digits), ..Quants::new(Plane::new("", 2, 1), values) }
    }

    /// Codes by a grid: the places of magnitudes and a sign above them, which are three or four bits.
    pub const fn by_grid(grid: &'static Grid, values: Values) -> Quants {
        let bits = grid.bits + 1;
        let low = if bits == 4 { 4 } else { 2 };
        let high = if bits > low { Some(Plane::new("", bits - low, 1)) } else { None };
        Quants { high, codes: Codes::Grid(grid), ..Quants::new(Plane::new("", low, 1), values) }
    }

    /// As packed blocks have them.
    pub const fn packed(self) -> Quants {
        Quants { d: self.d.packed(), ..self }
    }

    /// With another kind of number for `d`.
    pub const fn d(self, d: Number) -> Quants {
        Quants { d, ..self }
    }

    /// With a `d` for so many elements each, fewer than a block has.
    pub const fn d_of(self, columns: u8) -> Quants {
        Quants { columns_of_d: Some(columns), ..self }
    }

    /// With a plane of bits above the low ones.
    pub const fn high(self, high: Plane) -> Quants {
        Quants { high: Some(high), ..self }
    }

    /// With integer scales of sub-blocks.
    pub const fn scales(self, scales: Scales) -> Quants {
        let minimum = match scales {
            Scales::SixBits | Scales::Nibbles16 => Minimum::Scaled,
            Scales::None | Scales::Signed16 | Scales::Coded(_) | Scales::Row | Scales::Multiples { .. } => {
                Minimum::None
            }
        };
        Quants { scales, minimum, ..self }
    }

    /// With a number `m` for each block that is added to its elements.
    pub const fn plus_m(self) -> Quants {
        Quants { minimum: Minimum::Half, ..self }
    }

    /// How many codes there are.
    pub const fn count(&self) -> usize {
        match self.codes {
            Codes::Planes | Codes::Grid(_) => 1 << (self.low.bits + self.high_bits()),
            Codes::Digits(_) => super::digits::BASE as usize,
        }
    }

    /// Bits of a code above those of the low plane.
    pub const fn high_bits(&self) -> usize {
        match self.high {
            Some(high) => high.bits,
            None => 0,
        }
    }

    /// Elements with an integer scale in common; `None` where there are none.
    pub const fn scaled(&self) -> Option<usize> {
        match self.scales {
            Scales::None | Scales::Row => None,
            Scales::SixBits => Some(32),
            Scales::Signed16 | Scales::Nibbles16 => Some(16),
            Scales::Coded(codes) => Some(codes.columns),
            Scales::Multiples { columns } => Some(columns),
        }
    }

    /// Elements with a scale in common that is multiplied with their codes, before these are multiplied with anything else.
    pub const fn multiples(&self) -> Option<usize> {
        match self.scales {
            Scales::Multiples { columns } => Some(columns),
            Scales::None | Scales::SixBits | Scales::Signed16 | Scales::Nibbles16 | Scales::Coded(_) | Scales::Row => {
                None
            }
        }
    }

    /// The unsigned byte of each code: the number plus [`Quants::zero`]. Kernels multiply with it, or with the one of its
    /// [multiple](Quants::multiples).
    pub const fn byte(&self, code: u8) -> u8 {
        match self.values {
            Values::Linear { .. } => code,
            Values::Signed => code ^ 0x80,
            Values::Codebook(table) => (table[(code & 15) as usize] as u8).wrapping_add(self.zero()),
        }
    }

    /// What [`Quants::byte`] has in addition to the number.
    pub const fn zero(&self) -> u8 {
        match self.values {
            Values::Linear { zero } => zero,
            Values::Signed => ZERO,
            // The smallest that leaves no entry below 0, and is a power of two: small bytes are the more that fit a 16-bit word.
            Values::Codebook(table) => {
                let (mut least, mut i) = (0, 0);
                while i < table.len() {
                    least = if table[i] < least { table[i] } else { least };
                    i += 1;
                }
                least.unsigned_abs().next_power_of_two()
            }
        }
    }

    /// What the bytes that kernels multiply with have in addition to the numbers, or to their multiples.
    pub const fn zero_of_products(&self) -> u8 {
        match self.scales {
            Scales::Multiples { .. } => ZERO,
            Scales::None | Scales::SixBits | Scales::Signed16 | Scales::Nibbles16 | Scales::Coded(_) | Scales::Row => {
                self.zero()
            }
        }
    }

    /// The largest byte of any code.
    pub const fn max(&self) -> u8 {
        let (mut max, mut code) = (0, 0);
        while code < self.count() {
            let byte = self.byte(code as u8);
            if byte > max {
                max = byte;
            }
            code += 1;
        }
        max
    }

    /// How many sums of two products of a byte and an activation fit a signed 16-bit word: a power of two, or none.
    ///
    /// ```
    /// # use ixc_ir::format::Format;
    /// // 15 * 127 * 2 * 8 = 30480; 63 * 127 * 2 * 2 = 32004; two products of 255 do not fit.
    /// let fit = [Format::Q4K, Format::Q6K, Format::Q8_0].map(|format| format.quants().unwrap().pairs_in_a_word());
    /// assert_eq!(fit, [8, 2, 0]);
    /// ```
    pub const fn pairs_in_a_word(&self) -> usize {
        let fit = i16::MAX as usize / (2 * 127 * self.max() as usize);
        if fit == 0 { 0 } else { 1 << fit.ilog2() }
    }

    /// The floats of a block: their fields, how they are stored, and the largest magnitude that each is multiplied with.
    pub fn numbers(&self) -> Vec<(&'static str, Number, f32)> {
        let largest = f32::from(self.max() - self.zero().min(self.max())).max(f32::from(self.zero()));
        let (scale, minimum) = match self.scales {
            Scales::None => (1.0, 1.0),
            Scales::SixBits => (63.0, 63.0),
            Scales::Signed16 => (128.0, 1.0),
            Scales::Nibbles16 => (15.0, 15.0),
            Scales::Coded(codes) => (f32::from(codes.largest()), 1.0),
            Scales::Row | Scales::Multiples { .. } => return Vec::new(),
        };
        let mut numbers = vec![("d", self.d, scale * largest)];
        match self.minimum {
            Minimum::None => {}
            Minimum::Half => numbers.push(("m", Number::Half, minimum)),
            Minimum::Scaled => numbers.push(("dmin", Number::Half, minimum)),
        }
        numbers
    }

    /// How the field `d`, `m` or `dmin` is stored.
    pub fn number(&self, field: &str) -> Number {
        if field == "d" { self.d } else { Number::Half }
    }
}

/// The 6-bit scale and minimum of sub-block `s` (ggml `get_scale_min_k4`): four low pairs are whole, four high ones are
/// split between a nibble and the two top bits of the low ones.
pub(super) fn six_bits(scales: &[u8], s: usize) -> (u8, u8) {
    if s < 4 {
        (scales[s] & 63, scales[s + 4] & 63)
    } else {
        ((scales[s + 4] & 15) | ((scales[s - 4] >> 6) << 4), (scales[s + 4] >> 4) | ((scales[s] >> 6) << 4))
    }
}

/// A scale of four bits, and the minimum above it.
pub(super) fn nibbles(byte: u8) -> (f32, f32) {
    (f32::from(byte & 15), f32::from(byte >> 4))
}

/// The offset of a field that the row has: another name is a bug of the table, which the tests of every format find.
pub(super) fn offset(fields: &[Field], name: &str) -> usize {
    match fields.iter().find(|field| field.name == name) {
        Some(field) => field.offset,
        None => unreachable!("no field {name} in {fields:?}"),
    }
}

/// Reads an f32.
pub(super) fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
