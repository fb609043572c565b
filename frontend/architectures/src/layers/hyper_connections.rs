//! Hyper-connections: several residual streams (DeepSeek-V4's form, "manifold-constrained"). The
//! input of each block is a weighted sum of the streams. The block's output is then mixed into the
//! streams. All weights are computed from each token's streams (llama.cpp `deepseek4.cpp`).
//!
//! ```text
//! w = stream.weights(hc_attn_fn rms_norm(all streams as one row); hc_attn_scale, hc_attn_base)
//! y = block(stream.input(streams, w))
//! streams = stream.mix(streams, y, w)
//! ```
//!
//! Independent hyper-connections (Hy4) have no mixing matrix. The streams stay separate, and the
//! block's output is added to each with its own weight.

use ixc_ir::graph::ValueId;
use ixc_model_files::gguf::GgufError;

use crate::builder::{Builder, Streams};
use crate::error::ArchError;
use crate::hyper::{Keys, MAX_STREAMS};

/// Maximum number of Sinkhorn iterations on the matrix that mixes streams.
const MAX_ITERATIONS: u64 = 1 << 10;

/// Reads the number of streams.
pub(crate) fn count(keys: &Keys<'_>) -> Result<u64, GgufError> {
    keys.required_size("hyper_connection.count", 1, MAX_STREAMS)
}

/// Reads the number of streams of a file and the parameters of their mixing.
pub(crate) fn streams(keys: &Keys<'_>) -> Result<Streams, GgufError> {
    let count = count(keys)?;
    // Independent hyper-connections have the key of the magnitude, but no mixing matrix to iterate
    // on. Other hyper-connections have no such key, and their magnitude is 2.
    const MAGNITUDE: &str = "hyper_connection.magnitude";
    let magnitude = keys.float(MAGNITUDE, 2.0, |x| x > 0.0, "a positive number")?;
    let iterations = match keys.has(MAGNITUDE) {
        true => 0,
        false => keys.required_size("hyper_connection.sinkhorn_iterations", 1, MAX_ITERATIONS)?,
    };
    let eps = keys.float("hyper_connection.epsilon", 1e-6, |x| (0.0..=1.0).contains(&x), "from 0 to 1")?;
    Ok(Streams { count, iterations, eps, magnitude })
}

/// Builds the streams before the first layer: each stream is the token's embedding.
pub(crate) fn begin(b: &mut Builder<'_>, x: ValueId, count: u64) -> Result<ValueId, ArchError> {
    let row = repeat_row(b, x, count)?;
    b.split_heads(row, count)
}

/// Concatenates `count` copies of each row, one for each stream.
pub(crate) fn repeat_row(b: &mut Builder<'_>, x: ValueId, count: u64) -> Result<ValueId, ArchError> {
    (1..count).try_fold(x, |row, _| b.concat(row, x))
}

/// Builds the mean of concatenated streams.
pub(crate) fn mean(b: &mut Builder<'_>, x: ValueId, count: u64) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let mut sum = b.slice(x, 0, width)?;
    for stream in 1..count {
        let own = b.slice(x, stream * width, width)?;
        sum = b.add(sum, own)?;
    }
    b.scale(sum, 1.0 / count as f64)
}

/// Builds a block that reads a weighted sum of the streams `x`, and mixes its output into the
/// streams. `part` is the start of the names of the weights' tensors: `hc_attn` or `hc_ffn`.
pub(crate) fn wrap_block(
    b: &mut Builder<'_>,
    layer: usize,
    part: &str,
    x: ValueId,
    of: Streams,
    block: impl FnOnce(&mut Builder<'_>, ValueId) -> Result<ValueId, ArchError>,
) -> Result<ValueId, ArchError> {
    let parts = if of.iterations == 0 { 2 } else { 2 + of.count };
    let w = weights(b, &format!("blk.{layer}.{part}"), x, parts * of.count, of)?;
    let input = b.stream_input(x, w)?;
    let y = block(b, input)?;
    b.stream_mix(x, y, w)
}

/// Builds logits from a weighted sum of the streams after the last layer. The weights are computed
/// from the streams.
pub(crate) fn logits(b: &mut Builder<'_>, x: ValueId, of: Streams) -> Result<ValueId, ArchError> {
    let x = b.merge_heads(x)?;
    let x = b.requested_rows(x)?;
    let x = b.split_heads(x, of.count)?;
    let w = weights(b, "output_hc", x, of.count, of)?;
    let x = b.stream_input(x, w)?;
    b.head(x, "output_norm.weight")
}

/// Builds logits from the mean of the streams after the last layer.
pub(crate) fn logits_of_mean(b: &mut Builder<'_>, x: ValueId, count: u64) -> Result<ValueId, ArchError> {
    let x = b.merge_heads(x)?;
    let x = b.requested_rows(x)?;
    let mean = mean(b, x, count)?;
    b.head(mean, "output_norm.weight")
}

/// Builds `width` weights of streams, from the streams `x` and the tensors `NAME_fn`, `NAME_scale`
/// and `NAME_base`.
fn weights(b: &mut Builder<'_>, name: &str, x: ValueId, width: u64, of: Streams) -> Result<ValueId, ArchError> {
    let count = of.count;
    let x = b.merge_heads(x)?;
    let x = b.plain_norm(x)?;
    let matrix = b.weight(&format!("{name}_fn.weight"), &[width, count * b.hyper.embedding_length])?;
    let x = b.matmul(x, matrix)?;
    // The weights are for up to three purposes: a block's input, its output, and the mixing. The
    // vector has one scale for each.
    let parts = (width / count).min(3);
    let scale = b.vector(&format!("{name}_scale.weight"), parts)?;
    let base = b.vector(&format!("{name}_base.weight"), width)?;
    b.stream_weights(x, scale, base, of)
}
