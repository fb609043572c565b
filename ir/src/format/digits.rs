//! Digits: codes of base 3, five to a byte.
//!
//! A byte is read as a fraction of 256. Each multiplication by 3 moves its next digit above the
//! byte, so no division is needed. Digit `n` of byte `b` is the whole part of
//! `3 (3^n b mod 256) / 256`. Five digits with the value `v`, the first digit highest, are stored
//! as the byte `v * 256 / 243`, rounded up. If a byte has fewer digits, the last ones are 0.
//!
//! ```text
//! tq1_0, digits of bytes 0..32 : element 32 n + j is digit n of byte j      n in 0..5, j in 0..32
//! ```

/// Number of values of a digit.
pub const BASE: u8 = 3;

/// Consecutive elements whose codes are digits of consecutive bytes. As in planes, neighbouring
/// elements are in neighbouring bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digits {
    /// The field that holds the bytes.
    pub field: &'static str,
    /// Offset of the first byte in the field.
    pub at: usize,
    /// Number of bytes.
    pub run: usize,
    /// Number of digits of each byte: at most 5.
    pub each: usize,
}

impl Digits {
    /// Returns the place of element `i` of a block: the [`Digits`] that contain it, the byte of
    /// their field, and the digit in that byte.
    pub fn place(all: &'static [Digits], i: usize) -> (&'static Digits, usize, usize) {
        let mut rest = i;
        for digits in all {
            if rest < digits.run * digits.each {
                return (digits, digits.at + rest % digits.run, rest / digits.run);
            }
            rest -= digits.run * digits.each;
        }
        unreachable!("element {i} is in none of {all:?}")
    }

    /// Returns the factor that moves digit `n` to the top of its byte.
    pub const fn power(n: usize) -> u8 {
        BASE.pow(n as u32)
    }
}

/// Maximum number of digits of a byte.
const DIGITS: usize = 5;

/// Writes the bytes of consecutive digits: `digits` has the first digits of all bytes, then all
/// second digits, and so on.
pub(super) fn put(digits: &[u8], out: &mut [u8]) {
    const RUN: usize = 16;
    let run = out.len();
    for (first, out) in (0..).step_by(RUN).zip(out.chunks_mut(RUN)) {
        let mut values = [0u16; RUN];
        let mut value = |digits: &[u8]| {
            for (value, digit) in values.iter_mut().zip(digits) {
                *value = *value * u16::from(BASE) + u16::from(*digit);
            }
        };
        let of_run = digits.chunks_exact(run);
        let missing = DIGITS - of_run.len();
        of_run.for_each(|digits| value(&digits[first..][..out.len()]));
        (0..missing).for_each(|_| value(&[0; RUN]));
        let all = u16::from(Digits::power(DIGITS));
        out.iter_mut().zip(values).for_each(|(out, value)| *out = (value * 256).div_ceil(all) as u8);
    }
}

/// Writes the codes of consecutive elements, from `first` on. `field` returns the fields of the
/// block.
pub(super) fn codes<'a>(all: &'static [Digits], field: impl Fn(&str) -> &'a [u8], first: usize, codes: &mut [u8]) {
    let (mut at, end) = (0, codes.len());
    while at < end {
        let (digits, byte, n) = Digits::place(all, first + at);
        let count = (digits.at + digits.run - byte).min(end - at);
        for (code, byte) in codes[at..at + count].iter_mut().zip(&field(digits.field)[byte..]) {
            let rest = byte.wrapping_mul(Digits::power(n));
            *code = ((u16::from(rest) * u16::from(BASE)) >> 8) as u8;
        }
        at += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_base_3_digits_decode_exactly() {
        static ONE: [Digits; 1] = [Digits { field: "", at: 0, run: 1, each: 5 }];
        for value in 0..243u16 {
            let digits: Vec<u8> = (0..5).rev().map(|n| (value / 3u16.pow(n) % 3) as u8).collect();
            let mut byte = [0];
            put(&digits, &mut byte);
            let mut found = [0; 5];
            codes(&ONE, |_| &byte, 0, &mut found);
            assert_eq!(found[..], digits);
        }
    }
}
