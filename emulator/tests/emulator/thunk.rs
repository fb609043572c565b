//! Thunks that execute one instruction on this CPU. A thunk loads all registers before the
//! instruction, and stores them after it.
//!
//! The registers are in a [`Block`]. `rsp` always points to the block, so no other register is
//! needed for its address. Pushed values go below the block.

// The assembler's macro converts register numbers, also if they are bytes already.
#![allow(clippy::useless_conversion)]

use dynasmrt::mmap::{ExecutableBuffer, MutableBuffer};
use dynasmrt::x64::X64Relocation;
use dynasmrt::{AssemblyOffset, DynasmApi, VecAssembler, dynasm};
use iced_x86::{Code as EvexCode, Encoder, Instruction, MemoryOperand, Register};
use ixc_targets::{Feature, Features};

type Code = VecAssembler<X64Relocation>;

/// Number of bytes below the registers, for pushed values and for signal frames of the system.
const BELOW: usize = 1 << 16;
const FLAGS: i32 = 128;
const STACK: i32 = 136;
const MASKS: i32 = 192;
const VECTORS: i32 = 256;

/// Contents of all registers, in memory.
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

/// Kinds and number of vector and mask registers that a CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Width {
    /// Registers xmm0 to xmm15, and instructions that every x86-64 has.
    Sse,
    /// Registers ymm0 to ymm15.
    Avx,
    /// Registers zmm0 to zmm31 and k0 to k7.
    Avx512,
}

impl Width {
    /// Returns the registers of a CPU that has these features.
    pub fn from_features(present: Features) -> Width {
        // Masks of 64 bits can only be loaded with AVX512BW.
        if present.contains(Features::from_list(&[Feature::Avx512f, Feature::Avx512bw])) {
            Width::Avx512
        } else if present.has(Feature::Avx) {
            Width::Avx
        } else {
            Width::Sse
        }
    }

    /// Returns the registers that instructions of a feature may use, or `None` for features with
    /// tiles.
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

    /// Returns the number of vector registers.
    pub fn vectors(self) -> usize {
        if self == Width::Avx512 { 32 } else { 16 }
    }

    /// Returns the number of bytes of each vector register.
    pub fn vector_bytes(self) -> usize {
        match self {
            Width::Sse => 16,
            Width::Avx => 32,
            Width::Avx512 => 64,
        }
    }
}

/// Functions that execute one instruction each.
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

/// Returns the numbers of all general registers except `rsp`, with their offsets in the block.
fn general() -> impl Iterator<Item = (u8, i32)> {
    (0..16).filter(|n| *n != 4).map(|n| (n, 8 * i32::from(n)))
}

/// Emits code that moves vectors and masks between registers and the block at `rsp`.
fn move_vectors(ops: &mut Code, width: Width, load: bool) {
    let places = |count: u8, first: i32, each: i32| (0..count).map(move |n| (n, first + each * i32::from(n)));
    match width {
        Width::Sse => {
            for (n, place) in places(16, VECTORS, 64) {
                if load {
                    dynasm!(ops ; .arch x64 ; movups Rx(n), [rsp + place]);
                } else {
                    dynasm!(ops ; .arch x64 ; movups [rsp + place], Rx(n));
                }
            }
        }
        Width::Avx => {
            for (n, place) in places(16, VECTORS, 64) {
                if load {
                    dynasm!(ops ; .arch x64 ; vmovups Ry(n), [rsp + place]);
                } else {
                    dynasm!(ops ; .arch x64 ; vmovups [rsp + place], Ry(n));
                }
            }
        }
        // The assembler does not support EVEX, so these instructions are encoded as bytes.
        Width::Avx512 => {
            let (zmm, k) = (Register::ZMM0, Register::K0);
            let (load_zmm, store_zmm) =
                (EvexCode::EVEX_Vmovups_zmm_k1z_zmmm512, EvexCode::EVEX_Vmovups_zmmm512_k1z_zmm);
            for (n, place) in places(32, VECTORS, 64) {
                encode(ops, if load { load_zmm } else { store_zmm }, zmm + u32::from(n), place, load);
            }
            for (n, place) in places(8, MASKS, 8) {
                let code = if load { EvexCode::VEX_Kmovq_kr_km64 } else { EvexCode::VEX_Kmovq_m64_kr };
                encode(ops, code, k + u32::from(n), place, load);
            }
        }
    }
}

