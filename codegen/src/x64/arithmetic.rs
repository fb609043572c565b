//! Selection of arithmetic, comparisons, conversions and dot products.
//!
//! Each op is one instruction, but for narrowing. Values narrower than 16 bytes use the 128-bit form; single floats the
//! `ss` form, so that a scalar in memory can be an operand.

use iced_x86::Code;
use ixc_ir::kernel::{Elem, Op, Type, ValueId};

use super::X64Error;
use super::machine::{Inst, Opcode, Rm, Vreg, Width};
use super::select::{Codes, Selector};

macro_rules! codes {
    ($($name:ident $x:ident $y:ident;)*) => {$(
        const $name: Codes = Codes(Code::$x, Code::$y);
    )*};
}

codes! {
    ADDPS VEX_Vaddps_xmm_xmm_xmmm128 VEX_Vaddps_ymm_ymm_ymmm256;
    SUBPS VEX_Vsubps_xmm_xmm_xmmm128 VEX_Vsubps_ymm_ymm_ymmm256;
    MULPS VEX_Vmulps_xmm_xmm_xmmm128 VEX_Vmulps_ymm_ymm_ymmm256;
    DIVPS VEX_Vdivps_xmm_xmm_xmmm128 VEX_Vdivps_ymm_ymm_ymmm256;
    MINPS VEX_Vminps_xmm_xmm_xmmm128 VEX_Vminps_ymm_ymm_ymmm256;
    MAXPS VEX_Vmaxps_xmm_xmm_xmmm128 VEX_Vmaxps_ymm_ymm_ymmm256;
    ADDSS VEX_Vaddss_xmm_xmm_xmmm32 VEX_Vaddss_xmm_xmm_xmmm32;
    SUBSS VEX_Vsubss_xmm_xmm_xmmm32 VEX_Vsubss_xmm_xmm_xmmm32;
    MULSS VEX_Vmulss_xmm_xmm_xmmm32 VEX_Vmulss_xmm_xmm_xmmm32;
    DIVSS VEX_Vdivss_xmm_xmm_xmmm32 VEX_Vdivss_xmm_xmm_xmmm32;
    MINSS VEX_Vminss_xmm_xmm_xmmm32 VEX_Vminss_xmm_xmm_xmmm32;
    MAXSS VEX_Vmaxss_xmm_xmm_xmmm32 VEX_Vmaxss_xmm_xmm_xmmm32;
    PADDB VEX_Vpaddb_xmm_xmm_xmmm128 VEX_Vpaddb_ymm_ymm_ymmm256;
    PADDW VEX_Vpaddw_xmm_xmm_xmmm128 VEX_Vpaddw_ymm_ymm_ymmm256;
    PADDD VEX_Vpaddd_xmm_xmm_xmmm128 VEX_Vpaddd_ymm_ymm_ymmm256;
    PSUBB VEX_Vpsubb_xmm_xmm_xmmm128 VEX_Vpsubb_ymm_ymm_ymmm256;
    PSUBW VEX_Vpsubw_xmm_xmm_xmmm128 VEX_Vpsubw_ymm_ymm_ymmm256;
    PSUBD VEX_Vpsubd_xmm_xmm_xmmm128 VEX_Vpsubd_ymm_ymm_ymmm256;
    PMULLW VEX_Vpmullw_xmm_xmm_xmmm128 VEX_Vpmullw_ymm_ymm_ymmm256;
    PMULLD VEX_Vpmulld_xmm_xmm_xmmm128 VEX_Vpmulld_ymm_ymm_ymmm256;
    PMINSB VEX_Vpminsb_xmm_xmm_xmmm128 VEX_Vpminsb_ymm_ymm_ymmm256;
    PMINSW VEX_Vpminsw_xmm_xmm_xmmm128 VEX_Vpminsw_ymm_ymm_ymmm256;
    PMINSD VEX_Vpminsd_xmm_xmm_xmmm128 VEX_Vpminsd_ymm_ymm_ymmm256;
    PMAXSB VEX_Vpmaxsb_xmm_xmm_xmmm128 VEX_Vpmaxsb_ymm_ymm_ymmm256;
    PMAXSW VEX_Vpmaxsw_xmm_xmm_xmmm128 VEX_Vpmaxsw_ymm_ymm_ymmm256;
    PMAXSD VEX_Vpmaxsd_xmm_xmm_xmmm128 VEX_Vpmaxsd_ymm_ymm_ymmm256;
    PSIGNB VEX_Vpsignb_xmm_xmm_xmmm128 VEX_Vpsignb_ymm_ymm_ymmm256;
    PSIGNW VEX_Vpsignw_xmm_xmm_xmmm128 VEX_Vpsignw_ymm_ymm_ymmm256;
    PSIGND VEX_Vpsignd_xmm_xmm_xmmm128 VEX_Vpsignd_ymm_ymm_ymmm256;
    PAND VEX_Vpand_xmm_xmm_xmmm128 VEX_Vpand_ymm_ymm_ymmm256;
    POR VEX_Vpor_xmm_xmm_xmmm128 VEX_Vpor_ymm_ymm_ymmm256;
    PXOR VEX_Vpxor_xmm_xmm_xmmm128 VEX_Vpxor_ymm_ymm_ymmm256;
    PCMPEQD VEX_Vpcmpeqd_xmm_xmm_xmmm128 VEX_Vpcmpeqd_ymm_ymm_ymmm256;
    PCMPGTD VEX_Vpcmpgtd_xmm_xmm_xmmm128 VEX_Vpcmpgtd_ymm_ymm_ymmm256;
    PMADDUBSW VEX_Vpmaddubsw_xmm_xmm_xmmm128 VEX_Vpmaddubsw_ymm_ymm_ymmm256;
    PMADDWD VEX_Vpmaddwd_xmm_xmm_xmmm128 VEX_Vpmaddwd_ymm_ymm_ymmm256;
    PSHUFB VEX_Vpshufb_xmm_xmm_xmmm128 VEX_Vpshufb_ymm_ymm_ymmm256;
    PACKSSDW VEX_Vpackssdw_xmm_xmm_xmmm128 VEX_Vpackssdw_ymm_ymm_ymmm256;
    PACKSSWB VEX_Vpacksswb_xmm_xmm_xmmm128 VEX_Vpacksswb_ymm_ymm_ymmm256;
    PABSB VEX_Vpabsb_xmm_xmmm128 VEX_Vpabsb_ymm_ymmm256;
    PABSW VEX_Vpabsw_xmm_xmmm128 VEX_Vpabsw_ymm_ymmm256;
    PABSD VEX_Vpabsd_xmm_xmmm128 VEX_Vpabsd_ymm_ymmm256;
    CVTDQ2PS VEX_Vcvtdq2ps_xmm_xmmm128 VEX_Vcvtdq2ps_ymm_ymmm256;
    CVTPS2DQ VEX_Vcvtps2dq_xmm_xmmm128 VEX_Vcvtps2dq_ymm_ymmm256;
    SQRTPS VEX_Vsqrtps_xmm_xmmm128 VEX_Vsqrtps_ymm_ymmm256;
    PSLLW VEX_Vpsllw_xmm_xmm_imm8 VEX_Vpsllw_ymm_ymm_imm8;
    PSLLD VEX_Vpslld_xmm_xmm_imm8 VEX_Vpslld_ymm_ymm_imm8;
    PSRLW VEX_Vpsrlw_xmm_xmm_imm8 VEX_Vpsrlw_ymm_ymm_imm8;
    PSRLD VEX_Vpsrld_xmm_xmm_imm8 VEX_Vpsrld_ymm_ymm_imm8;
    PSRAW VEX_Vpsraw_xmm_xmm_imm8 VEX_Vpsraw_ymm_ymm_imm8;
    PSRAD VEX_Vpsrad_xmm_xmm_imm8 VEX_Vpsrad_ymm_ymm_imm8;
    CMPPS VEX_Vcmpps_xmm_xmm_xmmm128_imm8 VEX_Vcmpps_ymm_ymm_ymmm256_imm8;
}

