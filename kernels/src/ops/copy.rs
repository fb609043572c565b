//! Copy of a part of a row.

use ixc_ir::kernel::{Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run, equal};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_vectors;

spec! {
    /// `y = x`, for `n` elements.
    pub struct Copy "copy" {
        /// Number of elements to copy.
        pub n: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("copy", 1, "copy n=2048"),
];

impl Definition for Copy {
    fn name(&self) -> String {
        format!("copy_n{}", self.n)
    }

    fn signature(&self) -> Signature {
        Signature::new().read("x", BufferContents::Floats).write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let mut b = KernelBuilder::new(name);
        let size = i64::from(self.n) * 4;
        let (x, y) = (b.read("x", size), b.write("y", size));
        for_vectors(&mut b, vectors.lanes, self.n, |b, at, lanes| {
            let v = b.load(Type::f32(lanes), x, at.clone() * 4);
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        equal("y", run.output().get("y")?, run.input().get("x")?)
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
