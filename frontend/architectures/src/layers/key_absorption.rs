//! Derivation of `attn_k_b`, a tensor that older files of models with latent attention lack. It has
//! a matrix for each head that projects queries to latent rows. Older files have `attn_kv_b`
//! instead, one matrix for keys and values of all heads. `attn_k_b` is the transpose of each head's
//! rows for keys in `attn_kv_b`.
//!
//! ```text
//! attn_kv_b [r, heads * (plain + value)]      // for each head, rows for keys, then for values
//! attn_k_b  [plain, r, heads]                 // row j of a head: column j of its rows for keys
//! ```

use ixc_ir::derived::{Axis, Change, Derivation, Element, Extent, Piece};
use ixc_model_files::gguf::{DerivedTensor, Gguf, GgufError, Tensor};

use crate::hyper::{LatentLengths, latent_lengths};

/// Returns `attn_k_b` of each layer that lacks it.
///
/// # Errors
/// When keys are missing, or `attn_kv_b` does not have the shape that they require.
pub(crate) fn tensors(gguf: &Gguf, architecture: &str) -> Result<Vec<DerivedTensor>, GgufError> {
    let mut made = Vec::new();
    for tensor in gguf.tensors() {
        let Some(layer) = tensor.name().strip_suffix("attn_kv_b.weight") else { continue };
        let name = format!("{layer}attn_k_b.weight");
        if gguf.tensor(&name).is_none() {
            made.push(transpose(gguf, architecture, tensor, name)?);
        }
    }
    Ok(made)
}

fn transpose(gguf: &Gguf, architecture: &str, tensor: &Tensor, name: String) -> Result<DerivedTensor, GgufError> {
    let LatentLengths { plain, value } = latent_lengths(gguf, architecture)?;
    let &[rank, rows] = tensor.dims() else {
        return Err(gguf.metadata().bad_value(tensor.name(), tensor.dims().len(), "a matrix of two dimensions"));
    };
    if rows == 0 || !rows.is_multiple_of(plain + value) {
        let limit = format!("a multiple of {}, the rows of a head", plain + value);
        return Err(gguf.metadata().bad_value(tensor.name(), rows, limit));
    }
    let heads = rows / (plain + value);
    let element = Element::from_format(gguf.require_format(tensor)?);
    let axis = |len, stride| Axis { len, stride };
    let piece = Piece {
        extent: Extent { file: tensor.file() as u32, offset: tensor.offset(), bytes: tensor.bytes() },
        element,
        first: 0,
        rows: vec![axis(heads, (plain + value) * rank), axis(rank, 1)],
        columns: vec![axis(plain, rank)],
        scales: None,
        groups: None,
        change: Change::Keep,
    };
    let derived =
        Derivation { format: element.scaled_format(), columns: plain, pieces_per_row: 1, pieces: vec![piece] };
    Ok(DerivedTensor { name, dims: vec![plain, rank, heads], derived })
}
