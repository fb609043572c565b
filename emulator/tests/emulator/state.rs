//! Random register contents: numbers that make trouble.

/// Numbers from a fixed seed (splitmix64), so that failures repeat.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// An integer of any size, often near the ends of a range.
    pub fn integer(&mut self) -> u64 {
        let bits = self.pick(&[1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64]);
        let x = match self.below(4) {
            0 => 1 << (bits - 1),
            1 => u64::MAX >> (64 - bits),
            _ => self.next() >> (64 - bits),
        };
        let x = x.wrapping_add([0, 0, 1, u64::MAX][self.below(4)]);
        if self.chance(2) { x } else { x.wrapping_neg() }
    }

    /// Bits of a float with so many bits of fraction and exponent.
    fn float(&mut self, fraction: u32, exponent: u32) -> u64 {
        let most = (1 << exponent) - 1;
        let bias = most / 2;
        let random = self.next() & ((1 << fraction) - 1);
        let few = random & self.next() & self.next() & self.next();
        let (field, rest) = match self.below(16) {
            0 => (0, 0),
            1 => (0, random),
            2 => (0, few | 1),
            3 => (most, 0),
            // NaN with a payload, of either kind.
            4 => (most, random | 1),
            5 => (most, random | 1 << (fraction - 1)),
            6 => (most - 1, random),
            7 => (1, random),
            8 => (self.next() & most, random),
            // Integers, halves, and what lies beside them.
            9 => (bias + self.next() % 14, random >> (fraction / 2) << (fraction / 2)),
            10 => (bias - 1 + self.next() % 3, few),
            11 => (bias + 30 + self.next() % 4, if self.chance(2) { 0 } else { (1 << fraction) - 1 }),
            12 => (bias.saturating_sub(self.next() % 30), random),
            _ => (bias + self.next() % 14, random),
        };
        let sign = (self.next() & 1) << (fraction + exponent);
        sign | field.min(most) << fraction | rest
    }

    /// A vector of numbers of one kind.
    pub fn vector(&mut self) -> [u8; 64] {
        let mut v = [0; 64];
        let kind = self.below(8);
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

    /// A mask: all bits, none, or some.
    pub fn mask(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => (1 << self.below(64)) - 1,
            _ => self.next(),
        }
    }
}
