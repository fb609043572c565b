//! Tests every instruction that both the emulator and this CPU support, in all its forms, against
//! this CPU.
//!
//! An instruction runs here only if CPUID and the system permit all features that it needs. The
//! test thus works on any x86-64 machine; without AVX, it runs only legacy instructions. The forms
//! come from the decoder's description of each instruction: its operands, and whether it can be
//! masked, broadcast or rounded. With `IXC_MNEMONIC=vaddps`, the test runs only this instruction.

use std::collections::BTreeMap;
use std::fmt::Write;

use iced_x86::{
    Code, CpuidFeature, Decoder, DecoderOptions, Encoder, Instruction, Mnemonic, OpCodeOperandKind, OpKind, Register,
    RoundingControl,
};
use ixc_emulator::state::{State, Vector};
use ixc_emulator::{FaultKind, Program, Slice};
use ixc_targets::cpu;
use ixc_targets::{Feature, Features};
use ixc_testing::qemu;

use super::state::Trouble;
use super::thunk::{Block, Thunks, Width};
use ixc_ir::random::Random;

/// Number of random operands for each form of an instruction.
const ROUNDS: usize = 6;
/// Number of runs of each form in which masked elements are beyond the end of memory.
const CUTS: usize = 2;
/// Number of bytes that memory operands may access.
const MEMORY: usize = 4096;
/// Offset of the memory operand, in the middle of the memory.
const POINTED: usize = 2048;
/// Numbers of the general registers that operands may be. The emulator sets the registers of the
/// arguments, and `rbx` points to the memory.
const GENERAL: [u32; 12] = [0, 1, 2, 5, 8, 9, 10, 11, 12, 13, 14, 15];
const POINTER: Register = Register::RBX;
/// Flags, each as the bit in the decoder's numbering and the bit in the processor's register.
const FLAGS: [(u32, u64); 6] = [(1, 1 << 11), (2, 1 << 7), (4, 1 << 6), (8, 1 << 4), (16, 1), (32, 1 << 2)];

/// Form of an instruction: the options that apply to it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Form {
    memory: bool,
    broadcast: bool,
    masked: bool,
    zeroing: bool,
    rounding: RoundingControl,
    suppress: bool,
}

fn forms(code: Code) -> Vec<Form> {
    let info = code.op_code();
    let has_memory = info.op_kinds().iter().any(|k| format!("{k:?}").contains("mem"));
    let has_register = !info.op_kinds().iter().any(|k| {
        let name = format!("{k:?}");
        name.starts_with("mem") || name == "sibmem"
    });
    let mut forms = Vec::new();
    let plain = Form {
        memory: false,
        broadcast: false,
        masked: false,
        zeroing: false,
        rounding: RoundingControl::None,
        suppress: false,
    };
    let mut places = Vec::new();
    if has_register {
        places.push(plain);
        if info.can_use_rounding_control() {
            for rounding in [
                RoundingControl::RoundToNearest,
                RoundingControl::RoundDown,
                RoundingControl::RoundUp,
                RoundingControl::RoundTowardZero,
            ] {
                places.push(Form { rounding, ..plain });
            }
        } else if info.can_suppress_all_exceptions() {
            places.push(Form { suppress: true, ..plain });
        }
    }
    if has_memory {
        places.push(Form { memory: true, ..plain });
        if info.can_broadcast() {
            places.push(Form { memory: true, broadcast: true, ..plain });
        }
    }
    for place in places {
        if !info.require_op_mask_register() {
            forms.push(place);
        }
        if info.can_use_op_mask_register() {
            forms.push(Form { masked: true, ..place });
            // A masked store merges with memory; it cannot zero elements.
            let stores = place.memory && format!("{:?}", info.op0_kind()).contains("mem");
            if info.can_use_zeroing_masking() && !stores {
                forms.push(Form { masked: true, zeroing: true, ..place });
            }
        }
    }
    forms
}

