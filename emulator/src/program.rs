//! Programs: code that is decoded once and can be called many times.

use std::cell::Cell;

use iced_x86::{
    CpuidFeature, Decoder, DecoderOptions, EncodingKind, Formatter, Instruction, InstructionInfoFactory,
    IntelFormatter, Mnemonic, OpAccess, OpKind, Register,
};

use crate::amx::TileOp;
use crate::fault::{Fault, FaultKind, Trap};
use crate::general::{self, RETURN_ADDRESS};
use crate::memory::{Memory, Slice};
use crate::op::{Machine, Op};
use crate::state::{DF, RSP, State};
use crate::{decode, vector};
use ixc_targets::instruction;
use ixc_targets::{Feature, Features};

/// Number of bytes of the stack of a call.
const STACK: usize = 1 << 20;
/// Byte that fills the stack before a call. As floats it is NaN, and as integers large numbers.
const POISON: u8 = 0xfd;
/// Callee-saved registers of System V, with their numbers.
const CALLEE_SAVED: [(usize, &str); 6] = [(3, "rbx"), (5, "rbp"), (12, "r12"), (13, "r13"), (14, "r14"), (15, "r15")];
const RDI: usize = 7;
const RSI: usize = 6;
/// First bits of the vectors, the masks and the tiles in a register set of [`Op`].
const VECTORS: u32 = 16;
const MASKS: u32 = 48;
const TILES: u32 = 56;
const ALL_TILES: u64 = 0xff << TILES;
/// Direction flag in the decoder's numbering. It is defined at a call.
const DIRECTION: u8 = 64;
const FLAGS: [(u8, &str); 7] = [(1, "of"), (2, "sf"), (4, "zf"), (8, "af"), (16, "cf"), (32, "pf"), (64, "df")];

/// Decoded code. Several threads can call it, any number of times.
///
/// ```
/// use ixc_emulator::memory::Slice;
/// use ixc_emulator::{FaultKind, Program};
/// use ixc_targets::Target;
///
/// // mov rax, [rdi]; add dword ptr [rax], 7; ret
/// let code = [0x48, 0x8b, 0x07, 0x83, 0x00, 0x07, 0xc3];
/// let program = Program::new(&code, code.len(), Target::AVX2.features()).unwrap();
/// let mut x = 35_u32.to_le_bytes();
/// let stats = program.call(&[Slice::write("x", &mut x)], &[]).unwrap();
/// assert_eq!((u32::from_le_bytes(x), stats.instructions), (42, 3));
///
/// let fault = program.call(&[Slice::write("x", &mut x[..3])], &[]).unwrap_err();
/// let said = "load of 4 bytes at byte 0 of buffer `x`, which has 3 bytes";
/// assert_eq!(fault.to_string(), format!("0x0003 `add dword ptr [rax],7`: {said}"));
/// ```
pub struct Program {
    ops: Vec<Op>,
    /// Code and its constants, after padding.
    image: Vec<u8>,
    /// Number of padding bytes before the code in `image`, which align the code.
    start: usize,
    limit: u64,
}

/// Statistics of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallStats {
    /// Number of instructions that were executed.
    pub instructions: u64,
}

/// Alignment of the code in memory, in bytes.
const ALIGNMENT: usize = 64;

