//! General-purpose instructions.
//!
//! A source operand that is a register or an immediate is computed as `gpr[b] + immediate`. One of
//! the two terms is zero.

mod decode;

pub(super) use decode::decode;

use crate::fault::{FaultKind, Trap};
use crate::op::{Machine, Op};
use crate::state::{AF, CF, DF, OF, PF, RSP, SF, ZF};

type Step = Result<(), Trap>;

/// Return address that a call pushes. It is outside of guest memory.
pub(crate) const RETURN_ADDRESS: u64 = 0x5245_5455_524e_0000;

const ARITHMETIC: u64 = CF | PF | AF | ZF | SF | OF;

#[inline]
fn ones(size: usize) -> u64 {
    u64::MAX >> (64 - 8 * size)
}

#[inline]
fn sign_extend(x: u64, size: usize) -> i64 {
    let shift = 64 - 8 * size as u32;
    (x << shift).cast_signed() >> shift
}

/// Returns the sign, zero and parity flags of a result.
#[inline]
fn result_flags(r: u64, size: usize) -> u64 {
    let sign = (r >> (8 * size - 1) & 1) << 7;
    let zero = u64::from(r == 0) << 6;
    let parity = u64::from((r as u8).count_ones() & 1 == 0) << 2;
    sign | zero | parity
}

impl Machine<'_> {
    #[inline]
    fn get(&self, r: u8, size: usize) -> u64 {
        self.state.gpr[usize::from(r)] & ones(size)
    }

    /// Writes a general register as the processor does. A 32-bit result clears the upper half;
    /// shorter results keep the other bits.
    #[inline]
    pub fn set(&mut self, r: u8, size: usize, x: u64) {
        let register = &mut self.state.gpr[usize::from(r)];
        *register = match size {
            8 => x,
            4 => x & 0xffff_ffff,
            _ => *register & !ones(size) | x & ones(size),
        };
    }

    #[inline]
    fn load_sized(&self, address: u64, size: usize) -> Result<u64, Trap> {
        Ok(match size {
            1 => u64::from(self.memory.load::<1>(address)?[0]),
            2 => u64::from(u16::from_le_bytes(self.memory.load(address)?)),
            4 => u64::from(u32::from_le_bytes(self.memory.load(address)?)),
            _ => u64::from_le_bytes(self.memory.load(address)?),
        })
    }

    #[inline]
    fn store_sized(&mut self, address: u64, size: usize, x: u64) -> Step {
        let bytes = x.to_le_bytes();
        match size {
            1 => self.memory.store(address, [bytes[0]]),
            2 => self.memory.store(address, [bytes[0], bytes[1]]),
            4 => self.memory.store(address, (x as u32).to_le_bytes()),
            _ => self.memory.store(address, bytes),
        }
    }

    #[inline]
    fn set_flags(&mut self, which: u64, flags: u64) {
        self.state.flags = self.state.flags & !which | flags;
    }

    fn carry(&self) -> u64 {
        self.state.flags & CF
    }

    #[inline]
    fn stack_moved(&mut self) {
        self.memory.set_stack_pointer(self.state.gpr[RSP]);
    }

    pub fn condition(&self, code: u8) -> bool {
        let f = self.state.flags;
        let is = |flag| f & flag != 0;
        let less = is(SF) != is(OF);
        let holds = match code >> 1 {
            0 => is(OF),
            1 => is(CF),
            2 => is(ZF),
            3 => is(CF) || is(ZF),
            4 => is(SF),
            5 => is(PF),
            6 => less,
            _ => less || is(ZF),
        };
        holds != (code & 1 == 1)
    }
}

/// Forms of an instruction with two operands, by the place of the destination and the source.
const TO_REGISTER: u8 = 0;
const FROM_MEMORY: u8 = 1;
const TO_MEMORY: u8 = 2;

/// Numbers of the arithmetic operations, as the processor encodes them: `add`, `or`, `adc`, `sbb`,
/// `and`, `sub`, `xor`, `cmp`. `test` has the next number.
const CMP: u8 = 7;
const TEST: u8 = 8;

