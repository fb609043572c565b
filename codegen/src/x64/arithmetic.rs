//! Selection of arithmetic, comparisons, conversions and dot products.
//!
//! Each op is one instruction, except narrowing and (with EVEX) `sign`. Values narrower than 16
//! bytes use the 128-bit form. Single floats use the `ss` form, so that a scalar in memory can be
//! an operand.

use iced_x86::Code;
use ixc_ir::kernel::{Elem, Op, Type, ValueId};

use super::X64Error;
use super::codes::*;
use super::locations::{Bitwise, Comparison, Read};
use super::machine::{Class, Inst, Opcode, Rm, Vreg, Width};
use super::select::Selector;

/// `vcmpps` predicate: less, false with NaN, quiet.
pub(super) const LT_OQ: i64 = 17;
/// `vcvtps2ph` rounding: to nearest even, independent of MXCSR.
const NEAREST_EVEN: i64 = 0;

/// Returns the instruction of a two-operand op, and whether its operands may be exchanged.
fn binary_codes(op: Op, elem: Elem, scalar: bool) -> Option<(Codes, bool)> {
    let float = |packed, single| if scalar { single } else { packed };
    let by_elem = |b, w, d| match elem {
        Elem::I8 => b,
        Elem::I16 => w,
        Elem::I32 | Elem::F16 | Elem::Bf16 | Elem::F32 => d,
    };
    Some(match op {
        Op::Add => (float(ADDPS, ADDSS), true),
        Op::Sub => (float(SUBPS, SUBSS), false),
        Op::Mul => (float(MULPS, MULSS), true),
        Op::Div => (float(DIVPS, DIVSS), false),
        // Both instructions return the second operand if either is NaN or both are zeros: exactly
        // `a < b ? a : b`.
        Op::Min => (float(MINPS, MINSS), false),
        Op::Max => (float(MAXPS, MAXSS), false),
        Op::IAdd => (by_elem(PADDB, PADDW, PADDD), true),
        Op::ISub => (by_elem(PSUBB, PSUBW, PSUBD), false),
        Op::IMul => (by_elem(PMULLW, PMULLW, PMULLD), true),
        Op::IMin => (by_elem(PMINSB, PMINSW, PMINSD), true),
        Op::IMax => (by_elem(PMAXSB, PMAXSW, PMAXSD), true),
        Op::Sign => (by_elem(PSIGNB, PSIGNW, PSIGND), false),
        Op::Dot2U8S8 => (PMADDUBSW, false),
        Op::Dot2S16 => (PMADDWD, true),
        Op::ShuffleBytes => (PSHUFB, false),
        _ => return None,
    })
}

