//! Selection of ops that move lanes: slices, halves, interleaving, shuffles.

use iced_x86::Code;
use ixc_ir::kernel::{Elem, Type, ValueId};

use super::codes::{Codes, PERMILPS, PERMW, PSHUFB, PSHUFD, PUNPCKHWD, PUNPCKLWD, UNPACK_HI, UNPACK_LO};
use super::families::CombineOp;
use super::locations::Read;
use super::machine::{Inst, Rm, Vreg, Width};
use super::select::Selector;

/// Immediate of `vperm2i128`: selects the upper halves of both sources.
const UPPER_HALVES: i64 = 0x31;
/// Immediate of `vshufi32x4` with 32 bytes: selects chunk 1 of both sources.
const UPPER_CHUNK: i64 = 0b1_1;
/// Immediate of `vshufi32x4` with 64 bytes: selects chunks 2 and 3 of both sources.
const UPPER_CHUNKS: i64 = 0b11_10_11_10;
/// Immediate that exchanges neighbouring 32-bit lanes: 1, 0, 3, 2.
const SWAP_PAIRS: i64 = 0xb1;

impl Selector<'_> {
    /// Extracts the upper half of a register of 32 or 64 bytes.
    pub fn upper_half(&mut self, a: Vreg, bytes: u32, float: bool) -> Vreg {
        let (code, width) = match (bytes, float) {
            (64, true) => (Code::EVEX_Vextractf32x8_ymmm256_k1z_zmm_imm8, Width::Z),
            (64, false) => (Code::EVEX_Vextracti32x8_ymmm256_k1z_zmm_imm8, Width::Z),
            (_, true) => (Code::VEX_Vextractf128_xmmm128_ymm_imm8, Width::Y),
            (_, false) => (Code::VEX_Vextracti128_xmmm128_ymm_imm8, Width::Y),
        };
        let d = self.vector(bytes / 2);
        self.emit(Inst::code(code).def(d, Width::from_bytes(bytes / 2)).read(a, width).imm(1));
        d
    }

    /// Extracts 16 bytes of a 64-byte register: chunk 2 or 3.
    pub fn upper_chunk(&mut self, a: Vreg, chunk: i64, float: bool) -> Vreg {
        let code = if float {
            Code::EVEX_Vextractf32x4_xmmm128_k1z_zmm_imm8
        } else {
            Code::EVEX_Vextracti32x4_xmmm128_k1z_zmm_imm8
        };
        let d = self.vector(16);
        self.emit(Inst::code(code).def(d, Width::X).read(a, Width::Z).imm(chunk));
        d
    }

    /// Moves the 32-bit lanes of a 16-byte register, from number `first` (1 or 2) on, to the lowest
    /// lanes.
    pub fn upper_lanes(&mut self, a: Vreg, first: u16, float: bool) -> Vreg {
        let imm = if first == 2 { 0b_11_10_11_10 } else { 0b_11_11_01_01 };
        self.two_imm(if float { PERMILPS } else { PSHUFD }, 16, Rm::Reg(a), imm)
    }

    /// Extracts the lanes from number `first` on; `first` is not 0.
    pub fn slice(&mut self, a: ValueId, ty: Type, first: i64) -> Vreg {
        let mut at = first * i64::from(ty.elem.bytes());
        let mut a = self.reg(a);
        let float = ty.elem == Elem::F32;
        match (at / 16, ty.bytes()) {
            (0, _) => {}
            (_, 32) => return self.upper_half(a, 64, float),
            (1, _) => a = self.upper_half(a, 32, float),
            (chunk, _) => a = self.upper_chunk(a, chunk, float),
        }
        at %= 16;
        if at == 0 {
            return a;
        }
        // Floats use lane shuffles: the byte shift would cost a bypass delay.
        if float {
            let lane = at / 4;
            let imm = (0..4).fold(0, |imm, i| imm | ((lane + i).min(3) << (2 * i)));
            return self.two_imm(PERMILPS, 16, Rm::Reg(a), imm);
        }
        let d = self.vector(16);
        let code = Code::VEX_Vpsrldq_xmm_xmm_imm8;
        self.emit(Inst::code(code).def(d, Width::X).read(a, Width::X).imm(at));
        d
    }

    /// Selects ops that combine parts of two vectors.
    pub fn combine(&mut self, op: CombineOp, ty: Type, a: ValueId, b: ValueId, unit: i64) -> Vreg {
        let bytes = ty.bytes();
        let float = ty.elem == Elem::F32;
        match op {
            CombineOp::JoinHi => {
                let (code, imm) = match (bytes, float) {
                    (64, true) => (Code::EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8, UPPER_CHUNKS),
                    (64, false) => (Code::EVEX_Vshufi32x4_zmm_k1z_zmm_zmmm512b32_imm8, UPPER_CHUNKS),
                    (_, true) if self.has_evex() => (Code::EVEX_Vshuff32x4_ymm_k1z_ymm_ymmm256b32_imm8, UPPER_CHUNK),
                    (_, false) if self.has_evex() => (Code::EVEX_Vshufi32x4_ymm_k1z_ymm_ymmm256b32_imm8, UPPER_CHUNK),
                    (_, true) => (Code::VEX_Vperm2f128_ymm_ymm_ymmm256_imm8, UPPER_HALVES),
                    (_, false) => (Code::VEX_Vperm2i128_ymm_ymm_ymmm256_imm8, UPPER_HALVES),
                };
                let (a, b) = (self.reg(a), self.rm(b, Read::plain(bytes)));
                let (d, width) = (self.vector(bytes), Width::from_bytes(bytes));
                self.emit(Inst::code(code).def(d, width).read(a, width).rm(b, width).imm(imm));
                d
            }
            CombineOp::JoinLo => self.insert_upper(ty, a, b),
            CombineOp::Concat if bytes >= 32 => self.insert_upper(ty, a, b),
            CombineOp::Concat if bytes == 16 && self.in_memory(b, Read::plain(8)) => {
                let (a, b) = (self.reg(a), self.rm(b, Read::plain(8)));
                let d = self.vector(16);
                let inst = Inst::code(Code::VEX_Vmovhps_xmm_xmm_m64).def(d, Width::X).read(a, Width::X);
                self.emit(match b {
                    Rm::Reg(b) => inst.read(b, Width::X),
                    Rm::Mem(mem) => inst.mem(mem),
                });
                d
            }
            CombineOp::Concat => {
                let unit = (bytes / 2).trailing_zeros() as usize;
                let (a, b) = (self.reg(a), self.rm(b, Read::plain(16)));
                self.three(UNPACK_LO[unit], bytes, a, b)
            }
            CombineOp::UnpackLo => self.unpack(UNPACK_LO, ty, a, b, unit),
            CombineOp::UnpackHi => self.unpack(UNPACK_HI, ty, a, b, unit),
        }
    }

    /// Joins the lower halves of two registers of at least 32 bytes. The instruction reads only the
    /// lower half of `b`, so `b` may be a memory operand of half the width.
    fn insert_upper(&mut self, ty: Type, a: ValueId, b: ValueId) -> Vreg {
        let bytes = ty.bytes();
        let code = match (bytes, ty.elem == Elem::F32) {
            (64, true) => Code::EVEX_Vinsertf32x8_zmm_k1z_zmm_ymmm256_imm8,
            (64, false) => Code::EVEX_Vinserti32x8_zmm_k1z_zmm_ymmm256_imm8,
            (_, true) => Code::VEX_Vinsertf128_ymm_ymm_xmmm128_imm8,
            (_, false) => Code::VEX_Vinserti128_ymm_ymm_xmmm128_imm8,
        };
        let (a, b) = (self.reg(a), self.rm(b, Read::plain(bytes / 2)));
        let (d, width) = (self.vector(bytes), Width::from_bytes(bytes));
        self.emit(Inst::code(code).def(d, width).read(a, width).rm(b, Width::from_bytes(bytes / 2)).imm(1));
        d
    }

    /// Interleaves units of `unit` bytes of two operands, within each 16 bytes.
    fn unpack(&mut self, codes: [Codes; 4], ty: Type, a: ValueId, b: ValueId, unit: i64) -> Vreg {
        let (a, b) = (self.reg(a), self.rm(b, Read::plain(ty.bytes())));
        self.three(codes[unit.trailing_zeros().min(3) as usize], ty.bytes(), a, b)
    }

    /// Interleaves words: each word of the lower half is followed by the word of the upper half
    /// with the same index.
    pub fn interleave(&mut self, a: ValueId, ty: Type) -> Vreg {
        let bytes = ty.bytes();
        let half = ty.lanes / 2;
        let places = (0..half).flat_map(|i| [i, half + i]);
        if self.has_evex() {
            let places = places.chain(2 * half..(bytes.max(16) / 2) as u16).flat_map(u16::to_le_bytes).collect();
            let (_, places) = self.constant(places);
            let a = self.rm(a, Read::plain(bytes.max(16)));
            return self.three(PERMW, bytes, places, a);
        }
        let a = self.reg(a);
        if bytes <= 16 {
            let places = places.chain(2 * half..8).flat_map(|i| [2 * i as u8, 2 * i as u8 + 1]).collect();
            let (_, places) = self.constant(places);
            return self.three(PSHUFB, bytes, a, Rm::Reg(places));
        }
        let upper = self.upper_half(a, bytes, false);
        let low = self.three(PUNPCKLWD, 16, a, Rm::Reg(upper));
        let high = self.three(PUNPCKHWD, 16, a, Rm::Reg(upper));
        let d = self.vector(bytes);
        let inst = Inst::code(Code::VEX_Vinserti128_ymm_ymm_xmmm128_imm8).def(d, Width::Y);
        self.emit(inst.read(low, Width::Y).read(high, Width::X).imm(1));
        d
    }

    /// Exchanges lanes 2i and 2i + 1.
    pub fn swap_pairs(&mut self, a: ValueId, ty: Type) -> Vreg {
        let codes = if ty.elem == Elem::F32 { PERMILPS } else { PSHUFD };
        let a = self.rm(a, Read::plain(ty.bytes().max(16)));
        self.two_imm(codes, ty.bytes(), a, SWAP_PAIRS)
    }
}
