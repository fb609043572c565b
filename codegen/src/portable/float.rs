//! Float operations for which cranelift has no op, built from other cranelift ops. Their results
//! have the same bits on every machine.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Value, types};

use super::lower::Lowering;

impl Lowering<'_> {
    /// Computes `mask ? a : b` bit by bit, with the type of `a`.
    pub(super) fn choose(&mut self, mask: Value, a: Value, b: Value) -> Value {
        let ty = self.b.func.dfg.value_type(a);
        let mask = self.cast(ty, mask);
        self.b.ins().bitselect(mask, a, b)
    }

    /// Computes `a < b ? a : b` for floats.
    pub(super) fn float_min(&mut self, a: Value, b: Value) -> Value {
        let less = self.b.ins().fcmp(FloatCC::LessThan, a, b);
        self.choose(less, a, b)
    }

    /// Computes `a > b ? a : b` for floats.
    pub(super) fn float_max(&mut self, a: Value, b: Value) -> Value {
        let greater = self.b.ins().fcmp(FloatCC::GreaterThan, a, b);
        self.choose(greater, a, b)
    }

    /// Rounds to the nearest integer, ties to even. Cranelift's conversion saturates, so values
    /// from 2^31 up and NaN are replaced with `i32::MIN`.
    pub(super) fn round_to_i32(&mut self, a: Value) -> Value {
        let nearest = self.nearest(a);
        let saturated = self.b.ins().fcvt_to_sint_sat(types::I32X4, nearest);
        let limit = self.constant32(types::F32X4, 2f32.powi(31).to_bits());
        let below = self.b.ins().fcmp(FloatCC::LessThan, nearest, limit);
        let min = self.constant32(types::I32X4, i32::MIN as u32);
        self.choose(below, saturated, min)
    }

    /// Rounds to the nearest integer as a float, ties to even. If the CPU lacks the instruction, it
    /// adds 2^23 to a float below 2^23, which rounds the float to an integer. Every float from 2^23
    /// up already is an integer.
    fn nearest(&mut self, a: Value) -> Value {
        if self.features.round {
            return self.b.ins().nearest(a);
        }
        let bits = self.cast(types::I32X4, a);
        let magnitude = self.and32(bits, 0x7fff_ffff);
        let sign = self.b.ins().bxor(bits, magnitude);
        let magnitude = self.cast(types::F32X4, magnitude);
        let limit = self.constant32(types::F32X4, 2f32.powi(23).to_bits());
        let sum = self.b.ins().fadd(magnitude, limit);
        let rounded = self.b.ins().fsub(sum, limit);
        let rounded = self.cast(types::I32X4, rounded);
        let rounded = self.b.ins().bor(rounded, sign);
        let rounded = self.cast(types::F32X4, rounded);
        let has_fraction = self.b.ins().fcmp(FloatCC::LessThan, magnitude, limit);
        self.choose(has_fraction, rounded, a)
    }

    fn and32(&mut self, a: Value, mask: u32) -> Value {
        let mask = self.constant32(types::I32X4, mask);
        self.b.ins().band(a, mask)
    }

    fn or32(&mut self, a: Value, bits: u32) -> Value {
        let bits = self.constant32(types::I32X4, bits);
        self.b.ins().bor(a, bits)
    }

    fn add32(&mut self, a: Value, addend: u32) -> Value {
        let addend = self.constant32(types::I32X4, addend);
        self.b.ins().iadd(a, addend)
    }

    fn greater32(&mut self, a: Value, limit: u32) -> Value {
        let limit = self.constant32(types::I32X4, limit);
        self.b.ins().icmp(IntCC::SignedGreaterThan, a, limit)
    }

    pub(super) fn shl(&mut self, a: Value, by: i64) -> Value {
        let by = self.b.ins().iconst(types::I32, by);
        self.b.ins().ishl(a, by)
    }

    pub(super) fn shr_u(&mut self, a: Value, by: i64) -> Value {
        let by = self.b.ins().iconst(types::I32, by);
        self.b.ins().ushr(a, by)
    }

    pub(super) fn shr_s(&mut self, a: Value, by: i64) -> Value {
        let by = self.b.ins().iconst(types::I32, by);
        self.b.ins().sshr(a, by)
    }

    /// Converts four halves, zero-extended to 32 bits each, to singles. The conversion is exact. A
    /// normal number gets its exponent moved by 127 - 15. A subnormal number is its integer
    /// significand times 2^-24, a product without rounding. A NaN is made quiet.
    pub(super) fn f16_to_f32(&mut self, half: Value) -> Value {
        let magnitude = self.and32(half, 0x7fff);
        let sign = self.b.ins().bxor(half, magnitude);
        let sign = self.shl(sign, 16);
        let shifted = self.shl(magnitude, 13);
        let normal = self.add32(shifted, (127 - 15) << 23);

        let significand = self.b.ins().fcvt_from_sint(types::F32X4, magnitude);
        let unit = self.constant32(types::F32X4, 2f32.powi(-24).to_bits());
        let subnormal = self.b.ins().fmul(significand, unit);
        let subnormal = self.cast(types::I32X4, subnormal);

        let infinite = self.or32(shifted, 0x7f80_0000);
        let nan = self.greater32(magnitude, 0x7c00);
        let quiet = self.and32(nan, 0x0040_0000);
        let special = self.b.ins().bor(infinite, quiet);

        let is_normal = self.greater32(magnitude, 0x03ff);
        let finite = self.choose(is_normal, normal, subnormal);
        let is_special = self.greater32(magnitude, 0x7bff);
        let bits = self.choose(is_special, special, finite);
        let bits = self.b.ins().bor(bits, sign);
        self.cast(types::F32X4, bits)
    }

    /// Converts four singles to halves, rounding to nearest even. The halves are sign-extended to
    /// 32 bits each, so that they can be narrowed with saturation.
    ///
    /// A normal result is rounded by adding half a unit minus one, or exactly half a unit if the
    /// upper part is odd. The carry may run into the exponent, up to infinity. A subnormal result
    /// is rounded by adding 0.5 to |x|: the unit of this sum is 2^-24, the unit of subnormal
    /// halves.
    pub(super) fn f32_to_f16(&mut self, single: Value) -> Value {
        let bits = self.cast(types::I32X4, single);
        let magnitude = self.and32(bits, 0x7fff_ffff);
        let sign = self.b.ins().bxor(bits, magnitude);
        let sign = self.shr_u(sign, 16);

        let kept = self.shr_u(magnitude, 13);
        let odd = self.and32(kept, 1);
        let rounded = self.add32(magnitude, 0x0fffu32.wrapping_sub((127 - 15) << 23));
        let rounded = self.b.ins().iadd(rounded, odd);
        let normal = self.shr_u(rounded, 13);

        let half = self.constant32(types::F32X4, 0.5f32.to_bits());
        let float = self.cast(types::F32X4, magnitude);
        let sum = self.b.ins().fadd(float, half);
        let sum = self.cast(types::I32X4, sum);
        let subnormal = self.add32(sum, 0u32.wrapping_sub(0.5f32.to_bits()));

        let infinity = self.constant32(types::I32X4, 0x7c00);
        let payload = self.and32(kept, 0x03ff);
        let quiet = self.or32(payload, 0x7e00);
        let is_nan = self.greater32(magnitude, f32::INFINITY.to_bits());
        let special = self.choose(is_nan, quiet, infinity);

        let is_normal = self.greater32(magnitude, 2f32.powi(-14).to_bits() - 1);
        let finite = self.choose(is_normal, normal, subnormal);
        let is_special = self.greater32(magnitude, 65536f32.to_bits() - 1);
        let result = self.choose(is_special, special, finite);
        let result = self.b.ins().bor(result, sign);
        let result = self.shl(result, 16);
        self.shr_s(result, 16)
    }

    /// Converts four singles to bf16, rounding to nearest even. The results are sign-extended to 32
    /// bits each, so that they can be narrowed with saturation. Rounding adds half a unit minus
    /// one, or exactly half if the upper half is odd. The carry may run into the exponent, up to
    /// infinity.
    pub(super) fn f32_to_bf16(&mut self, single: Value) -> Value {
        let bits = self.cast(types::I32X4, single);
        let magnitude = self.and32(bits, 0x7fff_ffff);
        let kept = self.shr_s(bits, 16);

        let odd = self.and32(kept, 1);
        let rounded = self.add32(bits, 0x7fff);
        let rounded = self.b.ins().iadd(rounded, odd);
        let normal = self.shr_s(rounded, 16);

        let quiet = self.or32(kept, 0x40);
        let is_nan = self.greater32(magnitude, f32::INFINITY.to_bits());
        let number = self.choose(is_nan, quiet, normal);

        let zero = self.b.ins().bxor(bits, magnitude);
        let zero = self.shr_s(zero, 16);
        let is_normal = self.greater32(magnitude, f32::MIN_POSITIVE.to_bits() - 1);
        self.choose(is_normal, number, zero)
    }

    /// Converts four bf16 values, extended to 32 bits each, to singles.
    pub(super) fn bf16_to_f32(&mut self, bf16: Value) -> Value {
        let bits = self.shl(bf16, 16);
        self.cast(types::F32X4, bits)
    }

    /// Adds to `acc` first the products of the odd lanes of bf16 pairs, then the products of the
    /// even lanes.
    pub(super) fn dot2_bf16(&mut self, acc: Value, a: Value, b: Value) -> Value {
        let [[odd_a, odd_b], [even_a, even_b]] = [true, false].map(|odd| {
            [a, b].map(|pairs| {
                let pairs = self.cast(types::I32X4, pairs);
                let bits = if odd { self.and32(pairs, 0xffff_0000) } else { self.shl(pairs, 16) };
                let single = self.cast(types::F32X4, bits);
                self.flush(single, single, f32::MIN_POSITIVE)
            })
        });
        let acc = self.flush(acc, acc, f32::MIN_POSITIVE);
        let acc = self.fma_flushed(odd_a, odd_b, acc);
        self.fma_flushed(even_a, even_b, acc)
    }

    /// Computes `a * b + c`, rounded once, for numbers that are not denormal. If the result rounded
    /// to 24 bits is below 2^-126, it becomes zero with the same sign.
    ///
    /// The test for a small result uses `a * b + c` scaled by 2^24, to stay above the lower end of
    /// the exponent range. If scaled factors overflow, the scaled result is zero or far above the
    /// limit.
    fn fma_flushed(&mut self, a: Value, b: Value, c: Value) -> Value {
        let sum = self.fma(a, b, c);
        let factor = self.constant32(types::F32X4, 2f32.powi(12).to_bits());
        let [up_a, up_b] = [a, b].map(|x| self.b.ins().fmul(x, factor));
        let factor = self.constant32(types::F32X4, 2f32.powi(24).to_bits());
        let up_c = self.b.ins().fmul(c, factor);
        let up = self.fma(up_a, up_b, up_c);
        self.flush(sum, up, f32::MIN_POSITIVE * 2f32.powi(24))
    }

    /// Replaces `x` with a zero of the same sign in lanes where the magnitude of `test` is below
    /// `limit`.
    fn flush(&mut self, x: Value, test: Value, limit: f32) -> Value {
        let bits = self.cast(types::I32X4, test);
        let magnitude = self.and32(bits, 0x7fff_ffff);
        let magnitude = self.cast(types::F32X4, magnitude);
        let limit = self.constant32(types::F32X4, limit.to_bits());
        let small = self.b.ins().fcmp(FloatCC::LessThan, magnitude, limit);
        let bits = self.cast(types::I32X4, x);
        let zero = self.and32(bits, 0x8000_0000);
        let zero = self.cast(types::F32X4, zero);
        self.choose(small, zero, x)
    }

    /// Computes `a * b + c`, rounded once.
    pub(super) fn fma(&mut self, a: Value, b: Value, c: Value) -> Value {
        if self.features.fma {
            return self.b.ins().fma(a, b, c);
        }
        let low = self.fma_low_half(a, b, c);
        let [a, b, c] = [a, b, c].map(|x| self.move_down(x, 8));
        let high = self.fma_low_half(a, b, c);
        self.shuffle(low, high, |i| if i < 8 { i } else { 8 + i })
    }

    /// Computes a fused multiply-add of lanes 0 and 1 in double precision, in which the product of
    /// two singles is exact. The sum is rounded to odd. Rounding it to single is then correct,
    /// because 53 bits are at least two more than 24. Source: Boldo and Melquiond, "Emulation of
    /// FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008.
    fn fma_low_half(&mut self, a: Value, b: Value, c: Value) -> Value {
        let [a, b, c] = [a, b, c].map(|x| self.b.ins().fvpromote_low(x));
        let product = self.b.ins().fmul(a, b);
        let sum = self.b.ins().fadd(product, c);
        // Knuth's TwoSum: sum + error is exactly product + c.
        let c_part = self.b.ins().fsub(sum, product);
        let product_part = self.b.ins().fsub(sum, c_part);
        let product_error = self.b.ins().fsub(product, product_part);
        let c_error = self.b.ins().fsub(c, c_part);
        let error = self.b.ins().fadd(product_error, c_error);

        // Two ordered comparisons detect an inexact sum. If the sum is infinite or NaN, the error
        // is NaN, and both comparisons are false, so the sum stays unchanged.
        let zero = self.constant64(types::F64X2, 0);
        let below = self.b.ins().fcmp(FloatCC::LessThan, error, zero);
        let above = self.b.ins().fcmp(FloatCC::GreaterThan, error, zero);
        let inexact = self.b.ins().bor(below, above);
        let (sum, error) = (self.cast(types::I64X2, sum), self.cast(types::I64X2, error));
        let (zero, one) = (self.constant64(types::I64X2, 0), self.constant64(types::I64X2, 1));
        let lowest = self.b.ins().band(sum, one);
        let even = self.b.ins().icmp(IntCC::Equal, lowest, zero);
        // An inexact sum with an even significand is replaced by its odd neighbour on the side of
        // the exact sum: +1 away from zero, -1 towards zero.
        let signs = self.b.ins().bxor(sum, error);
        let direction = self.b.ins().icmp(IntCC::SignedLessThan, signs, zero);
        let step = self.b.ins().bor(direction, one);
        let wanted = self.b.ins().band(inexact, even);
        let step = self.b.ins().band(step, wanted);
        let odd = self.b.ins().iadd(sum, step);
        let odd = self.cast(types::F64X2, odd);
        self.b.ins().fvdemote(odd)
    }
}
