//! The random generator of sampling: xoshiro256** (Blackman and Vigna, 2018), seeded by SplitMix64
//! ([`ixc_ir::random`]).
//!
//! All other code uses [`ixc_ir::random`]. Sampling keeps this generator, because users store
//! seeds, and a seed must give the same text in every version.

/// State of the generator xoshiro256**.
#[derive(Clone, Debug)]
pub(super) struct Random {
    pub(super) state: [u64; 4],
}

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        let mut seeds = ixc_ir::random::Random::new(seed);
        Random { state: std::array::from_fn(|_| seeds.bits()) }
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= t;
        *d = d.rotate_left(45);
        result
    }

    /// Returns a uniform random number from 0 (included) to 1 (excluded), with 53 random bits.
    pub(super) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn random_numbers_match_the_reference_generator() {
        let mut seeds = ixc_ir::random::Random::new(0);
        assert_eq!([seeds.bits(), seeds.bits()], [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        let mut random = Random { state: [1, 2, 3, 4] };
        let first = [random.next(), random.next(), random.next(), random.next()];
        assert_eq!(first, [11520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }
}
