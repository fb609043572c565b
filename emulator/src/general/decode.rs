//! Decoding of general-purpose instructions to their functions and operands.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::*;
use crate::op::{Op, Run};
use crate::state::ALWAYS_ZERO;

macro_rules! by_form {
    ($size:literal, $form:expr, $f:ident $(, $kind:literal)?) => {
        match $form {
            TO_REGISTER => $f::<$($kind,)? $size, TO_REGISTER> as Run,
            FROM_MEMORY => $f::<$($kind,)? $size, FROM_MEMORY>,
            _ => $f::<$($kind,)? $size, TO_MEMORY>,
        }
    };
}

macro_rules! by_size {
    ($op:expr, $form:expr, $f:ident $(, $kind:literal)?) => {{
        // The form must be computed first, because this also sets the size.
        let form = $form;
        match $op.size {
            1 => by_form!(1, form, $f $(, $kind)?),
            2 => by_form!(2, form, $f $(, $kind)?),
            4 => by_form!(4, form, $f $(, $kind)?),
            _ => by_form!(8, form, $f $(, $kind)?),
        }
    }};
}

/// Sets the operands of an instruction with at most two operands. Returns its form, or `None` if
/// the emulator does not support the form.
fn form(i: &Instruction, op: &mut Op) -> Option<u8> {
    let general = |n| i.op_kind(n) == OpKind::Register && i.op_register(n).is_gpr();
    op.b = ALWAYS_ZERO as u8;
    op.size = if i.op0_kind() == OpKind::Memory || i.op1_kind() == OpKind::Memory {
        op.memory_bytes
    } else {
        i.op0_register().size() as u8
    };
    if !matches!(op.size, 1 | 2 | 4 | 8) {
        return None;
    }
    if i.op0_kind() == OpKind::Register {
        op.destination = general(0).then(|| i.op0_register().full_register().number() as u8)?;
    }
    if i.op_count() > 1 && i.op1_kind() == OpKind::Register {
        op.b = general(1).then(|| i.op1_register().full_register().number() as u8)?;
    }
    Some(match (i.op0_kind(), i.op1_kind()) {
        (OpKind::Memory, _) => TO_MEMORY,
        (_, OpKind::Memory) => FROM_MEMORY,
        _ => TO_REGISTER,
    })
}

/// Sets the operands of an instruction: a destination register, and a source `b` that may be in
/// memory.
fn unary_source(i: &Instruction, op: &mut Op, last: u32) -> Option<()> {
    let register = |n| (i.op_kind(n) == OpKind::Register && i.op_register(n).is_gpr()).then(|| i.op_register(n));
    op.destination = register(0)?.full_register().number() as u8;
    op.size = register(0)?.size() as u8;
    if i.op_kind(last) == OpKind::Memory {
        op.element = op.memory_bytes;
    } else {
        op.b = register(last)?.full_register().number() as u8;
        op.element = register(last)?.size() as u8;
    }
    Some(())
}

/// Returns the number of the instruction's condition, as the processor encodes it.
fn condition(i: &Instruction) -> Option<u8> {
    use iced_x86::ConditionCode as C;
    Some(match i.condition_code() {
        C::None => return None,
        C::o => 0,
        C::no => 1,
        C::b => 2,
        C::ae => 3,
        C::e => 4,
        C::ne => 5,
        C::be => 6,
        C::a => 7,
        C::s => 8,
        C::ns => 9,
        C::p => 10,
        C::np => 11,
        C::l => 12,
        C::ge => 13,
        C::le => 14,
        C::g => 15,
    })
}

/// Decodes a jump to an address inside the code.
fn jump(i: &Instruction, op: &mut Op) -> Option<Run> {
    if i.op0_kind() != OpKind::NearBranch64 {
        return None;
    }
    if i.mnemonic() == Mnemonic::Jmp {
        return Some(jmp);
    }
    op.c = condition(i)?;
    Some(jcc)
}

