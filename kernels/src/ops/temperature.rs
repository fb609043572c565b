//! Multiplication of a row by a factor that depends on its position, which sharpens queries at high
//! positions. The factors are in a table: a `plan::RopeTable` whose single pair does not rotate.

use ixc_ir::graph::attrs::RopeStyle;
use ixc_ir::kernel::{Kernel, KernelBuilder, Type};
use ixc_ir::plan::KEY_LANES;

use crate::catalogue::{Row, row};
use crate::generator::blocks;
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run, UNIT, close};
use crate::generator::rotation::position;
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_vectors;
use crate::generator::work::{Call, Work};

spec! {
    /// `y = x * table[16 * block + lane]`. A row of the table is the cosine and the sine of one
    /// pair of elements, and the cosine is the factor.
    pub struct Temperature "temperature" {
        /// Number of elements of a row.
        pub n: u32,
    }
}

/// Style of the table: a row has a cosine and then a sine. Only the cosine is read.
const STYLE: RopeStyle = RopeStyle::Neox;
/// Number of elements of the table's single pair.
const PAIR: u32 = 2;

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("temperature", 16, "temperature n=4096"),
];

impl Definition for Temperature {
    fn name(&self) -> String {
        format!("temperature_n{}", self.n)
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", BufferContents::Floats)
            .index("block")
            .index("lane")
            .read("table", BufferContents::Floats)
            .write("y", BufferContents::Floats)
            .dim("blocks", blocks::of_cache())
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let size = i64::from(self.n) * 4;
        let mut b = KernelBuilder::new(name);
        let x = b.read("x", size);
        let position = position(&mut b, STYLE, PAIR);
        let y = b.write("y", size);
        for_vectors(&mut b, vectors.lanes, self.n, |b, at, lanes| {
            let factor = b.load_splat(Type::f32(lanes), position.table, position.row.clone());
            let v = b.load(Type::f32(lanes), x, at.clone() * 4);
            let v = b.mul(v, factor);
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let input = run.input();
        let position = KEY_LANES as usize * input.id("block")? + input.id("lane")?;
        let factor = input.floats("table")?[position * PAIR as usize];
        let (x, y) = (input.floats("x")?, run.output().floats("y")?);
        for (i, (x, y)) in x.iter().zip(&y).enumerate() {
            let expected = x * factor;
            close(format_args!("y[{i}]"), *y, expected, expected.abs() * UNIT)?;
        }
        Ok(())
    }

    fn work(&self, call: &Call<'_>) -> Work {
        Work::of_bytes(["x", "y"].iter().map(|name| call.bytes(name)).sum())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
