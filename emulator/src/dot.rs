//! Lane arithmetic of the dot products: VNNI (int8, int16), bfloat16 and the float accumulation that tiles share.
//!
//! Owns the value of one 32-bit lane as the processor manual's Operation sections define it. Takes and gives bits, never
//! `f32` values, so that NaN payloads survive. Masks, broadcast and vector lengths are not known here.
//!
//! All float sums here are those of `TDPBF16PS`, `TDPFP16PS` and `VDPBF16PS`: fused, rounded to nearest even, denormal
//! inputs taken as zero, denormal results flushed to zero, and MXCSR neither read nor written.
//!
//! ```
//! use ixc_emulator::dot;
//! // 4 unsigned bytes (all 255) times 4 signed bytes (all -128), added to 1.
//! assert_eq!(dot::pdpbusd(1, 0xffff_ffff, 0x8080_8080) as i32, 1 - 4 * 255 * 128);
//! assert_eq!(dot::cvtneps2bf16(1.0f32.to_bits()), 0x3f80);
//! ```

/// What an invalid operation (∞ × 0, ∞ − ∞) gives: the QNaN floating-point indefinite.
const INDEFINITE: u32 = 0xffc0_0000;
const SIGN: u32 = 0x8000_0000;
const QUIET: u32 = 0x0040_0000;
const INFINITY: u32 = 0x7f80_0000;
/// The bits of an `f64` below the last bit of an `f32`; a number of f32's range halfway between two of them has just the
/// highest of these set.
const BELOW_F32: u64 = (1 << 29) - 1;
const HALFWAY: u64 = 1 << 28;

/// `VPDPBUSD`: four products of an unsigned byte of `a` and a signed byte of `b`, all added to `sum`, modulo 2³².
pub fn pdpbusd(sum: u32, a: u32, b: u32) -> u32 {
    sum.wrapping_add(products_us(a, b) as u32)
}

/// `VPDPBUSDS`: as [`pdpbusd`], the exact total saturated to a signed doubleword.
pub fn pdpbusds(sum: u32, a: u32, b: u32) -> u32 {
    saturate(i64::from(sum as i32) + i64::from(products_us(a, b)))
}

/// `VPDPWSSD`: two products of signed words, added to `sum`, modulo 2³².
pub fn pdpwssd(sum: u32, a: u32, b: u32) -> u32 {
    (i64::from(sum as i32) + word_products(a, b)) as u32
}

/// `VPDPWSSDS`: as [`pdpwssd`], the exact total saturated to a signed doubleword.
pub fn pdpwssds(sum: u32, a: u32, b: u32) -> u32 {
    saturate(i64::from(sum as i32) + word_products(a, b))
}

/// At most 4 · 255 · 128 in size: no overflow.
fn products_us(a: u32, b: u32) -> i32 {
    let pairs = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    pairs.map(|(x, y)| i32::from(x) * i32::from(y as i8)).sum()
}

/// In 64 bits, because 2 · (−32768)² is 2³¹.
fn word_products(a: u32, b: u32) -> i64 {
    let word = |x: u32, i: u32| i64::from((x >> (16 * i)) as i16);
    word(a, 0) * word(b, 0) + word(a, 1) * word(b, 1)
}

fn saturate(x: i64) -> u32 {
    x.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32 as u32
}

/// `VDPBF16PS`: two products of bfloat16 pairs added to `sum`, the high pair first, each by its own fused multiply-add.
///
/// The order gives the manual's table of NaN priorities: low pair of `a`, of `b`, high pair of `a`, of `b`, then `sum`.
pub fn dpbf16ps(sum: u32, a: u32, b: u32) -> u32 {
    let sum = fma_flushed(a & 0xffff_0000, b & 0xffff_0000, sum);
    fma_flushed(a << 16, b << 16, sum)
}

/// `x · y + z` of single-precision bits, fused, to nearest even, denormals zero on both sides.
///
/// NaN operands win in the order x, y, z and are made quiet.
#[inline(always)]
pub fn fma_flushed(x: u32, y: u32, z: u32) -> u32 {
    let (bits, settled) = fma_by_f64(x, y, z);
    if settled { bits } else { fma_with_care(zero_if_denormal(x), zero_if_denormal(y), zero_if_denormal(z)) }
}

