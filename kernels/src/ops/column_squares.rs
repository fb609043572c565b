//! Sums of the squares of each column of some rows, and the number of these rows. Importance
//! matrices of weights are computed from these sums.
//!
//! `sums[c] += sum over rows of x[t, c]^2`, and `sums[n] += rows`. Vector lanes are columns, and
//! their sums stay in a register from row to row.

use ixc_ir::format::{Codec, Format};
use ixc_ir::kernel::{Affine, BufferId, BufferKind, Kernel, KernelBuilder, Op, Type, ValueId, VarId};
use ixc_ir::plan::DimInput;

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, MAX_ROWS, Vectors, check_word};
use crate::generator::quantise;
use crate::generator::reference::{Mismatch, Run, UNIT, close};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_vectors;

spec! {
    /// Addition of the squares of each column of some rows, and of the number of rows, to `sums`.
    pub struct ColumnSquares "column_squares" {
        /// Format of the rows: f32 or an activation format.
        pub format: Format,
        /// Number of elements of a row.
        pub n: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("column_squares", 32, "column_squares format=f32 n=2048"),
    row("column_squares_a8_super", 32, "column_squares format=a8_super n=2048"),
];

impl Definition for ColumnSquares {
    fn name(&self) -> String {
        let ColumnSquares { format, n } = *self;
        format!("column_squares_{format}_n{n}")
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .update("sums", BufferContents::Floats)
            .read("x", BufferContents::Activations(self.format, "format"))
            .dim("rows", DimInput::Rows)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let ColumnSquares { format, n } = *self;
        check_word(&name, "format", format, format.is_activation(), "f32 or an activation format")?;
        let bytes = quantise::row_bytes(&name, format, n)?;
        let mut b = KernelBuilder::new(name);
        let rows = b.dim("rows", 1, MAX_ROWS);
        let sums = b.buffer("sums", BufferKind::ReadWrite, (i64::from(n) + 1) * 4);
        let x = b.read("x", rows * bytes);
        let rows_of = Rows { rows, bytes, sums };
        let block = (format.block_len() as i64, format.block_bytes() as i64);
        match *format.codec() {
            Codec::Float(_) => for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
                rows_of.add(b, at.clone(), lanes, |b, row| b.load(Type::f32(lanes), x, row + at.clone() * 4));
            }),
            Codec::Bytes { scaled } => {
                // The loop is over the elements that share a scale, one vector at a time.
                let lanes = vectors.lanes.min(scaled as u16);
                b.for_each("block", i64::from(n) / block.0, |b, i| {
                    for first in (0..block.0).step_by(lanes.into()) {
                        let quants = i * block.1 + format.field("quants") as i64 + first;
                        let d = i * block.1 + (format.field("d") as i64 + first / scaled as i64 * 4);
                        rows_of.add(b, i * block.0 + first, lanes, |b, row| {
                            let d = b.load(Type::f32(1), x, row.clone() + d.clone());
                            integers(b, x, row + quants.clone(), lanes, d)
                        });
                    }
                });
            }
            Codec::Row => {
                let d = i64::from(n) / block.0 * block.1 + format.tail_field("d") as i64;
                for_vectors(&mut b, vectors.lanes, n, |b, at, lanes| {
                    rows_of.add(b, at.clone(), lanes, |b, row| {
                        let d = b.load(Type::f32(1), x, row.clone() + d);
                        integers(b, x, row + at.clone(), lanes, d)
                    });
                });
            }
            Codec::Bf16 { parts } => {
                let lanes = vectors.lanes;
                b.for_each("block", i64::from(n) / block.0, |b, i| {
                    for first in (0..block.0).step_by(lanes.into()) {
                        rows_of.add(b, i * block.0 + first, lanes, |b, row| {
                            let part = |b: &mut KernelBuilder, name: &str| {
                                let at = i * block.1 + (format.field(name) as i64 + first * 2);
                                let half = b.load(Type::bf16(lanes), x, row.clone() + at);
                                b.bf16_to_f32(half)
                            };
                            let high = part(b, "high");
                            if parts == 1 {
                                return high;
                            }
                            let low = part(b, "low");
                            b.add(high, low)
                        });
                    }
                });
            }
            Codec::Quants(_) => unreachable!("{format} is not a format of rows"),
        }
        let one = b.splat_f32(1, 1.0);
        let count = b.load(Type::f32(1), sums, Affine::constant(i64::from(n) * 4));
        let count = b.for_carry("t", rows, &[count], |b, _, count| vec![b.add(count[0], one)]);
        b.store(sums, Affine::constant(i64::from(n) * 4), count[0]);
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (n, rows) = (self.n as usize, run.dim("rows") as usize);
        let (before, after) = (run.input().floats("sums")?, run.output().floats("sums")?);
        let x = run.input().rows("x", self.format, n)?;
        for c in 0..n {
            let squares = x.chunks_exact(n).map(|row| row[c] * row[c]).sum::<f64>();
            let (expected, size) = (before[c] + squares, before[c].abs() + squares);
            close(format_args!("sums[{c}]"), after[c], expected, size * (rows + 4) as f64 * UNIT)?;
        }
        close(
            format_args!("count"),
            after[n],
            before[n] + rows as f64,
            (before[n].abs() + rows as f64) * UNIT * rows as f64,
        )
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

/// The rows, and the buffer of the columns' sums.
struct Rows {
    rows: ixc_ir::kernel::DimId,
    bytes: i64,
    sums: BufferId,
}

impl Rows {
    /// Adds the squares of the columns from `at` on, for all rows. `load` loads these columns from
    /// the row at an offset.
    fn add(
        &self,
        b: &mut KernelBuilder,
        at: Affine,
        lanes: u16,
        mut load: impl FnMut(&mut KernelBuilder, Affine) -> ValueId,
    ) {
        let before = b.load(Type::f32(lanes), self.sums, at.clone() * 4);
        let after = b.for_carry("t", self.rows, &[before], |b, t: VarId, sum| {
            let x = load(b, t * self.bytes);
            vec![b.fma(x, x, sum[0])]
        });
        b.store(self.sums, at * 4, after[0]);
    }
}

/// Returns the integers of a row multiplied by their scale.
fn integers(b: &mut KernelBuilder, x: BufferId, at: Affine, lanes: u16, d: ValueId) -> ValueId {
    let quants = b.load(Type::i8(lanes), x, at);
    let quants = b.op(Op::ExtendS, Type::i32(lanes), &[quants]);
    let quants = b.op(Op::ToF32, Type::f32(lanes), &[quants]);
    let d = b.broadcast(lanes, d);
    b.mul(quants, d)
}