thread_local! {
    /// Stack of the thread's last call, which is filled with [`POISON`] again.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Program {
    /// Decodes code: `code_bytes` bytes of instructions, followed by constants.
    ///
    /// # Errors
    /// Fails at the first instruction that is not supported, needs a feature that is not in
    /// `allowed`, or jumps to an offset without an instruction.
    pub fn new(code: &[u8], code_bytes: usize, allowed: Features) -> Result<Program, Fault> {
        let Some(instructions) = code.get(..code_bytes).filter(|_| code.len() < i32::MAX as usize) else {
            let reason = format!("{code_bytes} bytes of instructions in {} bytes of code", code.len());
            return Err(Fault { offset: None, instruction: String::new(), kind: FaultKind::Arguments { reason } });
        };
        let mut image = vec![0; code.len() + ALIGNMENT];
        let start = image.as_ptr().addr().next_multiple_of(ALIGNMENT) - image.as_ptr().addr();
        image[start..start + code.len()].copy_from_slice(code);
        // A call maps the code first, so the code has the same address as here.
        let base = Memory::new().map(Slice::read("code", &image[start..start + code.len()]))?;

        let mut ops = Vec::new();
        let mut numbers = vec![u32::MAX; code_bytes];
        let mut factory = InstructionInfoFactory::new();
        let mut decoder = Decoder::with_ip(64, instructions, 0, DecoderOptions::NONE);
        let mut branches = Vec::new();
        while decoder.can_decode() {
            let i = decoder.decode();
            let fault = |kind: Trap| fault_at(&i, *kind);
            if i.is_invalid() {
                return Err(fault(unknown_trap(&i, instructions)));
            }
            fence(&i, allowed).map_err(fault)?;
            let Some(mut op) = decode(&i, &mut factory) else {
                return Err(fault(unknown_trap(&i, instructions)));
            };
            if i.is_ip_rel_memory_operand() {
                op.address.displacement = op.address.displacement.wrapping_add(base);
            }
            if i.op0_kind() == OpKind::NearBranch64 {
                branches.push((ops.len(), i));
            }
            numbers[i.ip() as usize] = ops.len() as u32;
            ops.push(op);
        }
        for (number, i) in branches {
            let target = i.near_branch64();
            let found = usize::try_from(target).ok().and_then(|t| numbers.get(t).copied()).filter(|n| *n != u32::MAX);
            ops[number].target = found.ok_or_else(|| fault_at(&i, FaultKind::Branch { target }))?;
        }
        Ok(Program { ops, image, start, limit: u64::MAX })
    }

    /// Limits each call to this number of instructions. A call that exceeds the limit fails.
    #[must_use]
    pub fn with_step_limit(mut self, limit: u64) -> Program {
        self.limit = limit;
        self
    }

    /// Returns the number of instructions of the code.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether the code has no instruction.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Calls the code as `extern "sysv64" fn(buffers: *const *mut u8, dims: *const i64)`.
    ///
    /// # Errors
    /// Returns the first fault. Stores before the fault stay in the buffers.
    pub fn call(&self, buffers: &[Slice], dims: &[i64]) -> Result<CallStats, Fault> {
        let mut state = State::default();
        for (register, n) in state.gpr.iter_mut().zip(0..16) {
            *register = 0xdead_beef_0000_0000 | n << 8;
        }
        for vector in &mut state.vector {
            vector.0[..16].fill(POISON);
        }
        let mut defined = 1 << RDI | 1 << RSI | 1 << RSP;
        for (n, _) in CALLEE_SAVED {
            defined |= 1 << n;
        }
        self.execute(&mut state, buffers, dims, DefinedFlags { registers: defined, flags: DIRECTION }, check_return)
    }

    /// Calls the code with the registers in `state`, which count as defined, and returns the final
    /// registers in `state`. It sets the argument registers and the stack pointer itself. The
    /// conditions at return are not checked, so that parts of functions can be tested.
    ///
    /// # Errors
    /// Fails like [`Program::call`].
    pub fn call_with(&self, state: &mut State, buffers: &[Slice], dims: &[i64]) -> Result<CallStats, Fault> {
        let registers = if state.tiles.is_init() { !ALL_TILES } else { u64::MAX };
        self.execute(state, buffers, dims, DefinedFlags { registers, flags: u8::MAX }, |_, _| Ok(()))
    }

    fn execute(
        &self,
        state: &mut State,
        buffers: &[Slice],
        dims: &[i64],
        defined: DefinedFlags,
        check: fn(&[u64; 17], &State) -> Result<(), Trap>,
    ) -> Result<CallStats, Fault> {
        let mut stack = SPARE.take();
        if stack.is_empty() {
            stack = vec![POISON; STACK];
        }
        let dims: Vec<u8> = dims.iter().flat_map(|d| d.to_le_bytes()).collect();
        let mut pointers = vec![0; 8 * buffers.len()];
        // The address of a buffer depends only on its slot, which is its position. All addresses
        // are thus known before the memory is complete.
        let (mut addresses, mut memory) = (Memory::new(), Memory::new());
        memory.map(self.code())?;
        addresses.map(self.code())?;
        for (&buffer, pointer) in buffers.iter().zip(pointers.chunks_exact_mut(8)) {
            pointer.copy_from_slice(&addresses.map(buffer)?.to_le_bytes());
            memory.map(buffer)?;
        }
        state.gpr[RDI] = memory.map(Slice::read("the buffers' pointers", &pointers))?;
        state.gpr[RSI] = memory.map(Slice::read("the dims", &dims))?;
        // The stack pointer is that after a call instruction: 8 bytes below a multiple of 16.
        let entry = memory.map_stack(Slice::write("stack", &mut stack))? - 8;
        state.gpr[RSP] = entry;
        memory.set_stack_pointer(entry);
        memory.store(entry, RETURN_ADDRESS.to_le_bytes())?;

        let caller = state.gpr;
        let mut machine = Machine { state: std::mem::take(state), memory, next: 0, returned: false };
        let result = self.run(&mut machine, defined).and_then(|(stats, last)| {
            check(&caller, &machine.state).map_err(|kind| self.fault(last, kind))?;
            Ok(stats)
        });
        let Machine { state: after, memory, .. } = machine;
        *state = after;
        let lowest = memory.lowest_stack_write().min(STACK);
        drop(memory);
        stack[lowest..].fill(POISON);
        SPARE.set(stack);
        result
    }

    /// Executes instructions until the return. Returns the statistics and the index of the
    /// instruction that returned.
    fn run(&self, m: &mut Machine, mut defined: DefinedFlags) -> Result<(CallStats, usize), Fault> {
        let mut instructions = 0;
        let mut number = 0;
        while let Some(op) = self.ops.get(m.next) {
            number = m.next;
            if instructions == self.limit {
                return Err(self.fault(number, Box::new(FaultKind::StepLimit { limit: self.limit })));
            }
            instructions += 1;
            if op.reads & !defined.registers != 0 || op.flags_read & !defined.flags != 0 {
                return Err(self.fault(number, undefined_trap(op, defined)));
            }
            m.next = number + 1;
            if let Err(kind) = (op.run)(m, op) {
                return Err(self.fault(number, kind));
            }
            defined.registers = defined.registers & !op.lost | op.writes;
            defined.flags = defined.flags & !op.flags_lost | op.flags_written;
            m.state.dirty_upper |= op.dirties;
        }
        if !m.returned {
            return Err(self.fault(number, Box::new(FaultKind::End)));
        }
        Ok((CallStats { instructions }, number))
    }

    fn code(&self) -> Slice<'_> {
        Slice::read("code", &self.image[self.start..self.image.len() - ALIGNMENT + self.start])
    }

    /// Returns the fault of the instruction at index `number`.
    #[cold]
    fn fault(&self, number: usize, kind: Trap) -> Fault {
        let Some(op) = self.ops.get(number) else {
            return Fault::from(kind);
        };
        let bytes = &self.image[self.start + op.offset as usize..];
        let i = Decoder::with_ip(64, bytes, u64::from(op.offset), DecoderOptions::NONE).decode();
        fault_at(&i, *kind)
    }
}

