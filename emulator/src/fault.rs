//! The faults of an emulated call: those that a processor detects, and those that only the emulator
//! detects.

use std::fmt;

use ixc_failure::Class;
use ixc_targets::Feature;

/// The kind of a fault, without its location. It is boxed, so that a step's result is one word.
pub type Trap = Box<FaultKind>;

/// A fault, and the instruction that caused it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Offset of the instruction in the code; `None` if no instruction is at fault.
    pub offset: Option<u32>,
    /// The instruction as text; empty without an instruction.
    pub instruction: String,
    /// The kind of the fault.
    pub kind: FaultKind,
}

impl Fault {
    /// Returns the kind of failure: emulated code is generated, so a fault is a bug.
    pub fn class(&self) -> Class {
        Class::Failed
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            Some(offset) => write!(f, "{offset:#06x} `{}`: {}", self.instruction, self.kind),
            None => write!(f, "{}", self.kind),
        }
    }
}

impl std::error::Error for Fault {}

/// The kind of a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// A load or store lies outside of every buffer.
    #[error("{} of {bytes} bytes at byte {offset} of `{buffer}`, which has {size}", access(*write))]
    OutOfBounds {
        /// The nearest buffer.
        buffer: String,
        /// Offset in the buffer; negative before it.
        offset: i64,
        /// Number of bytes.
        bytes: usize,
        /// The buffer's size.
        size: usize,
        /// Whether the access is a store.
        write: bool,
    },
    /// A store goes to a read-only buffer.
    #[error("store of {bytes} bytes at byte {offset} of `{buffer}`, which is read-only")]
    ReadOnly {
        /// Name of the buffer.
        buffer: String,
        /// Offset in the buffer.
        offset: i64,
        /// Number of bytes.
        bytes: usize,
    },
    /// An address is near no buffer.
    #[error("{} of {bytes} bytes at address {address:#x}, outside all buffers", access(*write))]
    Unmapped {
        /// Address of the access.
        address: u64,
        /// Number of bytes.
        bytes: usize,
        /// Whether the access is a store.
        write: bool,
    },
    /// An access of the stack lies below the red zone.
    #[error("{} {below} bytes below the stack pointer; the red zone has 128", access(*write))]
    RedZone {
        /// Distance from `rsp` to the access's first byte.
        below: u64,
        /// Whether the access is a store.
        write: bool,
    },
    /// An aligned access has an unaligned address.
    #[error("access of {bytes} bytes at address {address:#x}, which is not a multiple of {alignment}")]
    Misaligned {
        /// Address of the access.
        address: u64,
        /// Number of bytes.
        bytes: usize,
        /// The required alignment.
        alignment: usize,
    },
    /// An instruction needs a feature that the target lacks.
    #[error("needs {feature}, which the target does not have")]
    Feature {
        /// The feature's name.
        feature: String,
        /// The feature, if the target table has it.
        known: Option<Feature>,
    },
    /// The emulator does not know the instruction, or the bytes do not form one.
    #[error("unknown instruction, bytes {bytes}")]
    Unknown {
        /// The instruction's bytes in hexadecimal.
        bytes: String,
    },
    /// A register is read before it is written.
    #[error("reads {register}, which is undefined here")]
    Undefined {
        /// The register, or a flag.
        register: String,
    },
    /// A register of the caller was not restored.
    #[error("returns with {register} = {found:#x}; the caller had {expected:#x}")]
    CalleeSaved {
        /// Name of the register.
        register: &'static str,
        /// The value found.
        found: u64,
        /// The caller's value.
        expected: u64,
    },
    /// `ret` returns to another address than the caller's.
    #[error("returns to {found:#x}, which is not the caller's address")]
    ReturnAddress {
        /// The address found on the stack.
        found: u64,
    },
    /// The direction flag is set at return.
    #[error("returns with the direction flag set")]
    DirectionFlag,
    /// Upper halves of vector registers are in use at return, which makes later code slow.
    #[error("returns with upper halves of vector registers in use: vzeroupper is missing")]
    DirtyUpper,
    /// Tiles are configured at return.
    #[error("returns with tiles configured: tilerelease is missing")]
    TileState,
    /// The processor would reject a tile instruction (`#UD` or `#GP`).
    #[error("{reason}")]
    Tile {
        /// The reason, with the wrong values.
        reason: String,
    },
    /// A division by zero, or with a quotient that does not fit (`#DE`).
    #[error("division by zero or overflow")]
    Divide,
    /// A jump to an offset where no instruction starts.
    #[error("jumps to {target:#x}, where no instruction starts")]
    Branch {
        /// Offset in the code.
        target: u64,
    },
    /// Execution continued after the last instruction.
    #[error("execution runs past the end of the code")]
    End,
    /// The call took more steps than allowed.
    #[error("more than {limit} instructions: an endless loop?")]
    StepLimit {
        /// Max number of instructions of a call.
        limit: u64,
    },
    /// The emulator does not support the arguments.
    #[error("{reason}")]
    Arguments {
        /// Description of the problem.
        reason: String,
    },
}

fn access(write: bool) -> &'static str {
    if write { "store" } else { "load" }
}
