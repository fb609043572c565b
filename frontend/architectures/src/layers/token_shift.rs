//! Token shift of RWKV, which mixes each row with the previous row, and RWKV's low-rank
//! projections.
//!
//! ```text
//! // short_conv with taps 1 and -1; zeros precede the first row
//! shift = (previous row) - row
//! x + shift * lerp                                // the vector lerp has each element's share
//! act(x w1') w2' + w0                             // a low-rank projection
//! ```
//!
//! No file has the taps 1 and -1, so [`tensors`] derives them. It also derives the vectors that
//! files fuse into one tensor.

use ixc_ir::derived::{Axis, Change, Derivation, Element, Extent, Piece};
use ixc_ir::format::Format;
use ixc_ir::graph::{Unary, ValueId};
use ixc_model_files::gguf::{DerivedTensor, Gguf, GgufError};

use crate::builder::{Bias, Builder};
use crate::error::ArchError;
use crate::numbers;

/// Name of the convolution's taps, which all layers share.
const TAPS: &str = "token_shift.taps";
/// Name ending of the tensor with the shares of previous rows, for all inputs of a layer's time
/// mix.
pub(crate) const FUSED: &str = "time_mix_lerp_fused.weight";
/// Inputs of the time mix with shares, in RWKV-7's order. Models without a gate lack the last
/// input.
const GOOSE: [&str; 6] = ["r", "w", "k", "v", "a", "g"];
/// Inputs of the time mix with shares, in RWKV-6's order.
pub(crate) const FINCH: [&str; 5] = ["w", "k", "v", "r", "g"];
/// Name ending of the vector with all of RWKV-6's shares, after `blk.LAYER.`.
pub(crate) const FINCH_LERPS: &str = "time_mix_lerps";

/// Builds the previous row minus each row. The state `state` keeps the last row of a step.
pub(crate) fn shift(b: &mut Builder<'_>, state: &str, x: ValueId) -> Result<ValueId, ArchError> {
    b.short_conv(state, x, TAPS, b.hyper.embedding_length, 2)
}

/// Adds to the rows `x` a share of `shift`. The vector `name` has the share of each element.
pub(crate) fn mix_previous(b: &mut Builder<'_>, x: ValueId, shift: ValueId, name: &str) -> Result<ValueId, ArchError> {
    let share = b.multiply_elements(shift, name, b.hyper.embedding_length)?;
    b.add(x, share)
}

/// Function between the two matrices of a low-rank projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LowRankFunction {
    /// No function.
    Identity,
    /// The hyperbolic tangent.
    Tanh,
    /// The logistic function.
    Sigmoid,
}

/// Multiplies rows by the matrix `NAME1`, applies a function, and multiplies by the matrix `NAME2`,
/// which restores the width.
pub(crate) fn low_rank(
    b: &mut Builder<'_>,
    x: ValueId,
    name: &str,
    function: LowRankFunction,
) -> Result<ValueId, ArchError> {
    let width = b.hyper.embedding_length;
    let [first, second] = ["1", "2"].map(|number| format!("{name}{number}"));
    let rank = b.rows(&format!("{first}.weight")).unwrap_or(0);
    let x = b.linear(x, &first, width, rank, Bias::Optional)?;
    let x = match function {
        LowRankFunction::Identity => x,
        LowRankFunction::Tanh => b.softcap(x, 1.0)?,
        LowRankFunction::Sigmoid => b.unary(Unary::Sigmoid, x)?,
    };
    b.linear(x, &second, rank, width, Bias::Optional)
}

/// Builds RWKV's network on mixed rows: the square of `max(key x, 0)`, times the matrix `value`.
pub(crate) fn relu_squared_network(b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, ArchError> {
    let (width, inner) = (b.hyper.embedding_length, b.hyper.layers[layer].feed_forward);
    let name = |part: &str| format!("blk.{layer}.channel_mix_{part}");
    let k = b.linear(x, &name("key"), width, inner, Bias::Optional)?;
    let k = b.unary(Unary::ReluSquared, k)?;
    b.linear(k, &name("value"), inner, width, Bias::Optional)
}

/// Returns the derived taps of the token shift, and the vectors of fused tensors. RWKV-7 gets one
/// vector for each input, RWKV-6 one vector for all inputs.
///
/// # Errors
/// When a key has another type than expected.
pub(crate) fn tensors(gguf: &Gguf, architecture: &str) -> Result<Vec<DerivedTensor>, GgufError> {
    let mut made = Vec::new();
    let width = gguf.metadata().read_optional::<u64>(&format!("{architecture}.embedding_length"))?.unwrap_or(0);
    // A width that differs from the last norm's length is invalid. The error comes when the norm is
    // built.
    if width == 0 || gguf.tensor("output_norm.weight").is_none_or(|norm| norm.dims() != [width]) {
        return Ok(made);
    }
    let derived = Derivation {
        format: Format::F32,
        columns: 2,
        pieces_per_row: 2,
        pieces: vec![numbers::constant(1.0, width, 1), numbers::constant(-1.0, width, 1)],
    };
    made.push(DerivedTensor { name: TAPS.into(), dims: vec![2, width], derived });
    for tensor in gguf.tensors() {
        let Some(prefix) = tensor.name().strip_suffix(FUSED) else { continue };
        let element = Element::from_format(gguf.require_format(tensor)?);
        // Block formats are not split into vectors. A tensor that is itself derived has no bytes in
        // a file to take vectors from.
        if matches!(element, Element::Block(_)) || tensor.file() >= gguf.files().len() {
            continue;
        }
        let count = tensor.elements() / width;
        let is_finch = gguf.tensor(&format!("{prefix}time_mix_lerp_x.weight")).is_some();
        let parts = match is_finch {
            true => vec![(FINCH_LERPS.to_owned(), 0, FINCH.len() as u64 * width)],
            false => GOOSE.iter().zip(0..count).map(|(part, i)| (lerp(part), i * width, width)).collect(),
        };
        // A fused tensor that is too short is refused later, where its vectors are used.
        let fits = |(_, first, len): &(String, u64, u64)| first + len <= tensor.elements();
        for (name, first, len) in parts.into_iter().filter(fits) {
            let piece = Piece {
                extent: Extent { file: tensor.file() as u32, offset: tensor.offset(), bytes: tensor.bytes() },
                element,
                first,
                rows: vec![Axis { len: 1, stride: 0 }],
                columns: vec![Axis { len, stride: 1 }],
                scales: None,
                groups: None,
                change: Change::Keep,
            };
            let derived = Derivation { format: Format::F32, columns: len, pieces_per_row: 1, pieces: vec![piece] };
            made.push(DerivedTensor { name: format!("{prefix}{name}"), dims: vec![len], derived });
        }
    }
    Ok(made)
}

/// Returns the name of the shares of previous rows for the input `letter`, after `blk.LAYER.`.
pub(crate) fn lerp(letter: &str) -> String {
    format!("time_mix_lerp.{letter}")
}
