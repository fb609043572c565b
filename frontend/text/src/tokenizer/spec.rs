//! A vocabulary as in a model file: plain data, which plans include, and its checks.

use serde::{Deserialize, Serialize};

use super::TokenizerError;
use super::charsmap::Charsmap;
use super::escapes::unescape;
use super::keys::{BOS, CHARSMAP, EOM, EOS, EOT, FIM_ENDS, MERGES, PAD, SCORES, TOKENS, TYPES, UNK};
use super::pretokenize::PreTokenizer;
use super::special::{self, MAX_SPECIAL_BYTES, MAX_STATES};

/// Maximum number of tokens: twice the largest known vocabulary (Gemma's 262,144).
pub const MAX_TOKENS: usize = 1 << 19;
/// Maximum number of merges: twice the largest known number (446,189 in gpt-4o's vocabulary).
pub const MAX_MERGES: usize = 1 << 20;
/// Maximum length of a token's text in bytes: four times the longest known one (128 bytes, as
/// two-byte letters). The time for merging is proportional to it.
pub const MAX_TOKEN_BYTES: usize = 1024;

/// Algorithm of a vocabulary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModelKind {
    /// No vocabulary: the input of the model is ids.
    #[default]
    None,
    /// SentencePiece, `tokenizer.ggml.model = "llama"`: merges by score, bytes as fallback.
    Spm,
    /// BPE, `"gpt2"` and `"gemma4"`: merges by rank inside of words.
    Bpe,
    /// PLaMo 2's and 3's, `"plamo2"`: the highest sum of scores, bytes as fallback.
    Unigram,
    /// RWKV's, `"rwkv"`: the longest token at each position; tokens are bytes.
    Longest,
    /// BERT's, `"bert"`: the longest tokens of each word, from its beginning.
    WordPiece,
    /// SentencePiece's unigram model, `"t5"`, also of XLM-R: the highest sum of scores.
    Sentence,
}

/// ggml's `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenType {
    /// 0: not stated.
    Undefined,
    /// 1: text.
    Normal,
    /// 2: replaces text without a token.
    Unknown,
    /// 3: not text; matched in text only on request, not shown.
    Control,
    /// 4: text that is always one token.
    UserDefined,
    /// 5: padding of the vocabulary.
    Unused,
    /// 6: one byte, `<0x0A>`.
    Byte,
}

impl TokenType {
    /// Returns the type with this number.
    pub fn from_number(number: i32) -> Option<TokenType> {
        usize::try_from(number).ok().and_then(|number| TOKEN_TYPES.get(number)).copied()
    }

    /// Returns whether such tokens are matched in text before it is tokenized: always, or on
    /// request.
    pub fn is_special(self) -> bool {
        matches!(self, TokenType::UserDefined | TokenType::Control | TokenType::Unknown)
    }

    /// Returns whether tokens of this type have their names in the vocabulary unchanged, regardless
    /// of the vocabulary's spelling of text.
    pub(super) fn is_name(self) -> bool {
        self.is_special() || self == TokenType::Byte
    }
}

/// Types of tokens, by number.
const TOKEN_TYPES: [TokenType; 7] = [
    TokenType::Undefined,
    TokenType::Normal,
    TokenType::Unknown,
    TokenType::Control,
    TokenType::UserDefined,
    TokenType::Unused,
    TokenType::Byte,
];

/// Tokens with a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialIds {
    /// Token that begins a sequence.
    pub bos: Option<u32>,
    /// Token that ends a sequence.
    pub eos: Option<u32>,
    /// Token that ends a turn.
    pub eot: Option<u32>,
    /// Token that ends a message.
    pub eom: Option<u32>,
    /// Token for unknown text.
    pub unk: Option<u32>,
    /// Padding token.
    pub pad: Option<u32>,
    /// Fill-in-the-middle padding, and separators of repositories and files: each ends generation.
    pub fim_ends: Vec<u32>,
}

