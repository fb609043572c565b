//! The x86-64 targets: kernel IR to machine code with 256-bit vectors (`avx2`) or 512-bit ones (`avx512`, `amx`).
//!
//! ```text
//! kernel IR ─select, schedule─▶ machine IR ─coalesce, allocate (spill, again)─▶ machine IR with registers ─encode─▶ bytes
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`machine`] | machine IR: instructions over virtual registers |
//! | [`select`] | blocks, loops; with `arithmetic`, `bf16`, `combine`, `lanes`, `memory` and `tables`, what each op becomes |
//! | `uses`, `values` | who uses each value; where it is, and what waits for its use |
//! | [`address`] | strength-reduced addresses: which pointers there are and how they advance |
//! | [`constants`] | where constants are held in registers |
//! | [`schedule`] | moving up what frees registers |
//! | [`liveness`] | live ranges with holes |
//! | [`coalesce`] | joining copies and the operands of fused multiply-adds |
//! | [`allocate`] | linear scan; the checker |
//! | [`spill`] | one value to memory |
//! | [`tiles`] | tile registers: selection and configuration |
//! | [`codes`] | the instruction table: 128-, 256- and 512-bit forms |
//! | [`encode`] | bytes, through iced-x86 |
//! | [`mod@print`] | machine IR as text |
//! | [`listing`] | disassembly beside the IR statement that each instruction comes from |
//!
//! A compiled kernel is `extern "sysv64" fn(buffers: *const *mut u8, dims: *const i64)`. It saves what the caller owns,
//! calls nothing, and leaves the upper halves of the vector registers clear.
//!
//! Invariant: kernels are verified before they come here; what the verifier proves is not checked again.

pub mod address;
pub mod allocate;
mod arithmetic;
mod bf16;
pub mod coalesce;
pub mod codes;
mod combine;
pub mod constants;
pub mod encode;
mod lanes;
pub mod listing;
pub mod liveness;
pub mod machine;
mod memory;
pub mod print;
pub mod schedule;
pub mod select;
pub mod spill;
mod tables;
mod tiles;
mod uses;
mod values;

use ixc_ir::kernel::{Kernel, Op, Type, ValueId};

use self::select::Placement;
use crate::line::Line;
use ixc_targets::Target;

/// Why a kernel can't be compiled for this target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum X64Error {
    /// A vector wider than the registers.
    #[error(
        "value %{} is {ty}, {} bytes wide; {} has vectors of up to {} bytes",
        value.0, ty.bytes(), target.name(), target.isa().vector_bytes
    )]
    Unsupported {
        /// What it was to be compiled for.
        target: Target,
        /// The value.
        value: ValueId,
        /// Its type.
        ty: Type,
    },
    /// An op that the target has no lowering for.
    #[error("{} on {ty} has no lowering for this target", op.row().mnemonic)]
    NoLowering {
        /// The op.
        op: Op,
        /// Its type.
        ty: Type,
    },
    /// An op with a type, address or immediate that the verifier would have refused.
    #[error("{} on {ty} is malformed: the kernel was not verified", op.row().mnemonic)]
    Malformed {
        /// The op.
        op: Op,
        /// Its type.
        ty: Type,
    },
    /// More tiles live at once than there are registers.
    #[error("more tiles are live at once than there are tile registers, which are never spilled")]
    OutOfTiles,
    /// A tile that would have to be copied.
    #[error("statement {statement} needs a copy of a tile: an accumulator has one use, and factors are two tiles")]
    TileCopy {
        /// The statement, counted in the order of the kernel's text.
        statement: u32,
    },
    /// One instruction needs more registers than there are.
    #[error("out of registers in one instruction")]
    OutOfRegisters,
    /// Too many values live at once, or too many vectors whose elements are read one by one.
    #[error("values in memory need a frame of {bytes} bytes; at most {most} are allowed")]
    FrameTooLarge {
        /// Bytes needed.
        bytes: u32,
        /// Bytes allowed.
        most: u32,
    },
    /// More than compilation is meant for.
    #[error("the kernel has {found} {what}; at most {most} are compiled")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much.
        found: usize,
        /// The limit.
        most: usize,
    },
    /// An instruction that the target lacks: a bug of the lowering, found before the code can run.
    #[error("{instruction} needs {feature}, which {} lacks", target.name())]
    Feature {
        /// Its mnemonic.
        instruction: String,
        /// The feature, as the decoder names it.
        feature: String,
        /// What was compiled for.
        target: Target,
    },
    /// The encoder refused an instruction.
    #[error("iced-x86 refused an instruction: {reason}")]
    Encoder {
        /// Its words.
        reason: String,
    },
}

/// What compilation cost and gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Vectors that live in memory: a bug in a tuned kernel.
    pub vector_spills: usize,
    /// Integers that live in memory.
    pub gpr_spills: usize,
    /// Constants that are read from memory at each use.
    pub rematerialised: usize,
    /// Moves between registers.
    pub moves: usize,
    /// Those of them in loops that contain no loop.
    pub moves_in_innermost_loops: usize,
    /// Instructions.
    pub instructions: usize,
    /// Bytes of code.
    pub bytes: usize,
}

/// A compiled kernel: position-independent, to be placed at a multiple of 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The kernel's name.
    pub name: String,
    /// Instructions, padded to where the constants start.
    pub code: Vec<u8>,
    /// Bytes of `code` before the padding.
    pub code_bytes: usize,
    /// What stands behind the code.
    pub constants: Vec<u8>,
    /// One per instruction.
    pub lines: Vec<Line>,
    /// What it cost.
    pub stats: Stats,
}

/// Most instructions before allocation: some thirty times what `ixc` generates, so that a hostile plan can't keep the
/// allocator busy.
const MAX_INSTRUCTIONS: usize = 1 << 17;
/// Most register-block pairs: 32 MiB for each of the sets that liveness keeps.
const MAX_LIVENESS: usize = 1 << 28;

fn limit(what: &'static str, found: usize, most: usize) -> Result<(), X64Error> {
    if found <= most { Ok(()) } else { Err(X64Error::TooLarge { what, found, most }) }
}

/// Machine IR of a verified kernel, with registers: all but the encoding.
///
/// # Errors
/// Where it uses vectors that the target lacks, is too large, or keeps too many values alive.
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
    // Liveness takes a bit for each.
    limit("registers times blocks", function.vregs.len() * function.blocks.len(), MAX_LIVENESS)?;
    schedule::reduce_pressure(&mut function);
    let allocation = allocate::allocate(&mut function)?;
    Ok((function, allocation))
}

/// Compiles a verified kernel.
///
/// # Errors
/// As [`lower`], and where the encoder refuses an instruction.
pub fn compile(kernel: &Kernel, target: Target) -> Result<Compiled, X64Error> {
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