/// Returns an instruction of this form with random operands. Returns `None` if it has an operand of
/// a kind that this test does not support.
fn make(code: Code, form: Form, random: &mut Random) -> Option<Instruction> {
    use OpCodeOperandKind as K;
    let info = code.op_code();
    let mut i = Instruction::default();
    i.set_code(code);
    let evex = info.encoding() == iced_x86::EncodingKind::EVEX;
    let vectors = if evex { 32 } else { 16 };
    // Registers are chosen from few, so that operands are often equal. They are different if the
    // instruction requires this.
    let distinct = info.requires_unique_reg_nums() || info.requires_unique_dest_reg_num();
    let mut taken: Vec<u32> = Vec::new();
    let mut vector = |random: &mut Random| {
        let start = random.pick(&[0, vectors - 4]);
        loop {
            let n = start + random.index(4) as u32;
            if !(distinct && taken.contains(&n)) {
                taken.push(n);
                return n;
            }
        }
    };
    for (n, kind) in (0..).zip(info.op_kinds()) {
        let mut register = |base: Register, number: u32| {
            i.set_op_register(n, base + number);
            true
        };
        let general = random.pick(&GENERAL);
        let vsib = match kind {
            K::mem_vsib32x | K::mem_vsib64x => Some(Register::XMM0),
            K::mem_vsib32y | K::mem_vsib64y => Some(Register::YMM0),
            K::mem_vsib32z | K::mem_vsib64z => Some(Register::ZMM0),
            _ => None,
        };
        let made = match kind {
            K::r8_or_mem if !form.memory => register(Register::AL, if general >= 4 { general + 4 } else { general }),
            K::r16_or_mem if !form.memory => register(Register::AX, general),
            K::r32_or_mem if !form.memory => register(Register::EAX, general),
            K::r64_or_mem if !form.memory => register(Register::RAX, general),
            K::xmm_or_mem if !form.memory => register(Register::XMM0, vector(random)),
            K::ymm_or_mem if !form.memory => register(Register::YMM0, vector(random)),
            K::zmm_or_mem if !form.memory => register(Register::ZMM0, vector(random)),
            K::k_or_mem if !form.memory => register(Register::K0, random.index(8) as u32),
            K::r8_or_mem
            | K::r16_or_mem
            | K::r32_or_mem
            | K::r64_or_mem
            | K::xmm_or_mem
            | K::ymm_or_mem
            | K::zmm_or_mem
            | K::k_or_mem
            | K::mem
            | K::mem_vsib32x
            | K::mem_vsib64x
            | K::mem_vsib32y
            | K::mem_vsib64y
            | K::mem_vsib32z
            | K::mem_vsib64z => {
                i.set_op_kind(n, OpKind::Memory);
                i.set_memory_base(POINTER);
                if code.mnemonic() == Mnemonic::Lea {
                    // This instruction only computes the address, and accesses no memory.
                    i.set_memory_base(Register::RAX + general);
                    i.set_memory_index(Register::RAX + random.pick(&GENERAL));
                    i.set_memory_index_scale(random.pick(&[1, 2, 4, 8]));
                }
                if let Some(base) = vsib {
                    i.set_memory_index(base + vector(random));
                    i.set_memory_index_scale(random.pick(&[1, 2, 4, 8]));
                }
                let displacement: i64 = random.pick(&[0, 64, -64, 128, 0x240]);
                i.set_memory_displacement64(displacement.cast_unsigned());
                i.set_memory_displ_size(u32::from(displacement != 0));
                i.set_is_broadcast(form.broadcast);
                true
            }
            // In the decoder's numbering, `ah` to `bh` come between `bl` and `spl`.
            K::r8_reg | K::r8_opcode => register(Register::AL, if general >= 4 { general + 4 } else { general }),
            K::r16_reg | K::r16_rm | K::r16_opcode => register(Register::AX, general),
            K::r32_reg | K::r32_rm | K::r32_opcode | K::r32_vvvv => register(Register::EAX, general),
            K::r64_reg | K::r64_rm | K::r64_opcode | K::r64_vvvv => register(Register::RAX, general),
            K::k_reg | K::k_rm | K::k_vvvv => register(Register::K0, random.index(8) as u32),
            K::xmm_reg | K::xmm_rm | K::xmm_vvvv | K::xmm_is4 => register(Register::XMM0, vector(random)),
            K::ymm_reg | K::ymm_rm | K::ymm_vvvv | K::ymm_is4 => register(Register::YMM0, vector(random)),
            K::zmm_reg | K::zmm_rm | K::zmm_vvvv => register(Register::ZMM0, vector(random)),
            K::al => register(Register::AL, 0),
            K::cl => register(Register::CL, 0),
            K::ax => register(Register::AX, 0),
            K::eax => register(Register::EAX, 0),
            K::rax => register(Register::RAX, 0),
            K::imm8 | K::imm8_const_1 => {
                i.set_op_kind(n, OpKind::Immediate8);
                let x = if random.once_in(2) { random.bits() as u8 } else { random.index(20) as u8 };
                i.set_immediate8(if *kind == K::imm8 { x } else { 1 });
                true
            }
            K::imm8sex16 | K::imm8sex32 | K::imm8sex64 => {
                let x = random.bits() as i8;
                match kind {
                    K::imm8sex16 => {
                        i.set_op_kind(n, OpKind::Immediate8to16);
                        i.set_immediate8to16(x.into());
                    }
                    K::imm8sex32 => {
                        i.set_op_kind(n, OpKind::Immediate8to32);
                        i.set_immediate8to32(x.into());
                    }
                    _ => {
                        i.set_op_kind(n, OpKind::Immediate8to64);
                        i.set_immediate8to64(x.into());
                    }
                }
                true
            }
            K::imm16 => {
                i.set_op_kind(n, OpKind::Immediate16);
                i.set_immediate16(random.integer() as u16);
                true
            }
            K::imm32 => {
                i.set_op_kind(n, OpKind::Immediate32);
                i.set_immediate32(random.integer() as u32);
                true
            }
            K::imm32sex64 => {
                i.set_op_kind(n, OpKind::Immediate32to64);
                i.set_immediate32to64((random.integer() as i32).into());
                true
            }
            K::imm64 => {
                i.set_op_kind(n, OpKind::Immediate64);
                i.set_immediate64(random.integer());
                true
            }
            _ => false,
        };
        if !made {
            return None;
        }
    }
    if form.masked {
        i.set_op_mask(Register::K1 + random.index(7) as u32);
        i.set_zeroing_masking(form.zeroing);
    }
    i.set_rounding_control(form.rounding);
    i.set_suppress_all_exceptions(form.suppress);
    Some(i)
}

