//! Float arithmetic in every rounding mode, computed in integers, with the same bits as a
//! processor.
//!
//! Emulated instructions that round to nearest use the host's arithmetic, which is fast.
//! Instructions with other modes use this module. A finite float is unpacked into
//! `mantissa · 2^exponent`, with an integer mantissa. Sums and products are thus exact until
//! [`Format::round`] rounds them once.
//!
//! ```
//! use ixc_emulator::soft::{F32, Rounding};
//!
//! let third = F32.div(1.0_f32.to_bits().into(), 3.0_f32.to_bits().into(), Rounding::Up);
//! assert_eq!(third, u64::from((1.0_f32 / 3.0).to_bits()));
//! ```
//!
//! Callers handle NaN operands, because each instruction has its own rule for which NaN is the
//! result.

/// Rounding mode. Its discriminant is its number in MXCSR and in immediates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest number; ties go to the even one.
    Nearest,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
    /// Towards zero.
    Zero,
}

impl Rounding {
    /// Returns the mode that the low two bits of an immediate select.
    pub fn from_bits(bits: u8) -> Rounding {
        [Rounding::Nearest, Rounding::Down, Rounding::Up, Rounding::Zero][usize::from(bits & 3)]
    }
}

/// A binary interchange format of IEEE 754.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Number of bits of the fraction.
    pub fraction: u32,
    /// Number of bits of the exponent.
    pub exponent: u32,
}

/// Half precision.
pub const F16: Format = Format { fraction: 10, exponent: 5 };
/// Single precision.
pub const F32: Format = Format { fraction: 23, exponent: 8 };
/// Double precision.
pub const F64: Format = Format { fraction: 52, exponent: 11 };

/// A finite number: `mantissa · 2^exponent`, negative if `negative`.
#[derive(Clone, Copy, Debug)]
pub struct Finite {
    /// Whether the number is negative.
    pub negative: bool,
    /// Mantissa as an integer. It is 0 for zero.
    pub mantissa: u128,
    /// Power of two that multiplies the mantissa.
    pub exponent: i32,
}

/// Position of the highest bit of an aligned mantissa. There is one more bit for the carry, and one
/// for the sign.
const TOP: u32 = 125;

impl Format {
    /// Returns the number of bits of a float.
    pub const fn bits(self) -> u32 {
        1 + self.exponent + self.fraction
    }

    const fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// Returns a mask of the sign bit.
    pub const fn sign(self) -> u64 {
        1 << (self.bits() - 1)
    }

    /// Returns the bits of plus infinity.
    pub const fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    /// Returns the bit that makes a NaN quiet.
    pub const fn quiet(self) -> u64 {
        1 << (self.fraction - 1)
    }

    /// Returns the result of an invalid operation: the "real indefinite" NaN.
    pub const fn indefinite(self) -> u64 {
        self.sign() | self.infinity() | self.quiet()
    }

    /// Whether a float is NaN.
    pub const fn is_nan(self, x: u64) -> bool {
        x & !self.sign() > self.infinity()
    }

    /// Whether a float is infinite.
    pub const fn is_infinite(self, x: u64) -> bool {
        x & !self.sign() == self.infinity()
    }

    /// Whether a float is zero.
    pub const fn is_zero(self, x: u64) -> bool {
        x & !self.sign() == 0
    }

    /// Unpacks the bits of a finite float.
    pub const fn unpack(self, x: u64) -> Finite {
        let fraction = x & ((1 << self.fraction) - 1);
        let field = (x & !self.sign()) >> self.fraction;
        let negative = x & self.sign() != 0;
        let least = 1 - self.bias() - self.fraction as i32;
        if field == 0 {
            Finite { negative, mantissa: fraction as u128, exponent: least }
        } else {
            let mantissa = (fraction | 1 << self.fraction) as u128;
            Finite { negative, mantissa, exponent: least + field as i32 - 1 }
        }
    }

    /// Returns the bits of a zero with this sign.
    pub const fn zero(self, negative: bool) -> u64 {
        if negative { self.sign() } else { 0 }
    }

