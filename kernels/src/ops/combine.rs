//! Weighted sum of a token's slots, which combines the results of the token's experts.
//!
//! A slot of weight 0 adds nothing, even if its row is infinite or NaN. Slots without an expert
//! (`route.given`) have weight 0 and the row of another slot. The kernel replaces the elements of
//! such a row by zeros of the same sign. If rows are finite, sums thus have the same bits as with
//! multiplication by 0.

use ixc_ir::kernel::{Affine, BufferId, BufferKind, Kernel, KernelBuilder, Op, Type, ValueId};

use crate::catalogue::{Row, row};
use crate::generator::definition::Definition;
use crate::generator::generate::{GenerateError, MAX_ROWS, Vectors, check};
use crate::generator::reference::{Mismatch, Run, UNIT, close, floats};
use crate::generator::signature::{BufferContents, Signature};
use crate::generator::text::spec;
use crate::generator::vectors::for_vectors;
use crate::generator::work::{Arithmetic, Call, Work};

spec! {
    /// `y = sum over slots s of p[s] * x[slot[s]] [+ residual]`, in the order of slots. Slots with
    /// `p` = 0 are skipped. The dim is the number of rows of `x`.
    pub struct Combine "combine" {
        /// Number of elements of a row.
        pub n: u32,
        /// Number of slots of a token.
        pub slots: u32,
        /// Whether a residual is added.
        pub residual: bool,
    }
}

/// Rows of the kernel catalogue: representative specs, each with a name.
#[rustfmt::skip] // One line for each row.
const ROWS: &[Row] = &[
    row("combine", 64, "combine n=2048 slots=8 residual"),
];

impl Definition for Combine {
    fn name(&self) -> String {
        let Combine { n, slots, residual } = *self;
        format!("combine_n{n}s{slots}{}", if residual { "_add" } else { "" })
    }

    fn signature(&self) -> Signature {
        Signature::new()
            .index("slot")
            .read("p", BufferContents::Floats)
            .read("x", BufferContents::Floats)
            .read_if(self.residual, "residual", BufferContents::Floats)
            .write("y", BufferContents::Floats)
            .dim_of_task("rows")
    }

    fn generate(&self, name: String, vectors: Vectors) -> Result<Kernel, GenerateError> {
        let Vectors { lanes, .. } = vectors;
        let Combine { n, slots, residual } = *self;
        check(&name, "slots", u64::from(slots), slots > 0, "at least 1")?;
        let mut b = KernelBuilder::new(name);
        let size = i64::from(n) * 4;
        let rows = b.dim("rows", 1, MAX_ROWS);
        let slot = b.buffer("slot", BufferKind::Index { below: rows.into() }, i64::from(slots) * 4);
        let p = b.read("p", i64::from(slots) * 4);
        let x = b.read("x", rows * size);
        let base = residual.then(|| b.read("residual", size));
        let y = b.buffer("y", BufferKind::ReadWrite, size);
        for_vectors(&mut b, lanes, n, |b, at, lanes| {
            let v = match base {
                Some(base) => b.load(Type::f32(lanes), base, at.clone() * 4),
                None => b.splat_f32(lanes, 0.0),
            };
            b.store(y, at * 4, v);
        });
        // Slots are the outer loop, so that only one row pointer is live at a time; y stays in the
        // L1 cache.
        b.for_each("s", i64::from(slots), |b, s| {
            let row = b.load_index("r", slot, s * 4);
            // The mask for whole vectors. It is computed again for the remainder of a row, which
            // has fewer lanes.
            let whole = (n >= u32::from(lanes)).then(|| (lanes, slot_mask(b, lanes, p, s * 4)));
            for_vectors(b, lanes, n, |b, at, lanes| {
                let slot_mask = match whole {
                    Some((of, slot_mask)) if of == lanes => slot_mask,
                    _ => slot_mask(b, lanes, p, s * 4),
                };
                let weight = b.load_splat(Type::f32(lanes), p, s * 4);
                let v = b.load(Type::i32(lanes), x, row * size + at.clone() * 4);
                let v = b.same(Op::And, &[v, slot_mask]);
                let v = b.bitcast(Type::f32(lanes), v);
                let sum = b.load(Type::f32(lanes), y, at.clone() * 4);
                let sum = b.fma(v, weight, sum);
                b.store(y, at * 4, sum);
            });
        });
        Ok(b.finish())
    }

    fn reference(&self, run: &Run<'_>) -> Result<(), Mismatch> {
        let (input, output) = (run.input(), run.output());
        let n = self.n as usize;
        let (x, p, slots) = (input.floats("x")?, input.floats("p")?, input.ints("slot")?);
        let residual = input.find("residual").map(floats);
        for (i, y) in output.floats("y")?.iter().enumerate() {
            let base = residual.as_ref().map_or(0.0, |r| r[i]);
            let expected = slots
                .iter()
                .zip(&p)
                .fold(base, |s, (slot, p)| if *p == 0.0 { s } else { s + p * x[*slot as usize * n + i] });
            close(format_args!("y[{i}]"), *y, expected, 32.0 * UNIT * 8.0)?;
        }
        Ok(())
    }

    fn work(&self, _: &Call<'_>) -> Work {
        let multiply_adds = u64::from(self.n) * u64::from(self.slots);
        Work { bytes: 4 * multiply_adds, multiply_adds, arithmetic: Arithmetic::F32 }
    }

    fn rows() -> &'static [Row] {
        ROWS
    }
}

/// Returns the mask of the bits that a slot contributes: all bits, or only the sign bit if the
/// slot's weight is 0.
fn slot_mask(b: &mut KernelBuilder, lanes: u16, p: BufferId, at: Affine) -> ValueId {
    let ty = Type::i32(lanes);
    // The shift drops the sign, so -0 also counts as 0.
    let weight = b.load_splat(ty, p, at);
    let weight = b.shift(Op::Shl, weight, 1);
    let [none, sign, all] = [0, i64::from(i32::MIN), -1].map(|bits| b.splat_int(ty, bits));
    let is_none = b.same(Op::CmpEq, &[weight, none]);
    b.same(Op::Select, &[is_none, sign, all])
}
