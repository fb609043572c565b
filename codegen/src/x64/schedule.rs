//! Scheduling for register pressure: what frees more registers than it takes is done as soon as it can be.
//!
//! An instruction that reads two or more values for the last time and defines one makes the pressure lower from there on,
//! so it moves up to right behind the last of its operands. A sum of eight products that stand one after the other, with
//! the additions behind them, then needs two registers and not eight. Latency is left to the processor, which reorders
//! far better than it renames values in memory.
//!
//! Nothing that touches memory moves, so the order of loads and stores stays.

use super::machine::{Class, Function, Inst, Opcode, Operand, Role};

/// Reorders each block.
pub fn reduce_pressure(f: &mut Function) {
    let n = f.vregs.len();
    let (mut reads, mut writes) = (vec![0_u32; n], vec![0_u32; n]);
    for inst in f.blocks.iter().flat_map(|b| &b.insts) {
        inst.for_each(|v, role| {
            reads[v.index()] += u32::from(role != Role::Def);
            writes[v.index()] += u32::from(role != Role::Use);
        });
    }
    // Where each register was last written in this block: the number of the instruction behind which that now stands.
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
                // Masks stay beside their use.
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
        order.sort_by_key(|&i| (behind[i], i));
        block.insts = order.into_iter().map(|i| block.insts[i]).collect();
        for inst in &block.insts {
            inst.for_each(|v, _| written[v.index()] = None);
        }
    }
}

/// Whether it only computes a register from registers.
fn is_pure(inst: &Inst) -> bool {
    !matches!(inst.opcode, Opcode::Copy | Opcode::Constant(_))
        && !inst.has_effect()
        && !inst.operands.iter().any(|o| matches!(o, Operand::Mem(_)))
}