    /// Rounds `x` to the format. With `sticky`, the exact value has a slightly larger magnitude: by
    /// less than the last bit of `x`. The mantissa must then have more bits than the format. A zero
    /// keeps its sign.
    pub fn round(self, x: Finite, sticky: bool, rounding: Rounding) -> u64 {
        let sign = self.zero(x.negative);
        if x.mantissa == 0 {
            return sign;
        }
        let top = 127 - x.mantissa.leading_zeros() as i32;
        let least = 1 - self.bias() - self.fraction as i32;
        let mut last = (top + x.exponent - self.fraction as i32).max(least);
        let shift = last - x.exponent;
        let (mut kept, lost, half) = if shift <= 0 {
            (x.mantissa << -shift, 0, u128::MAX)
        } else if shift > 127 {
            (0, 1, u128::MAX)
        } else {
            (x.mantissa >> shift, x.mantissa & ((1 << shift) - 1), 1 << (shift - 1))
        };
        let inexact = lost != 0 || sticky;
        let up = match rounding {
            Rounding::Nearest => lost > half || (lost == half && (sticky || kept & 1 == 1)),
            Rounding::Down => inexact && x.negative,
            Rounding::Up => inexact && !x.negative,
            Rounding::Zero => false,
        };
        kept += u128::from(up);
        if kept >> (self.fraction + 1) != 0 {
            kept >>= 1;
            last += 1;
        }
        if kept >> self.fraction == 0 {
            return sign | kept as u64;
        }
        let field = last - least + 1;
        if field >= (1 << self.exponent) - 1 {
            let away = match rounding {
                Rounding::Nearest => true,
                Rounding::Down => x.negative,
                Rounding::Up => !x.negative,
                Rounding::Zero => false,
            };
            return sign | if away { self.infinity() } else { self.infinity() - 1 };
        }
        sign | (field as u64) << self.fraction | (kept as u64 & ((1 << self.fraction) - 1))
    }

    /// Returns `a + b`.
    pub fn add(self, a: u64, b: u64, rounding: Rounding) -> u64 {
        match (self.is_infinite(a), self.is_infinite(b)) {
            (true, true) if a != b => self.indefinite(),
            (true, _) => a,
            (_, true) => b,
            _ => self.sum(self.unpack(a), self.unpack(b), rounding),
        }
    }

    /// Returns `a - b`.
    pub fn sub(self, a: u64, b: u64, rounding: Rounding) -> u64 {
        self.add(a, b ^ self.sign(), rounding)
    }

    /// Returns `a · b`.
    pub fn mul(self, a: u64, b: u64, rounding: Rounding) -> u64 {
        match self.product(a, b) {
            Ok(exact) => self.round(exact, false, rounding),
            Err(special) => special,
        }
    }

    /// Returns `x · y + z`, rounded once.
    pub fn fma(self, x: u64, y: u64, z: u64, rounding: Rounding) -> u64 {
        match self.product(x, y) {
            Ok(_) if self.is_infinite(z) => z,
            Ok(exact) => self.sum(exact, self.unpack(z), rounding),
            Err(special) if self.is_infinite(special) && self.is_infinite(z) && special != z => self.indefinite(),
            Err(special) => special,
        }
    }

    /// Returns `a / b`.
    pub fn div(self, a: u64, b: u64, rounding: Rounding) -> u64 {
        let negative = (a ^ b) & self.sign() != 0;
        match (self.is_infinite(a), self.is_infinite(b), self.is_zero(a), self.is_zero(b)) {
            (true, true, ..) | (.., true, true) => self.indefinite(),
            (true, ..) | (.., true) => self.infinity() | self.zero(negative),
            (_, true, ..) | (_, _, true, _) => self.zero(negative),
            _ => {
                let (a, b) = (self.unpack(a), self.unpack(b));
                // The quotient has at least 64 bits for any two mantissas.
                let shift = a.mantissa.leading_zeros();
                let (n, d) = (a.mantissa << shift, b.mantissa);
                let exponent = a.exponent - b.exponent - shift as i32;
                self.round(Finite { negative, mantissa: n / d, exponent }, !n.is_multiple_of(d), rounding)
            }
        }
    }