/// Decodes a sum, difference, bitwise operation, comparison or negation.
fn arithmetic(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Add => by_size!(op, form(i, op)?, binary, 0),
        M::Or => by_size!(op, form(i, op)?, binary, 1),
        M::Adc => by_size!(op, form(i, op)?, binary, 2),
        M::Sbb => by_size!(op, form(i, op)?, binary, 3),
        M::And => by_size!(op, form(i, op)?, binary, 4),
        M::Sub => by_size!(op, form(i, op)?, binary, 5),
        M::Xor => by_size!(op, form(i, op)?, binary, 6),
        M::Cmp => by_size!(op, form(i, op)?, binary, 7),
        M::Test => by_size!(op, form(i, op)?, binary, 8),
        M::Inc | M::Dec => {
            form(i, op)?;
            op.immediate = u64::from(i.mnemonic() == M::Dec);
            increment
        }
        M::Neg => form(i, op).map(|_| negate)?,
        M::Not => form(i, op).map(|_| not)?,
        _ => return None,
    })
}

/// Decodes a copy, extension, exchange or address computation.
fn movement(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Mov => by_size!(op, form(i, op)?, mov),
        M::Movzx => unary_source(i, op, 1).map(|()| movzx)?,
        M::Movsx | M::Movsxd => unary_source(i, op, 1).map(|()| movsx)?,
        M::Lea => {
            let r = i.op0_register();
            (op.destination, op.size, op.memory_bytes) = (r.full_register().number() as u8, r.size() as u8, 0);
            lea
        }
        M::Cbw | M::Cwde | M::Cdqe | M::Cwd | M::Cdq | M::Cqo => {
            op.c = u8::from(matches!(i.mnemonic(), M::Cwd | M::Cdq | M::Cqo));
            op.size = match i.mnemonic() {
                M::Cbw | M::Cwd => 2,
                M::Cwde | M::Cdq => 4,
                _ => 8,
            };
            extend_accumulator
        }
        M::Bswap => {
            form(i, op)?;
            // The result of the 16-bit form is undefined.
            if op.size < 4 {
                return None;
            }
            bswap
        }
        M::Xchg => {
            form(i, op)?;
            if i.op1_kind() == OpKind::Memory {
                return None;
            }
            xchg
        }
        _ => return None,
    })
}

/// Decodes a product or quotient.
fn product(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Imul if i.op_count() > 1 => {
            unary_source(i, op, 1)?;
            op.c = u8::from(i.op_count() == 3);
            imul
        }
        M::Imul | M::Mul | M::Div | M::Idiv => {
            op.c = u8::from(matches!(i.mnemonic(), M::Imul | M::Idiv));
            if i.op0_kind() == OpKind::Memory {
                op.size = op.memory_bytes;
            } else {
                (op.b, op.size) = (i.op0_register().full_register().number() as u8, i.op0_register().size() as u8);
            }
            if matches!(i.mnemonic(), M::Imul | M::Mul) { multiply_wide } else { divide }
        }
        _ => return None,
    })
}

/// Decodes a shift or rotation.
fn shifts(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Shl | M::Sal | M::Shr | M::Sar | M::Rol | M::Ror => {
            form(i, op)?;
            if i.op0_kind() == OpKind::Register {
                op.size = i.op0_register().size() as u8;
            }
            op.element = match i.mnemonic() {
                M::Shl | M::Sal => 0,
                M::Shr => 1,
                M::Sar => 2,
                M::Rol => 3,
                _ => 4,
            };
            shift
        }
        M::Shlx | M::Shrx | M::Sarx | M::Rorx => {
            unary_source(i, op, 1)?;
            op.a = if i.mnemonic() == M::Rorx {
                ALWAYS_ZERO as u8
            } else {
                i.op2_register().full_register().number() as u8
            };
            op.element = match i.mnemonic() {
                M::Shlx => 0,
                M::Shrx => 1,
                M::Sarx => 2,
                _ => 3,
            };
            shift_x
        }
        _ => return None,
    })
}

