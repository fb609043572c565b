//! Lane arithmetic of dot products: VNNI (int8, int16), bfloat16, and the float sums of tiles.
//!
//! Each function computes one 32-bit lane, as the Operation sections of the processor manual
//! specify. Arguments and results are bits, never `f32` values, so that NaN payloads survive.
//! Callers handle masks, broadcasts and vector lengths.
//!
//! All float sums follow `TDPBF16PS`, `TDPFP16PS` and `VDPBF16PS`. Each product and addition is
//! fused, and rounded to nearest even. Denormal inputs count as zero, and denormal results become
//! zero. MXCSR is neither read nor written.
//!
//! ```
//! use ixc_emulator::dot;
//! // 4 unsigned bytes (all 255) times 4 signed bytes (all -128), added to 1.
//! assert_eq!(dot::pdpbusd(1, 0xffff_ffff, 0x8080_8080) as i32, 1 - 4 * 255 * 128);
//! assert_eq!(dot::cvtneps2bf16(1.0f32.to_bits()), 0x3f80);
//! ```

/// Result of an invalid operation (∞ × 0, ∞ − ∞): the QNaN floating-point indefinite.
const INDEFINITE: u32 = 0xffc0_0000;
const SIGN: u32 = 0x8000_0000;
const QUIET: u32 = 0x0040_0000;
const INFINITY: u32 = 0x7f80_0000;
/// Mask of the bits of an `f64` below the last bit of an `f32`. In a number halfway between two
/// `f32`, only the highest of these bits is set.
const BELOW_F32: u64 = (1 << 29) - 1;
const HALFWAY: u64 = 1 << 28;

/// Returns `sum` plus four products of an unsigned byte of `a` and a signed byte of `b`, modulo 2³²
/// (`VPDPBUSD`).
pub fn pdpbusd(sum: u32, a: u32, b: u32) -> u32 {
    sum.wrapping_add(products_us(a, b) as u32)
}

/// Returns the exact total of [`pdpbusd`], saturated to a signed doubleword (`VPDPBUSDS`).
pub fn pdpbusds(sum: u32, a: u32, b: u32) -> u32 {
    saturate(i64::from(sum as i32) + i64::from(products_us(a, b)))
}

/// Returns `sum` plus two products of signed words, modulo 2³² (`VPDPWSSD`).
pub fn pdpwssd(sum: u32, a: u32, b: u32) -> u32 {
    (i64::from(sum as i32) + word_products(a, b)) as u32
}

/// Returns the exact total of [`pdpwssd`], saturated to a signed doubleword (`VPDPWSSDS`).
pub fn pdpwssds(sum: u32, a: u32, b: u32) -> u32 {
    saturate(i64::from(sum as i32) + word_products(a, b))
}

/// Returns the sum of four products of an unsigned and a signed byte. Its magnitude is at most 4 ·
/// 255 · 128, so it cannot overflow.
fn products_us(a: u32, b: u32) -> i32 {
    let pairs = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    pairs.map(|(x, y)| i32::from(x) * i32::from(y as i8)).sum()
}

/// Returns the sum of two products of signed words. It needs 64 bits, because 2 · (−32768)² is 2³¹.
fn word_products(a: u32, b: u32) -> i64 {
    let word = |x: u32, i: u32| i64::from((x >> (16 * i)) as i16);
    word(a, 0) * word(b, 0) + word(a, 1) * word(b, 1)
}

fn saturate(x: i64) -> u32 {
    x.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32 as u32
}

/// Adds two products of bfloat16 pairs to `sum` (`VDPBF16PS`). The high pair comes first, and each
/// product has its own fused multiply-add.
///
/// With NaN operands, the result is the first NaN in this order: low pair of `a`, low pair of `b`,
/// high pair of `a`, high pair of `b`, `sum`. The order of the products gives this priority, which
/// the manual specifies in a table.
pub fn dpbf16ps(sum: u32, a: u32, b: u32) -> u32 {
    let sum = fma_flushed(a & 0xffff_0000, b & 0xffff_0000, sum);
    fma_flushed(a << 16, b << 16, sum)
}

/// Returns `x · y + z` of single-precision bits, rounded once to nearest even. Denormal inputs and
/// denormal results become zero.
///
/// If operands are NaN, the result is the first of x, y and z that is NaN, made quiet.
#[inline(always)]
pub fn fma_flushed(x: u32, y: u32, z: u32) -> u32 {
    let (bits, settled) = fma_by_f64(x, y, z);
    if settled { bits } else { fma_with_care(zero_if_denormal(x), zero_if_denormal(y), zero_if_denormal(z)) }
}

/// Adds `x · y` to `sums` in each lane, with the rules of [`fma_flushed`]. `x` has one value for
/// even lanes and one for odd lanes. The common case has no branch, so that a compiler can
/// vectorise it.
pub fn add_products_flushed<const N: usize>(sums: &mut [u32; N], x: [u32; 2], y: &[u32; N]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the host has AVX2.
        unsafe { add_products_flushed_avx2(sums, x, y) };
        return;
    }
    add_products_by_f64(sums, x, y);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_products_flushed_avx2<const N: usize>(sums: &mut [u32; N], x: [u32; 2], y: &[u32; N]) {
    add_products_by_f64(sums, x, y);
}

