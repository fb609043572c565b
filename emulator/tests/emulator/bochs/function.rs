//! (no tests) Test functions that execute one vector instruction. Each loads registers from an
//! input page, executes the instruction, and stores registers to an output page.
//!
//! The emulator, this CPU and Bochs run the same functions. Operands of instructions are derived
//! from the names of the decoder's codes (`EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32`), so that no list of
//! instructions is needed.

use iced_x86::{Code, Encoder, Instruction, OpKind, Register, RoundingControl};
use ixc_ir::random::Random;

use crate::manual::{byte, half, single};

/// Number of used bytes of a page.
pub const PAGE: usize = 768;
/// Layout of a page: the offset of the vectors. In the output, the first operand is at the same
/// offset if it is a register.
pub const VECTORS: usize = 0;
pub const MASKS: usize = 256;
pub const GENERAL: usize = 288;
pub const FLAGS: usize = 304;
pub const MEMORY: usize = 512;

/// An input or output page, aligned for moves that require it.
#[repr(align(64))]
pub struct Page(pub [u8; PAGE]);

/// An instruction with specific registers, and the function that executes it.
#[derive(Clone)]
pub struct Function {
    /// Decoder's name of the instruction, with the registers and options.
    pub name: String,
    /// Decoder's code of the instruction, without registers and options.
    pub code: Code,
    pub instruction: Instruction,
    /// Machine code of the function. `rdi` points to the addresses of the input and the output, as
    /// for kernels.
    pub bytes: Vec<u8>,
}

/// An operand of an instruction, read from the name of the instruction's [`Code`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operand {
    Vector(Register),
    /// A register or memory, which may be broadcast.
    VectorOrMemory {
        register: Register,
        broadcast: bool,
    },
    Memory,
    Mask,
    MaskOrMemory,
    General(Register),
    GeneralOrMemory(Register),
    Immediate,
    /// The immediate `imm4`, which shares a byte with a register.
    HalfImmediate,
}

/// Operands and options of an instruction, read from the name of the instruction's [`Code`], such
/// as `EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32`.
struct Form {
    operands: Vec<Operand>,
    masked: bool,
    zeroing: bool,
    rounding: bool,
    exceptions: bool,
    vex: bool,
}

fn parse(code: Code) -> Option<Form> {
    let name = format!("{code:?}");
    let (encoding, rest) = name.split_once('_')?;
    if !matches!(encoding, "VEX" | "EVEX") {
        return None;
    }
    let mut form = Form {
        operands: Vec::new(),
        masked: false,
        zeroing: false,
        rounding: false,
        exceptions: false,
        vex: encoding == "VEX",
    };
    for token in rest.split('_').skip(1) {
        let vector = |letter: &str| match letter {
            "x" => Register::XMM0,
            "y" => Register::YMM0,
            _ => Register::ZMM0,
        };
        form.operands.push(match token {
            "k1" => {
                form.masked = true;
                continue;
            }
            "k1z" => {
                (form.masked, form.zeroing) = (true, true);
                continue;
            }
            "er" => {
                form.rounding = true;
                continue;
            }
            "sae" => {
                form.exceptions = true;
                continue;
            }
            "xmm" | "ymm" | "zmm" => Operand::Vector(vector(&token[..1])),
            "kr" => Operand::Mask,
            "r32" => Operand::General(Register::EAX),
            "r64" => Operand::General(Register::RAX),
            "imm8" => Operand::Immediate,
            "imm4" => Operand::HalfImmediate,
            _ => match token.split_once(|c: char| c.is_ascii_digit())? {
                ("xmmm" | "ymmm" | "zmmm", size) => {
                    Operand::VectorOrMemory { register: vector(&token[..1]), broadcast: size.contains('b') }
                }
                ("m", _) => Operand::Memory,
                ("km", _) => Operand::MaskOrMemory,
                ("rm", _) | ("r", _) if token.contains("64") && token != "r32m64" => {
                    Operand::GeneralOrMemory(Register::RAX)
                }
                ("rm", _) | ("r", _) => Operand::GeneralOrMemory(Register::EAX),
                _ => return None,
            },
        });
    }
    Some(form)
}

/// Returns the codes that functions can be generated for: vector instructions except gathers, tiles
/// and control registers.
pub fn codes() -> impl Iterator<Item = Code> {
    Code::values().filter(|code| {
        let name = format!("{code:?}");
        // Pages do not contain the exception flags and their masks. Instructions for alignment and
        // cache hints have no visible effect.
        let kept = !["ldmxcsr", "stmxcsr", "Vzero"].iter().any(|part| name.contains(part));
        kept && parse(*code).is_some_and(|form| !form.operands.is_empty())
    })
}

fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.bits() as usize % of.len()]
}

fn nth(base: Register, n: usize) -> Register {
    Register::values().nth(base as usize + n).unwrap()
}

