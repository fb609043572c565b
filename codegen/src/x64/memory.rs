//! Selection of constants, loads and stores.
//!
//! Values of 8 and 4 bytes are loaded and stored with the scalar moves; of 2 and 1 with a broadcasting load (one
//! instruction, and what stands above the value is arbitrary anyway) and an extracting store.

use iced_x86::Code;
use ixc_ir::kernel::{Elem, Imm, Inst as Statement, Op, Type, ValueId};

use super::X64Error;
use super::machine::{Inst, Mem, Rm, Vreg, Width};
use super::select::Selector;

impl Selector<'_> {
    /// Ops without operands: constants, indices and loads.
    pub fn without_operands(&mut self, inst: &Statement) -> Result<(), X64Error> {
        let Some(result) = inst.result else { return Ok(()) };
        let ty = inst.ty;
        match (inst.op, &inst.address) {
            (Op::Splat, _) => self.define_constant(result, splat_bytes(ty, &inst.imm)),
            (Op::Bytes, _) => {
                let bytes = if let Imm::Bytes(bytes) = &inst.imm { bytes.clone() } else { Vec::new() };
                self.define_constant(result, bytes);
            }
            (Op::Iota, _) => {
                let bytes = (0..i32::from(ty.lanes)).flat_map(i32::to_le_bytes).collect();
                self.define_constant(result, bytes);
            }
            (Op::Index, _) => {
                let d = self.vector(4);
                if let Some(value) = &inst.index {
                    let x = self.affine(value, false);
                    self.emit(Inst::code(Code::VEX_Vmovd_xmm_rm32).def(d, Width::X).read(x, Width::R32).or_mem());
                }
                self.set(result, d);
            }
            (Op::Load, Some(address)) => {
                let mem = self.mem(address);
                self.define_load(result, ty, mem);
            }
            (Op::LoadSplat, Some(address)) => {
                let mem = self.mem(address);
                if ty.lanes == 1 {
                    self.define_load(result, ty, mem);
                } else {
                    let d = self.vector(ty.bytes());
                    self.broadcast_into(d, ty.elem, mem);
                    self.set(result, d);
                }
            }
            (op, _) => return Err(X64Error::Malformed { op, ty }),
        }
        Ok(())
    }

    /// Loads a value.
    pub fn load_into(&mut self, d: Vreg, ty: Type, mem: Mem) {
        let float = ty.elem == Elem::F32;
        let (code, width) = match ty.bytes() {
            32 if float => (Code::VEX_Vmovups_ymm_ymmm256, Width::Y),
            32 => (Code::VEX_Vmovdqu_ymm_ymmm256, Width::Y),
            16 if float => (Code::VEX_Vmovups_xmm_xmmm128, Width::X),
            16 => (Code::VEX_Vmovdqu_xmm_xmmm128, Width::X),
            8 if float => (Code::VEX_Vmovsd_xmm_m64, Width::X),
            8 => (Code::VEX_Vmovq_xmm_xmmm64, Width::X),
            4 if float => (Code::VEX_Vmovss_xmm_m32, Width::X),
            4 => (Code::VEX_Vmovd_xmm_rm32, Width::X),
            2 => (Code::VEX_Vpbroadcastw_xmm_xmmm16, Width::X),
            _ => (Code::VEX_Vpbroadcastb_xmm_xmmm8, Width::X),
        };
        self.emit(Inst::code(code).def(d, width).mem(mem));
    }

    fn broadcast_into(&mut self, d: Vreg, elem: Elem, mem: Mem) {
        let width = self.f.width(d);
        self.emit(Inst::code(broadcast_code(elem, width, true)).def(d, width).mem(mem));
    }

    /// A scalar, in a register or still in memory, in every lane.
    pub fn broadcast(&mut self, scalar: ValueId, ty: Type) -> Vreg {
        let d = self.vector(ty.bytes());
        if self.in_memory(scalar, ty.elem.bytes())
            && let Rm::Mem(mem) = self.rm(scalar, ty.elem.bytes())
        {
            self.broadcast_into(d, ty.elem, mem);
            return d;
        }
        let source = self.reg(scalar);
        let width = self.f.width(d);
        self.emit(Inst::code(broadcast_code(ty.elem, width, false)).def(d, width).read(source, Width::X));
        d
    }

    /// Stores a value; loads that wait are made first, as the store could change what they read.
    pub fn store(&mut self, inst: &Statement, value: ValueId) -> Result<(), X64Error> {
        let ty = inst.ty;
        let Some(address) = &inst.address else { return Err(X64Error::Malformed { op: inst.op, ty }) };
        let source = self.reg(value);
        self.settle_all();
        let mem = self.mem(address);
        let float = ty.elem == Elem::F32;
        let (code, width, lane) = match ty.bytes() {
            32 if float => (Code::VEX_Vmovups_ymmm256_ymm, Width::Y, false),
            32 => (Code::VEX_Vmovdqu_ymmm256_ymm, Width::Y, false),
            16 if float => (Code::VEX_Vmovups_xmmm128_xmm, Width::X, false),
            16 => (Code::VEX_Vmovdqu_xmmm128_xmm, Width::X, false),
            8 if float => (Code::VEX_Vmovsd_m64_xmm, Width::X, false),
            8 => (Code::VEX_Vmovq_xmmm64_xmm, Width::X, false),
            4 if float => (Code::VEX_Vmovss_m32_xmm, Width::X, false),
            4 => (Code::VEX_Vmovd_rm32_xmm, Width::X, false),
            2 => (Code::VEX_Vpextrw_r32m16_xmm_imm8, Width::X, true),
            _ => (Code::VEX_Vpextrb_r32m8_xmm_imm8, Width::X, true),
        };
        let store = Inst::code(code).mem(mem).read(source, width);
        self.emit(if lane { store.imm(0) } else { store });
        Ok(())
    }
}

