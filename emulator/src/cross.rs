//! Instructions that move data between vectors and general registers or flags.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use crate::convert::{Integer, of_integer, to_integer};
use crate::fault::Trap;
use crate::float::Float;
use crate::half_ops;
use crate::lanes::Lane;
use crate::op::{Machine, Op, Run};
use crate::soft::Rounding;
use crate::state::{AF, CF, OF, PF, SF, Vector, ZF};
use crate::vector;

type Step = Result<(), Trap>;

/// Returns the value of a source operand that is a general register or in memory.
fn general_source(m: &Machine, op: &Op) -> Result<u64, Trap> {
    if op.memory_bytes == 0 {
        return Ok(m.state.gpr[usize::from(op.b)]);
    }
    let mut bytes = [0; 8];
    m.memory.read(m.address(op), &mut bytes[..usize::from(op.memory_bytes)])?;
    Ok(u64::from_le_bytes(bytes))
}

fn vector_source(m: &Machine, op: &Op) -> Result<Vector, Trap> {
    if op.memory_bytes == 0 { Ok(m.state.vector[usize::from(op.b)]) } else { vector::memory_source(m, op) }
}

/// Writes the lowest element of a vector, which has `element` bytes, and zero to all other bytes.
fn to_vector(m: &mut Machine, op: &Op) -> Step {
    let x = general_source(m, op)?;
    let size = usize::from(op.element);
    let mut r = Vector::ZERO;
    r.0[..size].copy_from_slice(&x.to_le_bytes()[..size]);
    vector::finish::<false>(m, op, r);
    Ok(())
}

/// Executes `vmovq` between vectors: copies the low quadword, and writes zero to all other bytes.
fn low_quad(m: &mut Machine, op: &Op) -> Step {
    let mut r = Vector::ZERO;
    r.0[..8].copy_from_slice(&m.state.vector[usize::from(op.b)].0[..8]);
    vector::finish::<false>(m, op, r);
    Ok(())
}

fn lowest(m: &Machine, op: &Op, element: usize) -> u64 {
    let size = usize::from(op.element);
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(&m.state.vector[usize::from(op.a)].0[element * size..][..size]);
    u64::from_le_bytes(bytes)
}

/// Copies the element that the immediate selects to a general register or memory.
fn extract(m: &mut Machine, op: &Op) -> Step {
    let count = 16 / usize::from(op.element);
    let x = lowest(m, op, op.immediate as usize % count);
    if op.memory_bytes == 0 {
        m.state.gpr[usize::from(op.destination)] = x;
        return Ok(());
    }
    let address = m.address(op);
    m.memory.write(address, &x.to_le_bytes()[..usize::from(op.element)])
}

fn insert(m: &mut Machine, op: &Op) -> Step {
    let x = general_source(m, op)?;
    let size = usize::from(op.element);
    let at = size * (op.immediate as usize % (16 / size));
    let mut r = Vector::ZERO;
    r.0[..16].copy_from_slice(&m.state.vector[usize::from(op.a)].0[..16]);
    r.0[at..at + size].copy_from_slice(&x.to_le_bytes()[..size]);
    vector::finish::<false>(m, op, r);
    Ok(())
}

/// Executes `vpbroadcastd` and similar instructions from a general register.
fn broadcast(m: &mut Machine, op: &Op) -> Step {
    let x = m.state.gpr[usize::from(op.b)].to_le_bytes();
    let size = usize::from(op.element);
    let mut r = Vector::ZERO;
    for to in r.0[..usize::from(op.bytes)].chunks_exact_mut(size) {
        to.copy_from_slice(&x[..size]);
    }
    if op.mask == 0 {
        vector::finish::<false>(m, op, r);
    } else {
        vector::finish::<true>(m, op, r);
    }
    Ok(())
}

/// Executes `vpmovmskb` and similar instructions: collects the sign bits of the elements in a
/// general register.
fn signs(m: &mut Machine, op: &Op) -> Step {
    let v = &m.state.vector[usize::from(op.b)];
    let size = usize::from(op.element);
    let bits = (0..usize::from(op.bytes) / size).map(|i| u64::from(v.0[(i + 1) * size - 1] >> 7) << i);
    m.state.gpr[usize::from(op.destination)] = bits.sum();
    Ok(())
}

fn set_flags(m: &mut Machine, zero: bool, carry: bool, parity: bool) {
    let flags = if zero { ZF } else { 0 } | if carry { CF } else { 0 } | if parity { PF } else { 0 };
    m.state.flags = m.state.flags & !(CF | PF | AF | ZF | SF | OF) | flags;
}

