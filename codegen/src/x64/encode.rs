//! Encoding: turns machine IR with physical registers into bytes, through iced-x86.
//!
//! Pseudo instructions get their final form here. A fused multiply-add takes the 231, 213 or 132
//! form, depending on which operand shares the result's register. A constant becomes a load, or an
//! instruction that sets all bits to zero or one. A copy within one register disappears.
//!
//! An instruction with a register above 15, a mask or a broadcast memory operand takes its EVEX
//! form ([`super::codes`]). A stack frame is created only if needed. Constants follow the code,
//! 64-byte aligned and addressed relative to `rip`. Code and constants can therefore be placed at
//! any 64-byte boundary.
//!
//! Invariant: no instruction needs a CPU feature that the target lacks ([`X64Error::Feature`]).
//!
//! In debug builds, every instruction is checked against iced-x86's table of its reads and writes.

use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Instruction, InstructionBlock, InstructionInfoFactory, OpAccess, OpKind,
    Register,
};

use super::allocate::Allocation;
use super::codes::{FMADD132PS, FMADD213PS, FMADD231PS, MOVAPS, MOVUPS, PCMPEQD_VEX, PTERNLOGD, PXOR, evex};
use super::machine::{Base, Class, Function, Inst, Mem, Opcode, Operand, Role, Vreg, Width};
use super::{CompiledKernel, Stats, X64Error};
use crate::line::Line;
use ixc_targets::instruction;

/// Base of the temporary addresses of instructions. They are far above the true addresses of
/// constants, so that branch targets and constants can't be confused.
const LABELS: u64 = 1 << 40;
/// Alignment of the constants and of the code.
const ALIGNMENT: usize = 64;
/// Distance between accesses that touch a new frame: one access per page never skips the guard page
/// below the stack.
const PAGE: u32 = 4096;
/// System V: `rbx`, `rbp`, `r12` to `r15` must be saved for the caller.
const CALLEE_SAVED: [u8; 6] = [3, 5, 12, 13, 14, 15];

const R64: [Register; 16] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RBX,
    Register::RSP,
    Register::RBP,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// An instruction before its encoding.
struct Pending {
    instruction: Instruction,
    origin: Option<u32>,
    /// The constant that the instruction's displacement refers to.
    pool: Option<u32>,
}

/// Truth table of `vpternlogd` for "always true".
const ONES: i64 = 0xff;

struct Encoder<'f> {
    f: &'f Function,
    registers: &'f [u8],
    out: Vec<Pending>,
    /// Offsets of spill slots from `rsp`.
    slots: Vec<u32>,
    /// Index in `out` of the first instruction of each block.
    starts: Vec<u64>,
    stats: Stats,
    innermost: bool,
    /// Pool entry with the shapes of the tile registers, if there are tiles.
    tiles: Option<u32>,
}

/// Encodes an allocated function.
///
/// # Errors
/// If iced-x86 refuses an instruction.
pub fn encode(name: &str, f: &Function, allocation: &Allocation) -> Result<CompiledKernel, X64Error> {
    let mut frame = 0;
    let mut slots = vec![0; f.slots.len()];
    // Wide slots first, so that each is aligned to its size within the frame.
    for size in [64, 32, 16, 8] {
        for (offset, _) in slots.iter_mut().zip(&f.slots).filter(|(_, bytes)| **bytes == size) {
            *offset = frame;
            frame += size;
        }
    }
    let alignment = f.slots.iter().copied().filter(|bytes| *bytes > 16).max();
    let stats = Stats {
        vector_spills: allocation.vector_spills,
        gpr_spills: allocation.gpr_spills,
        rematerialised: allocation.rematerialised,
        ..Stats::default()
    };
    let mut encoder = Encoder {
        f,
        registers: &allocation.registers,
        out: Vec::new(),
        slots,
        starts: vec![0; f.blocks.len()],
        stats,
        innermost: false,
        tiles: allocation.tiles,
    };
    encoder.function(frame, alignment);
    encoder.finish(name)
}

