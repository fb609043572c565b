//! Codecs: the meaning of a block's bytes, as data.
//!
//! A quantised weight consists of scales and small integers, its *codes*. The bits of codes are
//! stored in one or two *bit planes*:
//!
//! ```text
//! x = d [* scale] * (value - zero) [+ m | - dmin * min]
//! ```
//! The fields for `d`, `dmin` and `m` have these names. `dmin` and `m` are half-precision numbers.
//! `d` is one too unless the codec has another [`Number`]. The encoder writes a field `s`, the sum
//! of the numbers, and the decoder ignores it. A scale `d` of a whole row is an f32 after the row's
//! blocks. It multiplies the integer `scale * (value - zero)`.
//!
//! All other code that computes with a block derives its behaviour from these data: packing,
//! kernels, and the bounds of sums.
//!
//! ```text
//! plane of 4 bits, run 16: byte j holds elements j (low bits) and j + 16          q4_0
//! plane of 4 bits, run 32: the same for every 64 elements in 32 bytes             q4_k
//! plane of 1 bit,  run 1:  bit i of a little-endian word is element i             q5_0
//! plane of 2 bits, run 32: byte j holds elements j, j + 32, j + 64 and j + 96     q2_k
//! ```
//!
//! Codes can also be stored as base-3 digits or as indices of a grid ([`Codes`]). Digits become bit
//! planes in the packed form. Indices of a grid stay indices.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::Field;
use super::digits::Digits;
use super::grids::Grid;

/// Conversion of a block's bytes to numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// One float for each element: a weight, a value, or an activation.
    Float(Float),
    /// Weights as small integers.
    Quants(Quants),
    /// Activations: signed bytes in -127..=127 in `quants`, with an f32 scale in `d` for each
    /// `scaled` elements. `sums` has the sum of each 32 elements. The optional `sums16` has integer
    /// sums of each 16 elements, and the optional `bf16` repeats the elements as bf16.
    Bytes {
        /// Number of elements that share a scale: 16 or 32.
        scaled: usize,
    },
    /// Activations: signed bytes in -127..=127 in `quants`. The f32 scale `d` and the integer `sum`
    /// of the bytes follow the row's blocks.
    Row,
    /// Activations as a bf16 `high`, or as the sum of two bf16, `high` and `low`.
    Bf16 {
        /// Number of bf16 parts of an element: 1 or 2.
        parts: usize,
    },
}

/// Type of a float element.
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
    /// Returns the number of bytes of one float.
    pub const fn bytes(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::Bf16 => 2,
        }
    }

    /// Returns the number of bf16 numbers whose sum is exactly the float, or `None` if it needs
    /// more than two.
    pub const fn bf16_parts(self) -> Option<usize> {
        match self {
            Float::F32 => None,
            Float::F16 => Some(2),
            Float::Bf16 => Some(1),
        }
    }

    /// Converts numbers to f32. One call converts all of them, so that the processor's vector
    /// instructions can be used.
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

/// One or more bits of every code of a block.
/// A byte holds the bits of `8 / bits` elements that lie `run` elements apart. In `run` consecutive
/// bytes, the first `run` elements have the lowest bits, and the next `run` elements the bits above
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// Field that holds the plane.
    pub field: &'static str,
    /// Number of bits per element: 1, 2, 4 or 8.
    pub bits: usize,
    /// Number of consecutive elements that are in consecutive bytes.
    pub run: usize,
}

impl Plane {
    /// Returns a plane in a field.
    pub const fn new(field: &'static str, bits: usize, run: usize) -> Plane {
        Plane { field, bits, run }
    }

    /// Returns the place of the first bit of element `i`: a byte of the field, and a bit in that
    /// byte.
    pub const fn place(&self, i: usize) -> (usize, usize) {
        let shared = 8 / self.bits;
        (i / (self.run * shared) * self.run + i % self.run, i / self.run % shared * self.bits)
    }
}

/// Conversion of a code to its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// The code minus the zero point.
    Linear {
        /// Code of the number 0.
        zero: u8,
    },
    /// A byte in two's complement.
    Signed,
    /// The number at index `code` of a table.
    Codebook(&'static [i8; 16]),
}