impl Selector<'_> {
    /// Selects ops of two operands.
    pub fn binary(&mut self, op: Op, ty: Type, a: ValueId, b: ValueId) -> Result<Vreg, X64Error> {
        let scalar = ty == Type::f32(1);
        let bytes = ty.bytes();
        if let Some(op) = Comparison::of(op) {
            return Ok(self.compare(op, ty, a, b));
        }
        if let Some(op) = Bitwise::of(op) {
            return Ok(self.bitwise(op, ty, a, b));
        }
        if op == Op::Sign && self.has_evex() {
            return Ok(self.sign_evex(ty, a, b));
        }
        if op == Op::IAdd
            && let Some(sum) = self.add_dot(ty, a, b)
        {
            return Ok(sum);
        }
        // Memory operands that the instruction accepts.
        let read = if scalar {
            Read::plain(4)
        } else {
            let splat = op != Op::Dot2S16 && matches!(ty.elem, Elem::I32 | Elem::F32);
            Read { bytes: bytes.max(16), splat }
        };
        let (codes, commutes) = binary_codes(op, ty.elem, scalar).ok_or(X64Error::Malformed { op, ty })?;
        let (a, b) = if commutes { self.commute(a, b, read) } else { (self.reg(a), self.rm(b, read)) };
        Ok(self.three(codes, bytes, a, b))
    }

    /// Selects ops of one operand, except those on lanes and widths.
    pub fn unary(&mut self, op: Op, ty: Type, a: ValueId) -> Result<Vreg, X64Error> {
        let bytes = ty.bytes();
        let codes = match (op, ty.elem) {
            (Op::Sqrt, _) if ty.lanes == 1 => {
                // The scalar form copies the upper lanes of its first source. With the same
                // register as both sources, it has no other dependency.
                let a = self.reg(a);
                let d = self.vector(bytes);
                let code = Code::VEX_Vsqrtss_xmm_xmm_xmmm32;
                self.emit(Inst::code(code).def(d, Width::X).read(a, Width::X).read(a, Width::X));
                return Ok(d);
            }
            (Op::Sqrt, _) => SQRTPS,
            (Op::IAbs, Elem::I8) => PABSB,
            (Op::IAbs, Elem::I16) => PABSW,
            (Op::IAbs, _) => PABSD,
            (Op::ToF32, _) => CVTDQ2PS,
            (Op::ToI32, _) => CVTPS2DQ,
            (Op::F16ToF32, _) => {
                let (code, width) = CVTPH2PS.of(bytes);
                let read = bytes.max(16) / 2;
                let a = self.rm(a, Read::plain(read));
                let d = self.vector(bytes);
                self.emit(Inst::code(code).def(d, width).rm(a, Width::of(read)));
                return Ok(d);
            }
            (Op::F32ToF16, _) => {
                let (code, width) = CVTPS2PH.of(self.ty(a).bytes());
                let a = self.reg(a);
                let d = self.vector(bytes);
                self.emit(Inst::code(code).def(d, Width::of(bytes)).read(a, width).imm(NEAREST_EVEN));
                return Ok(d);
            }
            _ => return Err(X64Error::Malformed { op, ty }),
        };
        let a = self.rm(a, Read::plain(bytes.max(16)));
        Ok(self.two(codes, bytes, a))
    }

    /// Selects shifts by an immediate.
    pub fn shift(&mut self, op: Op, ty: Type, a: ValueId, by: i64) -> Result<Vreg, X64Error> {
        let codes = match (op, ty.elem) {
            (Op::Shl, Elem::I16) => PSLLW,
            (Op::Shl, Elem::I32) => PSLLD,
            (Op::ShrU, Elem::I16) => PSRLW,
            (Op::ShrU, Elem::I32) => PSRLD,
            (Op::ShrS, Elem::I16) => PSRAW,
            (Op::ShrS, Elem::I32) => PSRAD,
            _ => return Err(X64Error::Malformed { op, ty }),
        };
        let a = self.reg(a);
        Ok(self.shift_lanes(codes, ty.bytes(), a, by))
    }

    /// Selects `a * b + c`.
    pub fn fma(&mut self, a: ValueId, b: ValueId, c: ValueId, ty: Type) -> Vreg {
        let scalar = ty.lanes == 1;
        let read = if scalar { Read::plain(4) } else { Read::lanes32(ty.bytes().max(16)) };
        let width = Width::of(ty.bytes());
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
        let (code, width) = BLENDVPS.of(ty.bytes());
        let (mask, b) = (self.reg(mask), self.reg(b));
        let a = self.rm(a, Read::plain(ty.bytes().max(16)));
        let d = self.vector(ty.bytes());
        self.emit(Inst::code(code).def(d, width).read(b, width).rm(a, width).read(mask, width));
        d
    }

    /// Selects sign or zero extension.
    pub fn extend(&mut self, signed: bool, a: ValueId, ty: Type) -> Result<Vreg, X64Error> {
        let from = self.ty(a);
        let codes = match (signed, from.elem, ty.elem) {
            (true, Elem::I8, Elem::I16) => PMOVSXBW,
            (true, Elem::I8, Elem::I32) => PMOVSXBD,
            (true, Elem::I16, Elem::I32) => PMOVSXWD,
            (false, Elem::I8, Elem::I16) => PMOVZXBW,
            (false, Elem::I8, Elem::I32) => PMOVZXBD,
            (false, Elem::I16, Elem::I32) => PMOVZXWD,
            _ => return Err(X64Error::Malformed { op: Op::ExtendS, ty }),
        };
        let (code, width) = codes.of(ty.bytes());
        let read = ty.bytes().max(16) / ty.elem.bytes() * from.elem.bytes();
        let a = self.rm(a, Read::plain(read));
        let d = self.vector(ty.bytes());
        self.emit(Inst::code(code).def(d, width).rm(a, Width::of(read)));
        Ok(d)
    }

    /// Selects `sign`: `a`, negated where `b` is negative, and zero where `b` is zero. `vpsign` has
    /// no EVEX form.
    fn sign_evex(&mut self, ty: Type, a: ValueId, b: ValueId) -> Vreg {
        let bytes = ty.bytes();
        let (signs, test, spread, subtract) = match ty.elem {
            Elem::I8 => (PMOVB2M, PTESTMB, PMOVM2B, PSUBB),
            Elem::I16 => (PMOVW2M, PTESTMW, PMOVM2W, PSUBW),
            Elem::I32 | Elem::F16 | Elem::Bf16 | Elem::F32 => (PMOVD2M, PTESTMD, PMOVM2D, PSUBD),
        };
        let (a, b) = (self.reg(a), self.reg(b));
        let (code, width) = signs.of(bytes);
        let (negative, nonzero) = (self.f.vreg(Class::Mask), self.f.vreg(Class::Mask));
        self.emit(Inst::code(code).def(negative, Width::K).read(b, width));
        let ones = self.vector(bytes);
        self.emit(Inst::code(spread.of(bytes).0).def(ones, width).read(negative, Width::K));
        // -a is (a ^ -1) - -1.
        let flipped = self.three(PXOR, bytes, a, Rm::Reg(ones));
        self.emit(Inst::code(test.of(bytes).0).def(nonzero, Width::K).read(b, width).read(b, width));
        let d = self.vector(bytes);
        let code = subtract.of(bytes).0;
        self.emit(Inst::code(code).def(d, width).read(flipped, width).rm(Rm::Reg(ones), width).masked(nonzero, true));
        d
    }

    /// Selects narrowing with signed saturation. The 256-bit packs work per 16 bytes, so without
    /// EVEX a wide source is split first.
    pub fn narrow(&mut self, a: ValueId, ty: Type) -> Vreg {
        let from = self.ty(a);
        let low = self.reg(a);
        if from.bytes() > 16 && self.has_evex() {
            let codes = match (from.elem, ty.elem) {
                (Elem::I32, Elem::I16) => PMOVSDW,
                (Elem::I32, _) => PMOVSDB,
                _ => PMOVSWB,
            };
            let (code, width) = codes.of(from.bytes());
            let d = self.vector(ty.bytes());
            self.emit(Inst::code(code).def(d, Width::of(ty.bytes())).read(low, width));
            return d;
        }
        let high = if from.bytes() > 16 { self.upper_half(low, 32, false) } else { low };
        let first = if from.elem == Elem::I32 { PACKSSDW } else { PACKSSWB };
        let packed = self.three(first, 16, low, Rm::Reg(high));
        if from.elem == Elem::I32 && ty.elem == Elem::I8 {
            // Saturating twice is saturating once: the narrower range is inside the wider.
            return self.three(PACKSSWB, 16, packed, Rm::Reg(packed));
        }
        packed
    }

    /// Folds the upper half onto the lower until one lane remains.
    pub fn reduce(&mut self, op: Op, a: ValueId) -> Result<Vreg, X64Error> {
        let from = self.ty(a);
        let float = from.elem == Elem::F32;
        let step = match (op, float) {
            (Op::ReduceAdd, true) => Op::Add,
            (Op::ReduceAdd, false) => Op::IAdd,
            (Op::ReduceMax, true) => Op::Max,
            (Op::ReduceMax, false) => Op::IMax,
            (Op::ReduceMin, true) => Op::Min,
            (Op::ReduceMin, false) => Op::IMin,
            _ => return Err(X64Error::Malformed { op, ty: from }),
        };
        let mut sum = self.reg(a);
        let mut lanes = from.lanes;
        while lanes > 1 {
            let upper = match lanes {
                8.. => self.upper_half(sum, u32::from(lanes) * 4, float),
                _ => self.upper_lanes(sum, lanes / 2, float),
            };
            lanes /= 2;
            let scalar = float && lanes == 1;
            let (codes, _) = binary_codes(step, from.elem, scalar).ok_or(X64Error::Malformed { op, ty: from })?;
            sum = self.three(codes, u32::from(lanes) * 4, sum, Rm::Reg(upper));
        }
        Ok(sum)
    }
}
