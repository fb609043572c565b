//! What can be asked of any spec: its kernel's file answers.

use ixc_ir::kernel::Kernel;

use crate::KernelSpec;
use crate::generate::{GenerateError, Vectors};
use crate::reference::{Mismatch, Run};
use crate::signature::{BindError, Signature};
use crate::work::{Call, Work};

impl KernelSpec {
    /// The kernel's name, without the target: cache key, profiler symbol and dump file name. Two specs have the same name only if
    /// they are equal.
    pub fn name(&self) -> String {
        self.definition().name()
    }

    /// Its buffers and dims, in order.
    pub fn signature(&self) -> Signature {
        self.definition().signature()
    }

    /// What is bound to its buffers, in their order.
    ///
    /// # Errors
    /// As [`Signature::order`].
    pub fn order<T>(&self, bound: Vec<(&'static str, T)>) -> Result<Vec<T>, BindError> {
        self.signature().order(&self.name(), bound)
    }

    pub(crate) fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        self.definition().generate(name, vectors)
    }

    /// Holds a run against the formula in f64.
    ///
    /// # Errors
    /// The first value that is too far from it.
    pub fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        self.definition().reference(run)
    }

    /// What a call does at the least.
    pub fn work(&self, call: &Call<'_>) -> Work {
        self.definition().work(call)
    }

    /// The dims for so many rows: groups and rest where the kernel works on groups of rows; blocks of the KV cache, rows of the table or
    /// none for kernels of one row.
    pub fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        self.definition().dims_of_rows(rows)
    }

    /// Most rows that its kernels take.
    pub fn most_rows(&self) -> u32 {
        self.definition().most_rows()
    }
}
