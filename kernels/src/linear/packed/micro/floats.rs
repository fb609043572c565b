//! Micro-kernel for float weights.

use ixc_ir::kernel::{Affine, KernelBuilder, ValueId};

use super::super::panel;
use super::Micro;

/// Number of columns of an iteration.
const UNROLL: i64 = 4;

impl Micro {
    /// Adds the products of `columns` columns of floats to the results.
    pub(super) fn columns(&self, b: &mut KernelBuilder, columns: i64) {
        let parts = self.parts();
        let mut init = Vec::new();
        for part in &parts {
            init.extend((0..self.rows.len()).map(|r| b.load(part.floats(), self.to, self.result(r, *part))));
        }
        let step = |b: &mut KernelBuilder, first: Affine, count: i64, sums: &[ValueId]| {
            let mut sums = sums.to_vec();
            for c in 0..count {
                let column = first.clone() + c;
                let source = self.source.block(column.clone());
                let weights: Vec<ValueId> = parts.iter().map(|part| panel::column(b, &source, *part)).collect();
                for (r, row) in self.rows.iter().enumerate() {
                    let x = b.load_splat(parts[0].floats(), self.x, row.clone() + column.clone() * 4);
                    for (p, weights) in weights.iter().enumerate() {
                        let sum = &mut sums[p * self.rows.len() + r];
                        *sum = b.fma(*weights, x, *sum);
                    }
                }
            }
            sums
        };
        let sums = b.for_carry("c", columns / UNROLL, &init, |b, i, sums| step(b, i * UNROLL, UNROLL, sums));
        let sums = step(b, Affine::constant(columns - columns % UNROLL), columns % UNROLL, &sums);
        for (part, sums) in parts.iter().zip(self.by_part(&sums)) {
            for (r, sum) in sums.iter().enumerate() {
                b.store(self.to, self.result(r, *part), *sum);
            }
        }
    }
}
