//! Executes one instruction on this CPU with all registers loaded before and stored after.
//!
//! The registers stand in a [`Block`], and `rsp` points to it throughout, so that no other register is taken; what is
//! pushed goes below it.

use dynasmrt::AssemblyOffset;
use dynasmrt::mmap::{ExecutableBuffer, MutableBuffer};
use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};
use ixc_targets::{Feature, Features};

/// Bytes below the registers, for what is pushed and for the system's signal frames.
const BELOW: usize = 1 << 16;
const FLAGS: i64 = 128;
const STACK: i64 = 136;
const MASKS: i64 = 192;
const VECTORS: i64 = 256;

/// Registers in memory.
#[repr(C, align(64))]
#[derive(Clone)]
pub struct Block {
    pub gpr: [u64; 16],
    pub flags: u64,
    stack: u64,
    padding: [u64; 6],
    pub mask: [u64; 8],
    pub vector: [[u8; 64]; 32],
}

#[repr(C, align(64))]
struct Room {
    below: [u8; BELOW],
    block: Block,
}

/// Which registers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Width {
    /// xmm0 to xmm15, by instructions that every x86-64 has.
    Sse,
    /// ymm0 to ymm15.
    Avx,
    /// zmm0 to zmm31, k0 to k7.
    Avx512,
}

impl Width {
    /// The registers of a CPU with these features.
    pub fn of(present: Features) -> Width {
        // Masks of 64 bits are loaded by an instruction of AVX512BW.
        if present.contains(Features::of(&[Feature::Avx512f, Feature::Avx512bw])) {
            Width::Avx512
        } else if present.has(Feature::Avx) {
            Width::Avx
        } else {
            Width::Sse
        }
    }

    /// The registers that instructions of a feature may touch; tiles are beyond all of these.
    pub fn needed(feature: Feature) -> Option<Width> {
        use Feature as F;
        match feature {
            F::Avx | F::F16c | F::Fma | F::Avx2 | F::AvxVnni => Some(Width::Avx),
            F::Avx512f
            | F::Avx512bw
            | F::Avx512dq
            | F::Avx512vl
            | F::Avx512vnni
            | F::Avx512vbmi
            | F::Avx512bf16
            | F::Avx512fp16 => Some(Width::Avx512),
            F::AmxTile | F::AmxInt8 | F::AmxBf16 | F::AmxFp16 => None,
        }
    }

    /// How many vector registers.
    pub fn vectors(self) -> usize {
        if self == Width::Avx512 { 32 } else { 16 }
    }

    /// Bytes of each.
    pub fn vector_bytes(self) -> usize {
        match self {
            Width::Sse => 16,
            Width::Avx => 32,
            Width::Avx512 => 64,
        }
    }
}

/// Functions that each execute one instruction.
pub struct Thunks {
    memory: ExecutableBuffer,
    starts: Vec<usize>,
    room: Box<Room>,
}

impl Block {
    pub fn new() -> Block {
        Block { gpr: [0; 16], flags: 0, stack: 0, padding: [0; 6], mask: [0; 8], vector: [[0; 64]; 32] }
    }
}

fn at(base: Register, displacement: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ(base, displacement)
}

fn bytes(instructions: &[Instruction]) -> Vec<u8> {
    let mut encoder = Encoder::new(64);
    for i in instructions {
        encoder.encode(i, 0).unwrap_or_else(|error| panic!("{i}: {error}"));
    }
    encoder.take_buffer()
}

const SAVED: [Register; 6] = [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];

fn general() -> impl Iterator<Item = (Register, i64)> {
    (0..16).filter(|n| *n != 4).map(|n| (Register::RAX + n, 8 * i64::from(n)))
}