/// Whether this CPU has the features of an instruction, and the thunk loads and stores the
/// registers that it may use. Features without a known CPUID bit count as absent, because the
/// decoder also knows instructions of CPUs that were never sold.
fn is_here(code: Code, present: Features, width: Width) -> bool {
    code.cpuid_features().iter().all(|f| match ixc_targets::instruction::feature(*f) {
        Some(feature) => present.has(feature) && Width::needed(feature).is_some_and(|needed| needed <= width),
        None => is_here_without_a_row(*f),
    })
}

/// Whether this CPU has a feature that the target table does not list. All CPUs of the supported
/// targets have these features; this CPU may be another one.
fn is_here_without_a_row(feature: CpuidFeature) -> bool {
    use CpuidFeature as F;
    use std::arch::is_x86_feature_detected as has;
    match feature {
        F::INTEL8086 | F::INTEL186 | F::INTEL286 | F::INTEL386 | F::INTEL486 | F::X64 => true,
        F::CMOV | F::FPU | F::MULTIBYTENOP | F::PAUSE | F::SSE | F::SSE2 => true,
        F::SSE3 => has!("sse3"),
        F::SSSE3 => has!("ssse3"),
        F::SSE4_1 => has!("sse4.1"),
        F::SSE4_2 => has!("sse4.2"),
        F::POPCNT => has!("popcnt"),
        F::LZCNT => has!("lzcnt"),
        F::BMI1 => has!("bmi1"),
        F::BMI2 => has!("bmi2"),
        F::MOVBE => has!("movbe"),
        // CPUID.80000001H:ECX[8]
        F::PREFETCHW => std::arch::x86_64::__cpuid(0x8000_0001).ecx >> 8 & 1 == 1,
        _ => false,
    }
}