/// Storage of a block's float `d`, `m` or `dmin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// IEEE half.
    Half,
    /// An IEEE half, divided by `2^halved`.
    PartOfHalf {
        /// Number of divisions by 2.
        halved: u8,
    },
    /// An IEEE half in the highest four bits of four 16-bit words, its lowest bits in the first
    /// word. The number is divided by `2^halved`. The other bits of the words belong to other
    /// fields.
    TopsOfWords {
        /// Number of divisions by 2.
        halved: u8,
    },
    /// A byte `e` that stands for `2^(e - 128)`. This is half of E8M0 (OCP microscaling formats),
    /// because the codebook has doubled values. In E8M0, `e = 255` is NaN; here, as in ggml, it is
    /// the next power.
    HalfOfPower,
    /// A byte of E4M3 without its sign (OCP 8-bit floating point, 5.1; ggml's UE4M3). It stands for
    /// half of the E4M3 number, because the codebook has doubled values. NaN becomes 0, as in ggml.
    HalfOfE4m3,
    /// IEEE single.
    Single,
}

/// The byte that is NaN in E4M3 without its sign.
const E4M3_NAN: u8 = 0x7f;

impl Number {
    /// Returns the number of bytes of one number.
    pub const fn bytes(self) -> usize {
        match self {
            Number::Half | Number::PartOfHalf { .. } => 2,
            Number::TopsOfWords { .. } => 8,
            Number::HalfOfPower | Number::HalfOfE4m3 => 1,
            Number::Single => 4,
        }
    }

    /// Returns the storage of the same number in packed blocks, where all its bits are adjacent.
    pub const fn packed_storage(self) -> Number {
        match self {
            Number::TopsOfWords { halved } => Number::PartOfHalf { halved },
            Number::Half | Number::PartOfHalf { .. } | Number::HalfOfPower | Number::HalfOfE4m3 | Number::Single => {
                self
            }
        }
    }

    /// Converts the bytes of a number to its [`Number::packed_storage`].
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

    /// Returns `2^-halved`.
    pub fn part(halved: u8) -> f32 {
        f32::from(1u16 << halved).recip()
    }

    /// Returns the number that is stored at offset `at` of `bytes`.
    pub(super) fn at(self, bytes: &[u8], at: usize) -> f32 {
        match self {
            Number::Half => f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32(),
            Number::PartOfHalf { halved } => Number::Half.at(bytes, at) * Number::part(halved),
            Number::TopsOfWords { .. } => self.packed_storage().at(&self.pack(&bytes[at..]), 0),
            Number::HalfOfPower => f32::from_bits(match bytes[at] {
                // Denormal f32 numbers.
                e @ 0..2 => 0x0020_0000 << e,
                e => u32::from(e - 1) << 23,
            }),
            Number::HalfOfE4m3 => match bytes[at] & E4M3_NAN {
                E4M3_NAN => 0.0,
                // A half-precision number with the same bits has an exponent that is 8 less.
                byte => f16::from_bits(u16::from(byte) << 7).to_f32() * HALF_OF_E4M3,
            },
            Number::Single => f32_at(bytes, at),
        }
    }

    /// Stores a number near `x` in a block, with its sign if the storage has signs. Encoders use
    /// it.
    pub fn put(self, x: f32, bytes: &mut [u8]) {
        match self {
            Number::Half => bytes[..2].copy_from_slice(&f16::from_f32(x).to_le_bytes()),
            Number::PartOfHalf { halved } => Number::Half.put(x / Number::part(halved), bytes),
            Number::TopsOfWords { .. } => {
                let mut half = [0; 2];
                self.packed_storage().put(x, &mut half);
                for (i, word) in bytes.chunks_exact_mut(2).take(4).enumerate() {
                    word[1] = (word[1] & 15) | ((half[i / 2] >> (i % 2 * 4)) << 4);
                }
            }
            Number::HalfOfPower => bytes[0] = (x.abs().log2().floor() + 128.0).clamp(0.0, 254.0) as u8,
            Number::HalfOfE4m3 => {
                // Rounds to the nearest number with three mantissa bits.
                let x = (x.abs() / HALF_OF_E4M3).min(2.0);
                let half = f16::from_f32(x).to_bits() & 0x7fff;
                bytes[0] = ((half + (1 << 6)) >> 7).min(u16::from(E4M3_NAN - 1)) as u8;
            }
            Number::Single => bytes[..4].copy_from_slice(&x.to_le_bytes()),
        }
    }

