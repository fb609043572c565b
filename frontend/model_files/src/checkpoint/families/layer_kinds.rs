//! Kinds of layers in hybrid models, which configurations list.

use super::super::config::Config;
use super::super::error::CheckpointError;
use super::super::keys::Keys;

/// Kind of a layer in a hybrid model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Recurrent,
    Attention,
    Network,
    Experts,
}

/// Returns the kind of each layer. Configurations list the kinds as words or letters.
pub(super) fn kinds(config: &Config) -> Result<Vec<Kind>, CheckpointError> {
    const KEYS: [&str; 5] =
        ["layer_types", "layers_block_type", "hybrid_override_pattern", "full_attn_idxs", "attn_layer_indices"];
    let unknown =
        |key: &str, found: &str| config.wrong(key, format!("of \"{found}\""), "kinds of layers that are known");
    let of_word = |key: &str, word: &str| match word {
        "mamba" | "linear_attention" | "conv" | "M" => Ok(Kind::Recurrent),
        "attention" | "full_attention" | "indexed_attention" | "sliding_attention" | "*" => Ok(Kind::Attention),
        "mlp" | "-" => Ok(Kind::Network),
        "moe" | "E" => Ok(Kind::Experts),
        other => Err(unknown(key, other)),
    };
    for key in &KEYS[..2] {
        if let Some(words) = config.texts(key)? {
            return words.into_iter().map(|word| of_word(key, word)).collect();
        }
    }
    if let Some(letters) = config.text(&[KEYS[2]])? {
        return letters.chars().map(|letter| of_word(KEYS[2], letter.encode_utf8(&mut [0; 4]))).collect();
    }
    let layers = config.require(&["num_hidden_layers"])?;
    let attention = match config.counts(KEYS[3])? {
        None => config.counts(KEYS[4])?,
        attention => attention,
    };
    let of = |layer| match &attention {
        Some(attention) if !attention.contains(&layer) => Kind::Recurrent,
        _ => Kind::Attention,
    };
    Ok((0..layers).map(of).collect())
}

/// Puts the number of key heads: 0 in layers without attention.
pub(super) fn heads_of_kinds(keys: &mut Keys<'_>, kinds: &[Kind]) -> Result<(), CheckpointError> {
    let heads = keys.config.require(&["num_key_value_heads", "num_attention_heads"])?;
    let heads = kinds.iter().map(|kind| if *kind == Kind::Attention { heads } else { 0 });
    keys.put("attention.head_count_kv", heads.collect::<Vec<u32>>());
    Ok(())
}