/// Whether the thunk cannot run an instruction, because it moves the stack pointer, jumps, or
/// changes the direction flag. The thunk does not load tiles either; `native_tiles` tests tile
/// instructions.
fn is_left_out(code: Code) -> bool {
    use Mnemonic as M;
    let mut features = code.cpuid_features().iter().filter_map(|f| ixc_targets::instruction::feature(*f));
    features.any(|f| Width::needed(f).is_none())
        || code.flow_control() != iced_x86::FlowControl::Next
        || code.op_code().is_stack_instruction()
        || matches!(code.mnemonic(), M::Push | M::Pop | M::Std | M::Cld | M::Nop | M::Endbr64)
        || code.cpuid_features().contains(&CpuidFeature::MMX)
}

/// Instructions that QEMU (7.2) does not support: it raises SIGILL, while processors execute them
/// in this test.
const UNKNOWN_TO_QEMU: [(Code, &str); 4] = {
    const SECOND_TEST: &str = "`test` has a second encoding, /1 in addition to /0, which QEMU does not support";
    [
        (Code::Test_rm8_imm8_F6r1, SECOND_TEST),
        (Code::Test_rm16_imm16_F7r1, SECOND_TEST),
        (Code::Test_rm32_imm32_F7r1, SECOND_TEST),
        (Code::Test_rm64_imm32_F7r1, SECOND_TEST),
    ]
};

/// Flags that QEMU (7.2) computes wrongly. `blsi` of 0x7fff clears the carry there, although a
/// source other than zero must set it.
const FLAGS_WRONG_IN_QEMU: [(Mnemonic, u64); 1] = [(Mnemonic::Blsi, 1)];

/// Returns the number of bytes of an element, if QEMU (7.2) returns the wrong NaN when both
/// operands are NaN. Processors return the first operand. QEMU returns the one with the larger
/// fraction, as the x87 does. This was observed with `addps`, `divpd`, `hsubps`, `vmulsd` and other
/// instructions with two quiet NaN.
fn other_nan_in_qemu(mnemonic: Mnemonic) -> Option<usize> {
    let name = format!("{mnemonic:?}").to_lowercase();
    let name = name.strip_prefix('v').unwrap_or(&name);
    let (operation, element) = name.split_at(name.len().checked_sub(2)?);
    let wrong = matches!(operation, "add" | "sub" | "mul" | "div" | "addsub" | "hadd" | "hsub");
    match element {
        "ss" | "ps" if wrong => Some(4),
        "sd" | "pd" if wrong => Some(8),
        _ => None,
    }
}

/// Whether two vectors are equal, if NaN with different payloads count as equal.
fn same_but_for_nan(a: &[u8], b: &[u8], element: usize) -> bool {
    let is_nan = |bytes: &[u8]| match bytes.try_into() {
        Ok(single) => f32::from_le_bytes(single).is_nan(),
        Err(_) => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
    };
    a.chunks(element).zip(b.chunks(element)).all(|(a, b)| a == b || is_nan(a) && is_nan(b))
}

/// Memory that ends at a guard page, so that an access after its end faults.
struct Guarded {
    start: *mut u8,
}