    /// Returns the number nearest to `x` that can be stored.
    pub(super) fn near(self, x: f32) -> f32 {
        let mut bytes = [0; 8];
        self.put(x, &mut bytes);
        self.at(&bytes, 0)
    }

    /// Changes arbitrary bytes into the bytes of a small number, which is neither infinite nor NaN.
    /// Generators of random blocks use it.
    pub fn tame(self, bytes: &mut [u8]) {
        match self {
            Number::Half | Number::PartOfHalf { .. } => bytes[1] &= 0xbb,
            Number::TopsOfWords { .. } => bytes[7] &= 0xbf,
            Number::HalfOfPower => {}
            Number::HalfOfE4m3 => bytes[0] &= E4M3_NAN,
            // The result is between 2^-7 and 2^-5, with either sign.
            Number::Single => bytes[3] = bytes[3] & 0x80 | 0x3c,
        }
    }
}

/// Factor from the half-precision number that has the bits of E4M3 to [`Number::HalfOfE4m3`].
pub const HALF_OF_E4M3: f32 = 128.0;

/// Integer scales of sub-blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// No integer scales: `d` is the scale of the block.
    None,
    /// Six-bit scales and six-bit minimums, one of each for 32 elements. The twelve bytes `scales`
    /// have eight of each (ggml `get_scale_min_k4`).
    SixBits,
    /// Signed bytes `scales`, one for each 16 elements.
    Signed16,
    /// Four-bit scales of 16 elements in the low bits of the bytes `scales`, with minimums in the
    /// high bits.
    Nibbles16,
    /// Scales are codes in bit planes, like the codes of elements.
    Coded(ScaleCodes),
    /// No integer scales. `d` is one f32 for the whole row, after its blocks.
    Row,
    /// Signed bytes `scales` in -[`MOST_MULTIPLE`]..=[`MOST_MULTIPLE`], one for each `columns`
    /// elements. They are multiples of `d`, one f32 for the whole row, after its blocks. An
    /// element's integer times its scale fits in a byte, so sums of a whole row stay integers.
    Multiples {
        /// Number of elements that share a scale: whole sub-blocks of 32.
        columns: usize,
    },
}

/// Integer scales whose bits are in planes. Scale `i` is for the elements from `i * columns` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleCodes {
    /// Number of elements that share a scale: 16 or 32.
    pub columns: usize,
    /// Place of the codes' bits.
    pub bits: ScaleBits,
    /// Conversion of a code to its scale.
    pub number: ScaleNumber,
}

/// Place of the bits of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleBits {
    /// One bit plane has all bits of the scales.
    Plane(Plane),
    /// One bit plane has all bits of the scales, with other bits between them.
    Spread(Plane, Spread),
    /// Two bit planes have the bits of the scales; the first plane has the low bits.
    Planes(Plane, Plane),
    /// Words of 16 bits have the bits of several scales, one scale above the other.
    Words {
        /// Field that holds the words.
        field: &'static str,
        /// Number of codes in a word.
        each: usize,
        /// Number of bits of a code.
        width: usize,
        /// Lowest bit of the first code in a word.
        first: usize,
    },
}

impl ScaleBits {
    /// Returns the number of bits of a code.
    pub const fn width(&self) -> usize {
        match self {
            ScaleBits::Plane(plane) | ScaleBits::Spread(plane, _) => plane.bits,
            ScaleBits::Planes(low, high) => low.bits + high.bits,
            ScaleBits::Words { width, .. } => *width,
        }
    }

    /// Returns the places of the bits of code `i`, its low bits first. A place has a field, a byte
    /// of the field, the lowest bit in that byte, and the number of bits. The bits may continue in
    /// the next byte.
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

/// Positions of codes in a plane that also has other codes: code `i` is the plane's element
/// `first + i * each`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Distance from one code to the next, in elements of the plane.
    pub each: usize,
    /// Position of the first code in the plane.
    pub first: usize,
}

impl Spread {
    /// Returns the position of code `i` in the plane.
    pub const fn place(&self, i: usize) -> usize {
        self.first + i * self.each
    }
}

/// Conversion of a code to its scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleNumber {
    /// The code minus this number.
    Less(u8),
    /// Twice the code, plus one.
    Odd,
}

impl ScaleCodes {
    /// Returns the scale that a code stands for, as a signed byte.
    pub(super) const fn number(&self, code: u8) -> i8 {
        match self.number {
            ScaleNumber::Less(zero) => code.wrapping_sub(zero) as i8,
            ScaleNumber::Odd => (2 * code + 1) as i8,
        }
    }

