//! Instructions on mask registers.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use crate::fault::Trap;
use crate::lanes::{self, Lane};
use crate::op::{Machine, Op, Run};
use crate::state::{AF, CF, OF, PF, SF, Vector, ZF};

type Step = Result<(), Trap>;

fn ones(op: &Op) -> u64 {
    u64::MAX >> (64 - 8 * u32::from(op.size))
}

fn binary(m: &mut Machine, op: &Op) -> Step {
    let (a, b) = (m.state.mask[usize::from(op.a)], m.state.mask[usize::from(op.b)]);
    let r = match op.element {
        0 => a & b,
        1 => !a & b,
        2 => a | b,
        3 => a ^ b,
        4 => !(a ^ b),
        5 => a.wrapping_add(b),
        _ => {
            // The second source goes below the first; each is half as long as the result.
            let half = 4 * u32::from(op.size);
            (a << half) | b & (u64::MAX >> (64 - half))
        }
    };
    m.state.mask[usize::from(op.destination)] = r & ones(op);
    Ok(())
}

fn not(m: &mut Machine, op: &Op) -> Step {
    m.state.mask[usize::from(op.destination)] = !m.state.mask[usize::from(op.b)] & ones(op);
    Ok(())
}

fn shift(m: &mut Machine, op: &Op) -> Step {
    let x = m.state.mask[usize::from(op.b)] & ones(op);
    let by = u32::from(op.imm8());
    let r = if op.element == 0 { x.checked_shl(by) } else { x.checked_shr(by) };
    m.state.mask[usize::from(op.destination)] = r.unwrap_or(0) & ones(op);
    Ok(())
}

/// Executes `kortest` (`element` 0) or `ktest`.
fn test(m: &mut Machine, op: &Op) -> Step {
    let (a, b) = (m.state.mask[usize::from(op.a)], m.state.mask[usize::from(op.b)]);
    let (zero, carry) = if op.element == 0 {
        ((a | b) & ones(op) == 0, (a | b) & ones(op) == ones(op))
    } else {
        (a & b & ones(op) == 0, !a & b & ones(op) == 0)
    };
    let flags = if zero { ZF } else { 0 } | if carry { CF } else { 0 };
    m.state.flags = m.state.flags & !(CF | PF | AF | ZF | SF | OF) | flags;
    Ok(())
}

fn mov(m: &mut Machine, op: &Op) -> Step {
    m.state.mask[usize::from(op.destination)] = m.state.mask[usize::from(op.b)] & ones(op);
    Ok(())
}

fn from_general(m: &mut Machine, op: &Op) -> Step {
    m.state.mask[usize::from(op.destination)] = m.state.gpr[usize::from(op.b)] & ones(op);
    Ok(())
}

fn to_general(m: &mut Machine, op: &Op) -> Step {
    m.state.gpr[usize::from(op.destination)] = m.state.mask[usize::from(op.b)] & ones(op);
    Ok(())
}

fn load(m: &mut Machine, op: &Op) -> Step {
    let mut bytes = [0; 8];
    m.memory.read(m.address(op), &mut bytes[..usize::from(op.size)])?;
    m.state.mask[usize::from(op.destination)] = u64::from_le_bytes(bytes);
    Ok(())
}

fn store(m: &mut Machine, op: &Op) -> Step {
    let bytes = m.state.mask[usize::from(op.b)].to_le_bytes();
    let address = m.address(op);
    m.memory.write(address, &bytes[..usize::from(op.size)])
}

/// Executes `vpmovm2b` and similar: sets all bits of an element if its mask bit is set.
fn to_vector(m: &mut Machine, op: &Op) -> Step {
    let mask = m.state.mask[usize::from(op.b)];
    let mut r = Vector::ZERO;
    r.0[..usize::from(op.bytes)].fill(0xff);
    lanes::select(&mut r, &Vector::ZERO, mask, op);
    m.state.vector[usize::from(op.destination)] = r;
    Ok(())
}

/// Executes `vpmovb2m` and similar: collects the sign bits.
fn from_vector(m: &mut Machine, op: &Op) -> Step {
    let v = &m.state.vector[usize::from(op.b)];
    let size = usize::from(op.element);
    let bits = (0..usize::from(op.count)).map(|i| u64::from(u8::get(v, (i + 1) * size - 1) >> 7) << i);
    m.state.mask[usize::from(op.destination)] = bits.sum();
    Ok(())
}

