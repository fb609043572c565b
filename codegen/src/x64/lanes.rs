//! Selection of ops that move lanes: slices, halves, interleaving, shuffles.

use iced_x86::Code;
use ixc_ir::kernel::{Elem, Op, Type, ValueId};

use super::machine::{Inst, Rm, Vreg, Width};
use super::select::{Codes, Selector};

const VPSHUFD: Codes = Codes(Code::VEX_Vpshufd_xmm_xmmm128_imm8, Code::VEX_Vpshufd_ymm_ymmm256_imm8);
const VPERMILPS: Codes = Codes(Code::VEX_Vpermilps_xmm_xmmm128_imm8, Code::VEX_Vpermilps_ymm_ymmm256_imm8);
const UNPACK_LO: [Codes; 4] = [
    Codes(Code::VEX_Vpunpcklbw_xmm_xmm_xmmm128, Code::VEX_Vpunpcklbw_ymm_ymm_ymmm256),
    Codes(Code::VEX_Vpunpcklwd_xmm_xmm_xmmm128, Code::VEX_Vpunpcklwd_ymm_ymm_ymmm256),
    Codes(Code::VEX_Vpunpckldq_xmm_xmm_xmmm128, Code::VEX_Vpunpckldq_ymm_ymm_ymmm256),
    Codes(Code::VEX_Vpunpcklqdq_xmm_xmm_xmmm128, Code::VEX_Vpunpcklqdq_ymm_ymm_ymmm256),
];
const UNPACK_HI: [Codes; 4] = [
    Codes(Code::VEX_Vpunpckhbw_xmm_xmm_xmmm128, Code::VEX_Vpunpckhbw_ymm_ymm_ymmm256),
    Codes(Code::VEX_Vpunpckhwd_xmm_xmm_xmmm128, Code::VEX_Vpunpckhwd_ymm_ymm_ymmm256),
    Codes(Code::VEX_Vpunpckhdq_xmm_xmm_xmmm128, Code::VEX_Vpunpckhdq_ymm_ymm_ymmm256),
    Codes(Code::VEX_Vpunpckhqdq_xmm_xmm_xmmm128, Code::VEX_Vpunpckhqdq_ymm_ymm_ymmm256),
];

/// Selects the upper halves of both sources of `vperm2i128`.
const UPPER_HALVES: i64 = 0x31;
/// Exchanges neighbouring 32-bit lanes: 1, 0, 3, 2.
const SWAP_PAIRS: i64 = 0xb1;

impl Selector<'_> {
    /// The upper 16 bytes of a 32-byte register.
    pub fn upper_half(&mut self, a: Vreg, elem: Elem) -> Vreg {
        let code = match elem {
            Elem::F32 => Code::VEX_Vextractf128_xmmm128_ymm_imm8,
            Elem::I8 | Elem::I16 | Elem::I32 | Elem::F16 => Code::VEX_Vextracti128_xmmm128_ymm_imm8,
        };
        let d = self.vector(16);
        self.emit(Inst::code(code).def(d, Width::X).read(a, Width::Y).imm(1));
        d
    }

    /// The 32-bit lanes of a 16-byte register from number `first` (1 or 2) on, in the lowest lanes.
    pub fn upper_lanes(&mut self, a: Vreg, first: u16, float: bool) -> Vreg {
        let imm = if first == 2 { 0b_11_10_11_10 } else { 0b_11_11_01_01 };
        self.two_imm(if float { VPERMILPS } else { VPSHUFD }, 16, Rm::Reg(a), imm)
    }

    /// Lanes from number `first` (not 0) on.
    pub fn slice(&mut self, a: ValueId, ty: Type, first: i64) -> Vreg {
        let mut at = first * i64::from(ty.elem.bytes());
        let mut a = self.reg(a);
        if at >= 16 {
            a = self.upper_half(a, ty.elem);
            at -= 16;
        }
        match at {
            0 => a,
            // Lane shuffles stay in the float domain; the byte shift costs a bypass there.
            _ if ty.elem == Elem::F32 => {
                let lane = at / 4;
                let imm = (0..4).fold(0, |imm, i| imm | ((lane + i).min(3) << (2 * i)));
                self.two_imm(VPERMILPS, 16, Rm::Reg(a), imm)
            }
            _ => {
                let d = self.vector(16);
                let code = Code::VEX_Vpsrldq_xmm_xmm_imm8;
                self.emit(Inst::code(code).def(d, Width::X).read(a, Width::X).imm(at));
                d
            }
        }
    }

    /// Ops that put parts of two vectors together.
    pub fn combine(&mut self, op: Op, ty: Type, a: ValueId, b: ValueId, unit: i64) -> Vreg {
        let bytes = ty.bytes();
        let float = ty.elem == Elem::F32;
        let (insert, halves) = if float {
            (Code::VEX_Vinsertf128_ymm_ymm_xmmm128_imm8, Code::VEX_Vperm2f128_ymm_ymm_ymmm256_imm8)
        } else {
            (Code::VEX_Vinserti128_ymm_ymm_xmmm128_imm8, Code::VEX_Vperm2i128_ymm_ymm_ymmm256_imm8)
        };
        match op {
            Op::JoinHi => {
                let (a, b) = (self.reg(a), self.rm(b, 32));
                self.three_imm(Codes(halves, halves), 32, a, b, UPPER_HALVES)
            }
            // The lower half of `b` is what a 16-byte operand reads, also in memory.
            Op::Concat | Op::JoinLo if bytes == 32 => {
                let (a, b) = (self.reg(a), self.rm(b, 16));
                let d = self.vector(32);
                self.emit(Inst::code(insert).def(d, Width::Y).read(a, Width::Y).rm(b, Width::X).imm(1));
                d
            }
            Op::Concat if bytes == 16 && self.in_memory(b, 8) => {
                let (a, b) = (self.reg(a), self.rm(b, 8));
                let d = self.vector(16);
                let inst = Inst::code(Code::VEX_Vmovhps_xmm_xmm_m64).def(d, Width::X).read(a, Width::X);
                self.emit(match b {
                    Rm::Reg(b) => inst.read(b, Width::X),
                    Rm::Mem(mem) => inst.mem(mem),
                });
                d
            }
            Op::Concat => {
                let unit = (bytes / 2).trailing_zeros() as usize;
                let (a, b) = (self.reg(a), self.rm(b, 16));
                self.three(UNPACK_LO[unit], bytes, a, b)
            }
            _ => {
                let codes = if op == Op::UnpackHi { UNPACK_HI } else { UNPACK_LO };
                let (a, b) = (self.reg(a), self.rm(b, bytes));
                self.three(codes[unit.trailing_zeros().min(3) as usize], bytes, a, b)
            }
        }
    }

    /// Exchanges lanes 2i and 2i + 1.
    pub fn swap_pairs(&mut self, a: ValueId, ty: Type) -> Vreg {
        let codes = if ty.elem == Elem::F32 { VPERMILPS } else { VPSHUFD };
        let a = self.rm(a, ty.bytes().max(16));
        self.two_imm(codes, ty.bytes(), a, SWAP_PAIRS)
    }
}
