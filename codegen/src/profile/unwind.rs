//! Unwind tables: the location of the frame and of the caller's registers at each instruction, in
//! DWARF form (version 4, section 6.4). Debuggers use them to find a kernel's caller.
//!
//! The tables are derived from the finished instructions: a kernel saves registers and moves the
//! stack pointer only at its beginning and end. The derivation expects code of the x86-64 lowering.
//! `portable` code saves registers with moves, so its frames are right but callers' registers are
//! missing.
//!
//! ```text
//! push rbx                 the frame begins 16 bytes above rsp, rbx is at its end
//! mov rax, rsp             of aligned frames the old stack pointer is kept
//! sub rsp, 192
//! and rsp, -64
//! mov [rsp + 128], rax     the frame begins 16 bytes above what lies there
//! ```

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};

/// Bytes of a register on the stack.
const WORD: i64 = 8;
/// DWARF's numbers of `rax`, `rsp` and the return address.
const RAX: u64 = 0;
const RSP: u64 = 7;
const RETURN: u8 = 16;

// Opcodes of call frame information, and of its expressions.
const ADVANCE_LOC4: u8 = 0x04;
const DEF_CFA: u8 = 0x0c;
const DEF_CFA_EXPRESSION: u8 = 0x0f;
const OFFSET: u8 = 0x80;
const SAME_VALUE: u8 = 0x08;
const NOP: u8 = 0x00;
const OP_BREG7: u8 = 0x77;
const OP_DEREF: u8 = 0x06;
const OP_PLUS_UCONST: u8 = 0x23;

/// Returns DWARF's number of a 64-bit register.
fn number(register: Register) -> Option<u64> {
    // DWARF's order differs from the encoding's order for the first eight registers.
    let numbers = [
        Register::RAX,
        Register::RDX,
        Register::RCX,
        Register::RBX,
        Register::RSI,
        Register::RDI,
        Register::RBP,
        Register::RSP,
        Register::R8,
        Register::R9,
        Register::R10,
        Register::R11,
        Register::R12,
        Register::R13,
        Register::R14,
        Register::R15,
    ];
    numbers.iter().position(|own| *own == register).map(|number| number as u64)
}

fn uleb(mut value: u64, out: &mut Vec<u8>) {
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        out.push(byte | if value > 0 { 0x80 } else { 0 });
        if value == 0 {
            break;
        }
    }
}

fn sleb(mut value: i64, out: &mut Vec<u8>) {
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        let is_last = value == 0 && byte & 0x40 == 0 || value == -1 && byte & 0x40 != 0;
        out.push(byte | if is_last { 0 } else { 0x80 });
        if is_last {
            break;
        }
    }
}

/// Place that holds the stack pointer from which the frame is located.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    StackPointer,
    /// A register with a copy of the stack pointer.
    Register(u64),
    /// A stack slot with a copy of the stack pointer.
    Slot,
}