/// Executes `vptest`. Also executes `vtestps` and `vtestpd`, which test only sign bits.
fn test(m: &mut Machine, op: &Op) -> Step {
    let (a, b) = (m.state.vector[usize::from(op.a)], vector_source(m, op)?);
    let look = match op.element {
        4 => 0x8000_0000_8000_0000,
        8 => 0x8000_0000_0000_0000,
        _ => u64::MAX,
    };
    let (mut both, mut second) = (0, 0);
    for i in 0..usize::from(op.bytes) / 8 {
        let (a, b) = (u64::get(&a, i), u64::get(&b, i));
        both |= a & b & look;
        second |= !a & b & look;
    }
    set_flags(m, both == 0, second == 0, false);
    Ok(())
}

fn compare<T: Lane>(m: &mut Machine, op: &Op) -> Step {
    let (a, b) = (T::get(&m.state.vector[usize::from(op.a)], 0), T::get(&vector_source(m, op)?, 0));
    let order = a.partial_cmp(&b);
    let unordered = order.is_none();
    set_flags(
        m,
        unordered || order.is_some_and(|o| o.is_eq()),
        unordered || order.is_some_and(|o| o.is_lt()),
        unordered,
    );
    Ok(())
}

fn compare_half(m: &mut Machine, op: &Op) -> Step {
    let (a, b) = (u16::get(&m.state.vector[usize::from(op.a)], 0), u16::get(&vector_source(m, op)?, 0));
    // The three comparisons test for equal, less and unordered.
    let unordered = half_ops::compare(a, b, 3);
    set_flags(m, unordered || half_ops::compare(a, b, 0), unordered || half_ops::compare(a, b, 1), unordered);
    Ok(())
}

/// Converts an integer to a float, and writes it as the lowest element. All other elements come
/// from `a`.
fn float_of<T: Integer, F: Float>(m: &mut Machine, op: &Op) -> Step {
    let x = general_source(m, op)?;
    let mut bytes = Vector::ZERO;
    x.set(&mut bytes, 0);
    let mut r = Vector::ZERO;
    r.0[..16].copy_from_slice(&m.state.vector[usize::from(op.a)].0[..16]);
    of_integer::<F, T>(T::get(&bytes, 0), op.rounding).set(&mut r, 0);
    vector::finish::<false>(m, op, r);
    Ok(())
}

fn half_of<T: Lane>(m: &mut Machine, op: &Op, f: fn(T, Rounding) -> u16) -> Step {
    let mut bytes = Vector::ZERO;
    general_source(m, op)?.set(&mut bytes, 0);
    let mut r = Vector::ZERO;
    r.0[..16].copy_from_slice(&m.state.vector[usize::from(op.a)].0[..16]);
    f(T::get(&bytes, 0), op.rounding).set(&mut r, 0);
    vector::finish::<false>(m, op, r);
    Ok(())
}

/// Converts the lowest element, a float, to an integer in a general register.
fn integer_of<F: Float, T: Integer, const TRUNCATES: bool>(m: &mut Machine, op: &Op) -> Step {
    let x = F::get(&vector_source(m, op)?, 0);
    let rounding = if TRUNCATES { Rounding::Zero } else { op.rounding };
    let mut bytes = Vector::ZERO;
    to_integer::<F, T>(x, rounding).set(&mut bytes, 0);
    m.state.gpr[usize::from(op.destination)] = u64::get(&bytes, 0);
    Ok(())
}

fn integer_of_half<T: Lane>(m: &mut Machine, op: &Op, rounding: Rounding, f: fn(u16, Rounding) -> T) -> Step {
    let x = u16::get(&vector_source(m, op)?, 0);
    let mut bytes = Vector::ZERO;
    f(x, rounding).set(&mut bytes, 0);
    m.state.gpr[usize::from(op.destination)] = u64::get(&bytes, 0);
    Ok(())
}

