//! Selection of bf16 conversions and products. With AVX512-BF16, each op is one or two
//! instructions. Otherwise, it becomes integer arithmetic and multiply-adds.
//!
//! A bf16 is the upper half of a single. Rounding to nearest even adds half a unit, minus one if
//! the upper half is even; the carry may run into the exponent. This could turn NaNs into
//! infinities, so NaNs are made quiet instead. Denormals become zeros, as with the conversion
//! instructions.
//!
//! `vdpbf16ps` computes two multiply-adds without denormals in operands or results, independent of
//! MXCSR. Without this instruction, comparisons find the denormals; see
//! [`fma_flushed`](Selector::fma_flushed). This takes 30 instructions, so tuned kernels use other
//! products on such targets.

use ixc_ir::kernel::{Type, ValueId};

use super::arithmetic::LT_OQ;
use super::codes::*;
use super::combine::{A, B, C};
use super::locations::Read;
use super::machine::{Class, Inst, Opcode, Rm, Vreg, Width};
use super::select::Selector;
use ixc_targets::Feature;

/// Predicate of `vcmpps`: one of the operands is NaN, without exceptions.
const UNORD_Q: i64 = 3;
/// Immediate of `vpblendw`: odd words come from the second source.
const ODD_WORDS: i64 = 0b1010_1010;

