//! Unpacking of a packed weight's strips to bf16 tiles. Each row of a tile has two columns of 16
//! weight rows.
//!
//! ```text
//! q4_k, 16 weight rows x 32 columns: quants -> mantissas -> scale and minimum in one multiply-add -> upper halves in pairs
//! ```

use ixc_ir::format::{Codec, Float, Format, Minimum, Quants, Values};
use ixc_ir::kernel::{Affine, BufferId, KernelBuilder, Op, Type, ValueId};

use super::super::packed::panel;
use super::super::packed::strip::{self, StripBlock};
use super::{STRIP, parts};
use crate::generator::bf16_tile::{LANES, LINE, STEP, TILE, cut, pair};
use crate::linear;

/// Unpacking of one strip to the panel.
pub(super) struct Unpack {
    pub(super) format: Format,
    pub(super) w: BufferId,
    pub(super) panel: BufferId,
    pub(super) columns: i64,
    /// Offset of the strip in the weight.
    pub(super) from: Affine,
    /// Offset of the strip in the panel's buffer.
    pub(super) to: Affine,
    /// Whether the target can permute the bytes of a vector: see
    /// [`crate::generator::generate::Vectors`].
    pub(super) permutes: bool,
}

impl Unpack {
    /// Converts the strip's columns of the chunk, and stores them in the panel.
    pub(super) fn strip(&self, b: &mut KernelBuilder) {
        match self.format.codec() {
            Codec::Float(float) => self.floats(b, *float),
            Codec::Quants(_) | Codec::Bytes { .. } | Codec::Row | Codec::Bf16 { .. } => self.blocks(b),
        }
    }

    /// Stores two columns as one row of a panel's tile. `at` is the offset in the strip's area of
    /// the panel.
    fn store(&self, b: &mut KernelBuilder, at: Affine, even: ValueId, odd: ValueId) {
        let pair = b.to_bf16_pairs(even, odd);
        b.store(self.panel, self.to.clone() + at, pair);
    }

    fn floats(&self, b: &mut KernelBuilder, float: Float) {
        let parts = parts(self.format);
        b.for_each("step", self.columns / STEP, |b, step| {
            for pair in 0..STEP / 2 {
                let columns: Vec<ValueId> = (0..2)
                    .map(|i| {
                        let column = float.bytes() as i64 * STRIP;
                        let at = self.from.clone() + step * (STEP * column) + (2 * pair + i) * column;
                        panel::floats(b, float, LANES, self.w, at)
                    })
                    .collect();
                let at = step * (TILE * parts) + pair * LINE;
                self.store(b, at.clone(), columns[0], columns[1]);
                if parts == 2 {
                    let low: Vec<ValueId> = columns
                        .iter()
                        .map(|&v| {
                            let high = b.to_bf16(v);
                            let high = b.bf16_to_f32(high);
                            b.sub(v, high)
                        })
                        .collect();
                    self.store(b, at + TILE, low[0], low[1]);
                }
            }
        });
    }

