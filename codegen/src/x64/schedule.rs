//! Scheduling for register pressure: instructions that free more registers than they take move up
//! to the earliest possible position.
//!
//! An instruction that reads two or more values for the last time and defines one value lowers the
//! pressure. It moves up to directly after the instruction that defines the last of its operands.
//! For example, eight products, with all their additions after them, then need two registers, not
//! eight. Latency is ignored, because the processor can reorder instructions, but cannot avoid
//! spills.
//!
//! Instructions that access memory do not move, so the order of loads and stores does not change.

use super::machine::{Class, Function, Inst, Opcode, Operand, Role};

/// Reorders the instructions of each block.
pub fn reduce_pressure(f: &mut Function) {
    let n = f.vregs.len();
    let (mut reads, mut writes) = (vec![0_u32; n], vec![0_u32; n]);
    for inst in f.blocks.iter().flat_map(|b| &b.insts) {
        inst.for_each(|v, role| {
            reads[v.index()] += u32::from(role != Role::Def);
            writes[v.index()] += u32::from(role != Role::Use);
        });
    }
    // For each register, the new index of the instruction that writes it last in this block.
    let mut written: Vec<Option<usize>> = vec![None; n];
    for block in &mut f.blocks {
        let mut behind: Vec<usize> = (0..block.insts.len()).collect();
        for (i, inst) in block.insts.iter().enumerate() {
            let mut dying = 0;
            let mut last = None;
            let mut single = true;
            inst.for_each(|v, role| match role {
                Role::Use => {
                    dying += u32::from(reads[v.index()] == 1 && writes[v.index()] == 1 && written[v.index()].is_some());
                    last = last.max(written[v.index()]);
                }
                // Definitions of masks stay next to their use.
                Role::Def => {
                    single &= writes[v.index()] == 1 && matches!(f.vregs[v.index()], Class::Vector { .. });
                }
                Role::Update => single = false,
            });
            if let (Some(last), true) = (last, dying >= 2 && single && is_pure(inst)) {
                behind[i] = last;
            }
            inst.for_each(|v, role| {
                if role != Role::Use {
                    written[v.index()] = Some(behind[i]);
                }
            });
        }
        let mut order: Vec<usize> = (0..block.insts.len()).collect();
        order.sort_unstable_by_key(|&i| (behind[i], i));
        block.insts = order.into_iter().map(|i| block.insts[i]).collect();
        for inst in &block.insts {
            inst.for_each(|v, _| written[v.index()] = None);
        }
    }
}

/// Whether the instruction only computes a register from registers.
fn is_pure(inst: &Inst) -> bool {
    !matches!(inst.opcode, Opcode::Copy | Opcode::Constant(_))
        && !inst.has_effect()
        && !inst.operands.iter().any(|o| matches!(o, Operand::Mem(_)))
}