/// Vocabulary as in the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenizerSpec {
    /// Algorithm of the vocabulary.
    pub model: ModelKind,
    /// Name of the pre-tokenizer (BPE); empty if the file has none.
    pub pre_tokenizer: String,
    /// Token texts; the index is the id.
    pub tokens: Vec<String>,
    /// Scores of SPM's and PLaMo's tokens: one for each token, or empty.
    pub scores: Vec<f32>,
    /// Types, one for each token; if empty, all tokens are normal.
    pub types: Vec<TokenType>,
    /// BPE merges, best first: left and right separated by a space.
    pub merges: Vec<String>,
    /// Tokens with a role.
    pub special: SpecialIds,
    /// Whether a sequence starts with BOS.
    pub add_bos: bool,
    /// Whether a sequence ends with EOS.
    pub add_eos: bool,
    /// Whether a space is put before a text (SPM).
    pub add_space_prefix: bool,
    /// Source of the chat template.
    pub chat_template: Option<String>,
    /// Whether text is lowercased first (WordPiece).
    pub lowercase: bool,
    /// Whether accents of letters are removed first (WordPiece).
    pub strip_accents: bool,
    /// Table that maps characters first, in SentencePiece's format; empty for none (`Sentence`).
    pub charsmap: Vec<u8>,
    /// Whether runs of spaces are merged, and spaces at both ends removed (`Sentence`).
    pub squeezes_spaces: bool,
}

/// Returns the error for a key with an invalid value.
fn invalid(key: &str, found: impl Into<String>, expected: impl Into<String>) -> TokenizerError {
    TokenizerError::Invalid { key: key.into(), found: found.into(), expected: expected.into() }
}

impl TokenizerSpec {
    /// Checks the properties on which a tokenizer relies. The spec of a plan has no other check.
    ///
    /// # Errors
    /// [`TokenizerError`], with the key, its value and the expected value.
    pub fn validate(&self) -> Result<(), TokenizerError> {
        let count = self.tokens.len();
        if self.model == ModelKind::None {
            return Ok(());
        }
        if !(1..=MAX_TOKENS).contains(&count) {
            return Err(invalid(TOKENS, format!("has {count} elements"), format!("1 to {MAX_TOKENS}")));
        }
        if self.merges.len() > MAX_MERGES {
            let found = format!("has {} elements", self.merges.len());
            return Err(invalid(MERGES, found, format!("at most {MAX_MERGES}")));
        }
        let is_special = |index: usize| matches!(self.types.get(index), Some(ty) if ty.is_special());
        for (index, text) in self.tokens.iter().enumerate() {
            let max = if is_special(index) { MAX_SPECIAL_BYTES } else { MAX_TOKEN_BYTES };
            if text.len() > max {
                let found = format!("has a text of {} bytes at index {index}", text.len());
                return Err(invalid(TOKENS, found, format!("at most {max}")));
            }
        }
        let special = self.tokens.iter().enumerate().filter(|(index, _)| is_special(*index));
        let states = special::states(special.map(|(_, text)| text.as_str()));
        if states > MAX_STATES {
            let found = format!("has special tokens with {states} different beginnings");
            return Err(invalid(TOKENS, found, format!("at most {MAX_STATES}")));
        }
        for (key, len) in [(SCORES, self.scores.len()), (TYPES, self.types.len())] {
            if len != 0 && len != count {
                return Err(invalid(key, format!("has {len} elements"), format!("{count}, the length of {TOKENS}")));
            }
        }
        if let Some(index) = self.scores.iter().position(|score| score.is_nan()) {
            return Err(invalid(SCORES, format!("is NaN at index {index}"), "a number"));
        }
        for (index, (text, ty)) in self.tokens.iter().zip(&self.types).enumerate() {
            if *ty == TokenType::Byte && byte_of(text).is_none() {
                let shown: String = text.chars().take(32).collect();
                return Err(invalid(
                    TOKENS,
                    format!("is {shown:?} at index {index}, a byte token"),
                    "<0x00> to <0xFF>",
                ));
            }
        }
        let is_name = |index: usize| matches!(self.types.get(index), Some(ty) if ty.is_name());
        let escaped = self.tokens.iter().enumerate().filter(|(index, _)| !is_name(*index));
        let unreadable = |(_, text): &(usize, &String)| unescape(text).is_none();
        if let Some((index, text)) = escaped.filter(|_| self.model == ModelKind::Longest).find(unreadable) {
            let shown: String = text.chars().take(32).collect();
            let found = format!("is {shown:?} at index {index}");
            return Err(invalid(
                TOKENS,
                found,
                "bytes as Python writes them: after a backslash t, n, r, x with two digits, or a backslash",
            ));
        }
        for (index, merge) in self.merges.iter().enumerate() {
            if split_merge(merge).is_none() {
                let shown: String = merge.chars().take(32).collect();
                return Err(invalid(
                    MERGES,
                    format!("is {shown:?} at index {index}"),
                    "two texts with a space between",
                ));
            }
        }
        let SpecialIds { bos, eos, eot, eom, unk, pad, fim_ends } = &self.special;
        for (key, id) in [(BOS, bos), (EOS, eos), (EOT, eot), (EOM, eom), (UNK, unk), (PAD, pad)] {
            check_id(key, *id, count)?;
        }
        for id in fim_ends {
            check_id(FIM_ENDS[0], Some(*id), count)?;
        }
        if self.model == ModelKind::Bpe {
            PreTokenizer::from_name(&self.pre_tokenizer)?;
        }
        if Charsmap::read(&self.charsmap).is_none() {
            let expected = "the length of a double array, the array, and UTF-8 texts";
            return Err(invalid(CHARSMAP, format!("has {} bytes", self.charsmap.len()), expected));
        }
        Ok(())
    }