/// Registers and flags that are defined at a point of the call.
#[derive(Clone, Copy)]
struct DefinedFlags {
    registers: u64,
    flags: u8,
}

impl From<Trap> for Fault {
    fn from(kind: Trap) -> Fault {
        Fault { offset: None, instruction: String::new(), kind: *kind }
    }
}

fn fault_at(i: &Instruction, kind: FaultKind) -> Fault {
    let mut instruction = String::new();
    IntelFormatter::new().format(i, &mut instruction);
    Fault { offset: Some(i.ip() as u32), instruction, kind }
}

fn unknown_trap(i: &Instruction, code: &[u8]) -> Trap {
    let start = i.ip() as usize;
    let bytes = code.get(start..(start + i.len().max(1)).min(code.len())).unwrap_or_default();
    let bytes: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    Box::new(FaultKind::Unknown { bytes: bytes.join(" ") })
}

/// Checks that all features that an instruction needs beyond baseline x86-64 are allowed.
fn fence(i: &Instruction, allowed: Features) -> Result<(), Trap> {
    for &needed in i.cpuid_features() {
        let known = instruction::feature(needed);
        let baseline = matches!(
            needed,
            CpuidFeature::INTEL8086
                | CpuidFeature::INTEL186
                | CpuidFeature::INTEL286
                | CpuidFeature::INTEL386
                | CpuidFeature::INTEL486
                | CpuidFeature::X64
                | CpuidFeature::CMOV
                | CpuidFeature::FPU
                | CpuidFeature::MMX
                | CpuidFeature::MULTIBYTENOP
                | CpuidFeature::PAUSE
                | CpuidFeature::SSE
                | CpuidFeature::SSE2
        );
        // All CPUs with AVX2 have these features, so the target table does not list them.
        let with_avx2 = matches!(
            needed,
            CpuidFeature::BMI1
                | CpuidFeature::BMI2
                | CpuidFeature::LZCNT
                | CpuidFeature::POPCNT
                | CpuidFeature::MOVBE
                | CpuidFeature::SSE3
                | CpuidFeature::SSSE3
                | CpuidFeature::SSE4_1
                | CpuidFeature::SSE4_2
                | CpuidFeature::PREFETCHW
                | CpuidFeature::CET_IBT
        );
        let has = baseline || with_avx2 && allowed.has(Feature::Avx2) || known.is_some_and(|f| allowed.has(f));
        if !has {
            let feature = known.map_or_else(|| format!("{needed:?}"), |f| f.name().to_string());
            return Err(Box::new(FaultKind::Feature { feature, known }));
        }
    }
    Ok(())
}

