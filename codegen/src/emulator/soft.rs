//! Float arithmetic in every rounding mode, bit for bit.

/// A rounding mode, numbered as in MXCSR and in immediates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest, ties to even.
    Nearest,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
    /// Towards zero.
    Zero,
}

impl Rounding {
    /// From the low two bits of an immediate.
    pub fn from_bits(bits: u8) -> Rounding {
        [Rounding::Nearest, Rounding::Down, Rounding::Up, Rounding::Zero][usize::from(bits & 3)]
    }
}