impl Encoder<'_> {
    /// Emits the whole function. `alignment` is the alignment of the frame, if it is greater than
    /// that of the stack.
    fn function(&mut self, frame: u32, alignment: Option<u32>) {
        let mut saved: Vec<Register> = Vec::new();
        for register in CALLEE_SAVED {
            let used = self.f.vregs.iter().zip(self.registers).any(|(c, r)| *c == Class::Gpr && *r == register);
            if used {
                saved.push(R64[register as usize]);
            }
        }
        for &register in &saved {
            self.plain(Code::Push_r64, &[register]);
        }
        // Wide slots are aligned, so that no slot crosses a cache line. The old stack pointer is
        // stored above the slots. `rax` is free here: only the arguments are live.
        let reserved = frame + alignment.unwrap_or(0);
        if alignment.is_some() {
            self.plain(Code::Mov_r64_rm64, &[Register::RAX, Register::RSP]);
        }
        let mut left = reserved;
        while left > 0 {
            let step = left.min(PAGE);
            self.immediate(Code::Sub_rm64_imm32, Register::RSP, i64::from(step));
            if left > PAGE {
                let mut touch = Instruction::default();
                touch.set_code(Code::Test_rm64_r64);
                touch.set_op_kind(0, OpKind::Memory);
                touch.set_memory_base(Register::RSP);
                touch.set_op_register(1, Register::RAX);
                self.push(touch, None, None);
            }
            left -= step;
        }
        if let Some(alignment) = alignment {
            self.immediate(Code::And_rm64_imm8, Register::RSP, -i64::from(alignment));
            self.stack_slot(Code::Mov_rm64_r64, 0, frame);
        }
        if let Some(id) = self.tiles {
            self.code(Code::VEX_Ldtilecfg_m512, &Inst::code(Code::VEX_Ldtilecfg_m512).mem(Mem::pool(id)));
            if let Some(last) = self.out.last_mut() {
                last.origin = None;
            }
        }
        for id in &self.f.layout {
            let block = &self.f.blocks[id.index()];
            self.starts[id.index()] = self.out.len() as u64;
            self.innermost = block.innermost;
            for inst in &block.insts {
                self.inst(inst);
            }
        }
        if self.tiles.is_some() {
            self.plain(Code::VEX_Tilerelease, &[]);
        }
        self.plain(Code::VEX_Vzeroupper, &[]);
        if alignment.is_some() {
            self.stack_slot(Code::Mov_r64_rm64, 1, frame);
        } else if frame > 0 {
            self.immediate(Code::Add_rm64_imm32, Register::RSP, i64::from(frame));
        }
        for &register in saved.iter().rev() {
            self.plain(Code::Pop_r64, &[register]);
        }
        self.plain(Code::Retnq, &[]);
    }

    fn push(&mut self, instruction: Instruction, origin: Option<u32>, pool: Option<u32>) {
        self.out.push(Pending { instruction, origin, pool });
    }

    fn plain(&mut self, code: Code, operands: &[Register]) {
        let mut instruction = Instruction::default();
        instruction.set_code(code);
        for (i, &register) in operands.iter().enumerate() {
            instruction.set_op_register(i as u32, register);
        }
        self.push(instruction, None, None);
    }

    fn immediate(&mut self, code: Code, register: Register, value: i64) {
        let mut instruction = Instruction::default();
        instruction.set_code(code);
        instruction.set_op_register(0, register);
        if code == Code::And_rm64_imm8 {
            instruction.set_op_kind(1, OpKind::Immediate8to64);
            instruction.set_immediate8to64(value);
        } else {
            instruction.set_op_kind(1, OpKind::Immediate32to64);
            instruction.set_immediate32to64(value);
        }
        self.push(instruction, None, None);
    }

    /// Stores `rax` at an offset from the stack pointer (if `memory` is 0), or loads the stack
    /// pointer from there. `memory` is the index of the memory operand.
    fn stack_slot(&mut self, code: Code, memory: u32, offset: u32) {
        let mut instruction = Instruction::default();
        instruction.set_code(code);
        instruction.set_op_kind(memory, OpKind::Memory);
        instruction.set_memory_base(Register::RSP);
        instruction.set_memory_displacement64(u64::from(offset));
        instruction.set_memory_displ_size(1);
        instruction.set_op_register(1 - memory, if memory == 0 { Register::RAX } else { Register::RSP });
        self.push(instruction, None, None);
    }

    fn number(&self, v: Vreg) -> u8 {
        self.registers[v.index()]
    }

    fn register(&self, v: Vreg, width: Width) -> Register {
        let n = u32::from(self.number(v));
        match width {
            Width::R64 => R64[n as usize],
            Width::R32 => R64[n as usize].full_register32(),
            Width::R16 => R64[n as usize].full_register32() - Register::EAX as u32 + Register::AX as u32,
            Width::X => Register::XMM0 + n,
            Width::Y => Register::YMM0 + n,
            Width::Z => Register::ZMM0 + n,
            Width::K => Register::K0 + n,
            Width::T => Register::TMM0 + n,
        }
    }

    fn inst(&mut self, inst: &Inst) {
        match inst.opcode {
            Opcode::Code(code) => self.code(code, inst),
            Opcode::Copy => {
                if let [Operand::Reg(to, width, _), Operand::Reg(from, ..), ..] = inst.operands {
                    self.copy(to, from, width, inst.origin);
                }
            }
            Opcode::Constant(id) => {
                if let Operand::Reg(to, width, _) = inst.operands[0] {
                    self.constant(id, to, width, inst.origin);
                }
            }
            Opcode::Fma { scalar } => self.fma(scalar, inst),
            Opcode::Ternary(table) => {
                if let [Operand::Reg(to, width, _), a, b, c, _] = inst.operands {
                    self.ternary(table, to, width, [a, b, c], inst.origin);
                }
            }
        }
    }

    fn copy(&mut self, to: Vreg, from: Vreg, width: Width, origin: u32) {
        if self.number(to) == self.number(from) {
            return;
        }
        self.stats.moves += 1;
        self.stats.moves_in_innermost_loops += usize::from(self.innermost);
        let code = match width {
            // Tiles are never copied; allocation refuses such kernels.
            Width::R16 | Width::R32 | Width::R64 | Width::K | Width::T => Code::Mov_r64_rm64,
            Width::X => MOVAPS.0,
            Width::Y => MOVAPS.1,
            Width::Z => MOVAPS.2,
        };
        self.code(code, &Inst { origin, ..Inst::code(code).def(to, width).read(from, width) });
    }

    fn constant(&mut self, id: u32, to: Vreg, width: Width, origin: u32) {
        let bytes = &self.f.pool[id as usize];
        let (zero, ones) = (bytes.iter().all(|b| *b == 0), bytes.iter().all(|b| *b == 0xff));
        let high = self.number(to) > 15;
        let idiom = if zero {
            // The 128-bit form also clears the upper bits.
            Some((if high { evex(PXOR.0).unwrap_or(PXOR.0) } else { PXOR.0 }, Width::X))
        } else if ones {
            match width {
                Width::Z => Some((PTERNLOGD.2, Width::Z)),
                Width::Y => Some((if high { PTERNLOGD.1 } else { PCMPEQD_VEX.1 }, Width::Y)),
                Width::X => Some((if high { PTERNLOGD.0 } else { PCMPEQD_VEX.0 }, Width::X)),
                // Constants are vectors.
                Width::R16 | Width::R32 | Width::R64 | Width::K | Width::T => None,
            }
        } else {
            None
        };
        match idiom {
            Some((code, width)) => {
                let register = self.register(to, width);
                self.plain(code, &[register; 3]);
                if let Some(last) = self.out.last_mut() {
                    last.origin = Some(origin);
                    if last.instruction.op_count() == 4 {
                        last.instruction.set_op_kind(3, OpKind::Immediate8);
                        last.instruction.set_immediate8(ONES as u8);
                    }
                }
            }
            None => {
                let code = match width {
                    Width::Z => MOVUPS.2,
                    Width::Y => MOVUPS.1,
                    Width::R16 | Width::R32 | Width::R64 | Width::X | Width::K | Width::T => MOVUPS.0,
                };
                self.code(code, &Inst { origin, ..Inst::code(code).def(to, width).mem(Mem::pool(id)) });
            }
        }
    }

    /// Emits `to = a * b + c`, overwriting the source that shares its register with `to`. The
    /// operands of `inst` are `to`, `a`, `b` and `c`.
    fn fma(&mut self, scalar: bool, inst: &Inst) {
        let [Operand::Reg(to, width, _), a, b, c, _] = inst.operands else { return };
        let origin = inst.origin;
        let shares = |o: Operand| matches!(o, Operand::Reg(v, ..) if self.number(v) == self.number(to));
        // The factors may be exchanged. A memory operand must be the second factor.
        let (a, b) = if matches!(a, Operand::Mem(_)) { (b, a) } else { (a, b) };
        // The three forms differ in the operand that is overwritten (d) and in the operand that may
        // be memory (m). They are 231: d = s * m + d, 213: d = s * d + m, 132: d = d * m + s.
        let (form, copied, second, third) = match (matches!(b, Operand::Mem(_)), matches!(c, Operand::Mem(_))) {
            (true, _) if shares(c) => (231, None, a, b),
            (true, _) if shares(a) => (132, None, c, b),
            (true, _) => (231, Some(c), a, b),
            (false, true) if shares(a) => (213, None, b, c),
            (false, true) if shares(b) => (213, None, a, c),
            (false, true) => (213, Some(a), b, c),
            (false, false) if shares(c) => (231, None, a, b),
            (false, false) if shares(a) => (213, None, b, c),
            (false, false) if shares(b) => (213, None, a, c),
            (false, false) => (231, Some(c), a, b),
        };
        if let Some(Operand::Reg(from, ..)) = copied {
            self.copy(to, from, width, origin);
        }
        let code = match (form, scalar) {
            (132, true) => Code::VEX_Vfmadd132ss_xmm_xmm_xmmm32,
            (213, true) => Code::VEX_Vfmadd213ss_xmm_xmm_xmmm32,
            (_, true) => Code::VEX_Vfmadd231ss_xmm_xmm_xmmm32,
            (132, false) => FMADD132PS.at(width),
            (213, false) => FMADD213PS.at(width),
            (_, false) => FMADD231PS.at(width),
        };
        let mut inst = Inst::code(code).update(to, width);
        (inst.operands[1], inst.operands[2], inst.origin) = (second, third, origin);
        self.code(code, &inst);
    }

    /// Emits `to = f(a, b, c)`, overwriting the source that shares its register with `to`.
    fn ternary(&mut self, table: u8, to: Vreg, width: Width, sources: [Operand; 3], origin: u32) {
        let memory = |i: usize| matches!(sources[i], Operand::Mem(_));
        let shares = |i: usize| matches!(sources[i], Operand::Reg(v, ..) if self.number(v) == self.number(to));
        let overwritten = (0..3).find(|&i| shares(i));
        let first = overwritten.or((0..3).find(|&i| !memory(i))).unwrap_or(0);
        // A memory operand must be the third operand.
        let third = (0..3).find(|&i| memory(i)).unwrap_or(if first == 2 { 1 } else { 2 });
        let order = [first, 3 - first - third, third];
        if let (None, Operand::Reg(from, ..)) = (overwritten, sources[first]) {
            self.copy(to, from, width, origin);
        }
        let mut permuted = 0;
        for index in 0..8_u8 {
            // Bits 2, 1 and 0 belong to the first, second and third operand.
            let of = (0..3).fold(0, |of, place: usize| of | (index >> (2 - place) & 1) << (2 - order[place]));
            permuted |= (table >> of & 1) << index;
        }
        let code = PTERNLOGD.at(width);
        let mut inst = Inst::code(code).update(to, width);
        (inst.operands[1], inst.operands[2], inst.origin) = (sources[order[1]], sources[order[2]], origin);
        self.code(code, &inst.imm(permuted.into()));
    }

    /// Whether only the EVEX form can encode the instruction.
    fn needs_evex(&self, inst: &Inst) -> bool {
        let operand = |o: &Operand| match *o {
            Operand::Reg(v, Width::X | Width::Y | Width::Z, _) => self.number(v) > 15,
            Operand::Mem(mem) => mem.broadcast,
            Operand::None | Operand::Reg(..) | Operand::Imm(_) | Operand::Block(_) => false,
        };
        inst.mask.is_some() || inst.operands.iter().any(operand)
    }

    fn code(&mut self, code: Code, inst: &Inst) {
        let operands = &inst.operands;
        let code = if self.needs_evex(inst) { evex(code).unwrap_or(code) } else { code };
        let mut instruction = Instruction::default();
        instruction.set_code(code);
        if let Some((mask, zero)) = inst.mask {
            instruction.set_op_mask(self.register(mask, Width::K));
            instruction.set_zeroing_masking(zero);
        }
        let mut pool = None;
        for (i, operand) in (0..).zip(operands) {
            match *operand {
                Operand::None => break,
                Operand::Reg(v, width, _) => instruction.set_op_register(i, self.register(v, width)),
                Operand::Mem(mem) => {
                    instruction.set_op_kind(i, OpKind::Memory);
                    instruction.set_is_broadcast(mem.broadcast);
                    let (base, disp) = match mem.base {
                        Base::Reg(v) => (self.register(v, Width::R64), i64::from(mem.disp)),
                        Base::Slot(slot) => (Register::RSP, i64::from(self.slots[slot as usize]) + i64::from(mem.disp)),
                        Base::Pool(id) => {
                            pool = Some(id);
                            (Register::RIP, 0)
                        }
                    };
                    instruction.set_memory_base(base);
                    if let Some((index, scale)) = mem.index {
                        instruction.set_memory_index(self.register(index, Width::R64));
                        instruction.set_memory_index_scale(scale);
                    }
                    instruction.set_memory_displacement64(disp as u64);
                    // The encoder shortens the displacement to one byte if its value fits.
                    instruction.set_memory_displ_size(u32::from(disp != 0 || pool.is_some()));
                }
                Operand::Imm(value) => {
                    let kind = match code {
                        Code::Mov_r32_imm32 => OpKind::Immediate32,
                        Code::Mov_r64_imm64 => OpKind::Immediate64,
                        Code::Add_rm64_imm8 => OpKind::Immediate8to64,
                        Code::Add_rm64_imm32 | Code::Imul_r64_rm64_imm32 => OpKind::Immediate32to64,
                        // iced-x86 refuses to encode an immediate of another size.
                        _ => OpKind::Immediate8,
                    };
                    instruction.set_op_kind(i, kind);
                    instruction.set_immediate_i64(i, value);
                }
                Operand::Block(block) => {
                    instruction.set_op_kind(i, OpKind::NearBranch64);
                    // The block's number is replaced by its address when the starts of all blocks
                    // are known.
                    instruction.set_near_branch64(u64::from(block.0));
                }
            }
        }
        // `ldtilecfg` clears all tiles. It runs before any tile is live, so these writes do not
        // count.
        let configures = code == Code::VEX_Ldtilecfg_m512;
        debug_assert!(configures || self.accesses_agree(&instruction, inst), "{code:?} {inst:?}");
        self.push(instruction, Some(inst.origin), pool);
    }

    /// Whether iced-x86 and allocation agree on the registers that the instruction accesses.
    fn accesses_agree(&self, instruction: &Instruction, inst: &Inst) -> bool {
        let (mut read, mut written) = (Vec::new(), Vec::new());
        inst.for_each(|v, role| {
            let register = self.register(v, self.f.vregs[v.index()].width());
            if role != Role::Def {
                read.push(register.full_register());
            }
            if role != Role::Use {
                written.push(register.full_register());
            }
        });
        // The stack pointer and `rip` are not allocated, so they are not compared.
        let ours = |r: Register| r.is_vector_register() || r.is_k() || r.is_tmm() || (r.is_gpr() && r != Register::RSP);
        let (mut known_read, mut known_written) = (Vec::new(), Vec::new());
        for used in InstructionInfoFactory::new().info(instruction).used_registers() {
            let register = used.register().full_register();
            if !ours(register) {
                continue;
            }
            let (reads, writes) = match used.access() {
                OpAccess::Read => (true, false),
                OpAccess::Write => (false, true),
                OpAccess::ReadWrite => (true, true),
                // No instruction here has conditional accesses.
                OpAccess::CondRead | OpAccess::CondWrite | OpAccess::ReadCondWrite => return false,
                OpAccess::None | OpAccess::NoMemAccess => return false,
            };
            if reads {
                known_read.push(register);
            }
            if writes {
                known_written.push(register);
            }
        }
        for list in [&mut read, &mut written, &mut known_read, &mut known_written] {
            list.sort_unstable();
            list.dedup();
        }
        // iced-x86 reports no read for `a - a`, because the processor treats it as zero.
        let reads_agree = read == known_read || (known_read.is_empty() && read.len() == 1);
        reads_agree && written == known_written
    }

    /// Checks that the target has the features that every instruction needs.
    fn fence(&self) -> Result<(), X64Error> {
        use iced_x86::CpuidFeature as Cpuid;
        let target = self.f.target;
        for pending in &self.out {
            let code = pending.instruction.code();
            for &needs in code.cpuid_features() {
                let baseline = matches!(
                    needs,
                    // The decoder reports prefetches as SSE; every x86-64 CPU has them.
                    Cpuid::INTEL8086 | Cpuid::INTEL186 | Cpuid::INTEL386 | Cpuid::INTEL486 | Cpuid::X64 | Cpuid::SSE
                );
                if !baseline && !instruction::feature(needs).is_some_and(|feature| target.has(feature)) {
                    let instruction = format!("{:?}", code.mnemonic()).to_lowercase();
                    return Err(X64Error::Feature { instruction, feature: format!("{needs:?}"), target });
                }
            }
        }
        Ok(())
    }

    fn finish(mut self, name: &str) -> Result<CompiledKernel, X64Error> {
        self.fence()?;
        for (i, pending) in (0..).zip(&mut self.out) {
            let instruction = &mut pending.instruction;
            instruction.set_ip(LABELS + i);
            if instruction.op0_kind() == OpKind::NearBranch64 {
                let block = instruction.near_branch64() as usize;
                instruction.set_near_branch64(LABELS + self.starts[block]);
            }
        }
        // Constants that are memory operands, wide ones first.
        let mut used: Vec<u32> = self.out.iter().filter_map(|p| p.pool).collect();
        used.sort_unstable_by_key(|id| (std::cmp::Reverse(self.f.pool[*id as usize].len()), *id));
        used.dedup();
        // Displacements are always 32 bits wide, so a first encoding gives the length of the code.
        let length = self.bytes(&used, 0)?.0.len();
        let start = length.next_multiple_of(ALIGNMENT);
        let (mut code, offsets) = self.bytes(&used, start as u64)?;
        debug_assert_eq!(code.len(), length);
        let lines = self.out.iter().zip(offsets).map(|(p, offset)| Line { offset, origin: p.origin }).collect();
        self.stats.instructions = self.out.len();
        self.stats.bytes = length;
        let mut constants = Vec::new();
        for id in used {
            constants.extend_from_slice(&self.f.pool[id as usize]);
        }
        if !constants.is_empty() {
            // Execution never reaches the padding, `int3`.
            code.resize(start, 0xcc);
        }
        Ok(CompiledKernel { name: name.to_string(), code, code_bytes: length, constants, lines, stats: self.stats })
    }

    fn bytes(&mut self, used: &[u32], constants: u64) -> Result<(Vec<u8>, Vec<u32>), X64Error> {
        let mut offset = constants;
        let mut places = vec![0; self.f.pool.len()];
        for &id in used {
            places[id as usize] = offset;
            offset += self.f.pool[id as usize].len() as u64;
        }
        let mut instructions = Vec::with_capacity(self.out.len());
        for pending in &self.out {
            let mut instruction = pending.instruction;
            if let Some(id) = pending.pool {
                instruction.set_memory_displacement64(places[id as usize]);
            }
            instructions.push(instruction);
        }
        let block = InstructionBlock::new(&instructions, 0);
        let result = BlockEncoder::encode(64, block, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)
            .map_err(|error| X64Error::Encoder { reason: error.to_string() })?;
        Ok((result.code_buffer, result.new_instruction_offsets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x64::codes;
    use ixc_targets::Target;

    #[test]
    fn an_instruction_that_the_target_lacks_is_refused() {
        let add = |target, bytes| {
            let mut f = Function::new(target);
            let block = f.block(None);
            f.layout.push(block);
            let [a, b] = [0, 1].map(|_| f.vreg(Class::vector(bytes)));
            let (code, width) = codes::PADDD.for_size(bytes);
            f.blocks[0].insts.push(Inst::code(code).def(a, width).read(b, width).read(b, width));
            let none =
                Allocation { registers: vec![0, 1], vector_spills: 0, gpr_spills: 0, rematerialised: 0, tiles: None };
            encode("add", &f, &none)
        };
        assert!(add(Target::AVX2, 32).is_ok() && add(Target::AVX512, 64).is_ok());
        let error = add(Target::AVX2, 64).unwrap_err();
        assert_eq!(error.to_string(), "vpaddd needs AVX512F, which avx2 lacks");
        let error = add(Target::PORTABLE, 16).unwrap_err();
        assert_eq!(error.to_string(), "vpaddd needs AVX, which portable lacks");
    }
}
