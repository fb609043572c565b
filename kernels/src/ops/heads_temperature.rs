//! Multiplication of a head by a factor that depends on the position, and on two numbers of the
//! head. It sharpens queries at high positions, differently for each head. The table is that of
//! [`temperature`](crate::ops::temperature); its entries are 1 plus a logarithm.

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
    /// `y = x * (bias + scale * (table[16 * block + lane] - 1))`. A row of the table is the cosine
    /// and the sine of one pair of elements, and the cosine is read.
    pub struct HeadsTemperature "heads_temperature" {
        /// Number of elements of a head.
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
    row("heads_temperature", 16, "heads_temperature n=576"),
];

impl Definition for HeadsTemperature {
    fn name(&self) -> String {
        format!("heads_temperature_n{}", self.n)
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", BufferContents::Floats)
            .index("block")
            .index("lane")
            .read("table", BufferContents::Floats)
            .read("scale", BufferContents::Floats)
            .read("bias", BufferContents::Floats)
            .write("y", BufferContents::Floats)
            .dim("blocks", blocks::of_cache())
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let size = i64::from(self.n) * 4;
        let mut b = KernelBuilder::new(name);
        let x = b.read("x", size);
        let position = position(&mut b, STYLE, PAIR);
        let (scale, bias) = (b.read("scale", 4), b.read("bias", 4));
        let y = b.write("y", size);
        for_vectors(&mut b, vectors.lanes, self.n, |b, at, lanes| {
            let ty = Type::f32(lanes);
            let one = b.splat_f32(lanes, 1.0);
            let number = b.load_splat(ty, position.table, position.row.clone());
            let log = b.sub(number, one);
            let (scale, bias) = (b.load_splat(ty, scale, 0), b.load_splat(ty, bias, 0));
            let factor = b.fma(log, scale, bias);
            let v = b.load(ty, x, at.clone() * 4);
            let v = b.mul(v, factor);
            b.store(y, at * 4, v);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let input = run.input();
        let position = KEY_LANES as usize * input.id("block")? + input.id("lane")?;
        let log = input.floats("table")?[position * PAIR as usize] - 1.0;
        let (scale, bias) = (input.floats("scale")?[0], input.floats("bias")?[0]);
        let factor = bias + scale * log;
        // The bound covers one rounding each for the logarithm, the factor and the product.
        let error = ((scale * log).abs() + factor.abs()) * UNIT;
        let (x, y) = (input.floats("x")?, run.output().floats("y")?);
        for (i, (x, y)) in x.iter().zip(&y).enumerate() {
            let expected = x * factor;
            close(format_args!("y[{i}]"), *y, expected, x.abs() * error * (1.0 + UNIT) + expected.abs() * UNIT)?;
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