impl Selector<'_> {
    /// Converts singles to bf16.
    pub fn to_bf16(&mut self, a: ValueId, ty: Type) -> Vreg {
        let from = self.ty(a).bytes();
        if self.f.target.has(Feature::Avx512bf16) {
            let (code, width) = CVTNEPS2BF16.for_size(from);
            let a = self.rm(a, Read::plain(from.max(16)));
            let d = self.vector(ty.bytes());
            self.emit(Inst::code(code).def(d, Width::from_bytes(ty.bytes())).rm(a, width));
            return d;
        }
        let a = self.reg(a);
        let rounded = self.round_to_bf16(a, from);
        let low = self.shift_lanes(PSRLD, from, rounded, 16);
        if self.has_evex() {
            let (code, width) = PMOVDW.for_size(from);
            let d = self.vector(ty.bytes());
            self.emit(Inst::code(code).def(d, Width::from_bytes(ty.bytes())).read(low, width));
            return d;
        }
        let high = if from > 16 { self.upper_half(low, 32, false) } else { low };
        self.three(PACKUSDW, 16, low, Rm::Reg(high))
    }

    /// Converts to bf16 pairs: the even lanes come from `a`, the odd lanes from `b`.
    pub fn to_bf16_pairs(&mut self, a: ValueId, b: ValueId, ty: Type) -> Vreg {
        let bytes = ty.bytes();
        if self.f.target.has(Feature::Avx512bf16) {
            // The first source becomes the upper half, the second the lower half.
            let b = self.reg(b);
            let a = self.rm(a, Read::lanes32(bytes.max(16)));
            let halves = self.three(CVTNE2PS2BF16, bytes, b, a);
            let half = (bytes.max(16) / 4) as u16;
            let places = (0..half).flat_map(|i| [i, half + i]).flat_map(u16::to_le_bytes).collect();
            let (_, places) = self.constant(places);
            return self.three(PERMW, bytes, places, Rm::Reg(halves));
        }
        let (a, b) = (self.reg(a), self.reg(b));
        let (a, b) = (self.round_to_bf16(a, bytes), self.round_to_bf16(b, bytes));
        let low = self.shift_lanes(PSRLD, bytes, a, 16);
        if !self.has_evex() {
            return self.three_imm(PBLENDW, bytes, low, Rm::Reg(b), ODD_WORDS);
        }
        let upper = self.lanes_of(0xffff_0000, bytes);
        let d = self.vector(bytes);
        let width = self.f.width(d);
        let inst = Inst::new(Opcode::Ternary(A & B | C)).def(d, width);
        self.emit(inst.read(b, width).read(upper, width).read(low, width));
        d
    }

    /// Converts bf16 to singles.
    pub fn bf16_to_f32(&mut self, a: ValueId, ty: Type) -> Vreg {
        let (code, width) = PMOVZXWD.for_size(ty.bytes());
        let read = ty.bytes().max(16) / 2;
        let a = self.rm(a, Read::plain(read));
        let low = self.vector(ty.bytes());
        self.emit(Inst::code(code).def(low, width).rm(a, Width::from_bytes(read)));
        self.shift_lanes(PSLLD, ty.bytes(), low, 16)
    }

    /// Adds to `acc` first the products of the odd lanes of bf16 pairs, then the products of the
    /// even lanes.
    pub fn dot2_bf16(&mut self, ty: Type, acc: ValueId, a: ValueId, b: ValueId) -> Vreg {
        let bytes = ty.bytes();
        if self.f.target.has_dot2_bf16() {
            let (code, width) = DPBF16PS.for_size(bytes);
            return self.overwrite(code, width, ty, acc, a, b);
        }
        let (acc, a, b) = (self.reg(acc), self.reg(a), self.reg(b));
        let upper = self.lanes_of(0xffff_0000, bytes);
        let mut sum = self.flush(acc, acc, f32::MIN_POSITIVE, bytes);
        for odd in [true, false] {
            let [a, b] = [a, b].map(|pairs| {
                let single = match odd {
                    true => self.three(PAND, bytes, pairs, Rm::Reg(upper)),
                    false => self.shift_lanes(PSLLD, bytes, pairs, 16),
                };
                self.flush(single, single, f32::MIN_POSITIVE, bytes)
            });
            sum = self.fma_flushed(a, b, sum, bytes);
        }
        sum
    }

    /// Computes `a * b + c`, rounded once, for numbers that are not denormal. If the result rounded
    /// to 24 bits is below 2^-126, it becomes zero with the same sign.
    ///
    /// The test for a small result uses `a * b + c` scaled by 2^24, to stay above the lower end of
    /// the exponent range. If scaled factors overflow, the scaled result is zero or far above the
    /// limit.
    fn fma_flushed(&mut self, a: Vreg, b: Vreg, c: Vreg, bytes: u32) -> Vreg {
        let sum = self.fma_lanes(a, b, c, bytes);
        let mut up = |x: Vreg, power: i32| {
            let factor = self.lanes_of(2f32.powi(power).to_bits(), bytes);
            self.three(MULPS, bytes, x, Rm::Reg(factor))
        };
        let (a, b, c) = (up(a, 12), up(b, 12), up(c, 24));
        let up = self.fma_lanes(a, b, c, bytes);
        self.flush(sum, up, f32::MIN_POSITIVE * 2f32.powi(24), bytes)
    }

    /// Computes `a * b + c` in every lane.
    fn fma_lanes(&mut self, a: Vreg, b: Vreg, c: Vreg, bytes: u32) -> Vreg {
        let (d, width) = (self.vector(bytes), Width::from_bytes(bytes));
        let inst = Inst::new(Opcode::Fma { scalar: false }).def(d, width);
        self.emit(inst.read(a, width).read(b, width).read(c, width));
        d
    }

    /// Replaces `x` with a zero of the same sign in lanes where the magnitude of `test` is below
    /// `limit`.
    fn flush(&mut self, x: Vreg, test: Vreg, limit: f32, bytes: u32) -> Vreg {
        let width = Width::from_bytes(bytes);
        let magnitude = self.lanes_of(0x7fff_ffff, bytes);
        let magnitude = self.three(PAND, bytes, test, Rm::Reg(magnitude));
        let sign = self.lanes_of(0x8000_0000, bytes);
        let zero = self.three(PAND, bytes, x, Rm::Reg(sign));
        let limit = self.lanes_of(limit.to_bits(), bytes);
        if self.has_evex() {
            let small = self.f.vreg(Class::Mask);
            let compare = Inst::code(CMPPS.at(width)).def(small, Width::K).read(magnitude, width).read(limit, width);
            self.emit(compare.imm(LT_OQ));
            return self.blend(small, zero, x, width);
        }
        let small = self.three_imm(CMPPS_VEX, bytes, magnitude, Rm::Reg(limit), LT_OQ);
        self.blend_vex(small, zero, x, width)
    }

    /// Rounds each lane to bf16. The result is in the upper half of the lane; the lower half is
    /// undefined.
    fn round_to_bf16(&mut self, a: Vreg, bytes: u32) -> Vreg {
        let upper = self.shift_lanes(PSRLD, bytes, a, 16);
        let one = self.lanes_of(1, bytes);
        let odd = self.three(PAND, bytes, upper, Rm::Reg(one));
        let half = self.lanes_of(0x7fff, bytes);
        let up = self.three(PADDD, bytes, a, Rm::Reg(half));
        let rounded = self.three(PADDD, bytes, up, Rm::Reg(odd));
        let quiet = self.lanes_of(0x40_0000, bytes);
        let nan = self.three(POR, bytes, a, Rm::Reg(quiet));
        let sign = self.lanes_of(0x8000_0000, bytes);
        let zero = self.three(PAND, bytes, a, Rm::Reg(sign));
        let exponent = self.lanes_of(0x7f80_0000, bytes);
        let width = Width::from_bytes(bytes);
        if self.has_evex() {
            let (is_nan, is_tiny) = (self.f.vreg(Class::Mask), self.f.vreg(Class::Mask));
            let compare = Inst::code(CMPPS.at(width)).def(is_nan, Width::K).read(a, width).read(a, width);
            self.emit(compare.imm(UNORD_Q));
            let normal = self.blend(is_nan, nan, rounded, width);
            let test = Inst::code(PTESTNMD.at(width)).def(is_tiny, Width::K).read(a, width);
            self.emit(test.rm(Rm::Reg(exponent), width));
            return self.blend(is_tiny, zero, normal, width);
        }
        let is_nan = self.three_imm(CMPPS_VEX, bytes, a, Rm::Reg(a), UNORD_Q);
        let normal = self.blend_vex(is_nan, nan, rounded, width);
        let of_a = self.three(PAND, bytes, a, Rm::Reg(exponent));
        let none = self.lanes_of(0, bytes);
        let is_tiny = self.three(PCMPEQD_VEX, bytes, of_a, Rm::Reg(none));
        self.blend_vex(is_tiny, zero, normal, width)
    }

    /// Computes `mask ? a : b`.
    fn blend(&mut self, mask: Vreg, a: Vreg, b: Vreg, width: Width) -> Vreg {
        let d = self.f.vreg(self.f.vregs[b.index()]);
        self.emit(Inst::code(PBLENDMD.at(width)).def(d, width).read(b, width).read(a, width).with_mask(mask, false));
        d
    }

    /// Computes `mask ? a : b` with a vector mask.
    fn blend_vex(&mut self, mask: Vreg, a: Vreg, b: Vreg, width: Width) -> Vreg {
        let d = self.f.vreg(self.f.vregs[b.index()]);
        self.emit(Inst::code(BLENDVPS.at(width)).def(d, width).read(b, width).read(a, width).read(mask, width));
        d
    }

    /// Returns the constant of equal 32-bit lanes for a vector of `bytes` bytes.
    pub fn lanes_of(&mut self, lane: u32, bytes: u32) -> Vreg {
        self.constant(lane.to_le_bytes().repeat(bytes.max(16) as usize / 4)).1
    }

    /// Shifts every lane by an immediate.
    pub fn shift_lanes(&mut self, codes: Codes, bytes: u32, a: Vreg, by: i64) -> Vreg {
        let (code, width) = codes.for_size(bytes);
        let d = self.vector(bytes);
        // The VEX forms by an immediate take registers only.
        self.emit(Inst::code(code).def(d, width).read(a, width).imm(by));
        d
    }
}