/// Decodes a mask instruction.
pub(crate) fn decode(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    let (kind, size): (u8, u8) = match i.mnemonic() {
        M::Kandb => (0, 1),
        M::Kandw => (0, 2),
        M::Kandd => (0, 4),
        M::Kandq => (0, 8),
        M::Kandnb => (1, 1),
        M::Kandnw => (1, 2),
        M::Kandnd => (1, 4),
        M::Kandnq => (1, 8),
        M::Korb => (2, 1),
        M::Korw => (2, 2),
        M::Kord => (2, 4),
        M::Korq => (2, 8),
        M::Kxorb => (3, 1),
        M::Kxorw => (3, 2),
        M::Kxord => (3, 4),
        M::Kxorq => (3, 8),
        M::Kxnorb => (4, 1),
        M::Kxnorw => (4, 2),
        M::Kxnord => (4, 4),
        M::Kxnorq => (4, 8),
        M::Kaddb => (5, 1),
        M::Kaddw => (5, 2),
        M::Kaddd => (5, 4),
        M::Kaddq => (5, 8),
        M::Kunpckbw => (6, 2),
        M::Kunpckwd => (6, 4),
        M::Kunpckdq => (6, 8),
        M::Knotb => (7, 1),
        M::Knotw => (7, 2),
        M::Knotd => (7, 4),
        M::Knotq => (7, 8),
        M::Kshiftlb => (8, 1),
        M::Kshiftlw => (8, 2),
        M::Kshiftld => (8, 4),
        M::Kshiftlq => (8, 8),
        M::Kshiftrb => (9, 1),
        M::Kshiftrw => (9, 2),
        M::Kshiftrd => (9, 4),
        M::Kshiftrq => (9, 8),
        M::Kortestb => (10, 1),
        M::Kortestw => (10, 2),
        M::Kortestd => (10, 4),
        M::Kortestq => (10, 8),
        M::Ktestb => (11, 1),
        M::Ktestw => (11, 2),
        M::Ktestd => (11, 4),
        M::Ktestq => (11, 8),
        M::Kmovb => (12, 1),
        M::Kmovw => (12, 2),
        M::Kmovd => (12, 4),
        M::Kmovq => (12, 8),
        M::Vpmovm2b | M::Vpmovb2m => (13, 1),
        M::Vpmovm2w | M::Vpmovw2m => (13, 2),
        M::Vpmovm2d | M::Vpmovd2m => (13, 4),
        M::Vpmovm2q | M::Vpmovq2m => (13, 8),
        _ => return None,
    };
    op.size = size;
    let register = |n: u32| (i.op_kind(n) == OpKind::Register).then(|| i.op_register(n));
    let number = |n: u32| register(n).map(|r| r.number() as u8);
    match kind {
        0..=6 => {
            (op.destination, op.a, op.b, op.element) = (number(0)?, number(1)?, number(2)?, kind);
            Some(binary)
        }
        7 => {
            (op.destination, op.b) = (number(0)?, number(1)?);
            Some(not)
        }
        8 | 9 => {
            (op.destination, op.b, op.element) = (number(0)?, number(1)?, kind - 8);
            Some(shift)
        }
        10 | 11 => {
            (op.a, op.b, op.element) = (number(0)?, number(1)?, kind - 10);
            Some(test)
        }
        12 => Some(match (register(0), register(1)) {
            (None, Some(k)) => {
                op.b = k.number() as u8;
                store
            }
            (Some(k), None) => {
                op.destination = k.number() as u8;
                load
            }
            (Some(to), Some(from)) => {
                (op.destination, op.b) = (to.number() as u8, from.number() as u8);
                match (to.is_k(), from.is_k()) {
                    (true, true) => mov,
                    (true, false) => from_general,
                    _ => to_general,
                }
            }
            (None, None) => return None,
        }),
        _ => {
            (op.destination, op.b, op.element) = (number(0)?, number(1)?, size);
            let to_mask = register(0).is_some_and(Register::is_k);
            op.bytes = register(if to_mask { 1 } else { 0 })?.size() as u8;
            op.count = op.bytes / size;
            Some(if to_mask { from_vector } else { to_vector })
        }
    }
}
