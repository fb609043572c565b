//! The x86-64 targets: turns kernel IR into machine code with vectors of 256 bits (`avx2`) or 512
//! bits (`avx512`, `amx`).
//!
//! ```text
//! | kernel IR ─select, schedule─▶ machine IR ─coalesce, allocate (spill, repeat)─▶
//!     machine IR with registers ─encode─▶ bytes
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`machine`] | machine IR: instructions over virtual registers |
//! | [`select`] | blocks and loops |
//! | `families` | ops by the function that selects them |
//! | `arithmetic`, `bf16`, `combine`, `lanes`, `memory`, `tables` | selection of the ops |
//! | `uses`, `values` | users of each value; its location, and ops deferred to their use |
//! | [`address`] | strength-reduced addresses: the pointers, and how they advance |
//! | [`constants`] | placement of constants in registers |
//! | [`schedule`] | moving up instructions that free registers |
//! | [`liveness`] | live ranges with holes |
//! | [`coalesce`] | joining copies and the operands of fused multiply-adds |
//! | [`allocate`] | linear scan; the checker |
//! | [`spill`] | moving values to memory |
//! | [`tiles`] | tile registers: selection and configuration |
//! | [`codes`] | the instruction table: 128-, 256- and 512-bit forms |
//! | [`encode`] | bytes, through iced-x86 |
//! | [`mod@print`] | machine IR as text |
//! | [`listing`] | disassembly with the IR statement of each instruction |
//!
//! A compiled kernel is `extern "sysv64" fn(buffers: *const *mut u8, dims: *const i64)`. It saves
//! the caller's registers, calls nothing, and leaves the upper halves of the vector registers
//! clear.
//!
//! Invariant: input kernels are verified. Properties that the verifier proves are not checked
//! again.

pub mod address;
pub mod allocate;
mod arithmetic;
mod bf16;
pub mod coalesce;
pub mod codes;
mod combine;
pub mod constants;
pub mod encode;
mod families;
mod lanes;
pub mod listing;
pub mod liveness;
mod locations;
mod loops;
pub mod machine;
mod memory;
pub mod print;
pub mod schedule;
pub mod select;
pub mod spill;
mod statement;
mod tables;
mod tiles;
mod uses;
mod values;

use ixc_ir::kernel::{Kernel, Op, Type, ValueId};

use self::select::Placement;
use crate::line::Line;
use ixc_targets::Target;

/// Reasons why a kernel can't be compiled for this target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum X64Error {
    /// A vector is wider than the registers.
    #[error(
        "value %{} has type {ty} of {} bytes; target {} has vectors of at most {} bytes",
        value.0, ty.bytes(), target.name(), target.isa().vector_bytes
    )]
    Unsupported {
        /// The target.
        target: Target,
        /// Value that has the type.
        value: ValueId,
        /// The value's type.
        ty: Type,
    },
    /// The target has no lowering for an op.
    #[error("op {} on {ty} has no lowering for this target", op.row().mnemonic)]
    NoLowering {
        /// Op that the target lacks.
        op: Op,
        /// Type of the op's result.
        ty: Type,
    },
    /// The type, address or immediate of an op is invalid; the verifier would have refused it.
    #[error("op {} on {ty} is malformed: the kernel was not verified", op.row().mnemonic)]
    Malformed {
        /// The op.
        op: Op,
        /// Type of the op's result.
        ty: Type,
    },
    /// More tiles are live at once than there are registers.
    #[error("more tiles are live at once than the target has tile registers, and tiles cannot be spilled")]
    OutOfTiles,
    /// A tile would have to be copied, but tile registers cannot be.
    #[error(
        "statement {statement} would need a copy of a tile, which is not supported: use each accumulator only once, and two different tiles as factors"
    )]
    TileCopy {
        /// The statement, counted in the order of the kernel's text.
        statement: u32,
    },
    /// One instruction needs more registers than there are.
    #[error("one instruction needs more registers than the target has")]
    OutOfRegisters,
    /// Too many values are live at once, or too many vectors are read element by element.
    #[error("values that are kept in memory need a stack frame of {bytes} bytes; at most {max} are allowed")]
    FrameTooLarge {
        /// Bytes that the frame would need.
        bytes: u32,
        /// Max bytes of a frame.
        max: u32,
    },
    /// The kernel exceeds a limit.
    #[error("the kernel has {found} {what}; the limit is {max}")]
    TooLarge {
        /// Kind of the counted items, such as `instructions`.
        what: &'static str,
        /// Number of these items in the kernel.
        found: usize,
        /// Max number of these items.
        max: usize,
    },
    /// The target lacks an instruction: a bug of the lowering, found before the code can run.
    #[error("{instruction} needs {feature}, which {} lacks", target.name())]
    Feature {
        /// Mnemonic of the instruction.
        instruction: String,
        /// The missing feature, as the decoder names it.
        feature: String,
        /// The target.
        target: Target,
    },
    /// The encoder refused an instruction.
    #[error("iced-x86 refused an instruction: {reason}")]
    Encoder {
        /// The encoder's message.
        reason: String,
    },
}

