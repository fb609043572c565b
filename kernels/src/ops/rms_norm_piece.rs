//! RMS norm of one piece of a row. The sums of squares of all pieces are inputs.

use ixc_ir::format::Format;
use ixc_ir::kernel::{Affine, Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors, check};
use crate::generator::reference::{Mismatch, Run};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Bits, spec};
use crate::generator::{quantise, rms};

spec! {
    /// RMS norm of one piece of a row, quantised. The sums of squares of all pieces are inputs, and
    /// are added in the order of the pieces.
    pub struct RmsNormPiece "rms_norm_piece" {
        /// Number of elements of the piece.
        pub n: u32,
        /// Number of elements of the whole row.
        pub row: u32,
        /// Number of pieces of the row.
        pub parts: u32,
        /// Epsilon of the norm.
        pub eps: Bits,
        /// Format of the result.
        pub out: Format,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("rms_norm_piece", 1, "rms_norm_piece n=512 row=8192 parts=16 eps=1e-5 out=a8_super"),
];

impl Definition for RmsNormPiece {
    fn name(&self) -> String {
        let RmsNormPiece { n, row, parts, eps, out } = *self;
        format!("rms_norm_piece_{out}_n{n}r{row}p{parts}_e{:x}", eps.0)
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", BufferContents::Floats)
            .read("sums", BufferContents::Positive)
            .read("w", BufferContents::Floats)
            .write("y", BufferContents::Activations(self.out, "out"))
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let RmsNormPiece { n, row, parts, eps, out } = *self;
        let bytes = quantise::written_bytes(&name, out, n)?;
        quantise::check_format(&name, out, lanes)?;
        check(&name, "pieces", u64::from(parts), parts > 0, "at least 1")?;
        check(
            &name,
            "elements of the row",
            u64::from(row),
            row >= n,
            format!("at least {n}, the length of the piece"),
        )?;
        let mut b = KernelBuilder::new(name);
        let (size, parts) = (i64::from(n) * 4, i64::from(parts));
        let (x, sums, w) = (b.read("x", size), b.read("sums", parts * 4), b.read("w", size));
        let y = b.write("y", bytes);
        let first = b.load(Type::f32(1), sums, Affine::constant(0));
        let sum = b.for_carry("part", parts - 1, &[first], |b, i, sum| {
            let next = b.load(Type::f32(1), sums, i * 4 + 4);
            vec![b.add(sum[0], next)]
        });
        let scale = rms::inverse_root(&mut b, sum[0], row, eps.value());
        rms::store_scaled(&mut b, lanes, out, n, rms::NormBuffers { x, w: Some(w), y }, scale);
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let sum = run.input().floats("sums")?.iter().sum();
        rms::reference(run, sum, self.row, self.eps, self.out)
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
