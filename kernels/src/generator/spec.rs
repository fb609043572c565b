//! Queries on any spec, which the kernel's file answers.

use ixc_ir::kernel::Kernel;

use crate::KernelSpec;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run};
use crate::generator::signature::{BindError, NamedValue, Signature};
use crate::generator::work::{Call, Work};

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
    pub fn order<T>(&self, bound: Vec<NamedValue<T>>) -> Result<Vec<T>, BindError> {
        self.signature().order(&self.name(), bound)
    }

    pub(crate) fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        self.definition().generate(name, vectors)
    }

    /// Compares a run with the formula in f64.
    ///
    /// # Errors
    /// The first value that differs too much from the formula's.
    pub fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        self.definition().reference(run)
    }

    /// Returns the minimum work of a call.
    pub fn work(&self, call: &Call<'_>) -> Work {
        self.definition().work(call)
    }

    /// Returns the dims of a test run with `rows` rows. Dims are numbers of groups and of remaining
    /// rows, blocks of the KV cache, or rows of a table. A kernel for a single row may have none.
    pub fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        self.definition().dims_of_rows(rows)
    }

    /// Returns the maximum number of rows that the kernel accepts.
    pub fn max_rows(&self) -> u32 {
        self.definition().max_rows()
    }
}