/// Decodes a test, count, extraction or deposit of bits.
fn bits(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Bt | M::Bts | M::Btr | M::Btc => {
            if form(i, op)? != TO_REGISTER {
                return None;
            }
            op.element = match i.mnemonic() {
                M::Bt => 0,
                M::Bts => 1,
                M::Btr => 2,
                _ => 3,
            };
            bit_test
        }
        M::Lzcnt | M::Tzcnt | M::Popcnt => {
            unary_source(i, op, 1)?;
            op.element = match i.mnemonic() {
                M::Lzcnt => 0,
                M::Tzcnt => 1,
                _ => 2,
            };
            count_bits
        }
        M::Andn | M::Pdep | M::Pext | M::Mulx => {
            unary_source(i, op, 2)?;
            op.a = i.op1_register().full_register().number() as u8;
            op.element = match i.mnemonic() {
                M::Andn => 0,
                M::Pdep => 6,
                M::Pext => 7,
                _ => 8,
            };
            bmi
        }
        M::Bextr | M::Bzhi => {
            unary_source(i, op, 1)?;
            op.a = i.op2_register().full_register().number() as u8;
            op.element = if i.mnemonic() == M::Bextr { 1 } else { 5 };
            bmi
        }
        M::Blsi | M::Blsmsk | M::Blsr => {
            unary_source(i, op, 1)?;
            op.element = match i.mnemonic() {
                M::Blsi => 2,
                M::Blsmsk => 3,
                _ => 4,
            };
            bmi
        }
        _ => return None,
    })
}

/// Decodes a push, a pop, a return, a change of a flag, or an instruction without an effect.
fn control(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    Some(match i.mnemonic() {
        M::Push => {
            op.b = ALWAYS_ZERO as u8;
            match i.op0_kind() {
                OpKind::Register if i.op0_register().is_gpr64() => {
                    op.b = i.op0_register().full_register().number() as u8
                }
                OpKind::Memory if op.memory_bytes == 8 => op.element = 1,
                OpKind::Immediate8to64 | OpKind::Immediate32to64 => {}
                _ => return None,
            }
            push
        }
        M::Pop => {
            if i.op0_kind() != OpKind::Register || !i.op0_register().is_gpr64() {
                return None;
            }
            op.destination = i.op0_register().full_register().number() as u8;
            pop
        }
        M::Ret if i.op_count() == 0 => ret,
        // A prefetch never faults, so its address is ignored.
        M::Nop | M::Endbr64 | M::Prefetcht0 | M::Prefetcht1 | M::Prefetcht2 | M::Prefetchnta | M::Prefetchw => nop,
        M::Stc | M::Clc | M::Cmc | M::Std | M::Cld => {
            op.element = match i.mnemonic() {
                M::Stc => 0,
                M::Clc => 1,
                M::Cmc => 2,
                M::Std => 3,
                _ => 4,
            };
            flag
        }
        _ => return None,
    })
}

/// Decodes an instruction that writes or copies depending on a condition.
fn conditional(i: &Instruction, op: &mut Op) -> Option<Run> {
    op.c = condition(i)?;
    if i.op_count() == 1 {
        if i.op0_kind() == OpKind::Register {
            op.destination = i.op0_register().full_register().number() as u8;
        }
        return Some(setcc);
    }
    unary_source(i, op, 1)?;
    Some(cmov)
}

/// Decodes a general-purpose instruction. Returns `None` if the emulator does not support it.
pub(crate) fn decode(i: &Instruction, op: &mut Op) -> Option<Run> {
    // Whether a register is bits 8 to 15 of one of the first four registers.
    let high = |r: Register| matches!(r, Register::AH | Register::BH | Register::CH | Register::DH);
    if i.has_lock_prefix() || i.has_rep_prefix() || i.has_repne_prefix() {
        return None;
    }
    if (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && high(i.op_register(n))) {
        return None;
    }
    if matches!(i.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch) {
        return jump(i, op);
    }
    arithmetic(i, op)
        .or_else(|| movement(i, op))
        .or_else(|| product(i, op))
        .or_else(|| shifts(i, op))
        .or_else(|| bits(i, op))
        .or_else(|| control(i, op))
        .or_else(|| conditional(i, op))
}