fn check_return(caller: &[u64; 17], now: &State) -> Result<(), Trap> {
    let wrong = |register, found, expected| Err(Box::new(FaultKind::CalleeSaved { register, found, expected }));
    for (n, register) in CALLEE_SAVED {
        if now.gpr[n] != caller[n] {
            return wrong(register, now.gpr[n], caller[n]);
        }
    }
    if now.gpr[RSP] != caller[RSP] + 8 {
        return wrong("rsp", now.gpr[RSP], caller[RSP] + 8);
    }
    if now.flags & DF != 0 {
        return Err(Box::new(FaultKind::DirectionFlag));
    }
    if now.dirty_upper {
        return Err(Box::new(FaultKind::DirtyUpper));
    }
    if !now.tiles.is_init() {
        return Err(Box::new(FaultKind::TileState));
    }
    Ok(())
}

#[cold]
fn undefined_trap(op: &Op, defined: DefinedFlags) -> Trap {
    let missing = op.reads & !defined.registers;
    let register = if missing != 0 {
        let n = missing.trailing_zeros();
        match n {
            0..VECTORS => format!("{:?}", Register::RAX + n).to_lowercase(),
            VECTORS..MASKS => format!("zmm{}", n - VECTORS),
            MASKS..TILES => format!("k{}", n - MASKS),
            _ => format!("tmm{}", n - TILES),
        }
    } else {
        let flag = FLAGS.iter().find(|(bit, _)| op.flags_read & !defined.flags & bit != 0);
        format!("the flag {}", flag.map_or("", |(_, name)| name))
    };
    Box::new(FaultKind::Undefined { register })
}

/// Returns the bit of a register in a register set.
fn bit(register: Register) -> u64 {
    let n = register.full_register().number() as u32;
    if register.is_gpr() {
        1 << n
    } else if register.is_vector_register() {
        1 << (VECTORS + n)
    } else if register.is_k() {
        1 << (MASKS + n)
    } else if register.is_tmm() {
        1 << (TILES + n)
    } else {
        0
    }
}

