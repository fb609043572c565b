//! What a command is asked for of a model: an op, layers.
//!
//! ```text
//! ixc dump model.gguf --stage fused --op ffn_down --layer 3
//! ixc kernel list --model model.gguf --op 'linear*' --layer 0-2
//! ```

use ixc::select::{LayerRange, Selection};

/// Ops and layers.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SelectChoice {
    /// Only what has to do with this: an op's word (linear), or a part of the name of a weight, a state or a kernel (ffn_down). With * or ? it is
    /// compared with whole words and names, such as 'linear*' or 'blk.*.attn_q'.
    #[arg(long, value_name = "PATTERN")]
    op: Option<String>,
    /// Only these layers, such as 3, 0-5 or 0,7.
    #[arg(long = "layer", value_name = "N,..", value_delimiter = ',')]
    layers: Vec<LayerRange>,
}

impl SelectChoice {
    /// What is meant.
    pub fn selection(&self) -> Selection {
        Selection { op: self.op.clone(), layers: self.layers.clone() }
    }
}
