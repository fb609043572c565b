//! Vocabulary of a model file as plain data, which plans include, and the checks of it.

use serde::{Deserialize, Serialize};

use super::TokenizerError;
use super::charsmap::Charsmap;
use super::escapes::unescape;
use super::keys::{BOS, CHARSMAP, EOM, EOS, EOT, FIM_ENDS, MERGES, PAD, SCORES, TOKENS, TYPES, UNK};
use super::pretokenize::PreTokenizer;
use super::special::{self, MAX_SPECIAL_BYTES, MAX_STATES};

/// Maximum number of tokens: twice that of the largest known vocabulary (Gemma, 262,144).
pub const MAX_TOKENS: usize = 1 << 19;
/// Maximum number of merges: more than twice the largest known number (gpt-4o, 446,189).
pub const MAX_MERGES: usize = 1 << 20;
/// Maximum length of a token's text in bytes: four times that of the longest known token (128
/// bytes, written as two-byte characters). The time for merging is proportional to this length.
pub const MAX_TOKEN_BYTES: usize = 1024;

/// Tokenizer algorithm of a vocabulary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModelKind {
    /// No tokenizer. The model's input is token ids.
    #[default]
    None,
    /// SentencePiece with merges, `tokenizer.ggml.model = "llama"`: merges by score, and tokens of
    /// bytes for other text.
    Spm,
    /// BPE, `"gpt2"` and `"gemma4"`: merges by rank, inside of words.
    Bpe,
    /// Unigram tokenizer of PLaMo 2 and 3, `"plamo2"`: the highest sum of scores, and tokens of
    /// bytes for other text.
    Unigram,
    /// RWKV's World tokenizer, `"rwkv"`: the longest token at each position. Tokens are byte
    /// strings.
    Longest,
    /// BERT's WordPiece, `"bert"`: the longest token at each position of a word, from its beginning
    /// on.
    WordPiece,
    /// SentencePiece's unigram tokenizer, `"t5"`, which XLM-R uses, too: the highest sum of scores.
    Sentence,
}

/// Type of a token, by ggml's numbers (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenType {
    /// Number 0: no type is stated.
    Undefined,
    /// Number 1: text.
    Normal,
    /// Number 2: token that replaces text without a token.
    Unknown,
    /// Number 3: token that is not text. It is recognised in text only on request, and is not
    /// shown.
    Control,
    /// Number 4: text that always becomes this token.
    UserDefined,
    /// Number 5: padding of the vocabulary.
    Unused,
    /// Number 6: token of one byte, written as `<0x0A>`.
    Byte,
}

impl TokenType {
    /// Returns the type with this number, if it exists.
    pub fn from_number(number: i32) -> Option<TokenType> {
        usize::try_from(number).ok().and_then(|number| TOKEN_TYPES.get(number)).copied()
    }

    /// Returns whether tokens of this type are recognised in text before tokenization, always or on
    /// request.
    pub fn is_special(self) -> bool {
        matches!(self, TokenType::UserDefined | TokenType::Control | TokenType::Unknown)
    }

    /// Returns whether the vocabulary has the names of such tokens unchanged. The spelling of text
    /// does not apply to them.
    pub(super) fn is_name(self) -> bool {
        self.is_special() || self == TokenType::Byte
    }
}

/// Types of tokens; the index is ggml's number.
const TOKEN_TYPES: [TokenType; 7] = [
    TokenType::Undefined,
    TokenType::Normal,
    TokenType::Unknown,
    TokenType::Control,
    TokenType::UserDefined,
    TokenType::Unused,
    TokenType::Byte,
];

/// Ids of the tokens that have a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialIds {
    /// Id of the token that begins a sequence.
    pub bos: Option<u32>,
    /// Id of the token that ends a sequence.
    pub eos: Option<u32>,
    /// Id of the token that ends a turn.
    pub eot: Option<u32>,
    /// Id of the token that ends a message.
    pub eom: Option<u32>,
    /// Id of the token for unknown text.
    pub unk: Option<u32>,
    /// Id of the padding token.
    pub pad: Option<u32>,
    /// Ids of fill-in-the-middle tokens that end generation: padding, and separators of
    /// repositories and files.
    pub fim_ends: Vec<u32>,
}

/// Vocabulary and settings of a tokenizer, as the file has them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenizerSpec {
    /// Tokenizer algorithm.
    pub model: ModelKind,
    /// Name of the pre-tokenizer, for BPE; empty if the file states none.
    pub pre_tokenizer: String,
    /// Text of each token; the index is the token id.
    pub tokens: Vec<String>,
    /// Score of each token, for algorithms with scores; may be empty.
    pub scores: Vec<f32>,
    /// Type of each token. If empty, all tokens are normal text.
    pub types: Vec<TokenType>,
    /// Merges of BPE, the best first. A space separates the left and right sides.
    pub merges: Vec<String>,
    /// Ids of the tokens that have a role.
    pub special: SpecialIds,
    /// Whether BOS is added at the start of a sequence.
    pub add_bos: bool,
    /// Whether EOS is added at the end of a sequence.
    pub add_eos: bool,
    /// Whether a space is put before a text (SPM).
    pub add_space_prefix: bool,
    /// Source of the model's chat template.
    pub chat_template: Option<String>,
    /// Whether text is lowercased before tokenization (WordPiece).
    pub lowercase: bool,
    /// Whether accents are removed from letters before tokenization (WordPiece).
    pub strip_accents: bool,
    /// Table that replaces characters before tokenization, in SentencePiece's format; empty for no
    /// table (`Sentence`).
    pub charsmap: Vec<u8>,
    /// Whether runs of spaces become one space, and spaces at both ends are removed (`Sentence`).
    pub squeezes_spaces: bool,
}

/// Returns the error for a key with an invalid value.
fn invalid(key: &str, found: impl Into<String>, expected: impl Into<String>) -> TokenizerError {
    TokenizerError::Invalid { key: key.into(), found: found.into(), expected: expected.into() }
}

impl TokenizerSpec {
    /// Checks all properties that tokenizers rely on. The spec of a plan is checked nowhere else.
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
            let found = format!("has special tokens with {states} different beginnings, above the limit");
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
                    format!("is {shown:?} at index {index}, which is not the text of a byte token"),
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
                "bytes as Python writes them: after a backslash only t, n, r, x with two digits, or a backslash",
            ));
        }
        for (index, merge) in self.merges.iter().enumerate() {
            if split_merge(merge).is_none() {
                let shown: String = merge.chars().take(32).collect();
                return Err(invalid(
                    MERGES,
                    format!("is {shown:?} at index {index}"),
                    "two texts with a space between them",
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
            let expected = "bytes with the length of a double array, the array, and UTF-8 texts";
            return Err(invalid(CHARSMAP, format!("has {} bytes", self.charsmap.len()), expected));
        }
        Ok(())
    }

    /// Checks that the embedding matrix has exactly one row for each token of the vocabulary.
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

/// Returns the id under `key`. An id that is not below the number of tokens is an error.
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

/// Returns the text of a byte's token, like `<0x0A>`.
pub(super) fn byte_token(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

/// Returns the byte that a text like `<0x0A>` stands for; `None` for other texts.
pub fn byte_of(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    // `from_str_radix` alone would accept a sign before the digits.
    (hex.len() == 2 && hex.bytes().all(|c| c.is_ascii_hexdigit())).then(|| u8::from_str_radix(hex, 16).ok())?
}

/// Splits the text of a merge into its left and right sides. The left side may begin with a space.
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