/// `vcmpps` predicate: less, false with NaN, quiet.
const LT_OQ: i64 = 17;
/// `vcvtps2ph` rounding: nearest even, whatever MXCSR says.
const NEAREST_EVEN: i64 = 0;

/// The instruction of a two-operand op, and whether its operands may be exchanged.
fn binary_codes(op: Op, elem: Elem, scalar: bool) -> Option<(Codes, bool)> {
    let float = |packed, single| if scalar { single } else { packed };
    let by_elem = |b, w, d| match elem {
        Elem::I8 => b,
        Elem::I16 => w,
        Elem::I32 | Elem::F16 | Elem::F32 => d,
    };
    Some(match op {
        Op::Add => (float(ADDPS, ADDSS), true),
        Op::Sub => (float(SUBPS, SUBSS), false),
        Op::Mul => (float(MULPS, MULSS), true),
        Op::Div => (float(DIVPS, DIVSS), false),
        // Both give the second operand where either is NaN or both are zeros: exactly `a < b ? a : b`.
        Op::Min => (float(MINPS, MINSS), false),
        Op::Max => (float(MAXPS, MAXSS), false),
        Op::IAdd => (by_elem(PADDB, PADDW, PADDD), true),
        Op::ISub => (by_elem(PSUBB, PSUBW, PSUBD), false),
        Op::IMul => (by_elem(PMULLW, PMULLW, PMULLD), true),
        Op::IMin => (by_elem(PMINSB, PMINSW, PMINSD), true),
        Op::IMax => (by_elem(PMAXSB, PMAXSW, PMAXSD), true),
        Op::Sign => (by_elem(PSIGNB, PSIGNW, PSIGND), false),
        Op::And => (PAND, true),
        Op::Or => (POR, true),
        Op::Xor => (PXOR, true),
        Op::CmpEq => (PCMPEQD, true),
        Op::CmpGt => (PCMPGTD, false),
        Op::Dot2U8S8 => (PMADDUBSW, false),
        Op::Dot2S16 => (PMADDWD, true),
        Op::ShuffleBytes => (PSHUFB, false),
        _ => return None,
    })
}