/// The bytes of a splat: at least 16, so that lanes above a narrow value are of its kind too.
fn splat_bytes(ty: Type, imm: &Imm) -> Vec<u8> {
    let element = match (imm, ty.elem) {
        (Imm::Float(x), _) => x.to_le_bytes(),
        (Imm::Int(i), Elem::F32) => (*i as f32).to_le_bytes(),
        (Imm::Int(i), _) => (*i as i32).to_le_bytes(),
        (Imm::None | Imm::Bytes(_), _) => [0; 4],
    };
    let element = &element[..ty.elem.bytes() as usize];
    element.iter().copied().cycle().take(ty.bytes().max(16) as usize).collect()
}

/// The instruction that puts one element, from memory or from the low lane of a register, into every lane. Only `vbroadcastss` has
/// two codes for the two.
fn broadcast_code(elem: Elem, width: Width, from_memory: bool) -> Code {
    let wide = width == Width::Y;
    match elem {
        Elem::I8 if wide => Code::VEX_Vpbroadcastb_ymm_xmmm8,
        Elem::I8 => Code::VEX_Vpbroadcastb_xmm_xmmm8,
        Elem::I16 | Elem::F16 if wide => Code::VEX_Vpbroadcastw_ymm_xmmm16,
        Elem::I16 | Elem::F16 => Code::VEX_Vpbroadcastw_xmm_xmmm16,
        Elem::I32 if wide => Code::VEX_Vpbroadcastd_ymm_xmmm32,
        Elem::I32 => Code::VEX_Vpbroadcastd_xmm_xmmm32,
        Elem::F32 => match (wide, from_memory) {
            (true, true) => Code::VEX_Vbroadcastss_ymm_m32,
            (false, true) => Code::VEX_Vbroadcastss_xmm_m32,
            (true, false) => Code::VEX_Vbroadcastss_ymm_xmm,
            (false, false) => Code::VEX_Vbroadcastss_xmm_xmm,
        },
    }
}