    /// Returns the square root.
    pub fn sqrt(self, a: u64, rounding: Rounding) -> u64 {
        if self.is_zero(a) {
            return a;
        }
        if a & self.sign() != 0 {
            return self.indefinite();
        }
        if self.is_infinite(a) {
            return a;
        }
        let a = self.unpack(a);
        let mut shift = a.mantissa.leading_zeros() as i32;
        shift -= (a.exponent - shift) & 1;
        let n = a.mantissa << shift;
        let root = n.isqrt();
        let x = Finite { negative: false, mantissa: root, exponent: (a.exponent - shift) / 2 };
        self.round(x, root * root != n, rounding)
    }

    /// Converts a float to another format. A NaN becomes quiet and keeps the upper bits of its
    /// payload.
    pub fn convert(self, x: u64, to: Format, rounding: Rounding) -> u64 {
        let sign = to.zero(x & self.sign() != 0);
        if self.is_nan(x) {
            let payload = x & ((1 << self.fraction) - 1);
            let payload = if to.fraction >= self.fraction {
                payload << (to.fraction - self.fraction)
            } else {
                payload >> (self.fraction - to.fraction)
            };
            return sign | to.infinity() | to.quiet() | payload;
        }
        if self.is_infinite(x) {
            return sign | to.infinity();
        }
        to.round(self.unpack(x), false, rounding)
    }

    /// Converts an integer to a float.
    pub fn of_integer(self, x: i128, rounding: Rounding) -> u64 {
        self.round(Finite { negative: x < 0, mantissa: x.unsigned_abs(), exponent: 0 }, false, rounding)
    }

    /// Converts a float to an integer. Returns `None` for a NaN, an infinity, or a value outside of
    /// `i128`.
    pub fn to_integer(self, x: u64, rounding: Rounding) -> Option<i128> {
        if self.is_nan(x) || self.is_infinite(x) {
            return None;
        }
        let x = integral(self.unpack(x), 0, rounding);
        if x.mantissa == 0 {
            return Some(0);
        }
        // If the exponent is not 0 after rounding, the float was already an integer. All results
        // are below 2^126, so the cast keeps the sign.
        let fits = 127 - x.mantissa.leading_zeros() as i32 + x.exponent < 126;
        fits.then(|| {
            let magnitude = (x.mantissa << x.exponent) as i128;
            if x.negative { -magnitude } else { magnitude }
        })
    }

    /// Rounds a float to a multiple of `2^-scale`. The float must not be NaN.
    pub fn round_to_multiple(self, x: u64, scale: u8, rounding: Rounding) -> u64 {
        if self.is_infinite(x) {
            return x;
        }
        self.round(integral(self.unpack(x), -i32::from(scale), rounding), false, rounding)
    }

    /// Returns the exact product. If an operand is infinite, returns the bits of the result as
    /// `Err`.
    fn product(self, a: u64, b: u64) -> Result<Finite, u64> {
        let negative = (a ^ b) & self.sign() != 0;
        if self.is_infinite(a) || self.is_infinite(b) {
            let invalid = self.is_zero(a) || self.is_zero(b);
            return Err(if invalid { self.indefinite() } else { self.infinity() | self.zero(negative) });
        }
        let (a, b) = (self.unpack(a), self.unpack(b));
        Ok(Finite { negative, mantissa: a.mantissa * b.mantissa, exponent: a.exponent + b.exponent })
    }

    fn sum(self, a: Finite, b: Finite, rounding: Rounding) -> u64 {
        let down = rounding == Rounding::Down;
        match (a.mantissa == 0, b.mantissa == 0) {
            (true, true) if a.negative == b.negative => return self.zero(a.negative),
            (true, true) => return self.zero(down),
            (true, false) => return self.round(b, false, rounding),
            (false, true) => return self.round(a, false, rounding),
            (false, false) => {}
        }
        let align = |x: Finite| {
            let shift = x.mantissa.leading_zeros() as i32 - (127 - TOP as i32);
            Finite { mantissa: x.mantissa << shift, exponent: x.exponent - shift, ..x }
        };
        let (a, b) = (align(a), align(b));
        let (large, small) = if (a.exponent, a.mantissa) >= (b.exponent, b.mantissa) { (a, b) } else { (b, a) };
        // If set bits are shifted out, the last bit is set to 1. Mantissas have at most 106 bits,
        // so at least 20 zeros follow them, and this 1 cannot be mistaken for half a unit. If a
        // subtraction cancels more than one bit, no set bit was shifted out.
        let distance = (large.exponent - small.exponent).cast_unsigned();
        let low = if distance > TOP {
            1
        } else {
            small.mantissa >> distance | u128::from(small.mantissa & ((1 << distance) - 1) != 0)
        };
        let same = large.negative == small.negative;
        let mantissa = if same { large.mantissa + low } else { large.mantissa - low };
        if mantissa == 0 {
            return self.zero(down);
        }
        self.round(Finite { mantissa, ..large }, false, rounding)
    }
}

