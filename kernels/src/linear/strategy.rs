//! Kernels of a matrix product, and their dims.

use std::fmt;

use ixc_ir::plan::{DimExpr, DimInput};
use serde::{Deserialize, Serialize};

use crate::generator::signature::Dim;
use crate::generator::text::{Words, words};

/// Kernel of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MatmulStrategy {
    /// Kernel for few rows, which are computed one after the other along strips of the weight.
    /// Dims: [`MatmulStrategy::row_groups`].
    Gemv,
    /// Kernel for many rows, which reads a strip once for each group of rows. Dims:
    /// [`MatmulStrategy::row_groups`].
    Gemm,
    /// Variant of [`MatmulStrategy::Gemm`] for float weights and 16 registers: 12 sums of six rows.
    /// Eight sums would hide the latency of a multiply-add; four more sums absorb delays. The order
    /// of additions is that of [`MatmulStrategy::Gemm`]. Dims: [`MatmulStrategy::row_groups`].
    Gemm6,
    /// Kernel for many rows with tile products. Strips of a packed weight are converted to bf16
    /// panels, which are multiplied with blocks of 32 rows, then of 16 rows. Dims:
    /// `[rows / 32, rows % 32 / 16, rows % 16, 1 if rows % 16 > 0]`. The number of weight rows of
    /// an item must be a multiple of 32.
    Tiles,
}

words! { MatmulStrategy { Gemv "gemv", Gemm "gemm", Gemm6 "gemm6", Tiles "tiles" } }

impl fmt::Display for MatmulStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl MatmulStrategy {
    /// Returns the numbers of rows that a product computes together, the largest first. Each number
    /// is a divisor of the one before. The kernel's dims are the numbers of groups of each size,
    /// such as `[rows / 8, rows % 8 / 4, rows % 4]` for `gemm`.
    ///
    /// With eight rows, a strip's float sums and two integer sums take 24 of 32 registers; the
    /// weight takes the other registers. With more rows, fewer operations would unpack the weight,
    /// but there is no gain (on Zen 4: 325 GOP/s with 8 and with 12). Four rows are enough chains
    /// to hide the latency of a product. Twelve is a multiple of six, and of four for the remaining
    /// rows.
    pub fn row_groups(self) -> &'static [u32] {
        match self {
            MatmulStrategy::Gemv => &[4, 1],
            MatmulStrategy::Gemm => &[8, 4, 1],
            MatmulStrategy::Gemm6 => &[12, 4, 1],
            MatmulStrategy::Tiles => &[32, 16, 1],
        }
    }

    /// Returns the dims of a product, with their values for an item.
    pub fn dims(self) -> Vec<Dim> {
        let groups = self.row_groups();
        let mut dims: Vec<Dim> = groups
            .iter()
            .enumerate()
            .map(|(i, &n)| match (i.checked_sub(1).map(|i| groups[i]), n) {
                (None, 1) => ("rows", DimInput::Rows.into()),
                (None, n) => ("groups", DimInput::Rows / n),
                (Some(m), 1) => ("rest", DimInput::Rows % m),
                (Some(m), n) => ("small_groups", DimInput::Rows % m / n),
            })
            .map(|(name, value): (_, DimExpr)| Dim { name, value: Some(value) })
            .collect();
        if self == MatmulStrategy::Tiles {
            dims.push(Dim { name: "partial", value: Some((DimInput::Rows % 16).min(1)) });
        }
        dims
    }

    /// Returns the values of [`MatmulStrategy::dims`] for `rows` rows.
    pub fn dim_values(self, rows: u32) -> Vec<i64> {
        let mut rest = rows;
        let mut values: Vec<i64> = self
            .row_groups()
            .iter()
            .map(|&n| {
                let groups = rest / n;
                rest %= n;
                i64::from(groups)
            })
            .collect();
        if self == MatmulStrategy::Tiles {
            values.push(i64::from(!rows.is_multiple_of(16)));
        }
        values
    }

    /// Returns the number of rows for values of [`MatmulStrategy::dims`].
    pub fn rows(self, dims: &[i64]) -> i64 {
        self.row_groups().iter().zip(dims).map(|(&n, groups)| groups.saturating_mul(n.into())).sum()
    }
}
