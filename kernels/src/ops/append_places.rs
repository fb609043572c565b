//! Append of a step's keys and values to cache entries that several positions share. Rows are
//! stored in order, so that an entry keeps the data of its last position.

use ixc_ir::kernel::{BufferKind, Kernel, KernelBuilder, Op, Type};
use ixc_ir::plan::DimInput;

use crate::catalogue::{Row, row};
use crate::generator::blocks;
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, MAX_POSITIONS, MAX_ROWS, Vectors, check};
use crate::generator::reference::{Mismatch, Run, close};
use crate::generator::rotation::KEY_BLOCK;
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_vectors;

spec! {
    /// Append of one head's keys and values to the cache as f16, for all rows of a step. Columns of
    /// the grid are heads.
    pub struct AppendPlaces "append_places" {
        /// Number of elements of a key.
        pub d: u32,
        /// Number of elements of a value.
        pub dv: u32,
        /// Number of heads of a row, which determines the distance between rows.
        pub heads: u32,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("append_places", 16, "append_places d=512 dv=512 heads=1"),
];

impl Definition for AppendPlaces {
    fn name(&self) -> String {
        let AppendPlaces { d, dv, heads } = *self;
        format!("append_places_d{d}v{dv}h{heads}")
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .read("k", BufferContents::Floats)
            .read("v", BufferContents::Floats)
            .index("block")
            .index("lane")
            .write("keys", BufferContents::Halves)
            .write("values", BufferContents::Halves)
            .dim("blocks", blocks::of_cache())
            .dim("rows", DimInput::Rows)
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let AppendPlaces { d, dv, heads } = *self;
        for (what, n) in [("elements of a key", d), ("elements of a value", dv), ("heads", heads)] {
            check(&name, what, n.into(), n > 0, "at least 1")?;
        }
        let [key, value, heads] = [d, dv, heads].map(i64::from);
        let mut b = KernelBuilder::new(name);
        let blocks = b.dim("blocks", 1, MAX_POSITIONS / KEY_BLOCK);
        let rows = b.dim("rows", 1, MAX_ROWS);
        let k = b.read("k", rows * (heads * key * 4) + (1 - heads) * key * 4);
        let v = b.read("v", rows * (heads * value * 4) + (1 - heads) * value * 4);
        let block = b.buffer("block", BufferKind::Index { below: blocks.into() }, rows * 4);
        let lane = b.buffer("lane", BufferKind::Index { below: KEY_BLOCK.into() }, rows * 4);
        let keys = b.write("keys", blocks * (KEY_BLOCK * key * 2));
        let values = b.write("values", blocks * (KEY_BLOCK * value * 2));
        b.for_each("t", rows, |b, t| {
            let (block, lane) = (b.load_index("pb", block, t * 4), b.load_index("pl", lane, t * 4));
            for_vectors(b, vectors.lanes, d, |b, at, lanes| {
                let x = b.load(Type::f32(lanes), k, t * (heads * key * 4) + at.clone() * 4);
                let x = b.op(Op::F32ToF16, Type::f16(lanes), &[x]);
                let to = block * (KEY_BLOCK * key * 2) + lane * 2 + at * (KEY_BLOCK * 2);
                for i in 0..lanes {
                    let element = if lanes == 1 { x } else { b.op_imm(Op::Extract, Type::f16(1), &[x], i64::from(i)) };
                    b.store(keys, to.clone() + i64::from(i) * (KEY_BLOCK * 2), element);
                }
            });
            for_vectors(b, vectors.lanes, dv, |b, at, lanes| {
                let x = b.load(Type::f32(lanes), v, t * (heads * value * 4) + at.clone() * 4);
                let x = b.op(Op::F32ToF16, Type::f16(lanes), &[x]);
                b.store(values, block * (KEY_BLOCK * value * 2) + lane * (value * 2) + at * 2, x);
            });
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let (d, dv, heads) = (self.d as usize, self.dv as usize, self.heads as usize);
        let (k, v) = (input.floats("k")?, input.floats("v")?);
        let (keys, values) = (output.halves("keys")?, output.halves("values")?);
        let (blocks, lanes, size) = (input.ints("block")?, input.ints("lane")?, KEY_BLOCK as usize);
        let place = |t: usize| (blocks[t] as usize, lanes[t] as usize);
        // f16 has 11 significant bits.
        let bound = |expected: f64| expected.abs() / 2048.0 + 1e-7;
        for t in 0..blocks.len() {
            if (t + 1..blocks.len()).any(|later| place(later) == place(t)) {
                continue;
            }
            let (block, lane) = place(t);
            for i in 0..d {
                let expected = k[t * heads * d + i];
                close(format_args!("key {t}, {i}"), keys[(block * d + i) * size + lane], expected, bound(expected))?;
            }
            for i in 0..dv {
                let (expected, found) = (v[t * heads * dv + i], values[(block * size + lane) * dv + i]);
                close(format_args!("value {t}, {i}"), found, expected, bound(expected))?;
            }
        }
        Ok(())
    }

    fn dims_of_rows(&self, rows: u32) -> Vec<i64> {
        vec![2, rows.into()]
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}