    fn blocks(&self, b: &mut KernelBuilder) {
        let (len, bytes) = (self.format.block_len() as i64, self.format.block_bytes() as i64 * STRIP);
        let codec = linear::quants(self.format);
        b.for_each("b", self.columns / len, |b, block| {
            let from = self.from.clone() + block * bytes;
            let part = strip::Part { lanes: LANES, index: 0, permutes: self.permutes };
            let strip = StripBlock { format: self.format, buffer: self.w, offset: from, part };
            let halves = |b: &mut KernelBuilder, name: &str, at: Affine| {
                let v = strip.numbers(b, name, at);
                let centre = b.splat_f32(LANES, TRUNCATION_FACTOR);
                b.mul(v, centre)
            };
            // A scale `d` of the whole block is loaded once.
            let d = (len > STEP && self.format.d_columns() as i64 == len).then(|| halves(b, "d", 0.into()));
            let dmin = (codec.minimum == Minimum::Scaled).then(|| halves(b, "dmin", 0.into()));
            b.for_each("sub", len / STEP, |b, sub| {
                let own = d.unwrap_or_else(|| halves(b, "d", strip.number_of(sub, 0)));
                let scales: Vec<ValueId> = match codec.scale_group_len().map(|columns| columns as i64) {
                    Some(columns) => (0..STEP / columns)
                        .map(|i| {
                            let scale = strip.scale(b, sub * (STEP / columns) + i);
                            b.mul(scale, own)
                        })
                        .collect(),
                    None if strip::by_halves_of_d(self.format) => vec![own, halves(b, "d", strip.number_of(sub, 1))],
                    None => vec![own],
                };
                // Addends of the columns that share a scale: minimums, or the floats `m`.
                let added: Vec<Option<ValueId>> = match (codec.minimum, dmin) {
                    (Minimum::Scaled, Some(dmin)) => (0..scales.len() as i64)
                        .map(|i| {
                            let min = strip.minimum(b, sub * scales.len() as i64 + i);
                            let min = b.mul(min, dmin);
                            let zero = b.splat_f32(LANES, 0.0);
                            Some(b.sub(zero, min))
                        })
                        .collect(),
                    (Minimum::Half, _) => vec![Some(halves(b, "m", strip.number_of(sub, 0)))],
                    (Minimum::Scaled | Minimum::None, _) => vec![None; scales.len()],
                };
                let fields = Fields::from_codec(codec);
                let lines: Vec<Vec<Line>> = scales
                    .iter()
                    .zip(&added)
                    .map(|(scale, added)| fields.lines(b, *scale, *added, codec.zero()))
                    .collect();
                let high = strip.high(b, sub);
                let to = block * (len / STEP * TILE) + sub * TILE;
                for eight in 0..STEP / 8 {
                    let quants = match fields.of_pairs {
                        true => vec![strip.both(b, sub, eight)],
                        false => strip.pair(b, sub, eight, &high).to_vec(),
                    };
                    let columns: Vec<ValueId> = quants.into_iter().flat_map(|v| fields.mantissas(b, v)).collect();
                    for (group, columns) in (2 * eight..).zip(columns.chunks_exact(4)) {
                        let lines = &lines[(group * lines.len() as i64 / 8) as usize];
                        let places = fields.places.iter().cycle().skip((group % 2 * 4) as usize);
                        let w: Vec<ValueId> = (columns.iter().zip(places))
                            .map(|(v, place)| Line::for_bit(lines, place.bit).apply(b, *v))
                            .collect();
                        for (i, w) in w.chunks_exact(2).enumerate() {
                            let even = b.bitcast(Type::i32(LANES), w[0]);
                            let odd = cut(b, w[1]);
                            let halves = pair(b, even, odd);
                            let at = self.to.clone() + to.clone() + (2 * group + i as i64) * LINE;
                            b.store(self.panel, at, halves);
                        }
                    }
                }
            });
        });
    }
}

/// Factor on a weight before truncation to bf16. Truncation reduces the magnitude by half a unit of
/// bf16 on average, which is 2^-9 to 2^-8 of the weight. With this factor, the mean error is about
/// zero. Dot products have 5 % more error than with weights rounded to nearest, and 2 % more if
/// activations are rounded too (q4_k, normally distributed activations). For two vectors,
/// conversions with rounding would take five instructions on two ports; truncation takes two.
const TRUNCATION_FACTOR: f32 = 1.0 + 0.72 / 256.0;

/// Conversion of the codes of a vector to floats without a conversion instruction. A code is put
/// into the mantissa of a float with exponent 0, so the float is `1 + q * 2^(bit - 23)`. The
/// multiply-add with scale and offset, which is needed anyway, reverses this ([`Line`]).
///
/// The offset, `2^(23 - bit)` times the scale, is rounded to 24 bits. For bit 8, this error is 2^-9
/// of a scale, less than that of rounding a code of 1 to bf16.
struct Fields {
    /// Whether a vector in memory is used unchanged. Each of its bytes has two four-bit codes, so
    /// it contains eight columns.
    of_pairs: bool,
    /// Bit positions of the columns of a vector. The first four belong to the first group.
    places: &'static [Place],
    /// Number of bits of a code.
    width: u32,
}

