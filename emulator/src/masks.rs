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
            // The second source becomes the lower half of the result, and the first source the
            // upper half.
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

/// Executes `kortest` (if `element` is 0) or `ktest`.
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

/// Executes `vpmovm2b` and similar instructions: sets all bits of an element if its mask bit is
/// set.
fn to_vector(m: &mut Machine, op: &Op) -> Step {
    let mask = m.state.mask[usize::from(op.b)];
    let mut r = Vector::ZERO;
    r.0[..usize::from(op.bytes)].fill(0xff);
    lanes::select(&mut r, &Vector::ZERO, mask, op);
    m.state.vector[usize::from(op.destination)] = r;
    Ok(())
}

/// Executes `vpmovb2m` and similar instructions: collects the sign bits of the elements in a mask.
fn from_vector(m: &mut Machine, op: &Op) -> Step {
    let v = &m.state.vector[usize::from(op.b)];
    let size = usize::from(op.element);
    let bits = (0..usize::from(op.count)).map(|i| u64::from(u8::get(v, (i + 1) * size - 1) >> 7) << i);
    m.state.mask[usize::from(op.destination)] = bits.sum();
    Ok(())
}

/// Operation of a mask instruction. The number in `Binary`, `Shift` and `Test` selects one of
/// several functions, in the code that executes the operation.
#[derive(Clone, Copy)]
enum Work {
    Binary(u8),
    Not,
    Shift(u8),
    Test(u8),
    Move,
    /// A move between a mask and the elements of a vector.
    Vector,
}

/// Returns the operation of a mask instruction, and the number of bytes of the mask. Returns `None`
/// for other instructions.
fn work(mnemonic: Mnemonic) -> Option<(Work, u8)> {
    use Mnemonic as M;
    use Work::{Binary, Move, Not, Shift, Test, Vector};
    Some(match mnemonic {
        M::Kandb => (Binary(0), 1),
        M::Kandw => (Binary(0), 2),
        M::Kandd => (Binary(0), 4),
        M::Kandq => (Binary(0), 8),
        M::Kandnb => (Binary(1), 1),
        M::Kandnw => (Binary(1), 2),
        M::Kandnd => (Binary(1), 4),
        M::Kandnq => (Binary(1), 8),
        M::Korb => (Binary(2), 1),
        M::Korw => (Binary(2), 2),
        M::Kord => (Binary(2), 4),
        M::Korq => (Binary(2), 8),
        M::Kxorb => (Binary(3), 1),
        M::Kxorw => (Binary(3), 2),
        M::Kxord => (Binary(3), 4),
        M::Kxorq => (Binary(3), 8),
        M::Kxnorb => (Binary(4), 1),
        M::Kxnorw => (Binary(4), 2),
        M::Kxnord => (Binary(4), 4),
        M::Kxnorq => (Binary(4), 8),
        M::Kaddb => (Binary(5), 1),
        M::Kaddw => (Binary(5), 2),
        M::Kaddd => (Binary(5), 4),
        M::Kaddq => (Binary(5), 8),
        M::Kunpckbw => (Binary(6), 2),
        M::Kunpckwd => (Binary(6), 4),
        M::Kunpckdq => (Binary(6), 8),
        M::Knotb => (Not, 1),
        M::Knotw => (Not, 2),
        M::Knotd => (Not, 4),
        M::Knotq => (Not, 8),
        M::Kshiftlb => (Shift(0), 1),
        M::Kshiftlw => (Shift(0), 2),
        M::Kshiftld => (Shift(0), 4),
        M::Kshiftlq => (Shift(0), 8),
        M::Kshiftrb => (Shift(1), 1),
        M::Kshiftrw => (Shift(1), 2),
        M::Kshiftrd => (Shift(1), 4),
        M::Kshiftrq => (Shift(1), 8),
        M::Kortestb => (Test(0), 1),
        M::Kortestw => (Test(0), 2),
        M::Kortestd => (Test(0), 4),
        M::Kortestq => (Test(0), 8),
        M::Ktestb => (Test(1), 1),
        M::Ktestw => (Test(1), 2),
        M::Ktestd => (Test(1), 4),
        M::Ktestq => (Test(1), 8),
        M::Kmovb => (Move, 1),
        M::Kmovw => (Move, 2),
        M::Kmovd => (Move, 4),
        M::Kmovq => (Move, 8),
        M::Vpmovm2b | M::Vpmovb2m => (Vector, 1),
        M::Vpmovm2w | M::Vpmovw2m => (Vector, 2),
        M::Vpmovm2d | M::Vpmovd2m => (Vector, 4),
        M::Vpmovm2q | M::Vpmovq2m => (Vector, 8),
        _ => return None,
    })
}

/// Sets the operands of a move between a mask and another mask, a general register or memory.
fn decode_move(i: &Instruction, op: &mut Op) -> Option<Run> {
    let register = |n: u32| (i.op_kind(n) == OpKind::Register).then(|| i.op_register(n));
    Some(match (register(0), register(1)) {
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
    })
}

/// Decodes a mask instruction. Returns `None` for other instructions.
pub(crate) fn decode(i: &Instruction, op: &mut Op) -> Option<Run> {
    let (work, size) = work(i.mnemonic())?;
    op.size = size;
    let register = |n: u32| (i.op_kind(n) == OpKind::Register).then(|| i.op_register(n));
    let number = |n: u32| register(n).map(|r| r.number() as u8);
    Some(match work {
        Work::Binary(function) => {
            (op.destination, op.a, op.b, op.element) = (number(0)?, number(1)?, number(2)?, function);
            binary
        }
        Work::Not => {
            (op.destination, op.b) = (number(0)?, number(1)?);
            not
        }
        Work::Shift(function) => {
            (op.destination, op.b, op.element) = (number(0)?, number(1)?, function);
            shift
        }
        Work::Test(function) => {
            (op.a, op.b, op.element) = (number(0)?, number(1)?, function);
            test
        }
        Work::Move => decode_move(i, op)?,
        Work::Vector => {
            (op.destination, op.b, op.element) = (number(0)?, number(1)?, size);
            let to_mask = register(0).is_some_and(Register::is_k);
            op.bytes = register(if to_mask { 1 } else { 0 })?.size() as u8;
            op.count = op.bytes / size;
            if to_mask { from_vector } else { to_vector }
        }
    })
}
