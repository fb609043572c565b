//! Keys of an indexer in which the positions of a run share one key.
//!
//! ```text
//! // number of positions in a run, by layer; 0 means no indexer
//! qwen4exp.attention.compress_ratios = [0, 4, 0, 4]
//! ```

use ixc_model_files::gguf::{Gguf, GgufError, Value};

use crate::hyper::{INDEXER_HEADS, Indexer, Keys, Layer, MAX_RUN, Runs};

const RATIOS: &str = "attention.compress_ratios";

/// Reads the keys of a file's indexer. `of` are the model's layers, and `context` is its context
/// length. Returns `None` if no layer has an indexer.
pub(super) fn indexer(keys: &Keys<'_>, of: &[Layer], context: u64) -> Result<Option<Indexer>, GgufError> {
    if !keys.has(INDEXER_HEADS) {
        return Ok(None);
    }
    match runs(keys, of.len())? {
        Some(runs) => Indexer::with_runs(keys, of, context, runs).map(Some),
        None => Ok(None),
    }
}

/// Returns the number of positions in a run, and the layers with an indexer. Returns `None` without
/// such layers.
fn runs(keys: &Keys<'_>, layers: usize) -> Result<Option<Runs>, GgufError> {
    if !keys.has(RATIOS) {
        return Ok(None);
    }
    let runs = keys.first_per_layer(RATIOS, layers, 0, MAX_RUN)?;
    let Some(run) = runs.iter().copied().find(|run| *run > 0) else { return Ok(None) };
    if let Some(other) = runs.iter().find(|other| ![0, run].contains(other)) {
        let limit = format!("{run} in all layers with an index, as in the first of them");
        return Err(keys.metadata.bad_value(&keys.name(RATIOS), other, limit));
    }
    let own = runs.into_iter().map(|run| run > 0).collect();
    Ok(Some(Runs { key: RATIOS, length: Some(run), own: Some(own) }))
}

/// Returns the number of positions in a run; `None` if the key is missing or invalid. [`indexer`]
/// reports the error.
pub(super) fn length(gguf: &Gguf, architecture: &str) -> Option<u64> {
    let name = format!("{architecture}.{RATIOS}");
    let Some(Value::Array(ratios)) = gguf.metadata().get(&name) else { return None };
    let run = (0..ratios.len()).filter_map(|layer| ratios.integer(layer)).find(|run| *run > 0);
    run.and_then(|run| u64::try_from(run).ok()).filter(|run| *run <= MAX_RUN)
}