/// Returns the call frame instructions that locate the frame at each instruction of the code.
fn program(code: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    // Bytes from the stack pointer to the end of the caller's frame: `depth` now, and `kept` when
    // the stack pointer was copied.
    let (mut depth, mut kept, mut from) = (WORD, WORD, From::StackPointer);
    let mut told = 0;
    for i in Decoder::with_ip(64, code, 0, DecoderOptions::NONE) {
        let mut rules = Vec::new();
        let define = |register: u64, depth: i64, rules: &mut Vec<u8>| {
            rules.push(DEF_CFA);
            uleb(register, rules);
            uleb(depth.unsigned_abs(), rules);
        };
        match i.code() {
            Code::Push_r64 => {
                depth += WORD;
                if from == From::StackPointer {
                    define(RSP, depth, &mut rules);
                }
                if let Some(register) = number(i.op0_register()) {
                    rules.push(OFFSET | register as u8);
                    uleb((depth / WORD).unsigned_abs(), &mut rules);
                }
            }
            Code::Pop_r64 => {
                depth -= WORD;
                from = From::StackPointer;
                define(RSP, depth, &mut rules);
                if let Some(register) = number(i.op0_register()) {
                    rules.push(SAME_VALUE);
                    uleb(register, &mut rules);
                }
            }
            Code::Sub_rm64_imm32 | Code::Sub_rm64_imm8 if of_stack(&i) && from == From::StackPointer => {
                depth += i.immediate(1) as i64;
                define(RSP, depth, &mut rules);
            }
            Code::Add_rm64_imm32 | Code::Add_rm64_imm8 if of_stack(&i) && from == From::StackPointer => {
                depth -= i.immediate(1) as i64;
                define(RSP, depth, &mut rules);
            }
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64
                if i.op0_kind() == OpKind::Register
                    && i.op1_kind() == OpKind::Register
                    && i.op1_register() == Register::RSP
                    && i.op0_register() != Register::RSP =>
            {
                if let Some(register) = number(i.op0_register()) {
                    (kept, from) = (depth, From::Register(register));
                    define(register, kept, &mut rules);
                }
            }
            Code::Mov_rm64_r64
                if from == From::Register(RAX) && in_frame(&i, 0) && i.op1_register() == Register::RAX =>
            {
                from = From::Slot;
                let mut expression = vec![OP_BREG7];
                sleb(i.memory_displacement64() as i64, &mut expression);
                expression.extend([OP_DEREF, OP_PLUS_UCONST]);
                uleb(kept.unsigned_abs(), &mut expression);
                rules.push(DEF_CFA_EXPRESSION);
                uleb(expression.len() as u64, &mut rules);
                rules.extend(expression);
            }
            // The epilogue of a frame that is aligned or has a frame pointer.
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64
                if i.op0_kind() == OpKind::Register
                    && i.op0_register() == Register::RSP
                    && (in_frame(&i, 1) || i.op1_kind() == OpKind::Register) =>
            {
                (depth, from) = (kept, From::StackPointer);
                define(RSP, depth, &mut rules);
            }
            _ => {}
        }
        if !rules.is_empty() {
            let at = i.next_ip() as u32;
            out.push(ADVANCE_LOC4);
            out.extend((at - told).to_le_bytes());
            told = at;
            out.extend(rules);
        }
    }
    out
}

/// Whether an instruction adds to the stack pointer or subtracts from it.
fn of_stack(i: &Instruction) -> bool {
    i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP
}

fn in_frame(i: &Instruction, operand: u32) -> bool {
    i.op_kind(operand) == OpKind::Memory && i.memory_base() == Register::RSP && i.memory_index() == Register::None
}

/// Returns the body of the common information entry (CIE). `data` is the augmentation data.
fn common(augmentation: &[u8], data: &[u8]) -> Vec<u8> {
    let mut out = vec![1];
    out.extend(augmentation);
    out.push(0);
    uleb(1, &mut out);
    sleb(-WORD, &mut out);
    out.push(RETURN);
    out.extend(data);
    out.push(DEF_CFA);
    uleb(RSP, &mut out);
    uleb(WORD.unsigned_abs(), &mut out);
    out.push(OFFSET | RETURN);
    uleb(1, &mut out);
    out
}

/// Returns an entry of the table: length, id and `rest`, padded with no-ops.
fn entry(id: u32, rest: &[u8]) -> Vec<u8> {
    let bytes = (4 + rest.len()).next_multiple_of(8) + 4;
    let mut out = (bytes as u32).to_le_bytes().to_vec();
    out.extend(id.to_le_bytes());
    out.extend(rest);
    // Entries begin at multiples of eight bytes, counting the four bytes of the length.
    out.resize(bytes + 4, NOP);
    out
}

/// Returns `.debug_frame` for kernels at these addresses.
pub(super) fn debug_frame<'c>(kernels: impl Iterator<Item = (u64, &'c [u8])>) -> Vec<u8> {
    let mut out = entry(u32::MAX, &common(&[], &[]));
    for (address, code) in kernels {
        let mut rest = address.to_le_bytes().to_vec();
        rest.extend((code.len() as u64).to_le_bytes());
        rest.extend(program(code));
        out.extend(entry(0, &rest));
    }
    out
}

