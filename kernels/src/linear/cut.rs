//! Fields of a product's spec that a tuner changes.

use super::candidates::Weight;
use super::pace::Pace;
use super::{Linear, MatmulStrategy, Swiglu};
use crate::KernelSpec;

/// Kernel, item size and pace of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductCut {
    /// Properties of the weight that determine its products.
    pub weight: Weight,
    /// Kernel for the product.
    pub strategy: MatmulStrategy,
    /// Number of weight rows of an item.
    pub tile: u32,
    /// Prefetch distance and unrolling.
    pub pace: Pace,
}

impl ProductCut {
    /// Returns these fields of a spec, or `None` if the spec is not a product with a weight.
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

    /// Returns the same product with another item size and pace: `tile` weight rows, and at most
    /// `rows` rows of activations. Returns `None` in the same cases as [`ProductCut::from_spec`].
    pub fn other(spec: &KernelSpec, tile: u32, rows: u32, pace: Pace) -> Option<KernelSpec> {
        if let KernelSpec::Linear(linear) = spec {
            return Some(Linear { tile, pace, ..*linear }.into());
        }
        let KernelSpec::Swiglu(swiglu) = spec else { return None };
        Some(Swiglu { tile, rows, pace, ..*swiglu }.into())
    }
}
