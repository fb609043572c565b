//! Per-layer embeddings of Gemma 3n and the small models of Gemma 4: each layer also takes a short
//! row that depends on the token.
//!
//! ```text
//! // additional inputs of all layers, P elements for each layer
//! e = (rms_norm(per_layer_model_proj x / root d) + root P * per_layer_token_embd[id]) / root 2
//! // output of a layer
//! y = post_norm(proj (gelu(inp_gate x) * e[layer]))
//! ```

use ixc_ir::graph::ValueId;
use ixc_ir::graph::attrs::{Activation, GateAttrs};
use ixc_model_files::gguf::GgufError;

use crate::builder::{Bias, Builder};
use crate::error::ArchError;
use crate::hyper::{Keys, MAX_WIDTH};

const GELU: GateAttrs = GateAttrs::plain(Activation::Gelu);

/// Key of the number of elements of one layer's additional input. Architectures that support it
/// list it in `reads`.
pub(crate) const LENGTH: &str = "embedding_length_per_layer_input";

/// Sizes of the additional inputs of layers.
#[derive(Clone, Copy)]
pub(crate) struct LayerInputs {
    /// Number of elements of one layer's additional input.
    length: u64,
    /// Number of layers with an additional input. A row of the table has the inputs of all these
    /// layers.
    layers: u64,
}

impl LayerInputs {
    /// Reads the sizes, for a model with `layers` layers. Returns `None` if the model has no
    /// additional inputs.
    pub(crate) fn read(keys: &Keys<'_>, layers: usize) -> Result<Option<LayerInputs>, GgufError> {
        let length = keys.optional(LENGTH, 0, MAX_WIDTH)?.filter(|length| *length > 0);
        Ok(length.map(|length| LayerInputs { length, layers: layers as u64 }))
    }

    /// Reads the sizes, or returns an error if the file lacks them.
    pub(crate) fn required_sizes(b: &Builder<'_>) -> Result<LayerInputs, ArchError> {
        let sizes = LayerInputs::read(&b.keys(), b.model_layers)?;
        sizes.ok_or_else(|| b.keys().missing(LENGTH).into())
    }
}

/// Builds the additional inputs of all layers, concatenated for each token.
pub(crate) fn inputs(b: &mut Builder<'_>, x: ValueId, of: LayerInputs) -> Result<ValueId, ArchError> {
    let LayerInputs { length, layers } = of;
    let width = b.hyper.embedding_length;
    let y = b.linear(x, "per_layer_model_proj", width, length * layers, Bias::Optional)?;
    let y = b.split_heads(y, layers)?;
    // The formula divides rows by `root d`. The norm cancels this, except for its epsilon.
    let eps = b.hyper.norm_eps * width as f64;
    let y = b.rms_norm_of(y, "per_layer_proj_norm.weight", length, eps)?;
    let y = b.merge_heads(y)?;
    let y = b.scale(y, 0.5_f64.sqrt())?;
    let own = b.rows_of("per_layer_token_embd.weight", length * layers)?;
    let own = b.scale(own, (length as f64 / 2.0).sqrt())?;
    b.add(y, own)
}

/// Builds an additional output of the layer from the stream `x` and the layer's additional input.
/// The caller adds it to the stream.
pub(crate) fn layer_output(
    b: &mut Builder<'_>,
    layer: usize,
    x: ValueId,
    inputs: ValueId,
    LayerInputs { length, .. }: LayerInputs,
) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let own = b.slice(inputs, layer as u64 * length, length)?;
    let gate = b.linear(x, &name("inp_gate"), width, length, Bias::Optional)?;
    let y = b.gated(gate, own, &GELU)?;
    let y = b.linear(y, &name("proj"), length, width, Bias::Optional)?;
    b.rms_norm(y, &name("post_norm.weight"), width)
}
