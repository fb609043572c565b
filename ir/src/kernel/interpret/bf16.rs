//! bf16, the upper half of a single: how numbers become it and back.

/// `x` rounded to nearest, ties to even. A denormal gives zero of its sign, a NaN is made quiet and keeps its upper payload.
pub fn from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let upper = (bits >> 16) as u16;
    if x.is_nan() {
        return upper | 0x40;
    }
    if bits & 0x7f80_0000 == 0 {
        return upper & 0x8000;
    }
    // Half a unit less one, and that one where the kept part is odd. The carry may run into the exponent, up to infinity.
    ((bits + 0x7fff + u32::from(upper & 1)) >> 16) as u16
}

/// Exact; the bits of a NaN stay.
pub fn to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
