//! Placement of constants in registers.
//!
//! Selection uses constants without defining them. In each outermost loop that uses it, a constant
//! is held in a register that is set before the loop. Outside loops, each use sets a separate
//! register.
//!
//! If the allocator runs out of registers, it moves a constant inward: first to the inner loops
//! that use it, finally to the single instructions. At a single instruction, the constant is a
//! memory operand if the encoding allows. A mask that an inner loop uses thus stays in a register
//! throughout that loop, if the loop has a free register. The loops around it need no free
//! register.

use super::machine::{Function, Vreg};
use super::spill::{Eviction, evict};

/// Defines constants that selection left undefined.
pub fn place(f: &mut Function, constants: &[(u32, Vreg)]) {
    let plan = constants.iter().map(|&(id, v)| (v, Eviction::Constant { id, held: Some(None) })).collect();
    evict(f, &plan);
}
