//! Copy of the row that an index selects.

use ixc_ir::kernel::{BufferKind, Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, MAX_ROWS, Vectors};
use crate::generator::reference::{Mismatch, Run, equal};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::work::{Call, Work};

spec! {
    /// Copy of the row of `x` that an index selects. The dim is the number of rows of `x`.
    pub struct Gather "gather" {
        /// Number of bytes of a row.
        pub bytes: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("gather", 64, "gather bytes=2816"),
];

impl Definition for Gather {
    fn name(&self) -> String {
        format!("gather_b{}", self.bytes)
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .index("row")
            .read("x", BufferContents::Bytes)
            .write("y", BufferContents::Bytes)
            .dim_of_task("rows")
    }

    fn generate(&self, name: String, _: Vectors) -> Result<Kernel, GenerateError> {
        let Gather { bytes } = *self;
        let mut b = KernelBuilder::new(name);
        let rows = b.dim("rows", 1, MAX_ROWS);
        let index = b.buffer("row", BufferKind::Index { below: rows.into() }, 4);
        let (x, y) = (b.read("x", rows * i64::from(bytes)), b.write("y", i64::from(bytes)));
        let row = b.load_index("r", index, 0);
        let vectors = bytes / 32;
        b.for_each("i", i64::from(vectors), |b, i| {
            let v = b.load(Type::i8(32), x, row * i64::from(bytes) + i * 32);
            b.store(y, i * 32, v);
        });
        let mut at = vectors * 32;
        for size in [16u32, 8, 4, 2, 1] {
            if bytes - at >= size {
                let v = b.load(Type::i8(size as u16), x, row * i64::from(bytes) + i64::from(at));
                b.store(y, i64::from(at), v);
                at += size;
            }
        }
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let (row, bytes) = (input.id("row")?, self.bytes as usize);
        equal("y", output.get("y")?, &input.get("x")?[row * bytes..][..bytes])?;
        Ok(())
    }

    fn work(&self, _: &Call<'_>) -> Work {
        Work::of_bytes(self.bytes.into())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
