//! Readers of an element's code, floats and scale, which the codec's formula needs.
//!
//! Field names are looked up once for each format ([`Offsets`]), since a comparison of names takes
//! longer than decoding a number.

use super::codec::{Codes, Number, Plane, Quants, ScaleCodes, Scales, nibbles, offset, six_bits};
use super::{FormatRow, digits};

/// Byte offsets of the fields that decoding reads. A missing field has offset 0, which is not used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    /// Offset of the low bit plane of codes.
    pub low_plane: usize,
    pub high_plane: usize,
    /// Offset of the float field `d`.
    pub d: usize,
    pub m: usize,
    pub dmin: usize,
    /// Offset of integer scales.
    pub scales: usize,
    /// Offset of the nibbles of minimums, a field that only packed blocks have.
    pub mins: usize,
    pub high: usize,
    pub quants: usize,
}

impl Offsets {
    /// Looks up the fields of a format.
    pub fn from_row(row: &FormatRow) -> Offsets {
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

/// Access to the code, floats and scale of an element, in a file's block or a packed block.
pub(super) trait Reader {
    /// Writes the codes of consecutive elements, from `first` on.
    fn codes(&self, quants: &Quants, first: usize, codes: &mut [u8]);
    /// Reads the float field at offset `field`, which may have different values for different
    /// elements `i`.
    fn float(&self, number: Number, field: usize, i: usize) -> f32;
    /// Reads the scale and minimum of element `i`.
    fn scale(&self, scales: Scales, i: usize) -> (f32, f32);
    /// Returns the offsets of the fields.
    fn offsets(&self) -> &Offsets;
}

/// A block in the layout of files.
pub(super) struct Block<'a> {
    pub row: &'a FormatRow,
    pub offsets: &'a Offsets,
    pub block: &'a [u8],
}

impl Plane {
    /// Adds the plane's bits to the codes of consecutive elements, shifted left by `above`. `bytes`
    /// begin with the plane's field.
    fn add_bits(&self, bytes: &[u8], above: usize, first: usize, codes: &mut [u8]) {
        let mask = ((1u16 << self.bits) - 1) as u8;
        let (mut at, end) = (0, codes.len());
        while at < end {
            let (byte, shift) = self.place(first + at);
            // Within a run of the plane, neighbouring elements are in neighbouring bytes.
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
