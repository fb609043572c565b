//! Generation of kernel IR from a spec.

use std::fmt;

use ixc_failure::Class;
use ixc_ir::kernel::Kernel;
use ixc_targets::Target;
use thiserror::Error;

use crate::KernelSpec;

/// Reason why no kernel can be generated from a spec.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GenerateError {
    /// A size or format that the generator does not support, or that does not fit the others.
    #[error("kernel {kernel}: {what} is {found}, must be {expected}")]
    Size {
        /// Name of the kernel.
        kernel: String,
        /// Name of the size or format.
        what: &'static str,
        /// Value of the size or format.
        found: String,
        /// Description of the valid values.
        expected: String,
    },
    /// A generated kernel that does not match its spec's signature. This is a bug of the generator.
    #[error("kernel {kernel}: {what} differ from its signature")]
    Signature {
        /// Name of the kernel.
        kernel: String,
        /// Name of the property that differs.
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

/// Maximum number of rows of any kernel: tokens or routed rows.
pub const MAX_ROWS: i64 = 1 << 20;
/// Maximum number of KV cache positions of any kernel.
pub const MAX_POSITIONS: i64 = 1 << 24;

/// Generates the kernel of a spec for a target.
///
/// # Errors
/// Fails if the spec's sizes or formats are invalid.
pub fn generate(spec: &KernelSpec, target: Target) -> Result<Kernel, GenerateError> {
    // Hyphens of target names are replaced, because kernel names must not contain them.
    let name = format!("{}_{}", spec.name(), target.name().replace('-', "_"));
    let kernel = spec.generate(name, Vectors::for_target(target))?;
    match spec.signature().difference(&kernel) {
        None => Ok(kernel),
        Some(what) => Err(GenerateError::Signature { kernel: kernel.name, what }),
    }
}

/// Properties of a target that the generators use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vectors {
    /// Number of f32 lanes of a vector.
    pub(crate) lanes: u16,
    /// Whether `dot4_u8s8` is one instruction. If so, it is faster than sums of products in 16-bit
    /// words.
    pub(crate) dot4: bool,
    /// Whether `lookup_byte` and `multishift` take only a few instructions. If so, kernels look up
    /// single bytes of table entries.
    pub(crate) permutes: bool,
    /// Whether the target has tile registers.
    pub(crate) tiles: bool,
}

impl Vectors {
    /// Returns the properties of this target that the generators use.
    pub(crate) fn for_target(target: Target) -> Vectors {
        let row = target.row();
        // On targets with narrower registers, the lowering splits vectors of this width.
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

/// Checks a property that is not a size, in the same way as [`check`].
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
