//! Methods of every spec, which the file of the kernel implements.

use ixc_ir::kernel::Kernel;

use crate::KernelSpec;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run};
use crate::generator::signature::{BindError, NamedValue, Signature};
use crate::generator::work::{Call, Work};

impl KernelSpec {
    /// Returns the kernel's name without the target. It is the cache key, the profiler symbol and
    /// the name of dump files. Only equal specs have equal names.
    pub fn name(&self) -> String {
        self.definition().name()
    }

    /// Returns the kernel's buffers and dims, in order.
    pub fn signature(&self) -> Signature {
        self.definition().signature()
    }

    /// Returns the bound values in the order of the kernel's buffers.
    ///
    /// # Errors
    /// Fails like [`Signature::order`].
    pub fn order<T>(&self, bound: Vec<NamedValue<T>>) -> Result<Vec<T>, BindError> {
        self.signature().order(&self.name(), bound)
    }

    pub(crate) fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        self.definition().generate(name, vectors)
    }

    /// Compares the results of a run with the kernel's formula in f64.
    ///
    /// # Errors
    /// Returns the first value whose error is above the kernel's bound.
    pub fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        self.definition().reference(run)
    }

    /// Returns the minimum number of bytes and operations of a call.
    pub fn work(&self, call: &Call<'_>) -> Work {
        self.definition().work(call)
    }

    /// Returns the values of the dims for a test run with `rows` rows. Dims are numbers of groups
    /// and of remaining rows, blocks of the KV cache, or rows of a table. A kernel for a single row
    /// may have no dims.
    pub fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        self.definition().dims_of_rows(rows)
    }

    /// Returns the maximum number of rows that the kernel accepts in an item.
    pub fn max_rows(&self) -> u32 {
        self.definition().max_rows()
    }
}
