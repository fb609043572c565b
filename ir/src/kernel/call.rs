//! Checks of a call's arguments that do not depend on the contents of buffers: the numbers of dims
//! and buffers, and the ranges of dims.
//!
//! ```
//! use ixc_ir::kernel::Dim;
//! use ixc_ir::kernel::call::check_dims;
//!
//! let dims = [Dim { name: "n".to_owned(), lo: 0, hi: 100 }];
//! assert_eq!(check_dims(&dims, &[100]), Ok(()));
//! let error = check_dims(&dims, &[101]).unwrap_err();
//! assert_eq!(error.to_string(), "dim %n is 101; it must be in 0..=100");
//! let error = check_dims(&dims, &[]).unwrap_err();
//! assert_eq!(error.to_string(), "found 0 dims; the kernel has 1: %n");
//! ```

use ixc_failure::Class;

use super::{Buffer, Dim};

/// An error in the arguments of a call of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// A wrong number of dims.
    #[error("found {found} dims; the kernel has {}", name_list(expected))]
    DimCount {
        /// Number of dims that the caller passed.
        found: usize,
        /// Names of the kernel's dims.
        expected: Vec<String>,
    },
    /// A dim outside its range.
    #[error("dim %{name} is {found}; it must be in {lo}..={hi}")]
    DimRange {
        /// Name of the dim.
        name: String,
        /// Value that the caller passed.
        found: i64,
        /// Smallest allowed value.
        lo: i64,
        /// Largest allowed value.
        hi: i64,
    },
    /// A wrong number of buffers.
    #[error("found {found} buffers; the kernel has {}", name_list(expected))]
    BufferCount {
        /// Number of buffers that the caller passed.
        found: usize,
        /// Names of the kernel's buffers.
        expected: Vec<String>,
    },
}

impl CallError {
    /// Returns the kind of failure.
    pub fn class(&self) -> Class {
        match self {
            CallError::DimCount { .. } | CallError::DimRange { .. } | CallError::BufferCount { .. } => Class::Data,
        }
    }
}

/// Returns the number of names, followed by the names.
fn name_list(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("%{name}")).collect();
    if names.is_empty() { "0".to_owned() } else { format!("{}: {}", names.len(), names.join(", ")) }
}

/// Checks the number and the ranges of a call's dims.
///
/// # Errors
/// Returns the first error.
pub fn check_dims(dims: &[Dim], values: &[i64]) -> Result<(), CallError> {
    if dims.len() != values.len() {
        let expected = dims.iter().map(|dim| dim.name.clone()).collect();
        return Err(CallError::DimCount { found: values.len(), expected });
    }
    for (dim, &found) in dims.iter().zip(values) {
        if !(dim.lo..=dim.hi).contains(&found) {
            return Err(CallError::DimRange { name: dim.name.clone(), found, lo: dim.lo, hi: dim.hi });
        }
    }
    Ok(())
}

/// Checks the number of a call's buffers.
///
/// # Errors
/// Fails if the number differs from that of the kernel.
pub fn check_buffer_count(buffers: &[Buffer], found: usize) -> Result<(), CallError> {
    if buffers.len() == found {
        return Ok(());
    }
    let expected = buffers.iter().map(|buffer| buffer.name.clone()).collect();
    Err(CallError::BufferCount { found, expected })
}
