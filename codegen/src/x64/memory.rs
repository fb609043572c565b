//! Selection of constants, loads and stores.
//!
//! Values of 8 and 4 bytes use the scalar moves. Values of 2 and 1 bytes use a broadcasting load
//! and an extracting store. The broadcasting load is one instruction, and the lanes above the value
//! are undefined anyway.

use iced_x86::Code;
use ixc_ir::kernel::{BufferKind, Elem, Imm, Inst as Statement, Type, ValueId};

use super::X64Error;
use super::codes::{
    BROADCASTSS, BROADCASTSS_LOAD, Codes, MOVDQU, MOVDQU_STORE, MOVUPS, MOVUPS_STORE, PBROADCASTB, PBROADCASTD,
    PBROADCASTW,
};
use super::families::NullaryOp;
use super::locations::Read;
use super::machine::{Inst, Mem, Rm, Vreg, Width};
use super::select::Selector;
use super::statement::{malformed_error, operand_of, result_of};

impl Selector<'_> {
    /// Selects a hint that a cache line will be loaded.
    pub fn prefetch(&mut self, inst: &Statement) -> Result<(), X64Error> {
        let address = inst.address.as_ref().ok_or_else(|| malformed_error(inst))?;
        let mem = self.mem(address);
        self.emit(Inst::code(Code::Prefetcht0_m8).mem(mem));
        Ok(())
    }

    /// Selects ops without operands: constants, indices and loads.
    pub fn nullary(&mut self, op: NullaryOp, inst: &Statement) -> Result<(), X64Error> {
        let (ty, result) = (inst.ty, result_of(inst)?);
        let address = inst.address.as_ref().ok_or_else(|| malformed_error(inst));
        match op {
            NullaryOp::Splat => self.define_constant(result, splat_bytes(ty, &inst.imm)),
            NullaryOp::Bytes => {
                let bytes = if let Imm::Bytes(bytes) = &inst.imm { bytes.clone() } else { Vec::new() };
                self.define_constant(result, bytes);
            }
            NullaryOp::Iota => {
                let bytes = (0..i32::from(ty.lanes)).flat_map(i32::to_le_bytes).collect();
                self.define_constant(result, bytes);
            }
            NullaryOp::Index => {
                let value = inst.index.as_ref().ok_or_else(|| malformed_error(inst))?;
                let x = self.affine(value, false);
                let d = self.from_integer(x);
                self.set(result, d);
            }
            NullaryOp::Load => {
                let address = address?;
                let mem = self.mem(address);
                let read_only = self.kernel.buffers[address.buffer.0 as usize].kind == BufferKind::Read;
                // Records the address for table lookups, if the displacements of all its bytes fit.
                if read_only && ty.elem == Elem::I8 && mem.disp.checked_add(ty.bytes() as i32).is_some() {
                    self.origins.insert(result, (self.current, mem));
                }
                self.define_load(result, ty, mem);
            }
            NullaryOp::LoadSplat => {
                let mem = self.mem(address?);
                if ty.lanes == 1 {
                    self.define_load(result, ty, mem);
                } else {
                    self.define_splat(result, ty, mem);
                }
            }
        }
        Ok(())
    }

    /// Loads a value.
    pub fn load_into(&mut self, d: Vreg, ty: Type, mem: Mem) {
        let float = ty.elem == Elem::F32;
        let (code, width) = match ty.bytes() {
            16.. => if float { MOVUPS } else { MOVDQU }.for_size(ty.bytes()),
            8 if float => (Code::VEX_Vmovsd_xmm_m64, Width::X),
            8 => (Code::VEX_Vmovq_xmm_xmmm64, Width::X),
            4 if float => (Code::VEX_Vmovss_xmm_m32, Width::X),
            4 => (Code::VEX_Vmovd_xmm_rm32, Width::X),
            2 => (Code::VEX_Vpbroadcastw_xmm_xmmm16, Width::X),
            _ => (Code::VEX_Vpbroadcastb_xmm_xmmm8, Width::X),
        };
        self.emit(Inst::code(code).def(d, width).mem(mem));
    }

    /// Loads one element into every lane.
    pub fn broadcast_into(&mut self, d: Vreg, elem: Elem, mem: Mem) {
        let width = self.f.width(d);
        let codes = if elem == Elem::F32 { BROADCASTSS_LOAD } else { broadcast_codes(elem) };
        self.emit(Inst::code(codes.at(width)).def(d, width).mem(mem));
    }

    /// Defines a value as a scalar that is copied to every lane. The scalar is in a register or
    /// still in memory.
    pub fn broadcast(&mut self, result: ValueId, scalar: ValueId, ty: Type) {
        let read = Read::plain(ty.elem.bytes());
        if self.in_memory(scalar, read)
            && let Rm::Mem(mem) = self.rm(scalar, read)
        {
            self.define_splat(result, ty, mem);
            return;
        }
        let d = self.vector(ty.bytes());
        let source = self.reg(scalar);
        let width = self.f.width(d);
        self.emit(Inst::code(broadcast_codes(ty.elem).at(width)).def(d, width).read(source, Width::X));
        self.set(result, d);
    }

    /// Stores a value. Emits deferred loads first, because the store could change their memory.
    pub fn store(&mut self, inst: &Statement) -> Result<(), X64Error> {
        let (ty, value) = (inst.ty, operand_of(inst, 0)?);
        let address = inst.address.as_ref().ok_or_else(|| malformed_error(inst))?;
        let source = self.reg(value);
        self.settle_all();
        let mem = self.mem(address);
        let float = ty.elem == Elem::F32;
        let (code, width, lane) = match ty.bytes() {
            16.. => {
                let (code, width) = if float { MOVUPS_STORE } else { MOVDQU_STORE }.for_size(ty.bytes());
                (code, width, false)
            }
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

/// Returns the bytes of a splat, at least 16. The lanes above a narrow value thus have the same
/// value.
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

/// Returns the instruction that copies one element to every lane. The element is in memory or in
/// the low lane of a register; only `vbroadcastss` has separate codes for the two cases.
fn broadcast_codes(elem: Elem) -> Codes {
    match elem {
        Elem::I8 => PBROADCASTB,
        Elem::I16 | Elem::F16 | Elem::Bf16 => PBROADCASTW,
        Elem::I32 => PBROADCASTD,
        Elem::F32 => BROADCASTSS,
    }
}