/// Rounds a number to a multiple of `2^unit`.
fn integral(x: Finite, unit: i32, rounding: Rounding) -> Finite {
    let shift = unit - x.exponent;
    if shift <= 0 || x.mantissa == 0 {
        return x;
    }
    let (kept, lost, half) =
        if shift > 127 { (0, 1, 2) } else { (x.mantissa >> shift, x.mantissa & ((1 << shift) - 1), 1 << (shift - 1)) };
    let up = match rounding {
        Rounding::Nearest => lost > half || (lost == half && kept & 1 == 1),
        Rounding::Down => lost != 0 && x.negative,
        Rounding::Up => lost != 0 && !x.negative,
        Rounding::Zero => false,
    };
    Finite { mantissa: kept + u128::from(up), exponent: unit, ..x }
}

#[cfg(test)]
mod tests {
    use ixc_ir::random::Random;

    use super::*;

    /// Returns a random double. Many of these doubles are near each other, subnormal or special.
    fn double(random: &mut Random) -> f64 {
        let bits = random.bits();
        match bits % 8 {
            0 => f64::from_bits(random.bits()),
            1 => f64::from_bits(random.bits() & 0x800f_ffff_ffff_ffff),
            2 => [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE][bits as usize / 8 % 6],
            _ => f64::from_bits(random.bits() & 0x800f_ffff_ffff_ffff | (1000 + bits / 8 % 60) << 52),
        }
    }

    #[test]
    fn rounding_to_nearest_agrees_with_the_host() {
        let mut random = Random::new(3);
        for _ in 0..200_000 {
            let [x, y, z] = [double(&mut random), double(&mut random), double(&mut random)];
            let same = |name: &str, got: u64, right: f64| {
                let right = if right.is_nan() { F64.indefinite() } else { right.to_bits() };
                assert_eq!(got, right, "{name} {x:e} {y:e} {z:e}");
            };
            if x.is_nan() || y.is_nan() || z.is_nan() {
                continue;
            }
            let [a, b, c] = [x, y, z].map(f64::to_bits);
            let nearest = Rounding::Nearest;
            same("add", F64.add(a, b, nearest), x + y);
            same("sub", F64.sub(a, b, nearest), x - y);
            same("mul", F64.mul(a, b, nearest), x * y);
            same("div", F64.div(a, b, nearest), x / y);
            same("sqrt", F64.sqrt(a, nearest), x.sqrt());
            same("fma", F64.fma(a, b, c, nearest), x.mul_add(y, z));
            let narrow = F64.convert(a, F32, nearest);
            assert_eq!(narrow, u64::from((x as f32).to_bits()), "{x:e}");
        }
    }

    #[test]
    fn directed_roundings_bracket_the_exact_result() {
        let mut random = Random::new(5);
        for _ in 0..100_000 {
            let [a, b] = [(); 2].map(|()| f32::from_bits(random.bits() as u32));
            // The product of two singles is exact in double precision.
            let exact = f64::from(a) * f64::from(b);
            if !exact.is_finite() {
                continue;
            }
            let [a, b] = [a, b].map(|x| u64::from(x.to_bits()));
            let [down, up, zero] = [Rounding::Down, Rounding::Up, Rounding::Zero]
                .map(|r| f64::from(f32::from_bits(F32.mul(a, b, r) as u32)));
            assert!(down <= exact && exact <= up, "{exact:e} {down:e} {up:e}");
            assert_eq!(zero, if exact < 0.0 { up } else { down }, "{exact:e}");
            let distance = (up as f32).to_bits().abs_diff((down as f32).to_bits());
            assert!(distance <= 1 || exact.abs() < 1e-44, "{exact:e} {down:e} {up:e}");
        }
    }
}
