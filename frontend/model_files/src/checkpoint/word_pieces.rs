//! Reader of BERT's WordPiece tokenizer, from `tokenizer.json` or from a list of words in
//! `vocab.txt`.
//!
//! In BERT's lists, a token that continues a word has the prefix `##`. In GGUF files, a token that
//! begins a word has the prefix `▁`, and `##` is removed.
//!
//! ```text
//! "un" -> "▁un"     "##able" -> "able"     "[CLS]" -> "[CLS]", a control token
//! ```

use std::path::Path;

use serde_json::{Value as Json, json};

use super::error::CheckpointError;
use super::tokenizer_json::{AddedToken, File, MAX_BYTES, Model, Vocabulary, kind, sequence};

/// Name of the file with the list of words.
pub(super) const LIST: &str = "vocab.txt";
/// Prefix of tokens that continue a word, in BERT's lists.
const GOES_ON: &str = "##";
/// Character that stands for a space in SentencePiece.
const SPACE: char = '\u{2581}';
/// Maximum length of a word in characters. Longer words are not looked up. The tokenizer has the
/// same constant.
const LONGEST_WORD: u64 = 100;
/// Control tokens of a list of words, each with its key in `tokenizer_config.json`.
const CONTROL: [(&str, &str); 5] = [
    ("pad_token", "[PAD]"),
    ("unk_token", "[UNK]"),
    ("cls_token", "[CLS]"),
    ("sep_token", "[SEP]"),
    ("mask_token", "[MASK]"),
];

/// Changes that are made to a text before it is split into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WordPieces {
    pub lowercase: bool,
    pub strip_accents: bool,
}

impl WordPieces {
    /// Returns whether a file has a WordPiece model.
    pub(super) fn is_such(file: &File) -> bool {
        match file.model.kind.as_deref() {
            Some(kind) => kind == "WordPiece",
            // Older files do not state the type of the model.
            None => file.model.continuing_subword_prefix.as_deref() == Some(GOES_ON),
        }
    }

    /// Reads the steps before the model; `None` if a step is not one of BERT's.
    pub(super) fn read(file: &File) -> Option<WordPieces> {
        let (normalizers, cutters) = (sequence(&file.normalizer), sequence(&file.pre_tokenizer));
        let ([normalizer], [cutter]) = (&normalizers[..], &cutters[..]) else { return None };
        let flag = |key: &str| normalizer.get(key).and_then(Json::as_bool);
        let is_bert = kind(normalizer) == "BertNormalizer" && kind(cutter) == "BertPreTokenizer";
        let cleans = flag("clean_text") != Some(false) && flag("handle_chinese_chars") != Some(false);
        let prefix = file.model.continuing_subword_prefix.as_deref().unwrap_or(GOES_ON);
        let longest = file.model.max_input_chars_per_word.unwrap_or(LONGEST_WORD);
        let lowercase = flag("lowercase").unwrap_or(true);
        (is_bert && cleans && prefix == GOES_ON && longest == LONGEST_WORD)
            .then(|| WordPieces { lowercase, strip_accents: flag("strip_accents").unwrap_or(lowercase) })
    }

    /// Returns a token in the spelling of GGUF files.
    pub(super) fn spell(token: &str) -> String {
        match token.strip_prefix(GOES_ON) {
            Some(rest) => rest.to_owned(),
            None => [SPACE].into_iter().chain(token.chars()).collect(),
        }
    }
}

/// Returns whether a folder without `tokenizer.json` has BERT's list of words.
pub(super) fn has_list(folder: &Path, tokenizer_config: &Json, model_type: Option<&str>) -> bool {
    let class = tokenizer_config.get("tokenizer_class").and_then(Json::as_str);
    let is_bert = class.map_or(model_type == Some("bert"), |class| class.starts_with("BertTokenizer"));
    is_bert && folder.join(LIST).is_file()
}

/// Reads a list of words. Returns the `tokenizer.json` that transformers would make from it.
///
/// # Errors
/// When the file cannot be read.
pub(super) fn list(folder: &Path, tokenizer_config: &Json) -> Result<File, CheckpointError> {
    let text = ixc_files::read_text(&folder.join(LIST), MAX_BYTES)?;
    // If a word appears twice, the last id is used, as in transformers.
    let ids = text.lines().map(str::to_owned).zip(0..);
    let ids: std::collections::HashMap<String, u32> = ids.collect();
    let flag = |key: &str| tokenizer_config.get(key).and_then(Json::as_bool);
    let named = |key: &str, usual: &str| {
        let token = tokenizer_config.get(key);
        let text = token.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
        text.unwrap_or(usual).to_owned()
    };
    let control = CONTROL.iter().map(|(key, usual)| named(key, usual));
    let added_tokens =
        control.filter_map(|content| Some(AddedToken { id: *ids.get(&content)?, content, special: true }));
    Ok(File {
        added_tokens: added_tokens.collect(),
        normalizer: json!({
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": flag("tokenize_chinese_chars").unwrap_or(true),
            "strip_accents": flag("strip_accents"),
            "lowercase": flag("do_lower_case").unwrap_or(true),
        }),
        pre_tokenizer: json!({"type": "BertPreTokenizer"}),
        post_processor: json!({"type": "BertProcessing"}),
        model: Model {
            kind: Some("WordPiece".to_owned()),
            vocab: Vocabulary::Ids(ids),
            merges: Vec::new(),
            byte_fallback: false,
            ignore_merges: false,
            unk_token: Some(named("unk_token", "[UNK]")),
            continuing_subword_prefix: None,
            max_input_chars_per_word: None,
        },
    })
}
