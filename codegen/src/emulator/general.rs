//! General-purpose instructions.
//!
//! An operand that is a register or an immediate is `gpr[b] + immediate`, with one of them zero.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::fault::{FaultKind, Trap};
use super::op::{Machine, Op, Run};
use super::state::{AF, ALWAYS_ZERO, CF, DF, OF, PF, RSP, SF, ZF};

type Step = Result<(), Trap>;

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

/// Sign, zero and parity of a result.
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

    /// Writes a register as the processor does: 32-bit results clear the upper half, shorter ones keep the rest.
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

/// Where the operands of a two-operand instruction are.
const TO_REGISTER: u8 = 0;
const FROM_MEMORY: u8 = 1;
const TO_MEMORY: u8 = 2;

/// The arithmetic of `add`, `or`, `adc`, `sbb`, `and`, `sub`, `xor`, `cmp`, in the order of their encodings; `test` last.
const CMP: u8 = 7;
const TEST: u8 = 8;

#[inline]
fn arithmetic<const KIND: u8, const SIZE: usize>(m: &mut Machine, a: u64, b: u64) -> u64 {
    let mask = ones(SIZE);
    let (r, carry, overflow) = match KIND {
        0 | 2 => {
            let c = if KIND == 2 { m.carry() } else { 0 };
            let r = a.wrapping_add(b).wrapping_add(c) & mask;
            // A carry came out where the sum is below an operand, or equal to it with a carry in.
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
    // A store that faults must leave the flags as they were.
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
        // Sets the size, too.
        let form = $form;
        match $op.size {
            1 => by_form!(1, form, $f $(, $kind)?),
            2 => by_form!(2, form, $f $(, $kind)?),
            4 => by_form!(4, form, $f $(, $kind)?),
            _ => by_form!(8, form, $f $(, $kind)?),
        }
    }};
}

/// The source of an instruction with one source that may be memory, `size` bytes.
#[inline]
fn source(m: &Machine, op: &Op, size: usize) -> Result<u64, Trap> {
    if op.memory_bytes > 0 { m.load_sized(m.address(op), size) } else { Ok(m.get(op.b, size)) }
}

/// Reads, changes and writes back the destination, which may be memory.
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

/// `imul` with a destination register: `a` and `b`, or `b` and an immediate.
fn imul(m: &mut Machine, op: &Op) -> Step {
    let size = usize::from(op.size);
    let b = i128::from(sign_extend(source(m, op, size)?, size));
    let a = if op.c == 1 { sign_extend(op.immediate, size) } else { sign_extend(m.get(op.destination, size), size) };
    let full = i128::from(a) * b;
    let r = full as u64 & ones(size);
    let lost = full != i128::from(sign_extend(r, size));
    // Sign, zero, adjust and parity are undefined; processors of today set them by the result, except for AF.
    m.set_flags(ARITHMETIC, result_flags(r, size) | u64::from(lost) | u64::from(lost) << 11);
    m.set(op.destination, size, r);
    Ok(())
}

/// `mul` and `imul` with one operand: `rdx:rax = rax · b`.
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

/// `div` and `idiv` of `rdx:rax`.
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

/// Sign extension within `rax` (`cbw`, `cwde`, `cdqe`) and into `rdx` (`cwd`, `cdq`, `cqo`).
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

/// `shl`, `shr`, `sar`, `rol`, `ror` (in `element`: 0 to 4) by an immediate or `cl`.
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

/// `shlx`, `shrx`, `sarx`, `rorx`: no flags.
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

/// `bt`, `bts`, `btr`, `btc` (in `element`: 0 to 3) of a register.
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

/// `lzcnt`, `tzcnt`, `popcnt`, `bswap`.
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

/// `andn`, `bextr`, `blsi`, `blsmsk`, `blsr`, `bzhi`, `pdep`, `pext`, `mulx` (in `element`: 0 to 8).
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
            // The bits of `b` that are set, lowest first, take the bits of `a` from below (`pdep`) or go there (`pext`).
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
            // Where both results go to one register, the high half stays.
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
    // Memory is read, and 32-bit destinations are extended, whatever the condition says.
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
    if found != super::program::RETURN_ADDRESS {
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

/// `stc`, `clc`, `cmc`, `std`, `cld` (in `element`: 0 to 4).
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

/// Where the operands are, or `None` for what is no such form.
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

/// Sets the operands of an instruction whose source may be memory: destination, then `b`.
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

/// The condition's number in the processor's encoding.
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

/// Makes the op of a general-purpose instruction; `None` where it is none that is emulated.
pub(super) fn decode(i: &Instruction, op: &mut Op) -> Option<Run> {
    use Mnemonic as M;
    // The second byte of the first four registers.
    let high = |r: Register| matches!(r, Register::AH | Register::BH | Register::CH | Register::DH);
    if i.has_lock_prefix() || i.has_rep_prefix() || i.has_repne_prefix() {
        return None;
    }
    if (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && high(i.op_register(n))) {
        return None;
    }
    if matches!(i.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch) {
        if i.op0_kind() != OpKind::NearBranch64 {
            return None;
        }
        if i.mnemonic() == M::Jmp {
            return Some(jmp);
        }
        op.c = condition(i)?;
        return Some(jcc);
    }
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
        M::Mov => by_size!(op, form(i, op)?, mov),
        M::Inc | M::Dec => {
            form(i, op)?;
            op.immediate = u64::from(i.mnemonic() == M::Dec);
            increment
        }
        M::Neg => form(i, op).map(|_| negate)?,
        M::Not => form(i, op).map(|_| not)?,
        M::Movzx => unary_source(i, op, 1).map(|()| movzx)?,
        M::Movsx | M::Movsxd => unary_source(i, op, 1).map(|()| movsx)?,
        M::Lea => {
            let r = i.op0_register();
            (op.destination, op.size, op.memory_bytes) = (r.full_register().number() as u8, r.size() as u8, 0);
            lea
        }
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
        M::Cbw | M::Cwde | M::Cdqe | M::Cwd | M::Cdq | M::Cqo => {
            op.c = u8::from(matches!(i.mnemonic(), M::Cwd | M::Cdq | M::Cqo));
            op.size = match i.mnemonic() {
                M::Cbw | M::Cwd => 2,
                M::Cwde | M::Cdq => 4,
                _ => 8,
            };
            extend_accumulator
        }
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
        M::Bswap => {
            form(i, op)?;
            // Of 16 bits it is undefined.
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
        // Prefetches never fault, so their address is nobody's business.
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
        _ => {
            op.c = condition(i)?;
            if i.op_count() == 1 {
                if i.op0_kind() == OpKind::Register {
                    op.destination = i.op0_register().full_register().number() as u8;
                }
                setcc
            } else {
                unary_source(i, op, 1)?;
                cmov
            }
        }
    })
}
