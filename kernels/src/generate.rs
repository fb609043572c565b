//! From a spec to kernel IR.

use std::fmt;

use ixc_failure::Class;
use ixc_ir::kernel::Kernel;
use ixc_targets::Target;
use thiserror::Error;

use crate::KernelSpec;

/// Why a spec has no kernel.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GenerateError {
    /// The spec's sizes or formats do not fit each other or the generator.
    #[error("kernel {kernel}: {what} is {found}, must be {expected}")]
    Size {
        /// The kernel's name.
        kernel: String,
        /// Which of them.
        what: &'static str,
        /// What it is.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// The generator's kernel is not what the spec's signature says.
    #[error("kernel {kernel}: its {what} are not those of its signature")]
    Signature {
        /// The kernel's name.
        kernel: String,
        /// What differs.
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

/// Largest number of rows (tokens, routed rows) that any kernel takes.
pub const MAX_ROWS: i64 = 1 << 20;
/// Largest number of KV cache positions.
pub const MAX_POSITIONS: i64 = 1 << 24;

/// The kernel of a spec, for a target.
///
/// # Errors
/// When the spec's sizes make no kernel.
pub fn generate(spec: &KernelSpec, target: Target) -> Result<Kernel, GenerateError> {
    // Names of kernels have no hyphen, those of targets do.
    let name = format!("{}_{}", spec.name(), target.name().replace('-', "_"));
    let kernel = spec.generate(name, Vectors::of(target))?;
    match spec.signature().difference(&kernel) {
        None => Ok(kernel),
        Some(what) => Err(GenerateError::Signature { kernel: kernel.name, what }),
    }
}

/// What generators know of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vectors {
    /// f32 lanes of a vector.
    pub(crate) lanes: u16,
    /// Whether `dot4_u8s8` is one instruction: sums of pairs of products in words are not worth their trouble then.
    pub(crate) dot4: bool,
    /// Whether `lookup_byte` and `multishift` are a few instructions: tables are looked up by bytes then.
    pub(crate) permutes: bool,
    /// Whether there are tile registers.
    pub(crate) tiles: bool,
}

impl Vectors {
    /// Of a target.
    pub(crate) fn of(target: Target) -> Vectors {
        let row = target.row();
        // f32 lanes of a vector. Targets with narrower registers split it.
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

/// [`check`] of what is no size.
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
