//! Rotation of the heads of a row, after an optional norm.

use ixc_ir::graph::attrs::RopeStyle;
use ixc_ir::kernel::{Kernel, KernelBuilder};

use crate::catalogue::{Row, row};
use crate::generator::blocks;
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::rotation::{self, Head, check_rotated_dims, position, rotate, rotate_heads};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Bits, spec};
use crate::generator::work::{Call, Work};

spec! {
    /// Rotation of the heads of a row, after a norm if `norm` is set. The buffers `block` and
    /// `lane` give the row's position, `16 * block + lane`. This is the row of `table` with the
    /// cosines and sines.
    pub struct RopeHeads "rope_heads" {
        /// Number of heads in a row.
        pub heads: u32,
        /// Number of elements of a head.
        pub d: u32,
        /// Number of elements that are rotated.
        pub dims: u32,
        /// Choice of the two elements of a pair.
        pub style: RopeStyle,
        /// Epsilon of the norm, or `None` if there is no norm.
        pub norm: Option<Bits>,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("rope_heads_64", 16, "rope_heads heads=32 d=64 dims=64 style=norm"),
    row("rope_heads_128", 16, "rope_heads heads=32 d=128 dims=128 style=neox norm=1e-6"),
];

impl Definition for RopeHeads {
    fn name(&self) -> String {
        let RopeHeads { heads, d, dims, style, norm } = *self;
        let (style, norm) = rotation::name(style, norm);
        format!("rope_heads_{style}_h{heads}d{d}r{dims}{norm}")
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", BufferContents::Floats)
            .read_if(self.norm.is_some(), "norm", BufferContents::Floats)
            .index("block")
            .index("lane")
            .read("table", BufferContents::Floats)
            .write("y", BufferContents::Floats)
            .dim("blocks", blocks::of_cache())
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let RopeHeads { heads, d, dims, style, norm } = *self;
        check_rotated_dims(&name, d, dims)?;
        let mut b = KernelBuilder::new(name);
        let head_bytes = i64::from(d) * 4;
        let size = i64::from(heads) * head_bytes;
        let x = b.read("x", size);
        let norm = norm.map(|eps| (eps, b.read("norm", head_bytes)));
        let position = position(&mut b, style, dims);
        let y = b.write("y", size);
        b.for_each("head", i64::from(heads), |b, head| {
            rotate(b, &Head { lanes, d, dims, style, norm }, &position, x, head * head_bytes, y, head * head_bytes);
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let RopeHeads { d, dims, style, norm, .. } = *self;
        let (input, y) = (run.input(), run.output().floats("y")?);
        let (_, expected) = rotate_heads(&input, &input.floats("x")?, d, dims, style, norm)?;
        let mut values = y.iter().zip(&expected).enumerate();
        values.try_for_each(|(i, (y, expected))| close(format_args!("y[{i}]"), *y, *expected, 1e-5))
    }

    fn work(&self, call: &Call<'_>) -> Work {
        Work::of_bytes(["x", "norm", "y"].iter().map(|name| call.bytes(name)).sum())
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
