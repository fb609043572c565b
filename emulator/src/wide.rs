//! Fused multiply-add of whole vectors.
//!
//! If the compiler may not assume FMA, `f32::mul_add` is a library call. This would be too slow,
//! because FMA is the most frequent instruction of kernels. On hosts with FMA, this module uses the
//! instruction. Otherwise it computes the product of two floats exactly in double precision. It
//! rounds the sum with the third float to odd, so that the final rounding to single precision is
//! correct (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).

use crate::lanes::Lane;
use crate::state::Vector;

/// Computes `x · y + z` in single precision in every lane. The payload of a NaN result is
/// unspecified.
pub(crate) fn fma_f32(r: &mut Vector, x: &Vector, y: &Vector, z: &Vector, bytes: u8) {
    #[cfg(target_arch = "x86_64")]
    if host::has_fma() {
        // SAFETY: the host has FMA and AVX.
        unsafe { host::fma_f32(r, x, y, z, bytes) };
        return;
    }
    for i in 0..usize::from(bytes.max(16)) / 4 {
        fma(f32::get(x, i), f32::get(y, i), f32::get(z, i)).set(r, i);
    }
}

/// Computes `x · y + z` in double precision in every lane. The payload of a NaN result is
/// unspecified.
pub(crate) fn fma_f64(r: &mut Vector, x: &Vector, y: &Vector, z: &Vector, bytes: u8) {
    for i in 0..usize::from(bytes.max(16)) / 8 {
        f64::get(x, i).mul_add(f64::get(y, i), f64::get(z, i)).set(r, i);
    }
}

#[cfg(target_arch = "x86_64")]
mod host {
    use crate::lanes::Lane;
    use crate::state::Vector;

    pub fn has_fma() -> bool {
        std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx")
    }

    #[target_feature(enable = "avx,fma")]
    pub fn fma_f32(r: &mut Vector, x: &Vector, y: &Vector, z: &Vector, bytes: u8) {
        for part in 0..usize::from(bytes.max(16)) / 16 {
            for i in 4 * part..4 * part + 4 {
                f32::get(x, i).mul_add(f32::get(y, i), f32::get(z, i)).set(r, i);
            }
        }
    }
}

#[inline(always)]
fn fma(x: f32, y: f32, z: f32) -> f32 {
    let (product, z) = (f64::from(x) * f64::from(y), f64::from(z));
    let sum = product + z;
    // The rounding error of the sum, which is exact (Knuth's two-sum).
    let part = sum - product;
    let lost = (product - (sum - part)) + (z - part);
    let bits = sum.to_bits();
    // Rounding to odd: of the two doubles around the exact sum, takes the one whose last bit is
    // set. For NaN, the conditions are false.
    let even = bits & 1 == 0;
    let away = (lost > 0.0) == (sum > 0.0);
    let inexact = lost.abs() > 0.0;
    let odd = if away { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f64::from_bits(if inexact && even { odd } else { bits }) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulated_fma_matches_the_standard_library() {
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bits = (state >> 32) as u32;
            // Three of four floats have exponents near each other, so that sums cancel.
            f32::from_bits(if state & 3 == 0 { bits } else { bits & 0x87ff_ffff | 0x3800_0000 })
        };
        for _ in 0..1_000_000 {
            let (x, y, z) = (next(), next(), next());
            let right = x.mul_add(y, z);
            let [a, b, c] = [x, y, z].map(|x| {
                let mut v = Vector::ZERO;
                x.set(&mut v, 3);
                v
            });
            let mut r = Vector::ZERO;
            fma_f32(&mut r, &a, &b, &c, 32);
            for got in [fma(x, y, z), f32::get(&r, 3)] {
                assert!(got.to_bits() == right.to_bits() || got.is_nan() && right.is_nan(), "{x:e} {y:e} {z:e}");
            }
        }
        let tiny = f32::from_bits(1);
        assert_eq!(fma(tiny, 0.5, tiny).to_bits(), tiny.mul_add(0.5, tiny).to_bits());
        assert_eq!(fma(f32::MAX, 2.0, f32::NEG_INFINITY), f32::NEG_INFINITY);
    }
}
