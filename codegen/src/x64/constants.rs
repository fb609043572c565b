//! Where constants are held in registers.
//!
//! A constant starts out defined nowhere. Around each outermost loop that uses it, it is held in a register, made before
//! the loop; outside loops each use makes its own. If the allocator runs out of registers it moves a constant inward: to
//! the loops inside that use it, and in the end to the instructions themselves, where it is a memory operand if the
//! encoding allows. So a mask that an inner loop uses stays in a register throughout that loop if only there is one left
//! there, whatever the loops around it need.

use super::machine::{Function, LoopId, Vreg};
use super::spill::{Eviction, evict};

/// Defines constants that selection left undefined.
pub fn place(f: &mut Function, constants: &[(u32, Vreg)]) {
    let plan = constants.iter().map(|&(id, v)| (v, Eviction::Constant { id, held: Some(None) })).collect();
    evict(f, &plan);
}

/// The loop directly inside `held` (`None`: the whole function) that `at` is, or is in.
pub fn inside(f: &Function, mut at: Option<LoopId>, held: Option<LoopId>) -> Option<LoopId> {
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
