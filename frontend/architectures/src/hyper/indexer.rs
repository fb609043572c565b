//! Keys of an indexer, which selects the positions that a layer attends to.
//!
//! ```text
//! glm-dsa.attention.indexer.head_count = 32      // query heads of the indexer
//! glm-dsa.attention.indexer.key_length = 128     // elements of a query and of a key
//! glm-dsa.attention.indexer.top_k      = 2048    // positions that the indexer selects
//! // whether each layer has its own indexer
//! glm-dsa.attention.indexer.types      = [true, true, true, false, …]
//! // number of positions in a run, which share a key. The indexer selects whole runs, and the
//! // positions after the last whole run
//! glm5-next.attention.indexer.kpool       = 4
//! ```

use ixc_model_files::gguf::GgufError;

use super::keys::Keys;
use super::{Layer, MAX_CONTEXT, MAX_COUNT, MAX_WIDTH};

/// Context length that identifies files of GLM-5.2 without the key `types`.
const LONG_CONTEXT: u64 = 1 << 20;

/// Maximum number of positions that share a key: the number of bits in a word.
pub(crate) const MAX_RUN: u64 = 32;
/// Key of the number of query heads. All files with an indexer have it.
pub(crate) const HEADS: &str = "attention.indexer.head_count";
/// Key of the number of positions that share a key.
const RUN: &str = "attention.indexer.kpool";
const TOP_K: &str = "attention.indexer.top_k";

/// Sizes of the indexer, which selects the positions that a layer attends to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Indexer {
    /// Number of query heads of the indexer.
    pub heads: u64,
    /// Elements of a query and of a key.
    pub key_length: u64,
    /// Max number of positions that the indexer selects.
    pub top_k: u64,
    /// Number of positions that share a key; 1 if each position has a key.
    pub run: u64,
    /// Whether each layer has its own indexer. A layer without one uses the selection of the last
    /// earlier layer that has one.
    pub own: Vec<bool>,
}

/// Runs of consecutive positions that share an indexer key.
pub(crate) struct Runs {
    /// Name of the key that states the length of runs.
    pub key: &'static str,
    /// Number of positions in a run; `None` if each position has its own key.
    pub length: Option<u64>,
    /// Whether each layer has its own indexer, if the architecture reads this list from another
    /// key.
    pub own: Option<Vec<bool>>,
}

impl Indexer {
    /// Reads the keys of a file's indexer. `of` are the model's layers, and `context` is its
    /// context length.
    pub(crate) fn read(keys: &Keys<'_>, of: &[Layer], context: u64) -> Result<Indexer, GgufError> {
        let runs = Runs { key: RUN, length: keys.optional(RUN, 1, MAX_RUN)?, own: None };
        Indexer::with_runs(keys, of, context, runs)
    }

    /// Does what [`Indexer::read`] does, with `runs` in place of the runs that the usual key
    /// states.
    pub(crate) fn with_runs(keys: &Keys<'_>, of: &[Layer], context: u64, runs: Runs) -> Result<Indexer, GgufError> {
        let heads = keys.required_size(HEADS, 1, MAX_COUNT)?;
        let run = runs.length.unwrap_or(1);
        if !run.is_power_of_two() {
            let limit = format!("a power of two up to {MAX_RUN}");
            return Err(keys.metadata.bad_value(&keys.name(runs.key), run, limit));
        }
        // Positions of an incomplete last run are always selected; a file that turns this off is
        // refused.
        keys.is_true("attention.indexer.kpool_select_tail")?;
        let top_k = keys.required_size(TOP_K, 1, MAX_CONTEXT)?;
        if !top_k.is_multiple_of(run) {
            let limit = format!("a multiple of {run}, the number of positions that share an index key");
            return Err(keys.metadata.bad_value(&keys.name(TOP_K), top_k, limit));
        }
        Ok(Indexer {
            heads,
            key_length: keys.required_size("attention.indexer.key_length", 2, MAX_WIDTH)?,
            top_k,
            run,
            // Files with runs must list the layers with an indexer; the context length 0 prevents
            // the default of GLM-5.2.
            own: match runs.own {
                Some(own) => own,
                None => own_indexers(keys, of, if runs.length.is_some() { 0 } else { context })?,
            },
        })
    }
}

fn own_indexers(keys: &Keys<'_>, of: &[Layer], context: u64) -> Result<Vec<bool>, GgufError> {
    let layers = of.len();
    let name = keys.name("attention.indexer.types");
    let Some(found) = keys.metadata.read_optional::<&[bool]>(&name)? else {
        let shares = |layer: usize| context >= LONG_CONTEXT && layer >= 2 && !(layer - 2).is_multiple_of(4);
        return Ok((0..layers).map(|layer| !shares(layer)).collect());
    };
    // The list may also have entries for draft layers, at the end.
    match found.get(..layers) {
        // Layers with a window attend to all positions in it, so the first layer without one needs
        // an indexer.
        Some(own) => match own.iter().zip(of).find(|(_, layer)| layer.window.is_none()) {
            Some((false, _)) => Err(keys.metadata.bad_value(
                &name,
                "false in the first layer",
                "true in this layer, because no earlier layer has an index",
            )),
            _ => Ok(own.to_vec()),
        },
        None => {
            let limit = format!("an array of {layers}, one for each layer (block_count)");
            Err(keys.metadata.bad_value(&name, format!("an array of {}", found.len()), limit))
        }
    }
}
