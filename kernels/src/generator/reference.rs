//! Comparison of the results of kernels with formulas, which are computed in f64 from the same
//! inputs.
//!
//! The file of each kernel has its formula and derives its bounds. This module has the code that
//! they share. The f32 sum of `k` products is within `k * 2^-24` of the sum of their magnitudes
//! (Higham, accuracy of inner products). The constant 2e-6 covers an exponential (2e-7 relative)
//! and the few operations around it.

use std::fmt;

use half::f16;
use ixc_ir::format::{Codec, Format};
use ixc_ir::kernel::Kernel;

/// Relative rounding error of f32.
pub(crate) const UNIT: f64 = 1.0 / (1u64 << 24) as f64;
/// Bound of the relative error of a result that contains one exponential.
pub(crate) const EXP_BOUND: f64 = 2e-6;

/// Difference between the results of a run and the formula.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Mismatch {
    /// The kernel has no such buffer.
    #[error("the kernel has no buffer %{name}")]
    NoBuffer {
        /// Name of the buffer.
        name: &'static str,
    },
    /// A value whose distance from the formula's value exceeds the bound.
    #[error("{what} is {found}, must be {expected} within {bound:e}")]
    Value {
        /// Name of the value.
        what: String,
        /// Value that the kernel computed.
        found: f64,
        /// Value that the formula gives.
        expected: f64,
        /// Maximum difference.
        bound: f64,
    },
    /// Bytes that must be equal, but are not.
    #[error("buffer %{buffer} differs from the bytes of the formula")]
    Bytes {
        /// Name of the buffer.
        buffer: &'static str,
    },
}

/// A run of a kernel: the contents of its buffers before and after.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Kernel that was run.
    pub kernel: &'a Kernel,
    /// Values of the dims.
    pub dims: &'a [i64],
    /// Contents of the buffers before the run, in the kernel's order.
    pub before: &'a [Vec<u8>],
    /// Contents of the buffers after the run.
    pub after: &'a [Vec<u8>],
}

impl<'a> Run<'a> {
    /// Returns the buffers before the run.
    pub(crate) fn input(&self) -> Buffers<'a> {
        Buffers { kernel: self.kernel, data: self.before }
    }

    /// Returns the buffers after the run.
    pub(crate) fn output(&self) -> Buffers<'a> {
        Buffers { kernel: self.kernel, data: self.after }
    }

    /// Returns the value of a dim, or 0 if the kernel does not have the dim.
    pub(crate) fn dim(&self, name: &str) -> i64 {
        let at = self.kernel.dims.iter().position(|dim| dim.name == name);
        at.and_then(|at| self.dims.get(at)).copied().unwrap_or(0)
    }
}

/// Contents of a kernel's buffers, by name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers<'a> {
    kernel: &'a Kernel,
    data: &'a [Vec<u8>],
}

impl<'a> Buffers<'a> {
    /// Returns the contents of the buffer with this name, or `None`.
    pub(crate) fn find(&self, name: &str) -> Option<&'a [u8]> {
        let at = self.kernel.buffers.iter().position(|buffer| buffer.name == name)?;
        self.data.get(at).map(Vec::as_slice)
    }

    pub(crate) fn get(&self, name: &'static str) -> Result<&'a [u8], Mismatch> {
        self.find(name).ok_or(Mismatch::NoBuffer { name })
    }

    pub(crate) fn floats(&self, name: &'static str) -> Result<Vec<f64>, Mismatch> {
        self.get(name).map(floats)
    }

    pub(crate) fn ints(&self, name: &'static str) -> Result<Vec<i32>, Mismatch> {
        let int = |bytes: &[u8; 4]| i32::from_le_bytes(*bytes);
        Ok(self.get(name)?.as_chunks().0.iter().map(int).collect())
    }

    /// Returns the first number of an index buffer.
    pub(crate) fn id(&self, name: &'static str) -> Result<usize, Mismatch> {
        Ok(self.ints(name)?.first().map_or(0, |id| *id as usize))
    }

    /// Returns the numbers of a buffer of rows with `row_len` elements, stored in `format`.
    pub(crate) fn rows(&self, name: &'static str, format: Format, row_len: usize) -> Result<Vec<f64>, Mismatch> {
        let bytes = self.get(name)?;
        Ok(format.dequantise_rows(bytes, row_len).into_iter().map(f64::from).collect())
    }

    /// Returns the numbers of a weight whose rows have `k` elements. Strips of a packed weight are
    /// in order, with their rows in order.
    pub(crate) fn weight(&self, name: &'static str, format: Format, k: usize) -> Result<Vec<f64>, Mismatch> {
        let bytes = self.get(name)?;
        Ok(format.dequantise_rows(bytes, k).into_iter().map(f64::from).collect())
    }

    pub(crate) fn halves(&self, name: &'static str) -> Result<Vec<f64>, Mismatch> {
        let half = |bytes: &[u8; 2]| f16::from_le_bytes(*bytes).to_f64();
        Ok(self.get(name)?.as_chunks().0.iter().map(half).collect())
    }
}

/// Converts little-endian f32 numbers to f64.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|bytes: &[u8; 4]| f64::from(f32::from_le_bytes(*bytes))).collect()
}

/// Checks that the kernel's value is within `bound` of the formula's value.
pub(crate) fn close(what: fmt::Arguments<'_>, found: f64, expected: f64, bound: f64) -> Result<(), Mismatch> {
    let near = (found - expected).abs() <= bound;
    if near { Ok(()) } else { Err(Mismatch::Value { what: what.to_string(), found, expected, bound }) }
}

/// Checks that a buffer contains exactly these bytes.
pub(crate) fn equal(buffer: &'static str, found: &[u8], expected: &[u8]) -> Result<(), Mismatch> {
    if found == expected { Ok(()) } else { Err(Mismatch::Bytes { buffer }) }
}

/// Returns the sum of the products of `x` and `w`, and the sum of their magnitudes.
pub(crate) fn dot(x: &[f64], w: &[f64]) -> (f64, f64) {
    x.iter().zip(w).fold((0.0, 0.0), |(s, m), (x, w)| (s + x * w, m + (x * w).abs()))
}

/// Returns half a quantisation step of a block with the largest magnitude `amax`. The format has
/// 127 steps, or 16 bits.
pub(crate) fn step(format: Format, amax: f64) -> f64 {
    match format.codec() {
        Codec::Float(_) => 0.0,
        Codec::Bf16 { parts } => amax / if *parts == 2 { 65536.0 } else { 256.0 },
        Codec::Bytes { .. } | Codec::Row | Codec::Quants(_) => amax / 127.0 * 0.501,
    }
}

pub(crate) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}