/// Returns a function for a code with random registers, mask, memory operand, broadcast and
/// rounding. Returns `None` if they cannot be encoded.
pub fn function(code: Code, random: &mut Random) -> Option<Function> {
    let form = parse(code)?;
    let high = !form.vex && random.bits() & 3 == 0;
    // Sources may be the same register. The destination is always a different one, because a few
    // instructions require this.
    let vectors: [usize; 4] = if high { [17, 18, 29, 31] } else { [1, 2, 13, 14] };
    let general = [Register::RAX, Register::RCX];
    let mut i = Instruction::default();
    i.set_code(code);
    let mut memory = false;
    let (mut vector, mut mask, mut immediate, mut is_general) = (0, 0, false, 0);
    for (n, operand) in form.operands.iter().enumerate() {
        let n = n as u32;
        let in_memory = match operand {
            Operand::Memory => true,
            Operand::VectorOrMemory { .. } | Operand::MaskOrMemory | Operand::GeneralOrMemory(_) => {
                random.bits() & 1 == 1
            }
            _ => false,
        };
        if in_memory {
            memory = true;
            i.set_op_kind(n, OpKind::Memory);
            i.set_memory_base(Register::RDX);
            i.set_memory_displ_size(1);
            i.set_memory_displacement64(pick(random, &[0, 0, 64]));
            if let Operand::VectorOrMemory { broadcast: true, .. } = operand {
                i.set_is_broadcast(random.bits() & 1 == 1);
            }
            continue;
        }
        match operand {
            Operand::Vector(register) | Operand::VectorOrMemory { register, .. } => {
                i.set_op_kind(n, OpKind::Register);
                i.set_op_register(n, nth(*register, vectors[vector.min(3)]));
                vector += 1;
            }
            Operand::Mask | Operand::MaskOrMemory => {
                i.set_op_kind(n, OpKind::Register);
                i.set_op_register(n, [Register::K2, Register::K3, Register::K4][mask.min(2)]);
                mask += 1;
            }
            Operand::General(width) | Operand::GeneralOrMemory(width) => {
                i.set_op_kind(n, OpKind::Register);
                let wide = if n == 0 { general[0] } else { general[1.min(is_general + 1)] };
                i.set_op_register(n, if *width == Register::EAX { wide.full_register32() } else { wide });
                is_general += 1;
            }
            Operand::Immediate => {
                i.set_op_kind(n, OpKind::Immediate8);
                immediate = true;
            }
            Operand::HalfImmediate => {
                i.set_op_kind(n, OpKind::Immediate8);
                i.set_immediate8(random.bits() as u8 & 0xf);
            }
            Operand::Memory => unreachable!("memory was taken"),
        }
    }
    if immediate {
        let name = format!("{code:?}");
        // Comparisons have 32 predicates. Other immediates use fewer bits; unused bits are ignored,
        // or reserved in rounding modes.
        let bits = match name.contains("cmp") {
            true => 0x1f,
            false if name.contains("ound") || name.contains("ps2ph") => 0x07,
            false => 0xff,
        };
        i.set_immediate8(random.bits() as u8 & bits);
    }
    let to_memory = i.op0_kind() == OpKind::Memory;
    if form.masked && !random.bits().is_multiple_of(4) {
        i.set_op_mask(Register::K1);
        i.set_zeroing_masking(form.zeroing && !to_memory && random.bits() & 1 == 1);
    }
    if !memory && form.rounding && random.bits() & 1 == 1 {
        use RoundingControl::{RoundDown, RoundToNearest, RoundTowardZero, RoundUp};
        i.set_rounding_control(pick(random, &[RoundToNearest, RoundDown, RoundUp, RoundTowardZero]));
    }
    if !memory && form.exceptions && random.bits() & 1 == 1 {
        i.set_suppress_all_exceptions(true);
    }
    let bytes = around(&form, &i, to_memory)?;
    Some(Function { name: name_of(&i), code, instruction: i, bytes })
}

fn name_of(i: &Instruction) -> String {
    let memory = if (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory) { " memory" } else { "" };
    format!("{:?}{memory} `{i}`", i.code())
}

