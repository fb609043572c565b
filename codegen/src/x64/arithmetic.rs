//! Selection of arithmetic, comparisons, conversions and dot products.
//!
//! Each op is one instruction, except narrowing and (with EVEX) `sign`. Vectors narrower than 16
//! bytes use the 128-bit form. A single float uses the `ss` form, so that a scalar in memory can be
//! an operand.

use iced_x86::Code;
use ixc_ir::kernel::{Elem, Type, ValueId};

use super::codes::*;
use super::families::{BinaryOp, Extension, Reduction, ShiftOp, UnaryOp};
use super::locations::Read;
use super::machine::{Class, Inst, Opcode, Rm, Vreg, Width};
use super::select::Selector;

/// Predicate of `vcmpps`: less than, false for NaN, without exceptions.
pub(super) const LT_OQ: i64 = 17;
/// Rounding mode of `vcvtps2ph`: to nearest even, independent of MXCSR.
const NEAREST_EVEN: i64 = 0;

/// Returns the instruction of a two-operand op, and whether its operands may be exchanged; `None`
/// if the op's type rule excludes the element type.
fn binary_codes(op: BinaryOp, elem: Elem, scalar: bool) -> Option<(Codes, bool)> {
    let float = |packed, single| if scalar { single } else { packed };
    let bytes_too = |b, w, d| match elem {
        Elem::I8 => Some(b),
        Elem::I16 => Some(w),
        Elem::I32 => Some(d),
        Elem::F16 | Elem::Bf16 | Elem::F32 => None,
    };
    let words = |w, d| match elem {
        Elem::I16 => Some(w),
        Elem::I32 => Some(d),
        Elem::I8 | Elem::F16 | Elem::Bf16 | Elem::F32 => None,
    };
    Some(match op {
        BinaryOp::Add => (float(ADDPS, ADDSS), true),
        BinaryOp::Sub => (float(SUBPS, SUBSS), false),
        BinaryOp::Mul => (float(MULPS, MULSS), true),
        BinaryOp::Div => (float(DIVPS, DIVSS), false),
        // Both instructions return the second operand if either is NaN or both are zeros: exactly
        // `a < b ? a : b`.
        BinaryOp::Min => (float(MINPS, MINSS), false),
        BinaryOp::Max => (float(MAXPS, MAXSS), false),
        BinaryOp::IAdd => (bytes_too(PADDB, PADDW, PADDD)?, true),
        BinaryOp::ISub => (bytes_too(PSUBB, PSUBW, PSUBD)?, false),
        BinaryOp::IMul => (words(PMULLW, PMULLD)?, true),
        BinaryOp::IMin => (bytes_too(PMINSB, PMINSW, PMINSD)?, true),
        BinaryOp::IMax => (bytes_too(PMAXSB, PMAXSW, PMAXSD)?, true),
        BinaryOp::Sign => (bytes_too(PSIGNB, PSIGNW, PSIGND)?, false),
        BinaryOp::Dot2U8S8 => (PMADDUBSW, false),
        BinaryOp::Dot2S16 => (PMADDWD, true),
        BinaryOp::ShuffleBytes => (PSHUFB, false),
    })
}