/// Returns `.eh_frame` followed by its lookup table (`.eh_frame_hdr`) for one kernel, and the
/// table's size in bytes. Relative addresses assume that `perf inject` puts both sections after the
/// code, at the next multiple of eight bytes.
pub(super) fn eh_frame(code: &[u8]) -> (Vec<u8>, usize) {
    // Encoding of addresses: four bytes, relative to their own position.
    const PCREL_SDATA4: u8 = 0x1b;
    const DATAREL_SDATA4: u8 = 0x3b;
    const UDATA4: u8 = 0x03;
    let before = code.len().next_multiple_of(8);
    let mut out = entry(0, &common(b"zR", &[1, PCREL_SDATA4]));
    let frame = out.len();
    // The id of the entry is the distance back to the common entry. Its address is the distance
    // back to the code.
    let id = (frame + 4) as u32;
    let relative = -((before + frame + 8) as i64) as i32;
    let mut rest = relative.to_le_bytes().to_vec();
    rest.extend((code.len() as u32).to_le_bytes());
    // There is no augmentation.
    rest.push(0);
    rest.extend(program(code));
    out.extend(entry(id, &rest));
    // The list ends with zeros.
    out.extend([0; 4]);
    out.resize(out.len().next_multiple_of(8), 0);
    let frames = out.len();
    let mut table = vec![1, PCREL_SDATA4, UDATA4, DATAREL_SDATA4];
    table.extend((-(frames as i64 + 4) as i32).to_le_bytes());
    table.extend(1_u32.to_le_bytes());
    table.extend((-((before + frames) as i64) as i32).to_le_bytes());
    table.extend((-((frames - frame) as i64) as i32).to_le_bytes());
    let bytes = table.len();
    out.extend(table);
    (out, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwind_program_follows_pushes_and_pops() {
        // push rbx; push r12; sub rsp, 32; add rsp, 32; pop r12; pop rbx; ret
        let code = [0x53, 0x41, 0x54, 0x48, 0x83, 0xec, 0x20, 0x48, 0x83, 0xc4, 0x20, 0x41, 0x5c, 0x5b, 0xc3];
        let step = |bytes: u8, rules: &[u8]| [&[ADVANCE_LOC4, bytes, 0, 0, 0][..], rules].concat();
        let expected = [
            step(1, &[DEF_CFA, 7, 16, OFFSET | 3, 2]),
            step(2, &[DEF_CFA, 7, 24, OFFSET | 12, 3]),
            step(4, &[DEF_CFA, 7, 56]),
            step(4, &[DEF_CFA, 7, 24]),
            step(2, &[DEF_CFA, 7, 16, SAME_VALUE, 12]),
            step(1, &[DEF_CFA, 7, 8, SAME_VALUE, 3]),
        ];
        assert_eq!(program(&code), expected.concat());
        // mov rax, rsp; sub rsp, 128; and rsp, -64; mov [rsp + 64], rax; mov rsp, [rsp + 64]; ret
        let code = [
            0x48, 0x8b, 0xc4, 0x48, 0x81, 0xec, 0x80, 0, 0, 0, 0x48, 0x83, 0xe4, 0xc0, 0x48, 0x89, 0x44, 0x24, 0x40,
            0x48, 0x8b, 0x64, 0x24, 0x40, 0xc3,
        ];
        let expected = [
            step(3, &[DEF_CFA, 0, 8]),
            step(16, &[DEF_CFA_EXPRESSION, 6, OP_BREG7, 0xc0, 0, OP_DEREF, OP_PLUS_UCONST, 8]),
            step(5, &[DEF_CFA, 7, 8]),
        ];
        assert_eq!(program(&code), expected.concat());
    }

    #[test]
    fn unwind_entries_are_padded_to_words() {
        for bytes in 0..20 {
            let entry = entry(7, &vec![1; bytes]);
            assert!(entry.len().is_multiple_of(8));
            assert_eq!(u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]) as usize + 4, entry.len());
        }
        let (frames, table) = eh_frame(&[0xc3]);
        assert!(table == 20 && (frames.len() - table).is_multiple_of(8));
    }
}