#[inline]
fn arithmetic<const KIND: u8, const SIZE: usize>(m: &mut Machine, a: u64, b: u64) -> u64 {
    let mask = ones(SIZE);
    let (r, carry, overflow) = match KIND {
        0 | 2 => {
            let c = if KIND == 2 { m.carry() } else { 0 };
            let r = a.wrapping_add(b).wrapping_add(c) & mask;
            // A carry occurred if the sum is below an operand. With an incoming carry, it also
            // occurred if the sum equals the operand.
            let carry = r < a || (c == 1 && r == a);
            (r, carry, (a ^ r) & (b ^ r))
        }
        3 | 5 | CMP => {
            let c = if KIND == 3 { m.carry() } else { 0 };
            let r = a.wrapping_sub(b).wrapping_sub(c) & mask;
            (r, a < b || (c == 1 && a == b), (a ^ b) & (a ^ r))
        }
        1 => (a | b, false, 0),
        4 | TEST => (a & b, false, 0),
        _ => (a ^ b, false, 0),
    };
    let adjust = if matches!(KIND, 0 | 2 | 3 | 5 | CMP) { (a ^ b ^ r) & AF } else { 0 };
    let overflow = (overflow >> (8 * SIZE - 1) & 1) << 11;
    m.set_flags(ARITHMETIC, result_flags(r, SIZE) | u64::from(carry) | adjust | overflow);
    r
}

fn binary<const KIND: u8, const SIZE: usize, const FORM: u8>(m: &mut Machine, op: &Op) -> Step {
    let register = m.state.gpr[usize::from(op.b)].wrapping_add(op.immediate) & ones(SIZE);
    let (a, b) = match FORM {
        TO_REGISTER => (m.get(op.destination, SIZE), register),
        FROM_MEMORY => (m.get(op.destination, SIZE), m.load_sized(m.address(op), SIZE)?),
        _ => (m.load_sized(m.address(op), SIZE)?, register),
    };
    // The flags are saved, because a store that faults must not change them.
    let flags = m.state.flags;
    let r = arithmetic::<KIND, SIZE>(m, a, b);
    if KIND == CMP || KIND == TEST {
        return Ok(());
    }
    if FORM == TO_MEMORY {
        let address = m.address(op);
        return m.store_sized(address, SIZE, r).inspect_err(|_| m.state.flags = flags);
    }
    m.set(op.destination, SIZE, r);
    if SIZE == 8 && usize::from(op.destination) == RSP {
        m.stack_moved();
    }
    Ok(())
}

fn mov<const SIZE: usize, const FORM: u8>(m: &mut Machine, op: &Op) -> Step {
    let register = m.state.gpr[usize::from(op.b)].wrapping_add(op.immediate);
    match FORM {
        TO_REGISTER => m.set(op.destination, SIZE, register),
        FROM_MEMORY => {
            let x = m.load_sized(m.address(op), SIZE)?;
            m.set(op.destination, SIZE, x);
        }
        _ => return m.store_sized(m.address(op), SIZE, register),
    }
    if SIZE == 8 && usize::from(op.destination) == RSP {
        m.stack_moved();
    }
    Ok(())
}

/// Reads the source operand of `size` bytes, which may be in memory.
#[inline]
fn source(m: &Machine, op: &Op, size: usize) -> Result<u64, Trap> {
    if op.memory_bytes > 0 { m.load_sized(m.address(op), size) } else { Ok(m.get(op.b, size)) }
}

/// Replaces the destination, which may be in memory, by the value that `f` computes from it.
fn modify(m: &mut Machine, op: &Op, f: impl FnOnce(&mut Machine, u64) -> u64) -> Step {
    let size = usize::from(op.size);
    if op.memory_bytes > 0 {
        let address = m.address(op);
        let x = m.load_sized(address, size)?;
        let flags = m.state.flags;
        let r = f(m, x);
        return m.store_sized(address, size, r).inspect_err(|_| m.state.flags = flags);
    }
    let x = m.get(op.destination, size);
    let r = f(m, x);
    m.set(op.destination, size, r);
    if usize::from(op.destination) == RSP {
        m.stack_moved();
    }
    Ok(())
}

fn increment(m: &mut Machine, op: &Op) -> Step {
    let (size, down) = (usize::from(op.size), op.immediate == 1);
    modify(m, op, |m, x| {
        let r = if down { x.wrapping_sub(1) } else { x.wrapping_add(1) } & ones(size);
        let turned = if down { r == ones(size) >> 1 } else { r == 1 << (8 * size - 1) };
        let flags = result_flags(r, size) | (x ^ r ^ 1) & AF | u64::from(turned) << 11;
        m.set_flags(ARITHMETIC & !CF, flags);
        r
    })
}

fn negate(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.size);
    modify(m, op, |m, x| {
        let r = x.wrapping_neg() & ones(size);
        let overflow = u64::from(r == x && x != 0) << 11;
        m.set_flags(ARITHMETIC, result_flags(r, size) | u64::from(x != 0) | (x ^ r) & AF | overflow);
        r
    })
}