/// Bit position of a column's code in the mantissa.
struct Place {
    /// Number of bits to shift from the position in a dword to that in the mantissa. Positive
    /// shifts are to the left.
    shift: i64,
    /// Lowest bit of the code in the mantissa.
    bit: u32,
}

const fn place(shift: i64, bit: u32) -> Place {
    Place { shift, bit }
}

/// Positions of the four-bit codes of two groups, which are in the low and in the high bits of
/// bytes.
const NIBBLES: &[Place] = &[
    place(12, 12),
    place(0, 8),
    place(0, 16),
    place(-12, 12),
    place(12, 16),
    place(0, 12),
    place(-12, 8),
    place(-12, 16),
];
/// Positions of codes that are bytes with up to seven bits.
const BYTES: &[Place] = &[place(16, 16), place(0, 8), place(0, 16), place(-8, 16)];
/// Positions of codes that are bytes with eight bits.
const WHOLE_BYTES: &[Place] = &[place(15, 15), place(7, 15), place(-1, 15), place(-9, 15)];

/// Number of bits of a mantissa.
const MANTISSA: u32 = 23;

impl Fields {
    fn from_codec(codec: &Quants) -> Fields {
        let width = u8::BITS - codec.max().leading_zeros();
        let of_pairs = codec.low.bits == 4 && codec.high.is_none() && matches!(codec.values, Values::Linear { .. });
        let places = match (of_pairs, width) {
            (true, _) => NIBBLES,
            (false, 8) => WHOLE_BYTES,
            (false, _) => BYTES,
        };
        Fields { of_pairs, places, width }
    }

    /// Returns, for each bit position, the multiply-add that converts the float to
    /// `(q - zero) * scale + added`.
    fn lines(&self, b: &mut KernelBuilder, scale: ValueId, added: Option<ValueId>, zero: u8) -> Vec<Line> {
        let mut bits: Vec<u32> = self.places.iter().map(|place| place.bit).collect();
        bits.sort_unstable();
        bits.dedup();
        let line = |bit: u32| {
            let unit = f32::from(1u16 << (MANTISSA - bit));
            let factor = b.splat_f32(LANES, unit);
            let one = b.splat_f32(LANES, -(unit + f32::from(zero)));
            let offset = match added {
                Some(added) => b.fma(scale, one, added),
                None => b.mul(scale, one),
            };
            Line { bit, scale: b.mul(scale, factor), offset }
        };
        bits.into_iter().map(line).collect()
    }

    /// Returns each column of a vector as floats `1 + q * 2^(bit - 23)`.
    fn mantissas(&self, b: &mut KernelBuilder, quants: ValueId) -> Vec<ValueId> {
        let dwords = Type::i32(LANES);
        let quants = b.bitcast(dwords, quants);
        let mut shifted: Vec<(i64, ValueId)> = vec![(0, quants)];
        let column = |place: &Place| {
            let moved = shifted.iter().find(|(shift, _)| *shift == place.shift).map(|(_, v)| *v);
            let moved = moved.unwrap_or_else(|| {
                let op = if place.shift > 0 { Op::Shl } else { Op::ShrU };
                let v = b.shift(op, quants, place.shift.abs());
                shifted.push((place.shift, v));
                v
            });
            let mask = b.splat_int(dwords, ((1 << self.width) - 1) << place.bit);
            let q = b.same(Op::And, &[moved, mask]);
            let one = b.splat_int(dwords, 1.0f32.to_bits().into());
            let v = b.same(Op::Or, &[q, one]);
            b.bitcast(Type::f32(LANES), v)
        };
        self.places.iter().map(column).collect()
    }
}

/// Multiply-add that computes the weight from a float whose mantissa has the code.
struct Line {
    bit: u32,
    scale: ValueId,
    offset: ValueId,
}

impl Line {
    fn for_bit(lines: &[Line], bit: u32) -> &Line {
        lines.iter().find(|line| line.bit == bit).unwrap_or_else(|| unreachable!("no line for bit {bit}"))
    }

    fn apply(&self, b: &mut KernelBuilder, v: ValueId) -> ValueId {
        b.fma(v, self.scale, self.offset)
    }
}