/// `sums + x · y` lane by lane, by the rules of [`fma_flushed`]; `x` has one value for even lanes and one for odd. The common case has
/// no branch, so that a compiler makes vectors of it.
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

/// `x · y + z`, denormals taken as zero, and whether that is surely the right result.
#[inline(always)]
fn fma_by_f64(x: u32, y: u32, z: u32) -> (u32, bool) {
    let (x, y, z) = (zero_if_denormal(x), zero_if_denormal(y), zero_if_denormal(z));
    let (product, z) = (widen(x) * widen(y), widen(z));
    let wide = product + z;
    // Of f32's values the product is exact in f64 (48 of 53 bits), the sum is not always. Rounding it again to f32 is right
    // unless the f64 is a midpoint of two f32 and not exact, where it may have come from either side. What the sum lost is Knuth's.
    let part = wide - product;
    let exact = (product - (wide - part)) + (z - part) == 0.0;
    let narrow = wide as f32;
    let normal = (narrow.abs() > f32::MIN_POSITIVE) & (narrow.abs() <= f32::MAX);
    // An f64 sum of such values is zero only when it is exactly zero.
    let settled = ((wide.to_bits() & BELOW_F32 != HALFWAY) | exact) & normal | (wide == 0.0);
    (narrow.to_bits(), settled)
}

/// `x + y` by the same rules; a NaN in `x` wins.
#[inline]
pub fn add_flushed(x: u32, y: u32) -> u32 {
    fma_flushed(x, 1.0f32.to_bits(), y)
}

#[inline(always)]
fn widen(bits: u32) -> f64 {
    f64::from(f32::from_bits(bits))
}

/// The sign stays.
#[inline(always)]
fn zero_if_denormal(bits: u32) -> u32 {
    if bits & INFINITY == 0 { bits & SIGN } else { bits }
}

fn is_nan(bits: u32) -> bool {
    bits & !SIGN > INFINITY
}

/// The cases that the fast way leaves: NaN, infinity, midpoints and results near the smallest normal number.
#[cold]
fn fma_with_care(x: u32, y: u32, z: u32) -> u32 {
    if let Some(nan) = [x, y, z].into_iter().find(|v| is_nan(*v)) {
        return nan | QUIET;
    }
    let result = fused(x, y, z);
    if is_nan(result) {
        return INDEFINITE;
    }
    let size = result & !SIGN;
    if size > f32::MIN_POSITIVE.to_bits() || size == 0 {
        return result;
    }
    if size == f32::MIN_POSITIVE.to_bits() {
        // Rounded to denormal precision this is the smallest normal number. Flushing asks what rounding to 24 bits without
        // a lower bound of the exponent would give, so round again where the exponent does not matter. The product has at
        // most 48 bits and one of them is at or below 2^-126, so it is below 2^-78 and its smaller factor below 2^-39: the
        // scaled values are far from overflow.
        let (small, large) = if x & !SIGN < y & !SIGN { (x, y) } else { (y, x) };
        let up = f32::from_bits((127 + 24) << 23);
        let scaled = |bits: u32| (f32::from_bits(bits) * up).to_bits();
        let again = f32::from_bits(fused(scaled(small), large, scaled(z)));
        if again.abs() >= f32::MIN_POSITIVE * up {
            return result;
        }
    }
    result & SIGN
}

fn fused(x: u32, y: u32, z: u32) -> u32 {
    f32::from_bits(x).mul_add(f32::from_bits(y), f32::from_bits(z)).to_bits()
}

/// `VCVTNEPS2BF16` and `VCVTNE2PS2BF16`, one lane: to nearest even, denormals to zero, NaN made quiet.
pub fn cvtneps2bf16(bits: u32) -> u16 {
    let high = (bits >> 16) as u16;
    if bits & INFINITY == 0 {
        high & 0x8000
    } else if is_nan(bits) {
        high | 0x0040
    } else {
        // Carries into the exponent, and to infinity from the largest values. Infinity itself gains nothing: its low bits
        // are zero.
        ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
    }
}