fn not(m: &mut Machine, op: &Op) -> Step {
    modify(m, op, |_, x| !x)
}

fn movzx(m: &mut Machine, op: &Op) -> Step {
    let x = source(m, op, usize::from(op.element))?;
    m.set(op.destination, usize::from(op.size), x);
    Ok(())
}

fn movsx(m: &mut Machine, op: &Op) -> Step {
    let x = source(m, op, usize::from(op.element))?;
    m.set(op.destination, usize::from(op.size), sign_extend(x, usize::from(op.element)).cast_unsigned());
    Ok(())
}

fn lea(m: &mut Machine, op: &Op) -> Step {
    let address = m.address(op);
    m.set(op.destination, usize::from(op.size), address);
    if usize::from(op.destination) == RSP {
        m.stack_moved();
    }
    Ok(())
}

/// Executes `imul` with a destination register. It multiplies the destination and `b`, or `b` and
/// an immediate.
fn imul(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.size);
    let b = i128::from(sign_extend(source(m, op, size)?, size));
    let a = if op.c == 1 { sign_extend(op.immediate, size) } else { sign_extend(m.get(op.destination, size), size) };
    let full = i128::from(a) * b;
    let r = full as u64 & ones(size);
    let lost = full != i128::from(sign_extend(r, size));
    // The manual leaves the sign, zero, adjust and parity flags undefined. Current processors set
    // all of them except AF from the result.
    m.set_flags(ARITHMETIC, result_flags(r, size) | u64::from(lost) | u64::from(lost) << 11);
    m.set(op.destination, size, r);
    Ok(())
}

/// Executes `mul` and `imul` with one operand: `rdx:rax = rax · b`.
fn multiply_wide(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.size);
    let (a, b) = (m.get(0, size), source(m, op, size)?);
    let (full, lost) = if op.c == 1 {
        let full = i128::from(sign_extend(a, size)) * i128::from(sign_extend(b, size));
        (full.cast_unsigned(), full != i128::from(sign_extend(full as u64, size)))
    } else {
        let full = u128::from(a) * u128::from(b);
        (full, full >> (8 * size) != 0)
    };
    let (low, high) = (full as u64 & ones(size), (full >> (8 * size)) as u64 & ones(size));
    if size == 1 {
        m.set(0, 2, high << 8 | low);
    } else {
        m.set(0, size, low);
        m.set(2, size, high);
    }
    m.set_flags(ARITHMETIC, result_flags(low, size) | u64::from(lost) | u64::from(lost) << 11);
    Ok(())
}

/// Executes `div` and `idiv` of `rdx:rax`.
fn divide(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.size);
    let b = source(m, op, size)?;
    let high = if size == 1 { m.get(0, 2) >> 8 } else { m.get(2, size) };
    let n = u128::from(high) << (8 * size) | u128::from(m.get(0, size));
    let fault = || Box::new(FaultKind::Divide);
    let (quotient, remainder) = if op.c == 1 {
        let shift = 128 - 16 * size as u32;
        let n = (n << shift).cast_signed() >> shift;
        let d = i128::from(sign_extend(b, size));
        let q = n.checked_div(d).ok_or_else(fault)?;
        if q != i128::from(sign_extend(q as u64, size)) {
            return Err(fault());
        }
        (q as u64, (n % d) as u64)
    } else {
        let q = n.checked_div(u128::from(b)).ok_or_else(fault)?;
        if q > u128::from(ones(size)) {
            return Err(fault());
        }
        (q as u64, (n % u128::from(b)) as u64)
    };
    if size == 1 {
        m.set(0, 2, (remainder & 0xff) << 8 | quotient & 0xff);
    } else {
        m.set(0, size, quotient);
        m.set(2, size, remainder);
    }
    Ok(())
}

/// Extends the sign of a value in `rax` to a larger part of `rax` (`cbw`, `cwde`, `cdqe`), or into
/// `rdx` (`cwd`, `cdq`, `cqo`).
fn extend_accumulator(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.size);
    if op.c == 1 {
        let sign = sign_extend(m.get(0, size), size) >> 63;
        m.set(2, size, sign.cast_unsigned());
    } else {
        let x = sign_extend(m.get(0, size / 2), size / 2);
        m.set(0, size, x.cast_unsigned());
    }
    Ok(())
}