impl Guarded {
    const PAGE: usize = 4096;

    fn new() -> Guarded {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the mapping is new and anonymous. No other memory is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), MEMORY + Guarded::PAGE, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let start = start.cast::<u8>();
        // SAFETY: this is the last page of the mapping just made.
        let rc = unsafe { libc::mprotect(start.wrapping_add(MEMORY).cast(), Guarded::PAGE, libc::PROT_NONE) };
        assert_eq!(rc, 0);
        Guarded { start }
    }

    /// Returns the last `len` bytes of the memory.
    fn bytes(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= MEMORY);
        // SAFETY: the range lies inside the writable part of the mapping, which is borrowed as long
        // as the result.
        unsafe { std::slice::from_raw_parts_mut(self.start.wrapping_add(MEMORY - len), len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping.
        unsafe { libc::munmap(self.start.cast(), MEMORY + Guarded::PAGE) };
    }
}

struct Machine {
    memory: Guarded,
    random: Random,
    width: Width,
    qemu: bool,
}

/// Outcome of a comparison between this CPU and the emulator.
enum Outcome {
    Same,
    /// The emulator finds a fault, so this CPU does not run the instruction.
    Faults,
    Differs(String),
}

impl Machine {
    /// Executes an instruction on this CPU and in the emulator, with `len` bytes of memory, and
    /// compares the results.
    fn compare(&mut self, made: &GeneratedCase, number: usize, thunks: &mut Thunks, len: usize) -> Outcome {
        let GeneratedCase { instruction: i, program, .. } = made;
        let mut block = self.block(i);
        let mut before = vec![0; MEMORY];
        for part in before.chunks_exact_mut(64) {
            part.copy_from_slice(&self.random.vector());
        }
        let before = &before[..len];
        let mut emulated = State { flags: block.flags, mask: block.mask, ..State::default() };
        emulated.gpr[..16].copy_from_slice(&block.gpr);
        for (to, from) in emulated.vector.iter_mut().zip(&block.vector) {
            *to = Vector(*from);
            to.0[self.width.vector_bytes()..].fill(0);
        }
        let was = block.clone();
        let memory = self.memory.bytes(len);
        memory.copy_from_slice(before);
        match program.call_with(&mut emulated, &[Slice::write("memory", memory)], &[]).map_err(|fault| fault.kind) {
            Ok(_) => {}
            Err(FaultKind::Divide) => return Outcome::Faults,
            Err(FaultKind::OutOfBounds { .. } | FaultKind::Misaligned { .. }) if len < MEMORY => {
                return Outcome::Faults;
            }
            Err(fault) => panic!("{i}: {fault}"),
        }
        let after = memory.to_vec();
        memory.copy_from_slice(before);
        block.gpr[3] = memory.as_mut_ptr().wrapping_add(POINTED).expose_provenance() as u64;
        // SAFETY: the CPU has the instruction. Its accesses lie in the memory, as the emulator
        // found. If the emulator is wrong about that, the guard page ends the test.
        unsafe { thunks.run(number, &mut block) };
        let mut text = compare(i, &block, &emulated, self.width, self.qemu);
        if let Some(at) = self.memory.bytes(len).iter().zip(&after).position(|(a, b)| a != b) {
            let _ = write!(text, " memory at {}", at as i64 - POINTED as i64);
        }
        if text.is_empty() {
            return Outcome::Same;
        }
        for n in 0..i.op_count() {
            let r = i.op_register(n);
            if r.is_vector_register() {
                let _ = write!(text, "\n  {r:?} was {:02x?}", &was.vector[r.number()][..r.size()]);
            } else if r.is_gpr() {
                let _ = write!(text, "\n  {r:?} was {:x}", was.gpr[r.number() & 15]);
            }
        }
        Outcome::Differs(format!("{:?}: {i}:{text}", i.code()))
    }