/// Decodes a conversion between a general register and a vector.
fn conversion(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    let general = |r: Register, n: u32| (i.op_kind(n) == OpKind::Register).then(|| r.size());
    // Whether the integer, in a register or in memory, has 8 bytes.
    let source = |n: u32| general(i.op_register(n), n).unwrap_or(i.memory_size().size()) == 8;
    let last = i.op_count() - 1;
    let long = match i.mnemonic() {
        M::Vcvtsi2ss
        | M::Cvtsi2ss
        | M::Vcvtsi2sd
        | M::Cvtsi2sd
        | M::Vcvtusi2ss
        | M::Vcvtusi2sd
        | M::Vcvtsi2sh
        | M::Vcvtusi2sh => source(last),
        _ => i.op0_register().size() == 8,
    };
    let run: Run = match (i.mnemonic(), long) {
        (M::Vcvtsi2ss | M::Cvtsi2ss, false) => float_of::<i32, f32>,
        (M::Vcvtsi2ss | M::Cvtsi2ss, true) => float_of::<i64, f32>,
        (M::Vcvtsi2sd | M::Cvtsi2sd, false) => float_of::<i32, f64>,
        (M::Vcvtsi2sd | M::Cvtsi2sd, true) => float_of::<i64, f64>,
        (M::Vcvtusi2ss, false) => float_of::<u32, f32>,
        (M::Vcvtusi2ss, true) => float_of::<u64, f32>,
        (M::Vcvtusi2sd, false) => float_of::<u32, f64>,
        (M::Vcvtusi2sd, true) => float_of::<u64, f64>,
        (M::Vcvtsi2sh, false) => |m, op| half_of(m, op, half_ops::from_i32),
        (M::Vcvtsi2sh, true) => |m, op| half_of(m, op, half_ops::from_i64),
        (M::Vcvtusi2sh, false) => |m, op| half_of(m, op, half_ops::from_u32),
        (M::Vcvtusi2sh, true) => |m, op| half_of(m, op, half_ops::from_u64),
        (M::Vcvtss2si | M::Cvtss2si, false) => integer_of::<f32, i32, false>,
        (M::Vcvtss2si | M::Cvtss2si, true) => integer_of::<f32, i64, false>,
        (M::Vcvttss2si | M::Cvttss2si, false) => integer_of::<f32, i32, true>,
        (M::Vcvttss2si | M::Cvttss2si, true) => integer_of::<f32, i64, true>,
        (M::Vcvtsd2si | M::Cvtsd2si, false) => integer_of::<f64, i32, false>,
        (M::Vcvtsd2si | M::Cvtsd2si, true) => integer_of::<f64, i64, false>,
        (M::Vcvttsd2si | M::Cvttsd2si, false) => integer_of::<f64, i32, true>,
        (M::Vcvttsd2si | M::Cvttsd2si, true) => integer_of::<f64, i64, true>,
        (M::Vcvtss2usi, false) => integer_of::<f32, u32, false>,
        (M::Vcvtss2usi, true) => integer_of::<f32, u64, false>,
        (M::Vcvttss2usi, false) => integer_of::<f32, u32, true>,
        (M::Vcvttss2usi, true) => integer_of::<f32, u64, true>,
        (M::Vcvtsd2usi, false) => integer_of::<f64, u32, false>,
        (M::Vcvtsd2usi, true) => integer_of::<f64, u64, false>,
        (M::Vcvttsd2usi, false) => integer_of::<f64, u32, true>,
        (M::Vcvttsd2usi, true) => integer_of::<f64, u64, true>,
        (M::Vcvtsh2si, false) => |m, op| integer_of_half(m, op, op.rounding, half_ops::to_i32),
        (M::Vcvtsh2si, true) => |m, op| integer_of_half(m, op, op.rounding, half_ops::to_i64),
        (M::Vcvttsh2si, false) => |m, op| integer_of_half(m, op, Rounding::Zero, half_ops::to_i32),
        (M::Vcvttsh2si, true) => |m, op| integer_of_half(m, op, Rounding::Zero, half_ops::to_i64),
        (M::Vcvtsh2usi, false) => |m, op| integer_of_half(m, op, op.rounding, half_ops::to_u32),
        (M::Vcvtsh2usi, true) => |m, op| integer_of_half(m, op, op.rounding, half_ops::to_u64),
        (M::Vcvttsh2usi, false) => |m, op| integer_of_half(m, op, Rounding::Zero, half_ops::to_u32),
        (M::Vcvttsh2usi, true) => |m, op| integer_of_half(m, op, Rounding::Zero, half_ops::to_u64),
        _ => return None,
    };
    op.destination = i.op0_register().number() as u8;
    op.a = if i.op_count() == 3 { i.op1_register().number() as u8 } else { op.destination };
    if i.op_kind(last) == OpKind::Register {
        op.b = i.op_register(last).number() as u8;
    }
    Some(run)
}

/// Whether operand `n` is a register of the kind that `is` tests for.
fn is_register(i: &Instruction, n: u32, is: fn(Register) -> bool) -> bool {
    i.op_kind(n) == OpKind::Register && is(i.op_register(n))
}

/// Returns the number of the register that is operand `n`, or 0 for another kind of operand.
fn number(i: &Instruction, n: u32) -> u8 {
    if i.op_kind(n) == OpKind::Register { i.op_register(n).number() as u8 } else { 0 }
}

