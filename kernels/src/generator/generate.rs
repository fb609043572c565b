//! Generation of kernel IR from a spec.

use std::fmt;

use ixc_failure::Class;
use ixc_ir::kernel::Kernel;
use ixc_targets::Target;
use thiserror::Error;

use crate::KernelSpec;

/// Reason why a spec has no kernel.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GenerateError {
    /// The spec's sizes or formats do not fit each other or the generator.
    #[error("kernel {kernel}: {what} is {found}, must be {expected}")]
    Size {
        /// The kernel's name.
        kernel: String,
        /// Name of the size or format.
        what: &'static str,
        /// Value of the size or format.
        found: String,
        /// The valid values.
        expected: String,
    },
    /// The generated kernel does not match the spec's signature.
    #[error("kernel {kernel}: {what} differ from its signature")]
    Signature {
        /// The kernel's name.
        kernel: String,
        /// The part of the spec that differs.
        what: &'static str,
    },
}

impl GenerateError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            GenerateError::Size { .. } | GenerateError::Signature { .. } => Class::Data,
        }
    }
}

/// Max rows (tokens, routed rows) of any kernel.
pub const MAX_ROWS: i64 = 1 << 20;
/// Max number of KV cache positions.
pub const MAX_POSITIONS: i64 = 1 << 24;

/// Generates the kernel of a spec for a target.
///
/// # Errors
/// The spec's sizes are invalid.
pub fn generate(spec: &KernelSpec, target: Target) -> Result<Kernel, GenerateError> {
    // Kernel names have no hyphens, but target names do.
    let name = format!("{}_{}", spec.name(), target.name().replace('-', "_"));
    let kernel = spec.generate(name, Vectors::for_target(target))?;
    match spec.signature().difference(&kernel) {
        None => Ok(kernel),
        Some(what) => Err(GenerateError::Signature { kernel: kernel.name, what }),
    }
}

/// Properties of a target that generators use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vectors {
    /// f32 lanes of a vector.
    pub(crate) lanes: u16,
    /// Whether `dot4_u8s8` is one instruction; sums of pairs of products in words then cost too
    /// much.
    pub(crate) dot4: bool,
    /// Whether `lookup_byte` and `multishift` are a few instructions; tables are then looked up by
    /// bytes.
    pub(crate) permutes: bool,
    /// Whether there are tile registers.
    pub(crate) tiles: bool,
}

impl Vectors {
    /// Returns the properties of a target.
    pub(crate) fn for_target(target: Target) -> Vectors {
        let row = target.row();
        // Targets with narrower registers split these vectors.
        let lanes = (row.isa.vector_bytes / 4) as u16;
        let tiles = row.isa.tile_registers > 0;
        Vectors { lanes, dot4: target.has_dot4(), permutes: target.permutes_bytes(), tiles }
    }
}

pub(crate) fn check(
    kernel: &str,
    what: &'static str,
    found: u64,
    ok: bool,
    expected: impl Into<String>,
) -> Result<(), GenerateError> {
    check_word(kernel, what, found, ok, expected)
}

/// Checks a value that is not a size; see [`check`].
pub(crate) fn check_word(
    kernel: &str,
    what: &'static str,
    found: impl fmt::Display,
    ok: bool,
    expected: impl Into<String>,
) -> Result<(), GenerateError> {
    let wrong =
        || GenerateError::Size { kernel: kernel.into(), what, found: found.to_string(), expected: expected.into() };
    if ok { Ok(()) } else { Err(wrong()) }
}