fn encode(ops: &mut Code, code: EvexCode, register: Register, place: i32, load: bool) {
    let memory = MemoryOperand::with_base_displ(Register::RSP, place.into());
    let i = if load { Instruction::with2(code, register, memory) } else { Instruction::with2(code, memory, register) };
    let mut encoder = Encoder::new(64);
    encoder.encode(&i.unwrap(), 0).unwrap_or_else(|error| panic!("{code:?}: {error}"));
    dynasm!(ops ; .arch x64 ; .bytes encoder.take_buffer());
}

/// Emits code that saves the callee-saved registers, and loads all registers from the block at
/// `rdi`.
fn before(ops: &mut Code, width: Width) {
    dynasm!(ops
        ; .arch x64
        ; push rbx
        ; push rbp
        ; push r12
        ; push r13
        ; push r14
        ; push r15
        ; mov [rdi + STACK], rsp
        ; mov rsp, rdi
    );
    move_vectors(ops, width, true);
    dynasm!(ops
        ; .arch x64
        ; push QWORD [rsp + FLAGS]
        ; popfq
    );
    for (n, place) in general() {
        dynasm!(ops ; .arch x64 ; mov Rq(n), [rsp + place]);
    }
}

/// Emits code that stores all registers and returns.
fn after(ops: &mut Code, width: Width) {
    for (n, place) in general() {
        dynasm!(ops ; .arch x64 ; mov [rsp + place], Rq(n));
    }
    dynasm!(ops
        ; .arch x64
        ; pushfq
        // `pop` computes its address after it has moved the stack pointer.
        ; pop QWORD [rsp + FLAGS]
    );
    move_vectors(ops, width, false);
    dynasm!(ops
        ; .arch x64
        ; mov rsp, [rsp + STACK]
        ; pop r15
        ; pop r14
        ; pop r13
        ; pop r12
        ; pop rbp
        ; pop rbx
        ; cld
    );
    if width != Width::Sse {
        dynasm!(ops ; .arch x64 ; vzeroupper);
    }
    dynasm!(ops ; .arch x64 ; ret);
}

impl Thunks {
    /// Returns thunks for these instructions, which are given as encoded bytes.
    pub fn new(instructions: &[Vec<u8>], width: Width) -> Thunks {
        let mut ops = Code::new(0);
        let mut starts = Vec::new();
        for instruction in instructions {
            starts.push(ops.offset().0);
            before(&mut ops, width);
            dynasm!(ops ; .arch x64 ; .bytes instruction);
            after(&mut ops, width);
        }
        let code = ops.finalize().unwrap();
        let mut memory = MutableBuffer::new(code.len()).unwrap();
        memory.set_len(code.len());
        memory.copy_from_slice(&code);
        let room = Box::new(Room { below: [0; BELOW], block: Block::new() });
        Thunks { memory: memory.make_exec().unwrap(), starts, room }
    }

    /// Executes the instruction at index `number`. All registers except `rsp` are loaded from
    /// `block` and stored there.
    ///
    /// # Safety
    /// This CPU must have the instruction. It must not jump or change the stack pointer, and may
    /// access only permitted memory.
    pub unsafe fn run(&mut self, number: usize, block: &mut Block) {
        self.room.block = block.clone();
        self.room.below[BELOW - 1] = 0;
        let start = self.memory.ptr(AssemblyOffset(self.starts[number]));
        // SAFETY: this is the start of the code above. It follows the calling convention if the
        // instruction is as required.
        let thunk: extern "sysv64" fn(*mut Block) = unsafe { std::mem::transmute(start) };
        thunk(&raw mut self.room.block);
        *block = self.room.block.clone();
    }
}