/// Whether the instruction is an idiom for zero or all ones, so that its result does not depend on
/// the sources.
fn is_constant(i: &Instruction) -> bool {
    use Mnemonic as M;
    let last = i.op_count() - 1;
    let immediate = matches!(i.op_kind(last), OpKind::Immediate8);
    if i.mnemonic() == M::Vpternlogd || i.mnemonic() == M::Vpternlogq {
        return matches!(i.immediate8(), 0 | 0xff);
    }
    let sources = if last >= 2 { 1..=last } else { 0..=last };
    let first = i.op_register(*sources.start());
    let same = !immediate && sources.into_iter().all(|n| i.op_kind(n) == OpKind::Register && i.op_register(n) == first);
    same && matches!(
        i.mnemonic(),
        M::Vpxor
            | M::Vpxord
            | M::Vpxorq
            | M::Vxorps
            | M::Vxorpd
            | M::Pxor
            | M::Xorps
            | M::Xorpd
            | M::Vpandn
            | M::Vpandnd
            | M::Vpandnq
            | M::Vandnps
            | M::Vandnpd
            | M::Vpsubb
            | M::Vpsubw
            | M::Vpsubd
            | M::Vpsubq
            | M::Vpcmpeqb
            | M::Vpcmpeqw
            | M::Vpcmpeqd
            | M::Vpcmpeqq
            | M::Vpcmpgtb
            | M::Vpcmpgtw
            | M::Vpcmpgtd
            | M::Vpcmpgtq
            | M::Pcmpeqb
            | M::Pcmpeqw
            | M::Pcmpeqd
            | M::Kxorb
            | M::Kxorw
            | M::Kxord
            | M::Kxorq
            | M::Kxnorb
            | M::Kxnorw
            | M::Kxnord
            | M::Kxnorq
            | M::Xor
            | M::Sub
    )
}

/// Returns the decoded instruction, or `None` if it is not supported.
fn decode(i: &Instruction, factory: &mut InstructionInfoFactory) -> Option<Op> {
    let mut op = Op::new(i)?;
    op.run = match general::decode(i, &mut op) {
        Some(run) if i.encoding() == EncodingKind::Legacy || !i.op0_register().is_vector_register() => run,
        _ => {
            op = Op::new(i)?;
            decode::decode(i, &mut op)?
        }
    };
    for used in factory.info(i).used_registers() {
        let bit = bit(used.register());
        match used.access() {
            OpAccess::Read | OpAccess::CondRead | OpAccess::ReadCondWrite => op.reads |= bit,
            OpAccess::Write => op.writes |= bit,
            OpAccess::ReadWrite => {
                op.reads |= bit;
                op.writes |= bit;
            }
            OpAccess::None | OpAccess::CondWrite | OpAccess::NoMemAccess => {}
        }
    }
    if i.has_op_mask() {
        op.reads |= bit(i.op_mask());
    }
    // The mask of a blend selects between the two sources, so the old destination is not read.
    let merges = i.has_op_mask() && !i.zeroing_masking() && !vector::is_blend(i.mnemonic());
    if i.op0_kind() == OpKind::Register && i.op0_register().is_vector_register() && merges {
        op.reads |= bit(i.op0_register());
        op.writes |= bit(i.op0_register());
    }
    if i.mnemonic() == Mnemonic::Vzeroupper {
        // Copies may read undefined registers. The destination is then undefined too.
        (op.reads, op.writes) = (0, 0);
    }
    if i.op_count() > 0 && !i.has_op_mask() && is_constant(i) {
        op.reads = 0;
    }
    match op.tile {
        // A new configuration zeroes all tiles, so they become defined.
        Some(TileOp::LoadConfig) => op.writes |= ALL_TILES,
        Some(TileOp::Release) => op.lost |= ALL_TILES,
        _ => {}
    }
    let written = i.op0_register();
    op.dirties = i.op_count() > 0
        && i.op0_kind() == OpKind::Register
        && (written.is_ymm() || written.is_zmm())
        && written.number() < 16;
    op.flags_read = i.rflags_read() as u8;
    op.flags_written = (i.rflags_written() | i.rflags_cleared() | i.rflags_set()) as u8;
    op.flags_lost = i.rflags_undefined() as u8;
    Some(op)
}
