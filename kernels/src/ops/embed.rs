//! Embedding: look-up and dequantisation of a row of a table.

use ixc_ir::format::Format;
use ixc_ir::kernel::{BufferKind, Kernel, KernelBuilder};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::quantise;
use crate::generator::reference::{Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::work::{Call, Work};
use crate::linear;

spec! {
    /// Look-up of a row of a table, which is dequantised to f32.
    pub struct Embed "embed" {
        /// Format of the table.
        pub format: Format,
        /// Number of rows of the table.
        pub rows: u32,
        /// Number of elements of a row.
        pub n: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("embed_f16", 1, "embed format=f16 rows=512 n=2048"),
    row("embed_q4_k", 1, "embed format=q4_k rows=512 n=2048"),
    row("embed_q6_k", 1, "embed format=q6_k rows=512 n=2048"),
];

impl Definition for Embed {
    fn name(&self) -> String {
        let Embed { format, rows, n } = *self;
        format!("embed_{format}_r{rows}n{n}")
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .index("id")
            .read("table", BufferContents::Table(self.format, "format"))
            .write("y", BufferContents::Floats)
    }

    fn generate(&self, name: String, _: Vectors) -> Result<Kernel, GenerateError> {
        let Embed { format, rows, n } = *self;
        let bytes = quantise::row_bytes(&name, format, n)?;
        let mut b = KernelBuilder::new(name);
        let id = b.buffer("id", BufferKind::Index { below: i64::from(rows).into() }, 4);
        let table = b.read("table", bytes * i64::from(rows));
        let y = b.write("y", i64::from(n) * 4);
        let row = b.load_index("row", id, 0);
        linear::dequantise_row(&mut b, format, n, table, row * bytes, y);
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let Embed { format, n, .. } = *self;
        let (input, output) = (run.input(), run.output());
        let row = input.id("id")?;
        let table = input.rows("table", format, self.n as usize)?;
        for (i, y) in output.floats("y")?.iter().enumerate() {
            let expected = table[row * n as usize + i];
            close(format_args!("y[{i}]"), *y, expected, expected.abs() * 4.0 * UNIT + 1e-6)?;
        }
        Ok(())
    }

    fn work(&self, _: &Call<'_>) -> Work {
        // Only one row of the table is read.
        Work::of_bytes(self.format.row_bytes(u64::from(self.n)).unwrap_or(0))
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
