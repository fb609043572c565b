//! Decoding: a block's bytes become numbers.
//!
//! Numbers are made run by run. A *run* is consecutive elements of a block that share all scales:
//!
//! ```text
//! q4_k, a block of 256   ->   8 runs of 32: d * scale and dmin * minimum are computed once a run
//! q6_k, a block of 256   ->  16 runs of 16
//! ```
//!
//! Names of fields are looked up once for each row ([`Offsets`]), since a comparison of names takes
//! longer than a number.

use half::{bf16, f16};

use super::codec::{Codec, Codes, Float, Minimum, Number, Plane, Quants, ScaleCodes, Scales};
use super::codec::{f32_at, nibbles, offset, six_bits};
use super::{FormatRow, digits, packed};

/// Most elements of a run.
const MOST_OF_RUN: usize = 256;

/// Byte offsets of the fields that numbers are made from. A missing field has offset 0, which is
/// never read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    /// The planes of codes.
    low_plane: usize,
    high_plane: usize,
    /// Floats.
    d: usize,
    m: usize,
    dmin: usize,
    /// Integer scales.
    pub scales: usize,
    /// Fields of packed blocks.
    pub mins: usize,
    pub high: usize,
    pub quants: usize,
}

impl Offsets {
    /// Looks up the fields of a format.
    pub fn of(row: &FormatRow) -> Offsets {
        let at = |name: &str| row.fields.iter().find(|field| field.name == name).map_or(0, |field| field.offset);
        let (low, high) = row.format.quants().map_or(("", ""), |quants| {
            let field = |plane: Plane| plane.field;
            (quants.low.field, quants.high.map_or("", field))
        });
        Offsets {
            low_plane: at(low),
            high_plane: at(high),
            d: at("d"),
            m: at("m"),
            dmin: at("dmin"),
            scales: at("scales"),
            mins: at("mins"),
            high: at("high"),
            quants: at("quants"),
        }
    }
}

/// Access to the parts of an element's formula in a block of a file or of a strip.
pub(super) trait Reader {
    /// Writes the codes of consecutive elements, from `first` on.
    fn codes(&self, quants: &Quants, first: usize, codes: &mut [u8]);
    /// Reads the float at a field's offset that holds for element `i`.
    fn float(&self, number: Number, field: usize, i: usize) -> f32;
    /// Reads the scale and minimum of element `i`.
    fn scale(&self, scales: Scales, i: usize) -> (f32, f32);
    /// Returns where fields are.
    fn offsets(&self) -> &Offsets;
}

/// A row of a block, with the tail of its rows.
pub(super) struct Place<'a> {
    pub row: &'a FormatRow,
    pub offsets: &'a Offsets,
    pub block: &'a [u8],
    pub tail: &'a [u8],
    pub r: usize,
}

impl Place<'_> {
    /// Returns the row's scale.
    fn row_scale(&self) -> f32 {
        f32_at(self.tail, offset(&self.row.tail, "d") + 4 * self.r)
    }
}

impl Codec {
    /// Writes a row's elements of a block. Every operation is rounded, in the order of the codec's
    /// formula.
    pub(super) fn dequantise(&self, place: &Place<'_>, out: &mut [f32]) {
        let &Place { row, offsets, block, r, .. } = place;
        match self {
            Codec::Float(float) => {
                let bytes = &block[float.bytes() * r..];
                out[0] = match float {
                    Float::F32 => f32_at(bytes, 0),
                    Float::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
                    Float::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
                };
            }
            Codec::Quants(quants) => {
                let len = quants.run_len(row, out.len());
                let d = row.format.has_row_scale().then(|| place.row_scale());
                match row.rows {
                    1 => quants.dequantise(&Block { row, offsets, block }, d, len, out),
                    _ => quants.dequantise(&packed::Strip { row, offsets, block, r }, d, len, out),
                }
            }
            Codec::Row => {
                let d = place.row_scale();
                out.iter_mut().zip(block).for_each(|(y, &q)| *y = d * f32::from(q as i8));
            }
            Codec::Bytes { scaled } => {
                let quants = &block[offset(&row.fields, "quants")..];
                for (i, (out, quants)) in out.chunks_mut(*scaled).zip(quants.chunks(*scaled)).enumerate() {
                    let d = f32_at(block, offsets.d + 4 * i);
                    out.iter_mut().zip(quants).for_each(|(y, &q)| *y = d * f32::from(q as i8));
                }
            }
            Codec::Bf16 { parts } => {
                let at = |i: usize| bf16::from_le_bytes([block[i], block[i + 1]]).to_f32();
                for (part, name) in ["high", "low"].into_iter().take(*parts).enumerate() {
                    let first = offset(&row.fields, name);
                    for (i, y) in out.iter_mut().enumerate() {
                        let number = at(first + 2 * i);
                        *y = if part == 0 { number } else { *y + number };
                    }
                }
            }
        }
    }
}

impl Quants {
    /// Returns how many elements of a block of `len` share all scales.
    fn run_len(&self, row: &FormatRow, len: usize) -> usize {
        let shared = if row.format.has_row_scale() { len } else { row.format.d_columns() };
        shared.min(self.scaled().unwrap_or(len)).min(MOST_OF_RUN)
    }