/// Statistics of one compilation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Vectors that were spilled to memory. In a tuned kernel, these are a bug.
    pub vector_spills: usize,
    /// Integers that were spilled to memory.
    pub gpr_spills: usize,
    /// Constants that are read from memory at each use.
    pub rematerialised: usize,
    /// Number of moves between registers.
    pub moves: usize,
    /// Number of moves between registers in innermost loops.
    pub moves_in_innermost_loops: usize,
    /// Number of instructions of the kernel.
    pub instructions: usize,
    /// Bytes of the kernel's code.
    pub bytes: usize,
}

/// A compiled kernel: position-independent, to be placed at a multiple of 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledKernel {
    /// The kernel's name.
    pub name: String,
    /// Instructions, padded up to the constants.
    pub code: Vec<u8>,
    /// Bytes of `code` before the padding.
    pub code_bytes: usize,
    /// Constants, placed directly after the code.
    pub constants: Vec<u8>,
    /// Origin of each instruction.
    pub lines: Vec<Line>,
    /// Statistics of the compilation.
    pub stats: Stats,
}

/// Max instructions before allocation, so that a hostile plan can't keep the allocator busy. The
/// limit is about thirty times the number in generated kernels.
const MAX_INSTRUCTIONS: usize = 1 << 17;
/// Max product of registers and blocks. Each set that liveness keeps then takes up to 32 MiB.
const MAX_LIVENESS: usize = 1 << 28;

fn limit(what: &'static str, found: usize, max: usize) -> Result<(), X64Error> {
    if found <= max { Ok(()) } else { Err(X64Error::TooLarge { what, found, max }) }
}

/// Lowers a verified kernel to machine IR with physical registers, ready for encoding.
///
/// # Errors
/// The kernel uses vectors that the target lacks, is too large, or has too many live values.
pub fn lower(kernel: &Kernel, target: Target) -> Result<(machine::Function, allocate::Allocation), X64Error> {
    let first = lower_with(kernel, target, Placement::Entry)?;
    if first.1.gpr_spills == 0 {
        return Ok(first);
    }
    let second = lower_with(kernel, target, Placement::Use)?;
    let spills = |lowered: &(_, allocate::Allocation)| lowered.1.gpr_spills + lowered.1.vector_spills;
    Ok(if spills(&second) < spills(&first) { second } else { first })
}

fn lower_with(
    kernel: &Kernel,
    target: Target,
    placement: Placement,
) -> Result<(machine::Function, allocate::Allocation), X64Error> {
    let mut function = select::select(kernel, target, placement)?;
    let instructions = function.blocks.iter().map(|b| b.insts.len()).sum();
    limit("instructions", instructions, MAX_INSTRUCTIONS)?;
    // Liveness takes one bit for each pair of a register and a block.
    limit("pairs of a virtual register and a block", function.vregs.len() * function.blocks.len(), MAX_LIVENESS)?;
    schedule::reduce_pressure(&mut function);
    let allocation = allocate::allocate(&mut function)?;
    Ok((function, allocation))
}

/// Compiles a verified kernel.
///
/// # Errors
/// See [`lower`]; also if the encoder rejects an instruction.
pub fn compile(kernel: &Kernel, target: Target) -> Result<CompiledKernel, X64Error> {
    let (function, allocation) = lower(kernel, target)?;
    let compiled = encode::encode(&kernel.name, &function, &allocation)?;
    let stats = compiled.stats;
    tracing::debug!(
        kernel = kernel.name,
        target = target.name(),
        vector_spills = stats.vector_spills,
        gpr_spills = stats.gpr_spills,
        moves = stats.moves,
        instructions = stats.instructions,
        bytes = stats.bytes,
        "compiled"
    );
    Ok(compiled)
}