/// Returns the machine code of the function around an instruction. `rdi` points to the addresses of
/// the two pages.
fn around(form: &Form, i: &Instruction, to_memory: bool) -> Option<Vec<u8>> {
    let mut encoder = Encoder::new(64);
    let mut at = 0;
    let mut put = |i: &Instruction| {
        at += encoder.encode(i, at).ok()? as u64;
        Some(())
    };
    let wide = !form.vex || form.operands.iter().any(|o| matches!(o, Operand::Mask | Operand::MaskOrMemory));
    let (load, store, file) = match wide {
        true => (Code::EVEX_Vmovdqu64_zmm_k1z_zmmm512, Code::EVEX_Vmovdqu64_zmmm512_k1z_zmm, Register::ZMM0),
        false => (Code::VEX_Vmovdqu_ymm_ymmm256, Code::VEX_Vmovdqu_ymmm256_ymm, Register::YMM0),
    };
    let memory = |base, offset: usize| iced_x86::MemoryOperand::with_base_displ(base, offset as i64);
    let with = |i: Result<Instruction, iced_x86::IcedError>| i.ok();
    let (input, output) = (Register::R8, Register::R9);

    put(&with(Instruction::with2(Code::Mov_r64_rm64, input, memory(Register::RDI, 0)))?)?;
    put(&with(Instruction::with2(Code::Mov_r64_rm64, output, memory(Register::RDI, 8)))?)?;
    let at_operand = memory(if to_memory { output } else { input }, MEMORY);
    put(&with(Instruction::with2(Code::Lea_r64_m, Register::RDX, at_operand))?)?;
    for (n, vector) in vectors_of(i).into_iter().enumerate() {
        put(&with(Instruction::with2(load, nth(file, vector), memory(input, VECTORS + 64 * n)))?)?;
    }
    if wide {
        for (n, mask) in [Register::K1, Register::K2, Register::K3, Register::K4].into_iter().enumerate() {
            put(&with(Instruction::with2(Code::VEX_Kmovq_kr_km64, mask, memory(input, MASKS + 8 * n)))?)?;
        }
    }
    put(&with(Instruction::with2(Code::Mov_r64_rm64, Register::RAX, memory(input, GENERAL)))?)?;
    put(&with(Instruction::with2(Code::Mov_r64_rm64, Register::RCX, memory(input, GENERAL + 8)))?)?;

    put(i)?;

    if i.rflags_written() | i.rflags_cleared() | i.rflags_set() != 0 {
        for (n, set) in [Code::Sete_rm8, Code::Setb_rm8].into_iter().enumerate() {
            put(&with(Instruction::with1(set, memory(output, FLAGS + n)))?)?;
        }
    }
    for (n, vector) in vectors_of(i).into_iter().enumerate() {
        put(&with(Instruction::with2(store, memory(output, VECTORS + 64 * n), nth(file, vector)))?)?;
    }
    if wide {
        put(&with(Instruction::with2(Code::VEX_Kmovq_m64_kr, memory(output, MASKS + 8), Register::K2))?)?;
    }
    put(&with(Instruction::with2(Code::Mov_rm64_r64, memory(output, GENERAL), Register::RAX))?)?;
    put(&Instruction::with(Code::VEX_Vzeroupper))?;
    put(&Instruction::with(Code::Retnq))?;
    Some(encoder.take_buffer())
}

/// Returns the numbers of the vector registers of an instruction, each once, in the order of the
/// operands.
pub fn vectors_of(i: &Instruction) -> Vec<usize> {
    let mut vectors = Vec::new();
    for n in 0..i.op_count() {
        let register = i.op_register(n);
        if i.op_kind(n) == OpKind::Register && register.is_vector_register() && !vectors.contains(&register.number()) {
            vectors.push(register.number());
        }
    }
    vectors
}

/// Returns an input page with random contents. The elements have special values of one element
/// type, which is random too.
pub fn input(random: &mut Random) -> Page {
    let mut page = Vec::with_capacity(PAGE);
    let kind = random.bits();
    while page.len() < PAGE {
        // Most elements have values of the same kind, so that operations on them have interesting
        // results.
        let kind = if random.bits() & 3 == 0 { random.bits() } else { kind };
        for _ in 0..8 {
            let word: [u8; 8] = match kind % 6 {
                0 => random.bits().to_le_bytes(),
                1 => std::array::from_fn(|_| byte(random)),
                2 => (u64::from(single(random)) << 32 | u64::from(single(random))).to_le_bytes(),
                3 => f64_bits(random).to_le_bytes(),
                4 => (0..4).fold(0, |bits, _| bits << 16 | u64::from(half(random))).to_le_bytes(),
                // Values that are small as indices and as counts.
                _ => (random.bits() & 0x003f_001f_003f_007f).to_le_bytes(),
            };
            page.extend_from_slice(&word);
        }
    }
    // The masks are random bits, for every kind of page.
    for mask in page[MASKS..GENERAL].as_chunks_mut::<8>().0 {
        *mask = random.bits().to_le_bytes();
    }
    Page(page.try_into().unwrap())
}

fn f64_bits(random: &mut Random) -> u64 {
    let bits = random.bits();
    match bits & 7 {
        0 => pick(
            random,
            &[0, 1 << 63, 1, 0x000f_ffff_ffff_ffff, 0x7ff0 << 48, 0xfff0 << 48, 0x7ff8 << 48, 0x7ff4 << 48],
        ),
        1 => f64::from(f32::from_bits(single(random))).to_bits(),
        2 => (bits as i64 as f64).to_bits(),
        3 => (bits as i32 as f64 / 4.0).to_bits(),
        _ => bits & 0x803f_ffff_ffff_ffff | 0x3fc0_0000_0000_0000,
    }
}