    /// Writes the elements of a block, in runs of `len`. `row_scale` is the scale of its row, if
    /// there is one.
    fn dequantise(&self, block: &impl Reader, row_scale: Option<f32>, len: usize, out: &mut [f32]) {
        let (offsets, zero) = (block.offsets(), f32::from(self.zero()));
        let mut codes = [0; MOST_OF_RUN];
        for (first, out) in (0..).step_by(len).zip(out.chunks_mut(len)) {
            let codes = &mut codes[..out.len()];
            block.codes(self, first, codes);
            let numbers = codes.iter().map(|&code| f32::from(self.byte(code)) - zero);
            let pairs = out.iter_mut().zip(numbers);
            let (scale, minimum) = block.scale(self.scales, first);
            if let Some(d) = row_scale {
                pairs.for_each(|(y, number)| *y = d * (scale * number));
                continue;
            }
            let own = block.float(self.d, offsets.d, first);
            let d = match self.scales {
                Scales::None | Scales::Row => own,
                Scales::SixBits
                | Scales::Signed16
                | Scales::Nibbles16
                | Scales::Coded(_)
                | Scales::Multiples { .. } => own * scale,
            };
            match self.minimum {
                Minimum::None => pairs.for_each(|(y, number)| *y = d * number),
                Minimum::Half => {
                    let m = block.float(Number::Half, offsets.m, first);
                    pairs.for_each(|(y, number)| *y = d * number + m);
                }
                Minimum::Scaled => {
                    let less = block.float(Number::Half, offsets.dmin, first) * minimum;
                    pairs.for_each(|(y, number)| *y = d * number - less);
                }
            }
        }
    }
}

/// A block as it lies in a file.
pub(super) struct Block<'a> {
    pub row: &'a FormatRow,
    pub offsets: &'a Offsets,
    pub block: &'a [u8],
}

impl Plane {
    /// Adds the bits of consecutive elements to their codes, `above` bits higher; `bytes` begin
    /// with the plane's field.
    fn add_bits(&self, bytes: &[u8], above: usize, first: usize, codes: &mut [u8]) {
        let mask = ((1u16 << self.bits) - 1) as u8;
        let (mut at, end) = (0, codes.len());
        while at < end {
            let (byte, shift) = self.place(first + at);
            // Within the plane's run, neighbours are in neighbouring bytes.
            let count = (self.run - (first + at) % self.run).min(end - at);
            for (code, byte) in codes[at..at + count].iter_mut().zip(&bytes[byte..]) {
                *code |= (byte >> shift & mask) << above;
            }
            at += count;
        }
    }
}

impl Block<'_> {
    fn field(&self, name: &str) -> &[u8] {
        &self.block[offset(&self.row.fields, name)..]
    }

    /// Reads the code of scale `i`.
    pub fn scale_code(&self, codes: &ScaleCodes, i: usize) -> u8 {
        let (mut code, mut above) = (0u16, 0);
        for (field, byte, shift, width) in codes.bits.parts(i) {
            let bytes = &self.field(field)[byte..];
            let next = if shift + width > 8 { bytes[1] } else { 0 };
            let bits = u16::from_le_bytes([bytes[0], next]) >> shift & ((1 << width) - 1);
            code |= bits << above;
            above += width;
        }
        code as u8
    }
}

impl Reader for Block<'_> {
    fn codes(&self, quants: &Quants, first: usize, codes: &mut [u8]) {
        match quants.codes {
            Codes::Planes => {
                codes.fill(0);
                quants.low.add_bits(&self.block[self.offsets.low_plane..], 0, first, codes);
                if let Some(high) = &quants.high {
                    high.add_bits(&self.block[self.offsets.high_plane..], quants.low.bits, first, codes);
                }
            }
            Codes::Grid(grid) => grid.codes(|field| self.field(field), first, codes),
            Codes::Digits(all) => digits::codes(all, |field| self.field(field), first, codes),
        }
    }

    fn float(&self, number: Number, field: usize, i: usize) -> f32 {
        number.at(&self.block[field..], number.bytes() * (i / self.row.format.d_columns()))
    }

    fn scale(&self, scales: Scales, i: usize) -> (f32, f32) {
        let bytes = &self.block[self.offsets.scales..];
        match scales {
            Scales::None | Scales::Row => (1.0, 0.0),
            Scales::SixBits => {
                let (scale, minimum) = six_bits(bytes, i / 32);
                (scale.into(), minimum.into())
            }
            Scales::Signed16 => (f32::from(bytes[i / 16] as i8), 0.0),
            Scales::Nibbles16 => nibbles(bytes[i / 16]),
            Scales::Coded(codes) => (f32::from(codes.number(self.scale_code(&codes, i / codes.columns))), 0.0),
            Scales::Multiples { columns } => (f32::from(bytes[i / columns] as i8), 0.0),
        }
    }

    fn offsets(&self) -> &Offsets {
        self.offsets
    }
}