/// Decodes a move of the lowest element between vectors, general registers and memory.
fn lowest_move(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    op.element = match i.mnemonic() {
        M::Vmovw => 2,
        // With REX.W, `movd` moves a quadword.
        M::Vmovd | M::Movd if !(0..2).any(|n| is_register(i, n, Register::is_gpr64)) => 4,
        M::Vmovd | M::Movd | M::Vmovq | M::Movq => 8,
        _ => return None,
    };
    (op.destination, op.a, op.b) = (number(i, 0), number(i, 1), number(i, 1));
    let vectors = [0, 1].map(|n| is_register(i, n, Register::is_vector_register));
    Some(match vectors {
        [true, true] => low_quad,
        [true, false] => to_vector,
        [false, true] => {
            op.immediate = 0;
            extract
        }
        [false, false] => return None,
    })
}

/// Decodes an extraction of an element that the immediate selects.
fn extraction(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    op.element = match i.mnemonic() {
        M::Vpextrb | M::Pextrb => 1,
        M::Vpextrw | M::Pextrw => 2,
        M::Vpextrd | M::Pextrd | M::Vextractps | M::Extractps => 4,
        M::Vpextrq | M::Pextrq => 8,
        _ => return None,
    };
    (op.destination, op.a) = (number(i, 0), number(i, 1));
    Some(extract)
}

/// Decodes an insertion of an element at the position that the immediate selects.
fn insertion(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    op.element = match i.mnemonic() {
        M::Vpinsrb | M::Pinsrb => 1,
        M::Vpinsrw | M::Pinsrw => 2,
        M::Vpinsrd | M::Pinsrd => 4,
        M::Vpinsrq | M::Pinsrq => 8,
        _ => return None,
    };
    // The immediate is the last operand, so the source is the one before it.
    let source = i.op_count() - 2;
    (op.destination, op.a, op.b) = (number(i, 0), number(i, source - 1), number(i, source));
    Some(insert)
}

/// Decodes a broadcast from a general register.
fn general_broadcast(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    let element = match i.mnemonic() {
        M::Vpbroadcastb => 1,
        M::Vpbroadcastw => 2,
        M::Vpbroadcastd => 4,
        M::Vpbroadcastq => 8,
        _ => return None,
    };
    if !is_register(i, 1, Register::is_gpr) {
        return None;
    }
    (op.element, op.destination, op.b) = (element, number(i, 0), number(i, 1));
    op.bytes = i.op0_register().size() as u8;
    op.count = op.bytes / op.element;
    Some(broadcast)
}

/// Decodes a collection of sign bits into a general register.
fn sign_bits(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    op.element = match i.mnemonic() {
        M::Vpmovmskb | M::Pmovmskb => 1,
        M::Vmovmskps | M::Movmskps => 4,
        M::Vmovmskpd | M::Movmskpd => 8,
        _ => return None,
    };
    (op.destination, op.b) = (number(i, 0), number(i, 1));
    op.bytes = i.op1_register().size() as u8;
    Some(signs)
}

/// Decodes a test of bits that sets flags.
fn bit_test(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    op.element = match i.mnemonic() {
        M::Vptest | M::Ptest => 1,
        M::Vtestps => 4,
        M::Vtestpd => 8,
        _ => return None,
    };
    (op.a, op.b) = (number(i, 0), number(i, 1));
    op.bytes = i.op0_register().size() as u8;
    Some(test)
}

/// Decodes a comparison of floats that sets flags.
fn comparison(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    let (run, element): (Run, u8) = match i.mnemonic() {
        M::Vcomiss | M::Vucomiss | M::Comiss | M::Ucomiss => (compare::<f32>, 4),
        M::Vcomisd | M::Vucomisd | M::Comisd | M::Ucomisd => (compare::<f64>, 8),
        M::Vcomish | M::Vucomish => (compare_half, 2),
        _ => return None,
    };
    (op.element, op.a, op.b) = (element, number(i, 0), number(i, 1));
    Some(run)
}

/// Decodes an instruction between vectors and general registers or flags.
pub(crate) fn decode(i: &Instruction, op: &mut Op) -> Option<Run> {
    // Instructions with MMX registers are not supported.
    if i.op_count() < 2 || (0..2).any(|n| is_register(i, n, Register::is_mm)) {
        return None;
    }
    lowest_move(i, op)
        .or_else(|| extraction(i, op))
        .or_else(|| insertion(i, op))
        .or_else(|| general_broadcast(i, op))
        .or_else(|| sign_bits(i, op))
        .or_else(|| bit_test(i, op))
        .or_else(|| comparison(i, op))
        .or_else(|| conversion(i, op))
}