/// Executes `shl`, `shr`, `sar`, `rol`, `ror` (`element` 0 to 4) by an immediate or `cl`.
fn shift(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.size);
    let bits = 8 * size as u32;
    let count = (m.state.gpr[usize::from(op.b)].wrapping_add(op.immediate)) as u32 & if size == 8 { 63 } else { 31 };
    modify(m, op, |m, x| {
        if count == 0 {
            return x;
        }
        let top = |r: u64| r >> (bits - 1) & 1;
        let (r, carry, overflow) = match op.element {
            0 => {
                let wide = u128::from(x) << count;
                let carry = (wide >> bits) as u64 & 1;
                (wide as u64, carry, top(wide as u64) ^ carry)
            }
            1 => ((u128::from(x) >> count) as u64, (u128::from(x) >> (count - 1)) as u64 & 1, top(x)),
            2 => {
                let wide = i128::from(sign_extend(x, size));
                ((wide >> count) as u64, (wide >> (count - 1)) as u64 & 1, 0)
            }
            kind => {
                let left = if kind == 3 { count % bits } else { (bits - count % bits) % bits };
                let r = if left == 0 { x } else { x << left | x >> (bits - left) };
                let carry = if kind == 3 { r & 1 } else { top(r) };
                let overflow = if kind == 3 { top(r) ^ carry } else { top(r) ^ (r >> (bits - 2) & 1) };
                m.set_flags(CF | OF, carry | overflow << 11);
                return r & ones(size);
            }
        };
        let r = r & ones(size);
        m.set_flags(ARITHMETIC, result_flags(r, size) | carry | overflow << 11);
        r
    })
}

/// Executes `shlx`, `shrx`, `sarx`, `rorx`, which set no flags.
fn shift_x(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.size);
    let bits = 8 * size as u32;
    let x = source(m, op, size)?;
    let count = (m.state.gpr[usize::from(op.a)].wrapping_add(op.immediate)) as u32 & (bits - 1);
    let r = match op.element {
        0 => x << count,
        1 => x >> count,
        2 => (sign_extend(x, size) >> count).cast_unsigned(),
        _ if count == 0 => x,
        _ => x >> count | x << (bits - count),
    };
    m.set(op.destination, size, r & ones(size));
    Ok(())
}

/// Executes `bt`, `bts`, `btr`, `btc` (`element` 0 to 3) of a register.
fn bit_test(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.size);
    let bit = (m.state.gpr[usize::from(op.b)].wrapping_add(op.immediate)) & (8 * size as u64 - 1);
    let x = m.get(op.destination, size);
    m.set_flags(CF, x >> bit & 1);
    let r = match op.element {
        0 => return Ok(()),
        1 => x | 1 << bit,
        2 => x & !(1 << bit),
        _ => x ^ 1 << bit,
    };
    m.set(op.destination, size, r);
    Ok(())
}

/// Executes `lzcnt`, `tzcnt`, `popcnt` (`element` 0 to 2).
fn count_bits(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.size);
    let bits = 8 * size as u64;
    let x = source(m, op, size)?;
    let (r, flags) = match op.element {
        0 => {
            let r = u64::from(x.leading_zeros()) - (64 - bits);
            (r, u64::from(r == bits) | u64::from(r == 0) << 6)
        }
        1 => {
            let r = u64::from(x.trailing_zeros()).min(bits);
            (r, u64::from(r == bits) | u64::from(r == 0) << 6)
        }
        _ => (u64::from(x.count_ones()), u64::from(x == 0) << 6),
    };
    m.set_flags(ARITHMETIC, flags);
    m.set(op.destination, size, r);
    Ok(())
}