/// Code that moves vectors and masks between registers and the block at `rsp`.
fn move_vectors(width: Width, load: bool) -> Vec<Instruction> {
    let mut code = Vec::new();
    let mut add = |load_code: Code, store_code: Code, register: Register, displacement: i64| {
        let memory = at(Register::RSP, displacement);
        let i = if load {
            Instruction::with2(load_code, register, memory)
        } else {
            Instruction::with2(store_code, memory, register)
        };
        code.push(i.unwrap());
    };
    match width {
        Width::Sse => {
            let (load, store) = (Code::Movups_xmm_xmmm128, Code::Movups_xmmm128_xmm);
            for n in 0..16 {
                add(load, store, Register::XMM0 + n, VECTORS + 64 * i64::from(n));
            }
        }
        Width::Avx => {
            let (load, store) = (Code::VEX_Vmovups_ymm_ymmm256, Code::VEX_Vmovups_ymmm256_ymm);
            for n in 0..16 {
                add(load, store, Register::YMM0 + n, VECTORS + 64 * i64::from(n));
            }
        }
        Width::Avx512 => {
            let (load, store) = (Code::EVEX_Vmovups_zmm_k1z_zmmm512, Code::EVEX_Vmovups_zmmm512_k1z_zmm);
            for n in 0..32 {
                add(load, store, Register::ZMM0 + n, VECTORS + 64 * i64::from(n));
            }
            for n in 0..8 {
                let displacement = MASKS + 8 * i64::from(n);
                add(Code::VEX_Kmovq_kr_km64, Code::VEX_Kmovq_m64_kr, Register::K0 + n, displacement);
            }
        }
    }
    code
}

fn before(width: Width) -> Vec<u8> {
    let mut code: Vec<Instruction> = SAVED.iter().map(|r| Instruction::with1(Code::Push_r64, *r).unwrap()).collect();
    let (rsp, rdi) = (Register::RSP, Register::RDI);
    code.push(Instruction::with2(Code::Mov_rm64_r64, at(rdi, STACK), rsp).unwrap());
    code.push(Instruction::with2(Code::Mov_r64_rm64, rsp, rdi).unwrap());
    code.extend(move_vectors(width, true));
    code.push(Instruction::with1(Code::Push_rm64, at(rsp, FLAGS)).unwrap());
    code.push(Instruction::with(Code::Popfq));
    for (register, displacement) in general() {
        code.push(Instruction::with2(Code::Mov_r64_rm64, register, at(rsp, displacement)).unwrap());
    }
    bytes(&code)
}

fn after(width: Width) -> Vec<u8> {
    let rsp = Register::RSP;
    let mut code: Vec<Instruction> = general()
        .map(|(register, displacement)| {
            Instruction::with2(Code::Mov_rm64_r64, at(rsp, displacement), register).unwrap()
        })
        .collect();
    code.push(Instruction::with(Code::Pushfq));
    // The address is computed after the stack pointer moved back.
    code.push(Instruction::with1(Code::Pop_rm64, at(rsp, FLAGS)).unwrap());
    code.extend(move_vectors(width, false));
    code.push(Instruction::with2(Code::Mov_r64_rm64, rsp, at(rsp, STACK)).unwrap());
    code.extend(SAVED.iter().rev().map(|r| Instruction::with1(Code::Pop_r64, *r).unwrap()));
    code.push(Instruction::with(Code::Cld));
    if width != Width::Sse {
        code.push(Instruction::with(Code::VEX_Vzeroupper));
    }
    code.push(Instruction::with(Code::Retnq));
    bytes(&code)
}

impl Thunks {
    /// One for each instruction, given as bytes.
    pub fn new(instructions: &[Vec<u8>], width: Width) -> Thunks {
        let (before, after) = (before(width), after(width));
        let mut code = Vec::new();
        let mut starts = Vec::new();
        for instruction in instructions {
            starts.push(code.len());
            code.extend([&before[..], instruction, &after].concat());
        }
        let mut memory = MutableBuffer::new(code.len()).unwrap();
        memory.set_len(code.len());
        memory.copy_from_slice(&code);
        let room = Box::new(Room { below: [0; BELOW], block: Block::new() });
        Thunks { memory: memory.make_exec().unwrap(), starts, room }
    }

    /// Executes an instruction, by its number, with these registers, of which `rsp` is not taken.
    ///
    /// # Safety
    /// This CPU has the instruction, which jumps nowhere, leaves the stack pointer alone, and reads and writes only memory
    /// that it may.
    pub unsafe fn run(&mut self, number: usize, block: &mut Block) {
        self.room.block = block.clone();
        self.room.below[BELOW - 1] = 0;
        let start = self.memory.ptr(AssemblyOffset(self.starts[number]));
        // SAFETY: the code above at its start; it keeps the calling convention as long as the instruction is as promised.
        let thunk: extern "sysv64" fn(*mut Block) = unsafe { std::mem::transmute(start) };
        thunk(&raw mut self.room.block);
        *block = self.room.block.clone();
    }
}
