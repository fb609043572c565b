//! Placement of constants in registers.
//!
//! Selection leaves constants undefined. In each outermost loop that uses it, a constant is held in
//! a register that is set before the loop. Outside loops, each use sets its own.
//!
//! If the allocator runs out of registers, it moves a constant inward: first to the inner loops
//! that use it, finally to the single instructions. For a single instruction, it is a memory
//! operand if the encoding allows. A mask that an inner loop uses thus stays in a register
//! throughout that loop, if this loop has a free register. Outer loops need no free register.

use super::machine::{Function, Vreg};
use super::spill::{Eviction, evict};

/// Defines constants that selection left undefined.
pub fn place(f: &mut Function, constants: &[(u32, Vreg)]) {
    let plan = constants.iter().map(|&(id, v)| (v, Eviction::Constant { id, held: Some(None) })).collect();
    evict(f, &plan);
}
