//! How a matrix product is computed, and the dims that follow from it.

use std::fmt;

use ixc_ir::plan::{DimExpr, DimInput};
use serde::{Deserialize, Serialize};

use crate::signature::Dim;
use crate::text::{Words, words};

/// How a matrix product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MatmulStrategy {
    /// For few rows, one after the other along strips of the weight. Dims: [`MatmulStrategy::row_groups`].
    Gemv,
    /// For many rows: a strip is read once for a group of them. Dims: [`MatmulStrategy::row_groups`].
    Gemm,
    /// The same of floats where 16 registers hold the sums: 12 of six rows, four more than hide the latency of a multiply-add, so that
    /// what delays one is caught up. The order of sums is that of [`MatmulStrategy::Gemm`]. Dims: [`MatmulStrategy::row_groups`].
    Gemm6,
    /// For many rows, with tile products: strips of a packed weight become bf16 panels, which blocks of 32 rows, then of 16, are
    /// multiplied with. Dims: `[rows / 32, rows % 32 / 16, rows % 16, 1 if rows % 16 > 0]`; the tile's weight rows are a multiple of
    /// 32.
    Tiles,
}

words! { MatmulStrategy { Gemv "gemv", Gemm "gemm", Gemm6 "gemm6", Tiles "tiles" } }

impl fmt::Display for MatmulStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl MatmulStrategy {
    /// Rows of activations that a product works on at a time, largest first; each divides the one
    /// before. The kernel's dims are how many groups of each size there are: `[rows / 8, rows % 8 / 4, rows % 4]` of `gemm`.
    ///
    /// For eight rows, a strip's float sums and two integer sums are 24 of 32 registers, the rest is for the weight;
    /// more rows share its unpacking among them and gain nothing (on Zen 4: 325 GOP/s with 8 and with 12). Four rows are as
    /// many chains as hide the latency of a product. Twelve are twice six, and thrice the four that the rest is divided in.
    pub fn row_groups(self) -> &'static [u32] {
        match self {
            MatmulStrategy::Gemv => &[4, 1],
            MatmulStrategy::Gemm => &[8, 4, 1],
            MatmulStrategy::Gemm6 => &[12, 4, 1],
            MatmulStrategy::Tiles => &[32, 16, 1],
        }
    }

    /// The dims of a product.
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

    /// The values of [`MatmulStrategy::dims`] for so many rows.
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

    /// The rows that values of [`MatmulStrategy::dims`] stand for.
    pub fn rows(self, dims: &[i64]) -> i64 {
        self.row_groups().iter().zip(dims).map(|(&n, groups)| groups.saturating_mul(n.into())).sum()
    }
}
