//! Spilling: moves values from registers to slots of the frame, and constants to inner loops or
//! uses.
//!
//! A value in a slot gets a new register for each instruction that accesses it, or is a memory
//! operand where the encoding allows. A constant has no slot. At first, registers hold it only
//! around inner loops ([`super::constants`]). If it is spilled again, each use sets it, or reads it
//! from the pool as a memory operand. One walk over the function handles all values that are
//! spilled in a round.

use std::collections::{HashMap, HashSet};

use iced_x86::Code;

use super::codes::{MOVUPS, MOVUPS_STORE};
use super::machine::{Base, Class, Function, Inst, LoopId, Mem, Opcode, Operand, Rm, Role, Vreg};

/// New location of a spilled value.
#[derive(Clone, Copy, Debug)]
pub enum Eviction {
    /// The value is in this slot of the frame.
    Slot(u32),
    /// The value is a constant of the pool.
    Constant {
        /// Number of the constant in the pool.
        id: u32,
        /// The loop around which a register held the constant so far (`None`: the whole function).
        /// It is set if inner loops can hold the constant instead.
        held: Option<Option<LoopId>>,
    },
}

/// Decides the new location of each value: a constant moves inward, any other value goes to a new
/// slot.
pub fn plan(f: &mut Function, values: &[Vreg]) -> HashMap<Vreg, Eviction> {
    let mut definitions = vec![0_u32; f.vregs.len()];
    let mut constants = vec![None; f.vregs.len()];
    for inst in f.blocks.iter().flat_map(|b| &b.insts) {
        inst.for_each(|v, role| definitions[v.index()] += u32::from(role != Role::Use));
        if let (Opcode::Constant(id), Operand::Reg(v, ..)) = (inst.opcode, inst.operands[0]) {
            constants[v.index()] = Some(id);
        }
    }
    let mut plan = HashMap::new();
    for &v in values {
        let eviction = match constants[v.index()].filter(|_| definitions[v.index()] == 1) {
            Some(id) => Eviction::Constant { id, held: f.held.get(&v).map(|held| Some(*held)) },
            None => {
                f.slots.push(match f.vregs[v.index()] {
                    Class::Gpr => 8,
                    Class::Vector { bytes } => bytes,
                    // Never reached, because the allocator does not spill masks and tiles.
                    Class::Mask | Class::Tile { .. } => 8,
                });
                Eviction::Slot(f.slots.len() as u32 - 1)
            }
        };
        plan.insert(v, eviction);
    }
    plan
}

