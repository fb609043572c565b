//! RMS norm of a row, followed by quantisation.

use ixc_ir::format::Format;
use ixc_ir::kernel::{Kernel, KernelBuilder, Type};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, Vectors};
use crate::generator::reference::{Mismatch, Run};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::{Bits, spec};
use crate::generator::{quantise, rms};

spec! {
    /// `y = x * w / sqrt(mean(x^2) + eps)`, quantised. With `plain`, there is no factor `w`.
    pub struct RmsNorm "rms_norm" {
        /// Number of elements of a row.
        pub n: u32,
        /// Epsilon of the norm.
        pub eps: Bits,
        /// Format of the result.
        pub out: Format,
        /// Whether the norm has no weight `w`.
        pub plain: bool,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("rms_norm_f32", 1, "rms_norm n=2048 eps=1e-5 out=f32"),
    row("rms_norm_a8_super", 1, "rms_norm n=2048 eps=1e-5 out=a8_super"),
    row("rms_norm_a8_small", 1, "rms_norm n=2048 eps=1e-5 out=a8_small"),
    row("rms_norm_plain", 4, "rms_norm n=512 eps=1e-6 out=f32 plain"),
    row("rms_norm_a8_row", 1, "rms_norm n=2048 eps=1e-5 out=a8_row"),
];

impl Definition for RmsNorm {
    fn name(&self) -> String {
        let RmsNorm { n, eps, out, plain } = *self;
        format!("rms_norm_{out}_n{n}_e{:x}{}", eps.0, if plain { "_plain" } else { "" })
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("x", BufferContents::Floats)
            .read_if(!self.plain, "w", BufferContents::Floats)
            .write("y", BufferContents::Activations(self.out, "out"))
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let RmsNorm { n, eps, out, plain } = *self;
        let bytes = quantise::written_bytes(&name, out, n)?;
        quantise::check_format(&name, out, lanes)?;
        let mut b = KernelBuilder::new(name);
        let size = i64::from(n) * 4;
        let x = b.read("x", size);
        let w = (!plain).then(|| b.read("w", size));
        let y = b.write("y", bytes);
        let scale = rms::inverse_rms(&mut b, lanes, n, eps.value(), |b, at, lanes| b.load(Type::f32(lanes), x, at * 4));
        rms::store_scaled(&mut b, lanes, out, n, rms::NormBuffers { x, w, y }, scale);
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let sum = run.input().floats("x")?.iter().map(|x| x * x).sum();
        rms::reference(run, sum, self.n, self.eps, self.out)
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
