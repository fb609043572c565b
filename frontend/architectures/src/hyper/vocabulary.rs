//! Size of the vocabulary.

use ixc_model_files::gguf::{Gguf, GgufError, StringArray};

use super::keys::Keys;

/// Returns the number of rows of the embedding table. Returns an error if the file states another
/// size of the vocabulary.
pub(super) fn vocabulary(gguf: &Gguf, keys: &Keys<'_>) -> Result<u64, GgufError> {
    let table = gguf.require_tensor("token_embd.weight")?;
    let rows = table.dims().get(1).copied().unwrap_or(1);
    let agree = |key: &str, found: u64| match found == rows {
        true => Ok(()),
        false => Err(keys.metadata.bad_value(key, found, format!("{rows}, the number of rows of token_embd.weight"))),
    };
    if let Some(found) = keys.optional("vocab_size", 1, u64::MAX)? {
        agree(&keys.name("vocab_size"), found)?;
    }
    if let Some(tokens) = keys.metadata.read_optional::<&StringArray>("tokenizer.ggml.tokens")? {
        agree("tokenizer.ggml.tokens", tokens.len() as u64).map_err(|error| match error {
            GgufError::KeyValue { path, key, found, limit } => {
                GgufError::KeyValue { path, key, found: format!("{found} tokens").into(), limit }
            }
            other => other,
        })?;
    }
    if rows > i32::MAX as u64 {
        return Err(keys.metadata.bad_value("token_embd.weight", rows, "at most 2^31 - 1 rows"));
    }
    Ok(rows)
}