    fn block(&mut self, i: &Instruction) -> Block {
        let random = &mut self.random;
        let mut block = Block::new();
        block.gpr = [(); 16].map(|()| random.integer());
        block.vector = [(); 32].map(|()| random.vector());
        block.mask = [(); 8].map(|()| random.mask());
        block.flags = FLAGS.iter().map(|(_, bit)| if random.once_in(2) { *bit } else { 0 }).sum();
        if i.memory_index().is_vector_register() {
            // Indices have both signs, and the addresses stay inside the memory.
            let wide = format!("{:?}", i.code().op_code().op_kinds()).contains("vsib64");
            let v = &mut block.vector[i.memory_index().number()];
            for part in v.chunks_exact_mut(if wide { 8 } else { 4 }) {
                let index = random.index(100) as i64 - 50;
                part.copy_from_slice(&index.to_le_bytes()[..part.len()]);
            }
        }
        if matches!(i.mnemonic(), Mnemonic::Div | Mnemonic::Idiv) {
            // With a small `rdx`, most quotients of a division by an operand fit.
            block.gpr[2] = random.index(3) as u64;
            block.gpr[0] >>= random.index(40);
        }
        block
    }
}

/// Returns the differences between this CPU and the emulator as text. The text is empty if they
/// agree.
fn compare(i: &Instruction, native: &Block, emulated: &State, width: Width, qemu: bool) -> String {
    let mut text = String::new();
    for n in 0..16 {
        // The memory pointer, the stack pointer and the argument registers are not compared.
        if !matches!(n, 3 | 4 | 6 | 7) && native.gpr[n] != emulated.gpr[n] {
            let _ = write!(text, " gpr {n}: {:#x} emulated {:#x};", native.gpr[n], emulated.gpr[n]);
        }
    }
    let undefined = i.rflags_undefined();
    let wrong = FLAGS_WRONG_IN_QEMU
        .iter()
        .find(|(mnemonic, _)| qemu && *mnemonic == i.mnemonic())
        .map_or(0, |(_, flags)| *flags);
    let other_nan = if qemu { other_nan_in_qemu(i.mnemonic()) } else { None };
    for (bit, flag) in FLAGS {
        if undefined & bit == 0 && (native.flags ^ emulated.flags) & flag & !wrong != 0 {
            let _ = write!(text, " flag {flag:#x}: {:#x} emulated {:#x};", native.flags & flag, emulated.flags & flag);
        }
    }
    let bytes = width.vector_bytes();
    for n in 0..width.vectors() {
        let (right, found) = (&native.vector[n][..bytes], &emulated.vector[n].0[..bytes]);
        if right != found && !other_nan.is_some_and(|element| same_but_for_nan(right, found, element)) {
            let _ = write!(text, " zmm{n}:\n    {right:02x?}\n    emulated\n    {found:02x?};");
        }
    }
    if width == Width::Avx512 && native.mask != emulated.mask {
        let _ = write!(text, " masks {:x?} emulated {:x?}", native.mask, emulated.mask);
    }
    text
}

struct GeneratedCase {
    instruction: Instruction,
    bytes: Vec<u8>,
    program: Program,
}

