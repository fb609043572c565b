//! Cut of a product's kernel: the fields of a spec that a tuner changes.

use super::candidates::Weight;
use super::pace::Pace;
use super::{Linear, MatmulStrategy, Swiglu};
use crate::KernelSpec;

/// Cut of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductCut {
    /// The weight, with the properties that its products depend on.
    pub weight: Weight,
    /// Kernel for the product.
    pub strategy: MatmulStrategy,
    /// Weight rows of an item.
    pub tile: u32,
    /// Prefetch distance and unrolling.
    pub pace: Pace,
}

impl ProductCut {
    /// Returns the cut of a spec; `None` if it is not a product with a weight.
    pub fn from_spec(spec: &KernelSpec) -> Option<ProductCut> {
        if let KernelSpec::Linear(Linear { format, x, k, tile, n, strategy, pace, .. }) = *spec {
            let weight = Weight { format, x, n: n.into(), k: k.into(), products: 1, block: 1, sub_block: 1 };
            return Some(ProductCut { weight, strategy, tile, pace });
        }
        let KernelSpec::Swiglu(Swiglu { gate, x, k, tile, n, out, strategy, pace, .. }) = *spec else { return None };
        let (block, sub_block) = (out.block_len() as u64, out.sub_block_len() as u64);
        let weight = Weight { format: gate, x, n: n.into(), k: k.into(), products: 2, block, sub_block };
        Some(ProductCut { weight, strategy, tile, pace })
    }

    /// Returns the same product with items of `tile` weight rows and at most `rows` rows of
    /// activations, with another pace. Returns `None` like [`ProductCut::from_spec`].
    pub fn other(spec: &KernelSpec, tile: u32, rows: u32, pace: Pace) -> Option<KernelSpec> {
        if let KernelSpec::Linear(linear) = spec {
            return Some(Linear { tile, pace, ..*linear }.into());
        }
        let KernelSpec::Swiglu(swiglu) = spec else { return None };
        Some(Swiglu { tile, rows, pace, ..*swiglu }.into())
    }
}