impl Selector<'_> {
    /// Ops of two operands.
    pub fn binary(&mut self, op: Op, ty: Type, a: ValueId, b: ValueId) -> Result<Vreg, X64Error> {
        let scalar = ty == Type::f32(1);
        let bytes = ty.bytes();
        // What the instruction reads of a memory operand.
        let read = if scalar { 4 } else { bytes.max(16) };
        if op == Op::CmpLtF {
            let (a, b) = (self.reg(a), self.rm(b, bytes.max(16)));
            return Ok(self.three_imm(CMPPS, bytes, a, b, LT_OQ));
        }
        let (codes, commutes) = binary_codes(op, ty.elem, scalar).ok_or(X64Error::Malformed { op, ty })?;
        let (a, b) = if commutes { self.commute(a, b, read) } else { (self.reg(a), self.rm(b, read)) };
        Ok(self.three(codes, bytes, a, b))
    }

    /// Ops of one operand, but for lanes and widths.
    pub fn unary(&mut self, op: Op, ty: Type, a: ValueId) -> Result<Vreg, X64Error> {
        let bytes = ty.bytes();
        let codes = match (op, ty.elem) {
            (Op::Sqrt, _) if ty.lanes == 1 => {
                // The scalar form merges into its first source: the same register, so that it waits for nothing else.
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
                let (code, width, read) = if bytes > 16 {
                    (Code::VEX_Vcvtph2ps_ymm_xmmm128, Width::Y, 16)
                } else {
                    (Code::VEX_Vcvtph2ps_xmm_xmmm64, Width::X, 8)
                };
                let a = self.rm(a, read);
                let d = self.vector(bytes);
                self.emit(Inst::code(code).def(d, width).rm(a, Width::X));
                return Ok(d);
            }
            (Op::F32ToF16, _) => {
                let (code, width) = if self.ty(a).bytes() > 16 {
                    (Code::VEX_Vcvtps2ph_xmmm128_ymm_imm8, Width::Y)
                } else {
                    (Code::VEX_Vcvtps2ph_xmmm64_xmm_imm8, Width::X)
                };
                let a = self.reg(a);
                let d = self.vector(bytes);
                self.emit(Inst::code(code).def(d, Width::X).read(a, width).imm(NEAREST_EVEN));
                return Ok(d);
            }
            _ => return Err(X64Error::Malformed { op, ty }),
        };
        let a = self.rm(a, bytes.max(16));
        Ok(self.two(codes, bytes, a))
    }

    /// Shifts by an immediate.
    pub fn shift(&mut self, op: Op, ty: Type, a: ValueId, by: i64) -> Result<Vreg, X64Error> {
        let (code, width) = match (op, ty.elem) {
            (Op::Shl, Elem::I16) => PSLLW,
            (Op::Shl, Elem::I32) => PSLLD,
            (Op::ShrU, Elem::I16) => PSRLW,
            (Op::ShrU, Elem::I32) => PSRLD,
            (Op::ShrS, Elem::I16) => PSRAW,
            (Op::ShrS, Elem::I32) => PSRAD,
            _ => return Err(X64Error::Malformed { op, ty }),
        }
        .of(ty.bytes());
        let a = self.reg(a);
        let d = self.vector(ty.bytes());
        // The VEX forms by an immediate take registers only.
        self.emit(Inst::code(code).def(d, width).read(a, width).imm(by));
        Ok(d)
    }

    /// `a * b + c`.
    pub fn fma(&mut self, a: ValueId, b: ValueId, c: ValueId, ty: Type) -> Vreg {
        let scalar = ty.lanes == 1;
        let read = if scalar { 4 } else { ty.bytes().max(16) };
        let width = if ty.bytes() > 16 { Width::Y } else { Width::X };
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

    /// `mask ? a : b`.
    pub fn choose(&mut self, mask: ValueId, a: ValueId, b: ValueId, ty: Type) -> Vreg {
        let (code, width) =
            Codes(Code::VEX_Vblendvps_xmm_xmm_xmmm128_xmm, Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm).of(ty.bytes());
        let (mask, b) = (self.reg(mask), self.reg(b));
        let a = self.rm(a, ty.bytes().max(16));
        let d = self.vector(ty.bytes());
        self.emit(Inst::code(code).def(d, width).read(b, width).rm(a, width).read(mask, width));
        d
    }

    /// Sign or zero extension.
    pub fn extend(&mut self, signed: bool, a: ValueId, ty: Type) -> Result<Vreg, X64Error> {
        let from = self.ty(a);
        // (128-bit form, bytes it reads, 256-bit form, bytes it reads)
        let (x, x_reads, y, y_reads) = match (signed, from.elem, ty.elem) {
            (true, Elem::I8, Elem::I16) => (Code::VEX_Vpmovsxbw_xmm_xmmm64, 8, Code::VEX_Vpmovsxbw_ymm_xmmm128, 16),
            (true, Elem::I8, Elem::I32) => (Code::VEX_Vpmovsxbd_xmm_xmmm32, 4, Code::VEX_Vpmovsxbd_ymm_xmmm64, 8),
            (true, Elem::I16, Elem::I32) => (Code::VEX_Vpmovsxwd_xmm_xmmm64, 8, Code::VEX_Vpmovsxwd_ymm_xmmm128, 16),
            (false, Elem::I8, Elem::I16) => (Code::VEX_Vpmovzxbw_xmm_xmmm64, 8, Code::VEX_Vpmovzxbw_ymm_xmmm128, 16),
            (false, Elem::I8, Elem::I32) => (Code::VEX_Vpmovzxbd_xmm_xmmm32, 4, Code::VEX_Vpmovzxbd_ymm_xmmm64, 8),
            (false, Elem::I16, Elem::I32) => (Code::VEX_Vpmovzxwd_xmm_xmmm64, 8, Code::VEX_Vpmovzxwd_ymm_xmmm128, 16),
            _ => return Err(X64Error::Malformed { op: Op::ExtendS, ty }),
        };
        let (code, width, reads) = if ty.bytes() > 16 { (y, Width::Y, y_reads) } else { (x, Width::X, x_reads) };
        let a = self.rm(a, reads);
        let d = self.vector(ty.bytes());
        self.emit(Inst::code(code).def(d, width).rm(a, Width::X));
        Ok(d)
    }

    /// Narrowing with signed saturation. The 256-bit packs work per 16 bytes, so a wide source is split first.
    pub fn narrow(&mut self, a: ValueId, ty: Type) -> Vreg {
        let from = self.ty(a);
        let low = self.reg(a);
        let high = if from.bytes() > 16 { self.upper_half(low, from.elem) } else { low };
        let first = if from.elem == Elem::I32 { PACKSSDW } else { PACKSSWB };
        let packed = self.three(first, 16, low, Rm::Reg(high));
        if from.elem == Elem::I32 && ty.elem == Elem::I8 {
            // Saturating twice is saturating once: the narrower range is inside the wider.
            return self.three(PACKSSWB, 16, packed, Rm::Reg(packed));
        }
        packed
    }

    /// Folds the upper half onto the lower until one lane is left.
    pub fn reduce(&mut self, op: Op, a: ValueId) -> Result<Vreg, X64Error> {
        let from = self.ty(a);
        let float = from.elem == Elem::F32;
        let step = match (op, float) {
            (Op::ReduceAdd, true) => Op::Add,
            (Op::ReduceAdd, false) => Op::IAdd,
            (Op::ReduceMax, true) => Op::Max,
            (Op::ReduceMax, false) => Op::IMax,
            (_, true) => Op::Min,
            (_, false) => Op::IMin,
        };
        let mut sum = self.reg(a);
        let mut lanes = from.lanes;
        while lanes > 1 {
            let upper = match lanes {
                8.. => self.upper_half(sum, from.elem),
                _ => self.upper_lanes(sum, lanes / 2, float),
            };
            lanes /= 2;
            let scalar = float && lanes == 1;
            let (codes, _) = binary_codes(step, from.elem, scalar).ok_or(X64Error::Malformed { op, ty: from })?;
            sum = self.three(codes, 16, sum, Rm::Reg(upper));
        }
        Ok(sum)
    }
}
