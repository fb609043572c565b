//! Copying of integers that another program quantised into block formats that keep the integers
//! unchanged.

use half::f16;

use super::codec::{Codes, Minimum, Number, Quants, Scales, Values};
use super::{Format, requantise};

impl Format {
    /// Whether this format can hold rows of `bits`-bit integers in two's complement, with an `f32`
    /// scale for each row, without changing a number.
    pub fn takes_integers(self, bits: usize) -> bool {
        let takes = |quants: &Quants| {
            let values = match quants.values {
                Values::Signed => bits == 8,
                Values::Linear { zero } => usize::from(zero) == 1 << (bits - 1),
                Values::Codebook(_) => false,
            };
            let scaled = match quants.scales {
                Scales::Row => true,
                Scales::None => quants.d == Number::Single,
                Scales::SixBits
                | Scales::Signed16
                | Scales::Nibbles16
                | Scales::Coded(_)
                | Scales::Multiples { .. } => false,
            };
            let plain = quants.codes == Codes::Planes && quants.high.is_none() && quants.minimum == Minimum::None;
            values && scaled && plain && quants.low.bits == bits
        };
        (1..=8).contains(&bits) && self.rows() == 1 && self.quants().is_some_and(takes)
    }

    /// Writes whole blocks of integers with the factor `d`. With `ends`, also writes the row's
    /// tail. Each byte of `integers` has the bits of one integer in two's complement, and is
    /// changed into its code.
    ///
    /// # Panics
    /// The lengths do not fit together, or the format does not [take](Format::takes_integers) such
    /// integers. Callers have checked both.
    pub fn put_integers(self, integers: &mut [u8], d: f32, ends: bool, out: &mut [u8]) {
        let Some(quants) = self.quants() else { panic!("{self} does not store integers") };
        let (blocks, tail) = out.split_at_mut(integers.len() / self.block_len() * self.block_bytes());
        let zero = match quants.values {
            Values::Linear { zero } => zero,
            Values::Signed | Values::Codebook(_) => 0,
        };
        // The code of 0 is the highest bit of a code, or 0. Adding the code of 0 thus flips that
        // bit.
        integers.iter_mut().for_each(|bits| *bits ^= zero);
        blocks.fill(0);
        requantise::put_codes(self, quants, integers, blocks);
        if self.has_row_scale() {
            if ends {
                tail.fill(0);
                tail[self.tail_field("d")..][..4].copy_from_slice(&d.to_le_bytes());
            }
        } else {
            let at = self.field("d");
            blocks.chunks_exact_mut(self.block_bytes()).for_each(|block| quants.d.put(d, &mut block[at..]));
        }
    }

    /// Writes a block of codes. The scale `d` is rounded to the nearest f16. If the format has an
    /// addend, `zero` is the code of the number 0, and the addend becomes `-d * zero`.
    ///
    /// # Panics
    /// The format does not have codes in planes with an f16 scale.
    pub(crate) fn put_group(self, codes: &[u8], d: f32, zero: Option<u8>, block: &mut [u8]) {
        let Some(quants) = self.quants() else { panic!("{self} does not store integers") };
        block.fill(0);
        requantise::put_codes(self, quants, codes, block);
        quants.d.put(d, &mut block[self.field("d")..]);
        if let Some(zero) = zero {
            let d = f16::from_f32(d).to_f32();
            Number::Half.put(-d * f32::from(zero), &mut block[self.field("m")..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FORMATS;
    use super::*;

    #[test]
    fn integers_are_exact_in_every_integer_format() {
        for bits in [4, 8] {
            let formats = FORMATS.iter().map(|row| row.format).filter(|format| format.takes_integers(bits));
            let names: Vec<&str> = formats.clone().map(Format::name).collect();
            let expected: &[&str] = if bits == 4 { &["i4_row", "i4_d128"] } else { &["i8_row", "i8_d64"] };
            assert_eq!(names, expected);
            for format in formats {
                let least = -1i32 << (bits - 1);
                let integers: Vec<i8> = (0..384).map(|i| (least + i * 7 % (1 << bits)) as i8).collect();
                let d = 0.3f32;
                let mut row = vec![0xff; format.row_bytes(384).unwrap() as usize];
                let mut bits_of: Vec<u8> = integers.iter().map(|q| *q as u8 & (u8::MAX >> (8 - bits))).collect();
                format.put_integers(&mut bits_of, d, true, &mut row);
                let expected: Vec<f32> = integers.iter().map(|q| d * f32::from(*q)).collect();
                assert_eq!(format.dequantise_rows(&row, 384), expected, "{format}");
            }
        }
    }
}
