//! Part of a model that a command works on: ops and layers.
//!
//! ```text
//! ixc dump model.gguf --stage fused --op ffn_down --layer 3
//! ixc kernel list --model model.gguf --op 'linear*' --layer 0-2
//! ```

use ixc_compile::select::{LayerRange, Selection};

/// Ops and layers.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SelectChoice {
    /// Select by op (linear), or by part of the name of a weight, state or kernel (ffn_down). A
    /// pattern with * or ? must match the whole name: 'linear*', 'blk.*.attn_q'.
    #[arg(long, value_name = "PATTERN")]
    op: Option<String>,
    /// Select layers, such as 3, 0-5 or 0,7.
    #[arg(long = "layer", value_name = "N,..", value_delimiter = ',')]
    layers: Vec<LayerRange>,
}

impl SelectChoice {
    /// Returns the selection.
    pub fn selection(&self) -> Selection {
        Selection { op: self.op.clone(), layers: self.layers.clone() }
    }
}