/// Returns the forms of an instruction that can be encoded and that the emulator supports.
fn all_forms(code: Code, random: &mut Random, everything: Features) -> Vec<GeneratedCase> {
    // Machine code: mov rbx, [rdi]; lea rbx, [rbx + POINTED]
    let load_pointer = [0x48, 0x8b, 0x1f, 0x48, 0x8d, 0x9b, 0, (POINTED >> 8) as u8, 0, 0];
    let mut made = Vec::new();
    for form in forms(code) {
        for _ in 0..ROUNDS {
            let Some(mut instruction) = make(code, form, random) else { return Vec::new() };
            let mut encoder = Encoder::new(64);
            if encoder.encode(&instruction, 0).is_err() {
                continue;
            }
            let bytes = encoder.take_buffer();
            // The decoder may read the same bytes as another instruction: `knot` of Knights Corner
            // has those of `knotw`.
            if Decoder::new(64, &bytes, DecoderOptions::NONE).decode().code() != code {
                continue;
            }
            instruction.set_len(bytes.len());
            let whole = [&load_pointer[..], &bytes, &[0xc3]].concat();
            match Program::new(&whole, whole.len(), everything) {
                Ok(program) => made.push(GeneratedCase { instruction, bytes, program }),
                Err(fault) => {
                    let unknown = matches!(fault.kind, FaultKind::Unknown { .. } | FaultKind::Feature { .. });
                    assert!(unknown, "{instruction}: {fault}");
                }
            }
        }
    }
    made
}

#[test]
fn emulated_instructions_match_this_cpu() {
    let present = cpu::present();
    let width = Width::from_features(present);
    let only = std::env::var("IXC_MNEMONIC").ok();
    let everything = Features::from_list(Feature::ALL);
    let qemu = qemu::executes_this();
    let mut machine = Machine { memory: Guarded::new(), random: Random::new(0x1ce), width, qemu };
    let (mut codes, mut runs, mut beyond) = (0, 0, 0);
    let mut elsewhere: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong: Vec<String> = Vec::new();
    for code in Code::values() {
        let info = code.op_code();
        let name = format!("{:?}", code.mnemonic()).to_lowercase();
        if !info.is_instruction() || !info.mode64() || only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        if is_left_out(code) {
            continue;
        }
        let made = all_forms(code, &mut machine.random, everything);
        if made.is_empty() {
            continue;
        }
        if !is_here(code, present, width) {
            *elsewhere.entry(format!("{:?}", code.cpuid_features())).or_default() += 1;
            continue;
        }
        if let Some((_, why)) = machine.qemu.then(|| UNKNOWN_TO_QEMU.iter().find(|(other, _)| *other == code)).flatten()
        {
            println!("LEFT OUT under QEMU: {code:?}: {why}");
            continue;
        }
        codes += 1;
        let bytes: Vec<Vec<u8>> = made.iter().map(|m| m.bytes.clone()).collect();
        let mut thunks = Thunks::new(&bytes, width);
        for (number, made) in made.iter().enumerate() {
            let i = &made.instruction;
            let mut lens = vec![MEMORY];
            let bytes = i.memory_size().size();
            if i.has_op_mask() && bytes > 0 && (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory) {
                // The operand extends beyond the end of memory, so that only the mask prevents a
                // fault.
                let end = POINTED.wrapping_add_signed(i.memory_displacement64().cast_signed() as isize);
                lens.extend((0..CUTS).map(|_| end + machine.random.index(bytes)));
            }
            for len in lens {
                match machine.compare(made, number, &mut thunks, len) {
                    Outcome::Same => {
                        runs += 1;
                        beyond += usize::from(len < MEMORY);
                    }
                    Outcome::Faults => {}
                    Outcome::Differs(text) => wrong.push(text),
                }
            }
        }
    }
    println!(
        "native: {codes} instructions compared with this CPU in {runs} runs, {beyond} of them with masked elements where no memory is"
    );
    for (features, count) in elsewhere {
        println!("NOT RUN natively: {count} instructions that need {features}: this CPU lacks it");
    }
    let names: BTreeMap<&str, &String> = wrong.iter().rev().map(|w| (w.split(':').next().unwrap_or(""), w)).collect();
    for text in names.values().take(30) {
        println!("{text}");
    }
    assert!(wrong.is_empty(), "{} runs differ, of instructions {:?}", wrong.len(), names.keys());
    let at_least = match width {
        Width::Sse => 600,
        Width::Avx => 1300,
        Width::Avx512 => 1500,
    };
    assert!(only.is_some() || codes > at_least, "only {codes} instructions were made");
}
