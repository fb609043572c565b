//! bf16, the upper half of a single: conversions, and the f32 arithmetic of its products.

/// Rounds `x` to the nearest bf16, ties to even. A denormal becomes zero with its sign. A NaN
/// becomes quiet and keeps the upper bits of its payload.
pub fn from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let upper = (bits >> 16) as u16;
    if x.is_nan() {
        return upper | 0x40;
    }
    if bits & 0x7f80_0000 == 0 {
        return upper & 0x8000;
    }
    // Adds half a unit of the result minus one, and one more if the upper half is odd. The carry
    // may reach the exponent, up to infinity.
    ((bits + 0x7fff + u32::from(upper & 1)) >> 16) as u16
}

/// Converts a bf16 to f32 exactly. A NaN keeps its bits.
pub fn to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Replaces a denormal operand by zero with its sign.
fn operand(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// Computes `a + b`, rounded to nearest even. A denormal result becomes zero with its sign. No
/// precision is lost before that, since both operands are multiples of 2^-149.
pub fn add(a: f32, b: f32) -> f32 {
    operand(operand(a) + operand(b))
}

/// Computes `a * b + c` of bf16 `a` and `b`, rounded once to nearest even. A result that is
/// denormal after rounding becomes zero with its sign.
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    /// Exclusive upper bound of results that become zero: 2^-126 - 2^-151. Rounded to 24 bits with
    /// an unlimited exponent, this number becomes 2^-126, the least normal number.
    const LEAST: f64 = f64::from_bits((1023 - 126) << 52) - f64::from_bits((1023 - 151) << 52);
    let (a, b, c) = (operand(a), operand(b), operand(c));
    let rounded = a.mul_add(b, c);
    // The product has 16 bits and is exact. If the f64 sum is not exact, the product is below
    // 2^-163. Then `c`, a multiple of 2^-149, determines the result alone.
    let sum = f64::from(a) * f64::from(b) + f64::from(c);
    if sum.abs() < LEAST { 0f32.copysign(rounded) } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_is_tiny_after_rounding_is_flushed() {
        let least = f32::MIN_POSITIVE;
        let power = |exponent: i32| 2f32.powi(exponent);
        // 2^-126 - 2^-152 rounds to 2^-126 in 24 bits. 2^-126 - 2^-151 is a tie, which rounds to
        // even.
        assert_eq!(fma(-power(-76), power(-76), least), least);
        assert_eq!(fma(-power(-76), power(-75), least), least);
        // 2^-126 - 1.5 * 2^-151 does not round to 2^-126 in 24 bits. It would with the fewer bits
        // of a denormal.
        assert_eq!((-power(-76)).mul_add(1.5 * power(-75), least), least);
        assert_eq!(fma(-power(-76), 1.5 * power(-75), least).to_bits(), 0);
        assert_eq!(fma(power(-76), 1.5 * power(-75), -least).to_bits(), 0x8000_0000);
        assert_eq!(fma(-power(-120), power(-120), least), least);
        assert_eq!(fma(power(-120), -power(-120), 0.0).to_bits(), 0x8000_0000);
        assert_eq!(fma(1.5, 0.0, -least), -least);
    }

    #[test]
    fn sums_flush_denormals_in_and_out() {
        let least = f32::MIN_POSITIVE;
        let denormal = f32::from_bits(0x8000_0003);
        assert_eq!(add(denormal, -0.0).to_bits(), 0x8000_0000);
        assert_eq!(add(denormal, 0.0).to_bits(), 0);
        assert_eq!(add(1.5 * least, -least).to_bits(), 0);
        assert_eq!(add(-1.5 * least, least).to_bits(), 0x8000_0000);
        assert_eq!(add(1.5 * least, denormal), 1.5 * least);
    }
}