/// Functions that return an option return `None` for types that the op's type rule excludes.
impl Selector<'_> {
    /// Selects ops of two operands.
    pub fn binary(&mut self, op: BinaryOp, ty: Type, a: ValueId, b: ValueId) -> Option<Vreg> {
        let scalar = ty == Type::f32(1);
        let bytes = ty.bytes();
        if op == BinaryOp::Sign && self.has_evex() {
            return self.sign_evex(ty, a, b);
        }
        if op == BinaryOp::IAdd
            && let Some(sum) = self.add_dot(ty, a, b)
        {
            return Some(sum);
        }
        // Memory operands that the op's instruction accepts.
        let read = if scalar {
            Read::plain(4)
        } else {
            let splat = op != BinaryOp::Dot2S16 && matches!(ty.elem, Elem::I32 | Elem::F32);
            Read { bytes: bytes.max(16), splat }
        };
        let (codes, commutes) = binary_codes(op, ty.elem, scalar)?;
        let (a, b) = if commutes { self.commute(a, b, read) } else { (self.reg(a), self.rm(b, read)) };
        Some(self.three(codes, bytes, a, b))
    }

    /// Selects ops of one operand, except ops that move lanes or change their width.
    pub fn unary(&mut self, op: UnaryOp, ty: Type, a: ValueId) -> Option<Vreg> {
        let bytes = ty.bytes();
        let codes = match op {
            UnaryOp::Sqrt if ty.lanes == 1 => {
                // The scalar form copies the upper lanes of its first source. If both sources are
                // the same register, the instruction depends on no other register.
                let a = self.reg(a);
                let d = self.vector(bytes);
                let code = Code::VEX_Vsqrtss_xmm_xmm_xmmm32;
                self.emit(Inst::code(code).def(d, Width::X).read(a, Width::X).read(a, Width::X));
                return Some(d);
            }
            UnaryOp::Sqrt => SQRTPS,
            UnaryOp::IAbs => match ty.elem {
                Elem::I8 => PABSB,
                Elem::I16 => PABSW,
                Elem::I32 => PABSD,
                Elem::F16 | Elem::Bf16 | Elem::F32 => return None,
            },
            UnaryOp::ToF32 => CVTDQ2PS,
            UnaryOp::ToI32 => CVTPS2DQ,
            UnaryOp::F16ToF32 => {
                let (code, width) = CVTPH2PS.for_size(bytes);
                let read = bytes.max(16) / 2;
                let a = self.rm(a, Read::plain(read));
                let d = self.vector(bytes);
                self.emit(Inst::code(code).def(d, width).rm(a, Width::from_bytes(read)));
                return Some(d);
            }
            UnaryOp::F32ToF16 => {
                let (code, width) = CVTPS2PH.for_size(self.ty(a).bytes());
                let a = self.reg(a);
                let d = self.vector(bytes);
                self.emit(Inst::code(code).def(d, Width::from_bytes(bytes)).read(a, width).imm(NEAREST_EVEN));
                return Some(d);
            }
        };
        let a = self.rm(a, Read::plain(bytes.max(16)));
        Some(self.two(codes, bytes, a))
    }

    /// Selects shifts by an immediate.
    pub fn shift(&mut self, op: ShiftOp, ty: Type, a: ValueId, by: i64) -> Option<Vreg> {
        let (words, lanes32) = match op {
            ShiftOp::Left => (PSLLW, PSLLD),
            ShiftOp::RightUnsigned => (PSRLW, PSRLD),
            ShiftOp::RightSigned => (PSRAW, PSRAD),
        };
        let codes = match ty.elem {
            Elem::I16 => words,
            Elem::I32 => lanes32,
            Elem::I8 | Elem::F16 | Elem::Bf16 | Elem::F32 => return None,
        };
        let a = self.reg(a);
        Some(self.shift_lanes(codes, ty.bytes(), a, by))
    }

    /// Selects `a * b + c`.
    pub fn fma(&mut self, a: ValueId, b: ValueId, c: ValueId, ty: Type) -> Vreg {
        let scalar = ty.lanes == 1;
        let read = if scalar { Read::plain(4) } else { Read::lanes32(ty.bytes().max(16)) };
        let width = Width::from_bytes(ty.bytes());
        let (a, b) = self.commute(a, b, read);
        let c = if matches!(b, Rm::Mem(_)) { Rm::Reg(self.reg(c)) } else { self.rm(c, read) };
        let d = self.vector(ty.bytes());
        let operand = |inst: Inst, rm| match rm {
            Rm::Reg(v) => inst.read(v, width),
            Rm::Mem(mem) => inst.mem(mem),
        };
        let inst = Inst::new(Opcode::Fma { scalar }).def(d, width).read(a, width);
        self.emit(operand(operand(inst, b), c));
        d
    }

    /// Selects `mask ? a : b`.
    pub fn choose(&mut self, mask: ValueId, a: ValueId, b: ValueId, ty: Type) -> Vreg {
        if self.has_evex() {
            return self.choose_evex(mask, a, b, ty);
        }
        let (code, width) = BLENDVPS.for_size(ty.bytes());
        let (mask, b) = (self.reg(mask), self.reg(b));
        let a = self.rm(a, Read::plain(ty.bytes().max(16)));
        let d = self.vector(ty.bytes());
        self.emit(Inst::code(code).def(d, width).read(b, width).rm(a, width).read(mask, width));
        d
    }

    /// Selects sign or zero extension.
    pub fn extend(&mut self, extension: Extension, a: ValueId, ty: Type) -> Option<Vreg> {
        let from = self.ty(a);
        let [bytes_to_words, bytes_to_lanes32, words_to_lanes32] = match extension {
            Extension::Sign => [PMOVSXBW, PMOVSXBD, PMOVSXWD],
            Extension::Zero => [PMOVZXBW, PMOVZXBD, PMOVZXWD],
        };
        let codes = match (from.elem, ty.elem) {
            (Elem::I8, Elem::I16) => bytes_to_words,
            (Elem::I8, Elem::I32) => bytes_to_lanes32,
            (Elem::I16, Elem::I32) => words_to_lanes32,
            (Elem::I8 | Elem::I16 | Elem::I32 | Elem::F16 | Elem::Bf16 | Elem::F32, _) => return None,
        };
        let (code, width) = codes.for_size(ty.bytes());
        let read = ty.bytes().max(16) / ty.elem.bytes() * from.elem.bytes();
        let a = self.rm(a, Read::plain(read));
        let d = self.vector(ty.bytes());
        self.emit(Inst::code(code).def(d, width).rm(a, Width::from_bytes(read)));
        Some(d)
    }

    /// Selects `sign`: `a`, negated where `b` is negative, and zero where `b` is zero. `vpsign` has
    /// no EVEX form.
    fn sign_evex(&mut self, ty: Type, a: ValueId, b: ValueId) -> Option<Vreg> {
        let bytes = ty.bytes();
        let (signs, test, spread, subtract) = match ty.elem {
            Elem::I8 => (PMOVB2M, PTESTMB, PMOVM2B, PSUBB),
            Elem::I16 => (PMOVW2M, PTESTMW, PMOVM2W, PSUBW),
            Elem::I32 => (PMOVD2M, PTESTMD, PMOVM2D, PSUBD),
            Elem::F16 | Elem::Bf16 | Elem::F32 => return None,
        };
        let (a, b) = (self.reg(a), self.reg(b));
        let (code, width) = signs.for_size(bytes);
        let (negative, nonzero) = (self.f.vreg(Class::Mask), self.f.vreg(Class::Mask));
        self.emit(Inst::code(code).def(negative, Width::K).read(b, width));
        let ones = self.vector(bytes);
        self.emit(Inst::code(spread.for_size(bytes).0).def(ones, width).read(negative, Width::K));
        // -a is (a ^ -1) - -1.
        let flipped = self.three(PXOR, bytes, a, Rm::Reg(ones));
        self.emit(Inst::code(test.for_size(bytes).0).def(nonzero, Width::K).read(b, width).read(b, width));
        let d = self.vector(bytes);
        let code = subtract.for_size(bytes).0;
        self.emit(
            Inst::code(code).def(d, width).read(flipped, width).rm(Rm::Reg(ones), width).with_mask(nonzero, true),
        );
        Some(d)
    }

    /// Selects narrowing with signed saturation. The 256-bit packs work per 16 bytes, so without
    /// EVEX a wide source is split first.
    pub fn narrow(&mut self, a: ValueId, ty: Type) -> Option<Vreg> {
        let from = self.ty(a);
        let (codes, pack) = match (from.elem, ty.elem) {
            (Elem::I32, Elem::I16) => (PMOVSDW, PACKSSDW),
            (Elem::I32, Elem::I8) => (PMOVSDB, PACKSSDW),
            (Elem::I16, Elem::I8) => (PMOVSWB, PACKSSWB),
            (Elem::I8 | Elem::I16 | Elem::I32 | Elem::F16 | Elem::Bf16 | Elem::F32, _) => return None,
        };
        let low = self.reg(a);
        if from.bytes() > 16 && self.has_evex() {
            let (code, width) = codes.for_size(from.bytes());
            let d = self.vector(ty.bytes());
            self.emit(Inst::code(code).def(d, Width::from_bytes(ty.bytes())).read(low, width));
            return Some(d);
        }
        let high = if from.bytes() > 16 { self.upper_half(low, 32, false) } else { low };
        let packed = self.three(pack, 16, low, Rm::Reg(high));
        if from.elem == Elem::I32 && ty.elem == Elem::I8 {
            // Saturating twice gives the same result as once, because the narrower range is inside
            // the wider one.
            return Some(self.three(PACKSSWB, 16, packed, Rm::Reg(packed)));
        }
        Some(packed)
    }

    /// Combines the upper half of the lanes with the lower half, until one lane remains.
    pub fn reduce(&mut self, op: Reduction, a: ValueId) -> Option<Vreg> {
        let from = self.ty(a);
        let float = match from.elem {
            Elem::F32 => true,
            Elem::I32 => false,
            Elem::I8 | Elem::I16 | Elem::F16 | Elem::Bf16 => return None,
        };
        let step = match (op, float) {
            (Reduction::Add, true) => BinaryOp::Add,
            (Reduction::Add, false) => BinaryOp::IAdd,
            (Reduction::Max, true) => BinaryOp::Max,
            (Reduction::Max, false) => BinaryOp::IMax,
            (Reduction::Min, true) => BinaryOp::Min,
            (Reduction::Min, false) => BinaryOp::IMin,
        };
        let mut sum = self.reg(a);
        let mut lanes = from.lanes;
        while lanes > 1 {
            let upper = if lanes >= 8 {
                self.upper_half(sum, u32::from(lanes) * 4, float)
            } else {
                self.upper_lanes(sum, lanes / 2, float)
            };
            lanes /= 2;
            let scalar = float && lanes == 1;
            let (codes, _) = binary_codes(step, from.elem, scalar)?;
            sum = self.three(codes, u32::from(lanes) * 4, sum, Rm::Reg(upper));
        }
        Some(sum)
    }
}
