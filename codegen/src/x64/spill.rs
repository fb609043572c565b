//! Spilling one value: it lives in memory, and each access gets a register of its own for one instruction.
//!
//! Where the encoding allows, the slot (or the constant in the pool) is the operand itself and no register is needed. A
//! constant has no slot: it is made again from the pool.

use super::constants::move_inward;
use super::machine::{Base, Class, Function, Inst, Mem, Opcode, Operand, Rm, Role, Vreg, Width};
use iced_x86::Code;

/// Where a spilled value went.
pub enum Spilled {
    /// To a slot of the frame.
    Slot,
    /// Nowhere: it is a constant, read from the pool at each use.
    Constant,
    /// Nowhere: it is a constant, now held in the inner loops that use it.
    Inward,
}

/// Spills a value.
pub fn spill(f: &mut Function, v: Vreg) -> Spilled {
    let constant = only_constant(f, v);
    if let (Some(id), Some(held)) = (constant, f.held.get(&v).copied())
        && move_inward(f, v, id, Some(held))
    {
        return Spilled::Inward;
    }
    let (home, constant) = match constant {
        Some(id) => (Mem::pool(id), Some(id)),
        None => {
            f.slots.push(match f.vregs[v.index()] {
                Class::Gpr => 8,
                Class::Vector { bytes } => bytes,
            });
            (Mem::slot(f.slots.len() as u32 - 1), None)
        }
    };
    for b in 0..f.blocks.len() {
        replace(f, b, v, home, constant);
    }
    if constant.is_some() { Spilled::Constant } else { Spilled::Slot }
}

/// Makes every use of a constant in a block its own.
pub fn fold_constant(f: &mut Function, block: usize, v: Vreg, constant: u32) {
    replace(f, block, v, Mem::pool(constant), Some(constant));
}

/// Replaces every access to a value in a block by its home in memory.
fn replace(f: &mut Function, block: usize, v: Vreg, home: Mem, constant: Option<u32>) {
    let (class, width) = (f.vregs[v.index()], f.width(v));
    // An idiom is cheaper than a load.
    let foldable = constant.is_none_or(|id| !f.is_idiom(id));
    let mut made: Vec<Inst> = Vec::with_capacity(f.blocks[block].insts.len());
    for mut inst in std::mem::take(&mut f.blocks[block].insts) {
        let (mut read, mut written) = (false, false);
        inst.for_each(|w, role| {
            if w == v {
                read |= role != Role::Def;
                written |= role != Role::Use;
            }
        });
        if !read && !written {
            made.push(inst);
            continue;
        }
        if constant.is_some() && written {
            // The one definition: every use reads the pool.
            continue;
        }
        if foldable && fold(&mut inst, v, home, class) {
            made.push(inst);
            continue;
        }
        let origin = inst.origin;
        let piece = f.vreg(class);
        f.unspillable.insert(piece);
        inst.rename(|w, _| if w == v { piece } else { w });
        if read {
            let load = match constant {
                Some(id) => Inst::new(Opcode::Constant(id)).def(piece, width),
                None => move_code(class).def(piece, width).rm(Rm::Mem(home), width),
            };
            made.push(Inst { origin, ..load });
        }
        made.push(inst);
        if written {
            made.push(Inst { origin, ..store_code(class).mem(home).read(piece, width) });
        }
    }
    f.blocks[block].insts = made;
}

/// The pool entry of a value whose only definition is a constant.
fn only_constant(f: &Function, v: Vreg) -> Option<u32> {
    let mut found = None;
    let mut definitions = 0;
    for inst in f.layout.iter().flat_map(|b| &f.blocks[b.index()].insts) {
        inst.for_each(|w, role| definitions += u32::from(w == v && role != Role::Use));
        if let (Opcode::Constant(id), Operand::Reg(w, ..)) = (inst.opcode, inst.operands[0])
            && w == v
        {
            found = Some(id);
        }
    }
    found.filter(|_| definitions == 1)
}

fn move_code(class: Class) -> Inst {
    Inst::code(match class {
        Class::Gpr => Code::Mov_r64_rm64,
        Class::Vector { bytes: 32 } => Code::VEX_Vmovups_ymm_ymmm256,
        Class::Vector { .. } => Code::VEX_Vmovups_xmm_xmmm128,
    })
}

fn store_code(class: Class) -> Inst {
    Inst::code(match class {
        Class::Gpr => Code::Mov_rm64_r64,
        Class::Vector { bytes: 32 } => Code::VEX_Vmovups_ymmm256_ymm,
        Class::Vector { .. } => Code::VEX_Vmovups_xmmm128_xmm,
    })
}

/// Makes the memory an operand of the instruction itself, where its only mention of the value allows that.
fn fold(inst: &mut Inst, v: Vreg, home: Mem, class: Class) -> bool {
    let mut mentions = 0;
    inst.for_each(|w, _| mentions += u32::from(w == v));
    let has_memory = inst.operands.iter().any(|o| matches!(o, Operand::Mem(_)));
    if mentions != 1 || has_memory {
        return false;
    }
    let Some(place) = inst.operands.iter().position(|o| matches!(o, Operand::Reg(w, ..) if *w == v)) else {
        return false;
    };
    let Operand::Reg(_, width, role) = inst.operands[place] else { return false };
    match (inst.opcode, inst.operands) {
        (Opcode::Copy, [_, Operand::Reg(from, ..), ..]) if place == 0 => {
            *inst = Inst { origin: inst.origin, ..store_code(class).mem(home).read(from, copy_width(class)) };
            true
        }
        (Opcode::Copy, [Operand::Reg(to, ..), ..]) => {
            *inst =
                Inst { origin: inst.origin, ..move_code(class).def(to, copy_width(class)).rm(Rm::Mem(home), width) };
            true
        }
        // Any one of its sources may be memory.
        (Opcode::Fma { .. }, _) if role == Role::Use => {
            inst.operands[place] = Operand::Mem(home);
            true
        }
        // A pool entry is only read, and has as many bytes as the operand reads.
        _ if inst.rm == Some(place as u8) && (role == Role::Use || !matches!(home.base, Base::Pool(_))) => {
            inst.operands[place] = Operand::Mem(home);
            true
        }
        _ => false,
    }
}

fn copy_width(class: Class) -> Width {
    match class {
        Class::Gpr => Width::R64,
        Class::Vector { bytes: 32 } => Width::Y,
        Class::Vector { .. } => Width::X,
    }
}
