//! What an emulated call can do wrong: what a processor would fault on, and what only we check.

use std::fmt;

use ixc_failure::Class;
use ixc_targets::Feature;

/// What happened, without where. Boxed, so that a step's result is one word.
pub type Trap = Box<FaultKind>;

/// A fault with the instruction that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Offset of the instruction in the code; `None` where no instruction is at fault.
    pub offset: Option<u32>,
    /// The instruction as text, empty where there is none.
    pub instruction: String,
    /// What happened.
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

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// A load or store that is not inside a buffer.
    #[error("{} of {bytes} bytes at byte {offset} of `{buffer}`, which has {size}", access(*write))]
    OutOfBounds {
        /// The nearest buffer.
        buffer: String,
        /// Where in it; negative before it.
        offset: i64,
        /// How many bytes.
        bytes: usize,
        /// The buffer's size.
        size: usize,
        /// A store.
        write: bool,
    },
    /// A store to what may only be read.
    #[error("store of {bytes} bytes at byte {offset} of `{buffer}`, which is read-only")]
    ReadOnly {
        /// The buffer.
        buffer: String,
        /// Where in it.
        offset: i64,
        /// How many bytes.
        bytes: usize,
    },
    /// An address that is near no buffer.
    #[error("{} of {bytes} bytes at address {address:#x}, near no buffer", access(*write))]
    Unmapped {
        /// The address.
        address: u64,
        /// How many bytes.
        bytes: usize,
        /// A store.
        write: bool,
    },
    /// An access of the stack below the red zone.
    #[error("{} {below} bytes below the stack pointer; the red zone has 128", access(*write))]
    RedZone {
        /// Distance from `rsp` to the access's first byte.
        below: u64,
        /// A store.
        write: bool,
    },
    /// An aligned access that is not.
    #[error("access of {bytes} bytes at address {address:#x}, which is no multiple of {alignment}")]
    Misaligned {
        /// The address.
        address: u64,
        /// How many bytes.
        bytes: usize,
        /// What it must be a multiple of.
        alignment: usize,
    },
    /// An instruction outside the target's features.
    #[error("needs {feature}, which the target does not have")]
    Feature {
        /// The feature's name.
        feature: String,
        /// The feature, where the target table knows it.
        known: Option<Feature>,
    },
    /// Not an instruction that the emulator knows, or no instruction at all.
    #[error("unknown instruction, bytes {bytes}")]
    Unknown {
        /// Its bytes in hexadecimal.
        bytes: String,
    },
    /// A register was read that nothing has written.
    #[error("reads {register}, which is undefined here")]
    Undefined {
        /// The register, or a flag.
        register: String,
    },
    /// A register of the caller's was not restored.
    #[error("returns with {register} = {found:#x}; the caller had {expected:#x}")]
    CalleeSaved {
        /// The register.
        register: &'static str,
        /// Found.
        found: u64,
        /// The caller's.
        expected: u64,
    },
    /// `ret` to somewhere else.
    #[error("returns to {found:#x}, which is not where it was called from")]
    ReturnAddress {
        /// Found on the stack.
        found: u64,
    },
    /// The direction flag is set at return.
    #[error("returns with the direction flag set")]
    DirectionFlag,
    /// Upper halves of vector registers in use at return: what follows would be slow.
    #[error("returns with upper halves of vector registers in use: vzeroupper is missing")]
    DirtyUpper,
    /// Tiles configured at return.
    #[error("returns with tiles configured: tilerelease is missing")]
    TileState,
    /// A tile instruction that the processor would refuse (`#UD` or `#GP`).
    #[error("{reason}")]
    Tile {
        /// Why, with the values that are wrong.
        reason: String,
    },
    /// Division by zero or with a quotient that does not fit (`#DE`).
    #[error("division by zero or overflow")]
    Divide,
    /// A jump to where no instruction starts.
    #[error("jumps to {target:#x}, where no instruction starts")]
    Branch {
        /// Offset in the code.
        target: u64,
    },
    /// Execution went past the last instruction.
    #[error("execution runs past the end of the code")]
    End,
    /// More steps than allowed.
    #[error("more than {limit} instructions: an endless loop?")]
    StepLimit {
        /// The limit.
        limit: u64,
    },
    /// Arguments that the emulator can't take.
    #[error("{reason}")]
    Arguments {
        /// What is wrong.
        reason: String,
    },
}

fn access(write: bool) -> &'static str {
    if write { "store" } else { "load" }
}
