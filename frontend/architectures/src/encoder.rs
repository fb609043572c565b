//! Encoders: layers with attention over the whole text and a feed-forward network. The output of
//! each block is added to its input, and a layer norm follows. Encoders return hidden states; they
//! have no output matrix.
//!
//! ```text
//! x = norm(token_embd[id] + token_types[0] + position_embd[position])
//! x = norm(x + attention(x))                                         attn_output_norm
//! x = norm(x + network(x))                                           layer_output_norm
//! ```

use ixc_ir::graph::ValueId;

use super::builder::Builder;
use super::decoder::{self, Style};
use super::error::ArchError;

/// Embeds tokens, and adds the first token type if the file has token types.
pub(super) fn embed(b: &mut Builder<'_>) -> Result<ValueId, ArchError> {
    let x = b.embed()?;
    if b.has("token_types.weight") { b.first_token_type(x) } else { Ok(x) }
}

/// Builds an encoder, from token ids to hidden states of the requested rows. Of the style, it uses
/// only the fields for attention, network and embeddings.
pub(super) fn encoder(b: &mut Builder<'_>, style: &Style) -> Result<ValueId, ArchError> {
    let mut x = (style.embed)(b)?;
    x = b.norm(x, "token_embd_norm.weight")?;
    for layer in b.layers() {
        let y = decoder::attention_of(b, layer, x, style)?;
        x = b.add(y, x)?;
        x = b.norm(x, &format!("blk.{layer}.attn_output_norm.weight"))?;
        let y = decoder::networks(b, layer, x, style)?;
        x = b.add(y, x)?;
        x = b.norm(x, &format!("blk.{layer}.layer_output_norm.weight"))?;
    }
    let x = b.requested_rows(x)?;
    b.output(x)
}