#[inline(always)]
fn add_products_by_f64<const N: usize>(sums: &mut [u32; N], x: [u32; 2], y: &[u32; N]) {
    let x: [u32; N] = std::array::from_fn(|i| x[i % 2]);
    let mut next = [0; N];
    let mut all_settled = true;
    for i in 0..N {
        let (bits, settled) = fma_by_f64(x[i], y[i], sums[i]);
        next[i] = bits;
        all_settled &= settled;
    }
    *sums = if all_settled { next } else { std::array::from_fn(|i| fma_flushed(x[i], y[i], sums[i])) };
}

/// Returns `x · y + z` with denormals as zero. Also returns whether this result is certainly
/// correct.
#[inline(always)]
fn fma_by_f64(x: u32, y: u32, z: u32) -> (u32, bool) {
    let (x, y, z) = (zero_if_denormal(x), zero_if_denormal(y), zero_if_denormal(z));
    let (product, z) = (widen(x) * widen(y), widen(z));
    let wide = product + z;
    // The product of two `f32` is exact in `f64` (48 of 53 bits), but the sum may not be. A second
    // rounding to `f32` is correct in most cases. It may be wrong if the `f64` sum was inexact and
    // lies halfway between two `f32`, because the exact sum may be on either side. Knuth's two-sum
    // computes the part that the rounding lost.
    let part = wide - product;
    let exact = (product - (wide - part)) + (z - part) == 0.0;
    let narrow = wide as f32;
    let normal = (narrow.abs() > f32::MIN_POSITIVE) & (narrow.abs() <= f32::MAX);
    // An `f64` sum of such products is zero only if the exact sum is zero.
    let settled = ((wide.to_bits() & BELOW_F32 != HALFWAY) | exact) & normal | (wide == 0.0);
    (narrow.to_bits(), settled)
}

/// Returns `x + y` with the rules of [`fma_flushed`]. If both operands are NaN, the result is x.
#[inline]
pub fn add_flushed(x: u32, y: u32) -> u32 {
    fma_flushed(x, 1.0f32.to_bits(), y)
}

#[inline(always)]
fn widen(bits: u32) -> f64 {
    f64::from(f32::from_bits(bits))
}

/// Replaces a denormal by a zero of the same sign.
#[inline(always)]
fn zero_if_denormal(bits: u32) -> u32 {
    if bits & INFINITY == 0 { bits & SIGN } else { bits }
}

fn is_nan(bits: u32) -> bool {
    bits & !SIGN > INFINITY
}

/// Returns `x · y + z` in the cases where the fast computation may be wrong: NaN, infinity,
/// midpoints, and results near the smallest normal number.
#[cold]
fn fma_with_care(x: u32, y: u32, z: u32) -> u32 {
    if let Some(nan) = [x, y, z].into_iter().find(|v| is_nan(*v)) {
        return nan | QUIET;
    }
    let result = fused_multiply_add(x, y, z);
    if is_nan(result) {
        return INDEFINITE;
    }
    let size = result & !SIGN;
    if size > f32::MIN_POSITIVE.to_bits() || size == 0 {
        return result;
    }
    if size == f32::MIN_POSITIVE.to_bits() {
        // Rounded to the precision of denormals, the result is the smallest normal number. Whether
        // it is flushed depends on the rounding to 24 bits with an unlimited exponent. The result
        // is therefore rounded again with larger exponents. The product has at most 48 bits, and
        // one of them is at or below 2^-126. The product is thus below 2^-78, and its smaller
        // factor below 2^-39. The scaled values are therefore far from overflow.
        let (small, large) = if x & !SIGN < y & !SIGN { (x, y) } else { (y, x) };
        let up = f32::from_bits((127 + 24) << 23);
        let scaled = |bits: u32| (f32::from_bits(bits) * up).to_bits();
        let again = f32::from_bits(fused_multiply_add(scaled(small), large, scaled(z)));
        if again.abs() >= f32::MIN_POSITIVE * up {
            return result;
        }
    }
    result & SIGN
}

fn fused_multiply_add(x: u32, y: u32, z: u32) -> u32 {
    f32::from_bits(x).mul_add(f32::from_bits(y), f32::from_bits(z)).to_bits()
}

/// Converts one lane to bfloat16 (`VCVTNEPS2BF16`, `VCVTNE2PS2BF16`). It rounds to nearest even,
/// denormals become zero, and a NaN becomes quiet.
pub fn cvtneps2bf16(bits: u32) -> u16 {
    let high = (bits >> 16) as u16;
    if bits & INFINITY == 0 {
        high & 0x8000
    } else if is_nan(bits) {
        high | 0x0040
    } else {
        // The addition may carry into the exponent, and for the largest values up to infinity.
        // Infinity itself is unchanged, because its low bits are zero.
        ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
    }
}