    /// Returns the largest magnitude of a scale.
    const fn largest(&self) -> u8 {
        let codes = 1u16 << self.bits.width();
        let (least, most) = (self.number(0).unsigned_abs(), self.number((codes - 1) as u8).unsigned_abs());
        if most > least { most } else { least }
    }
}

/// Largest magnitude of a [`Scales::Multiples`] scale. Four-bit numbers (-8..=7) times it, plus
/// [`ZERO`], are unsigned bytes. With the scale -16, `-8 * -16 + 128` would be 256.
pub const MOST_MULTIPLE: i8 = 15;
/// Number that is added to signed bytes to make them unsigned for products.
const ZERO: u8 = 128;

/// Addend of all elements that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Minimum {
    /// Elements have no addend.
    None,
    /// The half-precision number in the field `m`.
    Half,
    /// Minus `dmin` times the integer minimum that is stored with the scale.
    Scaled,
}

/// Storage of element codes in a file's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    /// Codes are in bit planes.
    Planes,
    /// Codes are stored as indices of a grid.
    Grid(&'static Grid),
    /// Codes are base-3 digits of bytes.
    Digits(&'static [Digits]),
}

/// Small integers with scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quants {
    /// All bits of a code, or its low bits.
    pub low: Plane,
    /// The bits above the low plane's bits.
    pub high: Option<Plane>,
    /// Number that a code stands for.
    pub values: Values,
    /// Storage of codes in a file's block.
    pub codes: Codes,
    /// Storage of `d`.
    pub d: Number,
    /// Number of elements that share a `d`, if a file's block has several `d`.
    pub columns_of_d: Option<u8>,
    /// Integer scales.
    pub scales: Scales,
    /// Addend of the elements.
    pub minimum: Minimum,
}

impl Quants {
    /// Returns a codec of one plane of codes, with one scale for all elements of a block.
    pub const fn new(low: Plane, values: Values) -> Quants {
        let (d, scales, minimum) = (Number::Half, Scales::None, Minimum::None);
        Quants { low, high: None, values, codes: Codes::Planes, d, columns_of_d: None, scales, minimum }
    }

    /// Returns a codec whose codes are stored as digits of base 3. A code has two bits.
    pub const fn by_digits(digits: &'static [Digits], values: Values) -> Quants {
        Quants { codes: Codes::Digits(digits), ..Quants::new(Plane::new("", 2, 1), values) }
    }

    /// Returns a codec whose codes are stored as indices of a grid. A code has three or four bits:
    /// the index of a magnitude, with the sign above it.
    pub const fn by_grid(grid: &'static Grid, values: Values) -> Quants {
        let bits = grid.bits + 1;
        let low = if bits == 4 { 4 } else { 2 };
        let high = if bits > low { Some(Plane::new("", bits - low, 1)) } else { None };
        Quants { high, codes: Codes::Grid(grid), ..Quants::new(Plane::new("", low, 1), values) }
    }

    /// Returns the codec of the packed form: `d` is in its [`Number::packed_storage`].
    pub const fn packed_codec(self) -> Quants {
        Quants { d: self.d.packed_storage(), ..self }
    }

    /// Sets the storage of `d`.
    pub const fn d(self, d: Number) -> Quants {
        Quants { d, ..self }
    }

    /// Sets the number of elements that share a `d`, if it is less than a block.
    pub const fn d_of(self, columns: u8) -> Quants {
        Quants { columns_of_d: Some(columns), ..self }
    }

    /// Adds a plane of bits above the low ones.
    pub const fn high(self, high: Plane) -> Quants {
        Quants { high: Some(high), ..self }
    }

    /// Adds integer scales of sub-blocks.
    pub const fn scales(self, scales: Scales) -> Quants {
        let minimum = match scales {
            Scales::SixBits | Scales::Nibbles16 => Minimum::Scaled,
            Scales::None | Scales::Signed16 | Scales::Coded(_) | Scales::Row | Scales::Multiples { .. } => {
                Minimum::None
            }
        };
        Quants { scales, minimum, ..self }
    }

    /// Adds a number `m` for each block, which is added to its elements.
    pub const fn plus_m(self) -> Quants {
        Quants { minimum: Minimum::Half, ..self }
    }