/// Executes the BMI instructions. `element` 0 to 8 are `andn`, `bextr`, `blsi`, `blsmsk`, `blsr`,
/// `bzhi`, `pdep`, `pext` and `mulx`.
fn bmi(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.size);
    let bits = 8 * size as u64;
    let a = m.get(op.a, size);
    let b = source(m, op, size)?;
    let (r, carry) = match op.element {
        0 => (!a & b, false),
        1 => {
            let (start, len) = (a & 0xff, a >> 8 & 0xff);
            let shifted = if start < 64 { b >> start } else { 0 };
            (if len < 64 { shifted & ((1 << len) - 1) } else { shifted }, false)
        }
        2 => (b & b.wrapping_neg(), b != 0),
        3 => (b ^ b.wrapping_sub(1), b == 0),
        4 => (b & b.wrapping_sub(1), b == 0),
        5 => {
            let n = a & 0xff;
            (if n < bits { b & ((1 << n) - 1) } else { b }, n >= bits)
        }
        6 | 7 => {
            // The set bits of `b`, from the lowest on, receive the lowest bits of `a` (`pdep`). Or
            // they select bits of `a`, which become the lowest bits of the result (`pext`).
            let (mut r, mut mask, mut k) = (0, b, 0);
            while mask != 0 {
                let place = mask.trailing_zeros();
                let (from, to) = if op.element == 6 { (k, place) } else { (place, k) };
                r |= (a >> from & 1) << to;
                mask &= mask - 1;
                k += 1;
            }
            m.set(op.destination, size, r);
            return Ok(());
        }
        _ => {
            let full = u128::from(m.get(2, size)) * u128::from(b);
            // If both results go to the same register, it gets the high half.
            m.set(op.a, size, full as u64 & ones(size));
            m.set(op.destination, size, (full >> bits) as u64);
            return Ok(());
        }
    };
    let r = r & ones(size);
    m.set_flags(ARITHMETIC, result_flags(r, size) & !PF | u64::from(carry));
    m.set(op.destination, size, r);
    Ok(())
}

fn bswap(m: &mut Machine, op: &Op) -> Step {
    let x = m.get(op.destination, usize::from(op.size)).swap_bytes() >> (64 - 8 * u32::from(op.size));
    m.set(op.destination, usize::from(op.size), x);
    Ok(())
}

fn cmov(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.size);
    // Even if the condition is false, the memory operand is read, and a 32-bit destination is
    // extended.
    let x = source(m, op, size)?;
    let r = if m.condition(op.c) { x } else { m.get(op.destination, size) };
    m.set(op.destination, size, r);
    Ok(())
}

fn setcc(m: &mut Machine, op: &Op) -> Step {
    let x = u64::from(m.condition(op.c));
    if op.memory_bytes > 0 {
        return m.store_sized(m.address(op), 1, x);
    }
    m.set(op.destination, 1, x);
    Ok(())
}

fn jcc(m: &mut Machine, op: &Op) -> Step {
    if m.condition(op.c) {
        m.next = op.target as usize;
    }
    Ok(())
}

fn jmp(m: &mut Machine, op: &Op) -> Step {
    m.next = op.target as usize;
    Ok(())
}

fn push(m: &mut Machine, op: &Op) -> Step {
    let x = if op.memory_bytes > 0 && op.element == 1 {
        m.load_sized(m.address(op), 8)?
    } else {
        m.state.gpr[usize::from(op.b)].wrapping_add(op.immediate)
    };
    let rsp = m.state.gpr[RSP].wrapping_sub(8);
    m.state.gpr[RSP] = rsp;
    m.stack_moved();
    m.memory.store(rsp, x.to_le_bytes())
}

fn pop(m: &mut Machine, op: &Op) -> Step {
    let rsp = m.state.gpr[RSP];
    let x = u64::from_le_bytes(m.memory.load(rsp)?);
    m.state.gpr[RSP] = rsp.wrapping_add(8);
    m.state.gpr[usize::from(op.destination)] = x;
    m.stack_moved();
    Ok(())
}

fn ret(m: &mut Machine, _: &Op) -> Step {
    let rsp = m.state.gpr[RSP];
    let found = u64::from_le_bytes(m.memory.load(rsp)?);
    if found != RETURN_ADDRESS {
        return Err(Box::new(FaultKind::ReturnAddress { found }));
    }
    m.state.gpr[RSP] = rsp.wrapping_add(8);
    m.returned = true;
    m.next = usize::MAX;
    Ok(())
}

fn nop(_: &mut Machine, _: &Op) -> Step {
    Ok(())
}

fn xchg(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.size);
    let b = m.get(op.b, size);
    if op.memory_bytes > 0 {
        let address = m.address(op);
        let a = m.load_sized(address, size)?;
        m.store_sized(address, size, b)?;
        m.set(op.b, size, a);
    } else {
        let a = m.get(op.destination, size);
        m.set(op.destination, size, b);
        m.set(op.b, size, a);
    }
    Ok(())
}

/// Executes `stc`, `clc`, `cmc`, `std`, `cld` (`element` 0 to 4).
fn flag(m: &mut Machine, op: &Op) -> Step {
    let f = m.state.flags;
    m.state.flags = match op.element {
        0 => f | CF,
        1 => f & !CF,
        2 => f ^ CF,
        3 => f | DF,
        _ => f & !DF,
    };
    Ok(())
}
