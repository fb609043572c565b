//! Generator of random register contents that are likely to reveal errors.

use ixc_ir::random::Random;

/// Methods that return random values which are likely to reveal errors.
pub trait Trouble {
    /// Returns an integer of any size, often near an end of the range of a type.
    fn integer(&mut self) -> u64;
    /// Returns the bits of a float. `fraction` and `exponent` are the numbers of bits of these
    /// fields.
    fn float(&mut self, fraction: u32, exponent: u32) -> u64;
    /// Returns a vector whose elements are numbers of the same kind.
    fn vector(&mut self) -> [u8; 64];
    /// Returns a mask with all bits set, with none, or with random bits.
    fn mask(&mut self) -> u64;
}

impl Trouble for Random {
    fn integer(&mut self) -> u64 {
        let bits = self.pick(&[1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64]);
        let x = match self.index(4) {
            0 => 1 << (bits - 1),
            1 => u64::MAX >> (64 - bits),
            _ => self.bits() >> (64 - bits),
        };
        let x = x.wrapping_add([0, 0, 1, u64::MAX][self.index(4)]);
        if self.once_in(2) { x } else { x.wrapping_neg() }
    }

    fn float(&mut self, fraction: u32, exponent: u32) -> u64 {
        let most = (1 << exponent) - 1;
        let bias = most / 2;
        let random = self.bits() & ((1 << fraction) - 1);
        let few = random & self.bits() & self.bits() & self.bits();
        let (field, rest) = match self.index(16) {
            0 => (0, 0),
            1 => (0, random),
            2 => (0, few | 1),
            3 => (most, 0),
            // A NaN with a random payload, which is signalling or quiet.
            4 => (most, random | 1),
            5 => (most, random | 1 << (fraction - 1)),
            6 => (most - 1, random),
            7 => (1, random),
            8 => (self.bits() & most, random),
            // Numbers with few bits in the fraction: integers, halves and similar numbers.
            9 => (bias + self.bits() % 14, random >> (fraction / 2) << (fraction / 2)),
            10 => (bias - 1 + self.bits() % 3, few),
            11 => (bias + 30 + self.bits() % 4, if self.once_in(2) { 0 } else { (1 << fraction) - 1 }),
            12 => (bias.saturating_sub(self.bits() % 30), random),
            _ => (bias + self.bits() % 14, random),
        };
        let sign = (self.bits() & 1) << (fraction + exponent);
        sign | field.min(most) << fraction | rest
    }

    fn vector(&mut self) -> [u8; 64] {
        let mut v = [0; 64];
        let kind = self.index(8);
        for part in v.chunks_exact_mut(8) {
            let x = match kind {
                0 | 1 => self.float(23, 8) | self.float(23, 8) << 32,
                2 | 3 => self.float(52, 11),
                4 => (0..4).fold(0, |x, _| x << 16 | self.float(10, 5)),
                5 => self.integer(),
                6 => self.integer() & 0xffff_ffff | self.integer() << 32,
                _ => (0..4).fold(0, |x, _| x << 16 | self.integer() & 0xffff),
            };
            part.copy_from_slice(&x.to_le_bytes());
        }
        v
    }

    fn mask(&mut self) -> u64 {
        match self.index(6) {
            0 => 0,
            1 => u64::MAX,
            2 => (1 << self.index(64)) - 1,
            _ => self.bits(),
        }
    }
}
