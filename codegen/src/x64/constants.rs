//! Where constants are held in registers.
//!
//! A constant starts out defined nowhere. Around each outermost loop that uses it, it is held in a register, made before
//! the loop; outside loops each use makes its own. If the allocator runs out of registers it moves a constant inward: to
//! the loops inside that use it, and in the end to the instructions themselves, where it is a memory operand if the
//! encoding allows. So a mask that an inner loop uses stays in a register throughout that loop if only there is one left
//! there, whatever the loops around it need.

use std::collections::HashMap;

use super::machine::{Block, Function, Inst, LoopId, Opcode, Operand, Role, Vreg};
use super::spill::fold_constant;

/// Defines constants that selection left undefined.
pub fn place(f: &mut Function, constants: &[(u32, Vreg)]) {
    for &(id, v) in constants {
        move_inward(f, v, id, None);
    }
}

/// Moves a constant from before the loop `held` (from the whole function if `None`) to before the loops directly inside
/// that use it; uses directly in `held` get it each for themselves. False where no loop inside uses it, in which case
/// nothing changes, unless it was in the whole function.
pub fn move_inward(f: &mut Function, v: Vreg, id: u32, held: Option<LoopId>) -> bool {
    let child: Vec<Option<LoopId>> = f.blocks.iter().map(|b| inside(f, b, held)).collect();
    let uses = |b: &Block| {
        let mut found = false;
        b.insts.iter().for_each(|i| i.for_each(|w, role| found |= w == v && role == Role::Use));
        found
    };
    let used: Vec<usize> = (0..f.blocks.len()).filter(|&b| uses(&f.blocks[b])).collect();
    if held.is_some() && !used.iter().any(|&b| child[b].is_some()) {
        return false;
    }
    let (class, width) = (f.vregs[v.index()], f.width(v));
    // The old definition.
    for block in &mut f.blocks {
        block.insts.retain(|i| !matches!(i.operands[0], Operand::Reg(w, _, Role::Def) if w == v));
    }
    let mut made: HashMap<LoopId, Vreg> = HashMap::new();
    for b in used {
        let Some(inner) = child[b] else {
            fold_constant(f, b, v, id);
            continue;
        };
        let register = match made.get(&inner) {
            Some(&register) => register,
            None => {
                let register = f.vreg(class);
                made.insert(inner, register);
                f.held.insert(register, inner);
                let preheader = f.loops[inner.0 as usize].preheader;
                let block = &mut f.blocks[preheader.index()].insts;
                let origin = block.last().map_or(0, |i| i.origin);
                block.push(Inst { origin, ..Inst::new(Opcode::Constant(id)).def(register, width) });
                register
            }
        };
        for inst in &mut f.blocks[b].insts {
            inst.rename(|w, _| if w == v { register } else { w });
        }
    }
    true
}

/// The loop directly inside `held` that a block is in, if it is in one.
fn inside(f: &Function, block: &Block, held: Option<LoopId>) -> Option<LoopId> {
    let mut at = block.in_loop;
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
