//! Keys of n-gram embeddings: rows of a table that the last tokens together select.
//!
//! ```text
//! qwen4exp.ple.layers            = [1]       // the layer that adds the embeddings
//! qwen4exp.ple.ngram_size        = 3         // maximum number of tokens in an n-gram
//! qwen4exp.ple.heads_per_ngram   = 8         // number of rows for each n-gram length from 2 on
//! qwen4exp.ple.conv_kernel       = 4         // taps of the convolution, ngram_size tokens apart
//! qwen4exp.ple.layer_multipliers = [u64; 3]  // factors in the hash of token ids (ir/src/ngram.rs)
//! // first row and number of rows of each hash in the table, and the token id that ends a text
//! qwen4exp.ple.head_offsets, qwen4exp.ple.head_vocab_sizes, qwen4exp.ple.eos_token_id
//! qwen4exp.embedding_length_per_layer_input = 160    // elements of a row
//! ```

use ixc_ir::ngram::{Hash, MAX_IDS, TOKENS};
use ixc_model_files::gguf::{GgufError, Value};

use crate::hyper::{Keys, MAX_TAPS, MAX_WIDTH};

/// Maximum number of rows for one n-gram length: eight times that of any model. The graph has an op
/// for each row, so the number must be bounded.
const MAX_ROWS: u64 = 64;
/// Maximum number of preceding tokens that the convolution reaches. The op has the same limit.
const MAX_BEFORE: u64 = 12;

/// Sizes and hashes of n-gram embeddings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ngrams {
    /// Layer that adds the embeddings.
    pub layer: u64,
    /// Number of elements in a row of the table.
    pub length: u64,
    /// Hashes; each selects a row of the table.
    pub hashes: Vec<Hash>,
    /// Number of taps of the convolution over the gated values.
    pub taps: u64,
    /// Number of tokens between consecutive taps.
    pub dilation: u64,
}

impl Ngrams {
    /// Reads the keys, for a model with `layers` layers. Returns `None` if no layer adds n-gram
    /// embeddings.
    pub(super) fn read(keys: &Keys<'_>, layers: usize, vocabulary: u64) -> Result<Option<Ngrams>, GgufError> {
        const LAYERS: &str = "ple.layers";
        const SIZES: &str = "ple.head_vocab_sizes";
        let name = keys.name(LAYERS);
        let found = match keys.metadata.get(&name) {
            Some(Value::Array(array)) => array.len(),
            None => 0,
            Some(value) => return Err(keys.metadata.wrong_type(&name, value, "array of u32")),
        };
        let layer = match found {
            0 => return Ok(None),
            1 => numbers(keys, LAYERS, 1, layers as u64 - 1)?[0],
            found => {
                return Err(keys.metadata.bad_value(&name, format!("an array of {found}"), "an array of one layer"));
            }
        };
        if vocabulary > MAX_IDS {
            let limit = format!("absent, or at most {MAX_IDS} tokens in the vocabulary");
            return Err(keys.metadata.bad_value(&name, format!("used with {vocabulary} tokens"), limit));
        }
        let size = keys.required_size("ple.ngram_size", 2, TOKENS as u64)?;
        let taps = keys.required_size("ple.conv_kernel", 2, MAX_TAPS)?;
        if (taps - 1) * size > MAX_BEFORE {
            let limit =
                format!("so small that a convolution with dilation {size} reaches at most {MAX_BEFORE} tokens back");
            return Err(keys.metadata.bad_value(&keys.name("ple.conv_kernel"), taps, limit));
        }
        let of_size = keys.required_size("ple.heads_per_ngram", 1, MAX_ROWS)? as usize;
        let count = of_size * (size as usize - 1);
        let multipliers = numbers(keys, "ple.layer_multipliers", size as usize, i64::MAX as u64)?;
        let offsets = numbers(keys, "ple.head_offsets", count, i32::MAX as u64)?;
        let sizes = numbers(keys, SIZES, count, i32::MAX as u64)?;
        let end = keys.required_size("ple.eos_token_id", 0, vocabulary - 1)? as u32;
        let mut hashes = Vec::with_capacity(count);
        for (head, (&offset, &rows)) in offsets.iter().zip(&sizes).enumerate() {
            if rows == 0 || offset + rows > i32::MAX as u64 {
                let limit = "from 1 on, and with the head's offset below 2^31";
                return Err(keys.metadata.bad_value(&keys.name(SIZES), rows, limit));
            }
            let mut hash = Hash { end, multipliers: [0; TOKENS], modulus: rows as u32, offset: offset as u32 };
            let tokens = 2 + head / of_size;
            hash.multipliers[..tokens].copy_from_slice(&multipliers[..tokens]);
            hashes.push(hash);
        }
        let length = keys.required_size("embedding_length_per_layer_input", 1, MAX_WIDTH)?;
        Ok(Some(Ngrams { layer, length, hashes, taps, dilation: size }))
    }
}

/// Returns the first `count` numbers of an array. Each must be at most `most`.
fn numbers(keys: &Keys<'_>, key: &str, count: usize, most: u64) -> Result<Vec<u64>, GgufError> {
    let name = keys.name(key);
    let Some(value) = keys.metadata.get(&name) else { return Err(keys.metadata.missing(&name, "array of u64")) };
    let limit = || format!("an array of {count} numbers up to {most}");
    let Value::Array(array) = value else { return Err(keys.metadata.bad_value(&name, value.type_name(), limit())) };
    let number = |i| {
        let found = array.integer(i).ok_or_else(|| {
            let found = format!("{} of {}", Value::Array(array.clone()).type_name(), array.len());
            keys.metadata.bad_value(&name, found, limit())
        })?;
        u64::try_from(found).ok().filter(|&x| x <= most).ok_or_else(|| keys.metadata.bad_value(&name, found, limit()))
    };
    (0..count).map(number).collect()
}
