//! Integers of stored matrices: their bits, and the block formats that have the same numbers.

use serde::{Deserialize, Serialize};

use crate::format::Format;

/// Storage of a matrix's integers. If a byte has several integers, the first is in the lowest bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Integers {
    /// Four bits with the zero point 8.
    Four,
    /// Four bits, with a zero point for each group.
    FourFromZeros,
    /// Eight bits with the zero point 128.
    Eight,
    /// Eight bits in two's complement.
    EightSigned,
    /// Two bits with the zero point 1. The code 3 is not used.
    Ternary,
    /// Eight bits in two's complement. The stored scale is the number that 127 stands for.
    EightOfLargest,
}

impl Integers {
    /// Returns the number of bits of an integer.
    pub fn bits(self) -> u8 {
        match self {
            Integers::Four | Integers::FourFromZeros => 4,
            Integers::Eight | Integers::EightSigned | Integers::EightOfLargest => 8,
            Integers::Ternary => 2,
        }
    }

    /// Returns the block format whose blocks have the same numbers.
    pub(super) fn format(self) -> Format {
        match self {
            Integers::Four => Format::Q4_0,
            Integers::FourFromZeros => Format::Q4_1,
            Integers::Eight | Integers::EightSigned | Integers::EightOfLargest => Format::Q8_0,
            Integers::Ternary => Format::Tq2_0,
        }
    }

    /// Returns the divisor of a stored scale: the integer whose number equals the stored scale.
    pub(super) fn of_scale(self) -> f32 {
        match self {
            Integers::EightOfLargest => 127.0,
            Integers::Four | Integers::FourFromZeros | Integers::Eight | Integers::EightSigned | Integers::Ternary => {
                1.0
            }
        }
    }

    /// Returns the number of integers in a byte.
    pub(super) fn per_byte(self) -> u64 {
        8 / u64::from(self.bits())
    }

    /// Returns the block format's code of the integer number `element` of a byte.
    pub(super) fn code(self, byte: u8, element: u64) -> u8 {
        match self {
            Integers::Four | Integers::FourFromZeros => nibble(byte, element),
            Integers::Eight => byte ^ 0x80,
            Integers::EightSigned | Integers::EightOfLargest => byte,
            Integers::Ternary => byte >> (element % 4 * 2) & 3,
        }
    }

    /// Returns the integer that a code stands for, minus its zero point.
    pub(super) fn number(self, code: u8, zero: Option<u8>) -> f32 {
        match self {
            Integers::Four | Integers::FourFromZeros => f32::from(code) - f32::from(zero.unwrap_or(8)),
            Integers::Eight | Integers::EightSigned | Integers::EightOfLargest => f32::from(code as i8),
            Integers::Ternary => f32::from(code) - 1.0,
        }
    }
}

/// Returns the four-bit integer at index `element` of a byte.
pub(super) fn nibble(byte: u8, element: u64) -> u8 {
    byte >> (element % 2 * 4) & 15
}
