//! Token shift of RWKV, which mixes each row with the previous one, and projections through short
//! rows.
//!
//! ```text
//! // short_conv with taps 1 and -1; zeros precede the first row
//! shift = (row before) - row
//! x + shift * lerp                                // a share of the previous row, for each element
//! act(x w1') w2' + w0                             // a projection through a short row
//! ```
//!
//! No file has these taps, so they are derived. Vectors that files fuse into one tensor are
//! derived, too ([`tensors`]).

use ixc_ir::derived::{Axis, Change, Derivation, Element, Extent, Piece};
use ixc_ir::format::Format;
use ixc_ir::graph::{Unary, ValueId};
use ixc_model_files::gguf::{DerivedTensor, Gguf, GgufError};

use crate::builder::{Bias, Builder};
use crate::error::ArchError;
use crate::numbers;

/// Name of the taps, which all layers share.
const TAPS: &str = "token_shift.taps";
/// Name of the shares of previous rows for all inputs of a layer's first part, in one tensor.
pub(crate) const FUSED: &str = "time_mix_lerp_fused.weight";
/// Inputs with shares, in RWKV-7's order; models without a gate lack the last.
const GOOSE: [&str; 6] = ["r", "w", "k", "v", "a", "g"];
/// Inputs with shares, in RWKV-6's order.
pub(crate) const FINCH: [&str; 5] = ["w", "k", "v", "r", "g"];
/// Name of all of RWKV-6's shares, after `blk.LAYER.`.
pub(crate) const FINCH_LERPS: &str = "time_mix_lerps";

/// Builds the difference between the previous row and a row.
pub(crate) fn shift(b: &mut Builder<'_>, state: &str, x: ValueId) -> Result<ValueId, ArchError> {
    b.short_conv(state, x, TAPS, b.hyper.embedding_length, 2)
}

/// Mixes rows with previous rows; the vector `name` has the share of each element.
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

/// Projects rows through the matrix `NAME1`, a function, and the matrix `NAME2`, to their original
/// width.
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

/// Builds `max(key' x, 0)^2` times the matrix of values: RWKV's network, on mixed rows.
pub(crate) fn relu_squared_network(b: &mut Builder<'_>, layer: usize, x: ValueId) -> Result<ValueId, ArchError> {
    let (width, inner) = (b.hyper.embedding_length, b.hyper.layers[layer].feed_forward);
    let name = |part: &str| format!("blk.{layer}.channel_mix_{part}");
    let k = b.linear(x, &name("key"), width, inner, Bias::Optional)?;
    let k = b.unary(Unary::ReluSquared, k)?;
    b.linear(k, &name("value"), inner, width, Bias::Optional)
}

/// Returns the taps of the shift, and vectors of fused tensors: one by one for RWKV-7, concatenated
/// for RWKV-6.
///
/// # Errors
/// When a key has another type.
pub(crate) fn tensors(gguf: &Gguf, architecture: &str) -> Result<Vec<DerivedTensor>, GgufError> {
    let mut made = Vec::new();
    let width = gguf.metadata().read_optional::<u64>(&format!("{architecture}.embedding_length"))?.unwrap_or(0);
    // A width that differs from the last norm's is invalid.
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
        // Vectors of a derived tensor are made together with it.
        if matches!(element, Element::Block(_)) || tensor.file() >= gguf.files().len() {
            continue;
        }
        let count = tensor.elements() / width;
        let is_finch = gguf.tensor(&format!("{prefix}time_mix_lerp_x.weight")).is_some();
        let parts = match is_finch {
            true => vec![(FINCH_LERPS.to_owned(), 0, FINCH.len() as u64 * width)],
            false => GOOSE.iter().zip(0..count).map(|(part, i)| (lerp(part), i * width, width)).collect(),
        };
        // A tensor of another length is refused where it is used.
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

/// Returns the name of a layer's share of previous rows for an input, after `blk.LAYER.`.
pub(crate) fn lerp(letter: &str) -> String {
    format!("time_mix_lerp.{letter}")
}