    /// Returns the number of different codes.
    pub const fn count(&self) -> usize {
        match self.codes {
            Codes::Planes | Codes::Grid(_) => 1 << (self.low.bits + self.high_bits()),
            Codes::Digits(_) => super::digits::BASE as usize,
        }
    }

    /// Returns the number of bits of a code above those of the low plane.
    pub const fn high_bits(&self) -> usize {
        match self.high {
            Some(high) => high.bits,
            None => 0,
        }
    }

    /// Returns the number of elements that share an integer scale, or `None` without such scales.
    pub const fn scale_group_len(&self) -> Option<usize> {
        match self.scales {
            Scales::None | Scales::Row => None,
            Scales::SixBits => Some(32),
            Scales::Signed16 | Scales::Nibbles16 => Some(16),
            Scales::Coded(codes) => Some(codes.columns),
            Scales::Multiples { columns } => Some(columns),
        }
    }

    /// Returns the number of elements that share a scale, if kernels multiply scales with codes
    /// before any other product. Returns `None` for other codecs.
    pub const fn multiples(&self) -> Option<usize> {
        match self.scales {
            Scales::Multiples { columns } => Some(columns),
            Scales::None | Scales::SixBits | Scales::Signed16 | Scales::Nibbles16 | Scales::Coded(_) | Scales::Row => {
                None
            }
        }
    }

    /// Returns the unsigned byte of a code: its number plus [`Quants::zero`]. Kernels multiply this
    /// byte with activations, or the byte of the number's [multiple](Quants::multiples).
    pub const fn byte(&self, code: u8) -> u8 {
        match self.values {
            Values::Linear { .. } => code,
            Values::Signed => code ^ 0x80,
            Values::Codebook(table) => (table[(code & 15) as usize] as u8).wrapping_add(self.zero()),
        }
    }

    /// Returns the difference between [`Quants::byte`] and the code's number.
    pub const fn zero(&self) -> u8 {
        match self.values {
            Values::Linear { zero } => zero,
            Values::Signed => ZERO,
            // The smallest power of two for which no number of the table is below 0. With small
            // bytes, more products fit in a 16-bit word.
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

    /// Returns the difference between the bytes that kernels multiply and the numbers that these
    /// bytes stand for. If the codec has [multiples](Quants::multiples), these are numbers times
    /// their scale.
    pub const fn zero_of_products(&self) -> u8 {
        match self.scales {
            Scales::Multiples { .. } => ZERO,
            Scales::None | Scales::SixBits | Scales::Signed16 | Scales::Nibbles16 | Scales::Coded(_) | Scales::Row => {
                self.zero()
            }
        }
    }

    /// Returns the largest byte of any code.
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

    /// Returns how many pairs of products of a byte and an activation can be added in a signed
    /// 16-bit word: a power of two, or 0.
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

    /// Returns the floats of a block. For each: its field, its storage, and the largest magnitude
    /// of the integers that it is multiplied with.
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

    /// Returns the storage of the field `d`, `m` or `dmin`.
    pub fn number(&self, field: &str) -> Number {
        if field == "d" { self.d } else { Number::Half }
    }
}

/// Returns the 6-bit scale and minimum of sub-block `s` (ggml `get_scale_min_k4`). The first four
/// scales and minimums are each in one byte. The last four are each split between a nibble and the
/// two top bits of an earlier byte.
pub(super) fn six_bits(scales: &[u8], s: usize) -> (u8, u8) {
    if s < 4 {
        (scales[s] & 63, scales[s + 4] & 63)
    } else {
        ((scales[s + 4] & 15) | ((scales[s - 4] >> 6) << 4), (scales[s + 4] >> 4) | ((scales[s] >> 6) << 4))
    }
}

/// Returns the scale in the low four bits of a byte, and the minimum in the high four bits.
pub(super) fn nibbles(byte: u8) -> (f32, f32) {
    (f32::from(byte & 15), f32::from(byte >> 4))
}

/// Returns the byte offset of the field `name`. The fields must include it; the tests of each
/// format check the table.
pub(super) fn offset(fields: &[Field], name: &str) -> usize {
    match fields.iter().find(|field| field.name == name) {
        Some(field) => field.offset,
        None => unreachable!("no field {name} in {fields:?}"),
    }
}

/// Reads a little-endian f32 at offset `at`.
pub(super) fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
