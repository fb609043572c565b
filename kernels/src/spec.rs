//! Queries on any spec; the kernel's file answers them.

use ixc_ir::kernel::Kernel;

use crate::KernelSpec;
use crate::generate::{GenerateError, Vectors};
use crate::reference::{Mismatch, Run};
use crate::signature::{BindError, Signature};
use crate::work::{Call, Work};

impl KernelSpec {
    /// Returns the kernel's name without the target: cache key, profiler symbol and dump file name.
    /// Two specs have the same name only if they are equal.
    pub fn name(&self) -> String {
        self.definition().name()
    }

    /// Returns the buffers and dims, in order.
    pub fn signature(&self) -> Signature {
        self.definition().signature()
    }

    /// Returns the bindings in the order of the buffers.
    ///
    /// # Errors
    /// Errors of [`Signature::order`].
    pub fn order<T>(&self, bound: Vec<(&'static str, T)>) -> Result<Vec<T>, BindError> {
        self.signature().order(&self.name(), bound)
    }

    pub(crate) fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        self.definition().generate(name, vectors)
    }

    /// Compares a run with the formula in f64.
    ///
    /// # Errors
    /// The first value that is too far from the formula's.
    pub fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        self.definition().reference(run)
    }

    /// Returns the min work of a call.
    pub fn work(&self, call: &Call<'_>) -> Work {
        self.definition().work(call)
    }

    /// Returns the dims of a test run with `rows` rows. Kernels of groups of rows have groups and
    /// rest; others have blocks of the KV cache, rows of the table, or no dims for a single row.
    pub fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        self.definition().dims_of_rows(rows)
    }

    /// Returns the max rows that its kernels take.
    pub fn max_rows(&self) -> u32 {
        self.definition().max_rows()
    }
}