/// Removes values from their registers. Returns the constants among these values that new registers
/// hold around inner loops.
pub fn evict(f: &mut Function, plan: &HashMap<Vreg, Eviction>) -> HashSet<Vreg> {
    // An array instead of a map, because every operand is looked up. Registers created during the
    // walk are never spilled.
    let mut taken = vec![false; f.vregs.len()];
    plan.keys().for_each(|v| taken[v.index()] = true);
    let mut inward = HashMap::new();
    let mut before_loops = Vec::new();
    for block in 0..f.blocks.len() {
        let insts = std::mem::take(&mut f.blocks[block].insts);
        let mut made = Vec::with_capacity(insts.len());
        for mut inst in insts {
            let mut evicted = Vec::new();
            inst.for_each(|v, _| {
                if taken.get(v.index()).is_some_and(|taken| *taken) && !evicted.contains(&v) {
                    evicted.push(v);
                }
            });
            let (mut behind, mut dropped) = (None, false);
            for v in evicted {
                let (mut read, mut written) = (false, false);
                inst.for_each(|w, role| {
                    if w == v {
                        read |= role != Role::Def;
                        written |= role != Role::Use;
                    }
                });
                let (class, width) = (f.vregs[v.index()], f.width(v));
                let origin = inst.origin;
                match plan[&v] {
                    // Drops the only definition of the constant, because every use now has its own
                    // definition.
                    Eviction::Constant { .. } if written => dropped = true,
                    Eviction::Constant { id, held } => {
                        let child = held.and_then(|held| loop_inside(f, f.blocks[block].in_loop, held));
                        if let Some(child) = child {
                            let register = *inward.entry((v, child)).or_insert_with(|| {
                                let register = f.vreg(class);
                                f.held.insert(register, child);
                                let constant = Inst::new(Opcode::Constant(id)).def(register, width);
                                before_loops.push((child, Inst { origin, ..constant }));
                                register
                            });
                            inst.rename(|w, _| if w == v { register } else { w });
                        } else if f.is_idiom(id) || !fold(&mut inst, v, Mem::pool(id), class) {
                            // Setting all bits to zero or one is cheaper than a load.
                            let piece = f.piece(class);
                            inst.rename(|w, _| if w == v { piece } else { w });
                            made.push(Inst { origin, ..Inst::new(Opcode::Constant(id)).def(piece, width) });
                        }
                    }
                    Eviction::Slot(slot) => {
                        let home = Mem::slot(slot);
                        if fold(&mut inst, v, home, class) {
                            continue;
                        }
                        let piece = f.piece(class);
                        inst.rename(|w, _| if w == v { piece } else { w });
                        if read {
                            let load = move_code(class).def(piece, width).rm(Rm::Mem(home), width);
                            made.push(Inst { origin, ..load });
                        }
                        if written {
                            // No instruction writes two registers, so there is at most one store.
                            behind = Some(Inst { origin, ..store_code(class).mem(home).read(piece, width) });
                        }
                    }
                }
            }
            if !dropped {
                made.push(inst);
            }
            made.extend(behind);
        }
        f.blocks[block].insts = made;
    }
    for (child, constant) in before_loops {
        let preheader = f.loops[child.0 as usize].preheader;
        f.blocks[preheader.index()].insts.push(constant);
    }
    inward.into_keys().map(|(v, _)| v).collect()
}

fn move_code(class: Class) -> Inst {
    Inst::code(match class {
        Class::Gpr | Class::Mask | Class::Tile { .. } => Code::Mov_r64_rm64,
        Class::Vector { bytes } => MOVUPS.for_size(bytes).0,
    })
}

fn store_code(class: Class) -> Inst {
    Inst::code(match class {
        Class::Gpr | Class::Mask | Class::Tile { .. } => Code::Mov_rm64_r64,
        Class::Vector { bytes } => MOVUPS_STORE.for_size(bytes).0,
    })
}

/// Makes the memory an operand of the instruction, if the value occurs once and the encoding allows
/// it.
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
    let Operand::Reg(_, _, role) = inst.operands[place] else { return false };
    let width = class.width();
    let takes_memory = match inst.opcode {
        Opcode::Copy => {
            let Some((to, from)) = inst.as_copy() else { return false };
            *inst = Inst {
                origin: inst.origin,
                ..if place == 0 {
                    store_code(class).mem(home).read(from, width)
                } else {
                    move_code(class).def(to, width).rm(Rm::Mem(home), width)
                }
            };
            return true;
        }
        // Any one of the sources may be memory.
        Opcode::Fma { .. } | Opcode::Ternary(_) => role == Role::Use,
        // A pool entry is read-only. It has as many bytes as the operand reads.
        Opcode::Code(_) | Opcode::Constant(_) => {
            inst.rm == Some(place as u8) && (role == Role::Use || !matches!(home.base, Base::Pool(_)))
        }
    };
    if takes_memory {
        inst.operands[place] = Operand::Mem(home);
    }
    takes_memory
}

/// Returns the loop directly inside `held` that equals or contains the loop `at`. If `held` is
/// `None`, it stands for the whole function.
fn loop_inside(f: &Function, mut at: Option<LoopId>, held: Option<LoopId>) -> Option<LoopId> {
    while let Some(l) = at {
        if at == held {
            return None;
        }
        let parent = f.loops[l.0 as usize].parent;
        if parent == held {
            return Some(l);
        }
        at = parent;
    }
    None
}