    /// Checks that the embedding matrix has exactly one row for each token.
    ///
    /// # Errors
    /// [`TokenizerError::RowsMismatch`].
    pub fn check_embedding_rows(&self, rows: u64) -> Result<(), TokenizerError> {
        if self.model != ModelKind::None && self.tokens.len() as u64 != rows {
            return Err(TokenizerError::RowsMismatch { tokens: self.tokens.len(), rows });
        }
        Ok(())
    }
}

/// Checks the id of a key against the number of tokens, and returns it.
///
/// # Errors
/// [`TokenizerError::Invalid`].
pub fn check_id(key: &str, id: Option<u32>, tokens: usize) -> Result<Option<u32>, TokenizerError> {
    match id {
        Some(id) if id as usize >= tokens => {
            Err(invalid(key, format!("is {id}"), format!("0 to {}, the ids of {TOKENS}", tokens.saturating_sub(1))))
        }
        id => Ok(id),
    }
}

/// Returns the text of the token for a byte.
pub(super) fn byte_token(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

/// Returns the byte of a text like `<0x0A>`.
pub fn byte_of(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    // `from_str_radix` would accept a sign.
    (hex.len() == 2 && hex.bytes().all(|c| c.is_ascii_hexdigit())).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// Splits a merge into both sides. The left side may be a space itself.
pub fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let space = first + merge.get(first..)?.find(' ')?;
    let (left, right) = (merge.get(..space)?, merge.get(space + 1..)?);
    (!right.is_empty()).then_some((left, right))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_tokens_are_two_hex_digits() {
        assert_eq!((byte_of("<0x0A>"), byte_of("<0xff>")), (Some(10), Some(255)));
        for bad in ["<0x-1>", "<0xZZ>", "<0x+1>", "<0x1>", "<0x100>", "0x01", "<0x01", ""] {
            assert_eq!(byte_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn merges_split_at_first_space_after_first_character() {
        assert_eq!(split_merge("Ġ t"), Some(("Ġ", "t")));
        assert_eq!(split_merge("  a"), Some((" ", "a")));
        for bad in ["", "a", "a ", " a", " "] {
            assert_eq!(split_merge(bad), None, "{bad:?}");
        }
    }
}
