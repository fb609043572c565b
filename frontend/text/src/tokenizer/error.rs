//! Errors of vocabularies, of encoding and of decoding.

use ixc_failure::Class;

/// Reason why a tokenizer cannot be built, or why encoding or decoding fails.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A key has an invalid value.
    #[error("key \"{key}\" {found}; expected {expected}")]
    Invalid {
        /// Name of the key.
        key: String,
        /// Description of the value as a verb phrase, such as `is 8` or `has 7 elements`.
        found: String,
        /// Description of valid values.
        expected: String,
    },
    /// The request needs a vocabulary, but the model has none (`no_vocab`).
    #[error(
        "the model has no vocabulary (tokenizer.ggml.model is missing, \"no_vocab\" or \"none\"): its input and output are token ids"
    )]
    NoVocabulary,
    /// The pre-tokenizer is not supported.
    #[error("key \"tokenizer.ggml.pre\" is {found:?}; supported values are {}", supported.join(", "))]
    UnknownPreTokenizer {
        /// Name of the pre-tokenizer.
        found: String,
        /// Names that are supported.
        supported: Vec<&'static str>,
    },
    /// The vocabulary and the embedding matrix differ in size.
    #[error(
        "key \"tokenizer.ggml.tokens\" has {tokens} elements; expected {rows}, one for each row of token_embd.weight"
    )]
    RowsMismatch {
        /// Number of tokens in the vocabulary.
        tokens: usize,
        /// Number of rows of the embedding matrix.
        rows: u64,
    },
    /// The vocabulary has no token for a byte of the text, and no unknown token.
    #[error("byte {byte:#04x} of the text has no token in this vocabulary")]
    NoTokenForByte {
        /// Byte without a token.
        byte: u8,
    },
    /// The text is too long to index.
    #[error("the text has {bytes} bytes; the limit is {limit}")]
    TextTooLong {
        /// Length of the text in bytes.
        bytes: usize,
        /// Maximum length in bytes.
        limit: usize,
    },
    /// A token id is not below the number of tokens.
    #[error("token id {id} is outside of the vocabulary; ids go from 0 to {}", .tokens.saturating_sub(1))]
    UnknownId {
        /// Invalid token id.
        id: u32,
        /// Number of tokens.
        tokens: usize,
    },
}

impl TokenizerError {
    /// Returns the class of the error, which determines the exit code.
    pub fn class(&self) -> Class {
        match self {
            TokenizerError::Invalid { .. }
            | TokenizerError::NoVocabulary
            | TokenizerError::UnknownPreTokenizer { .. }
            | TokenizerError::RowsMismatch { .. }
            | TokenizerError::NoTokenForByte { .. }
            | TokenizerError::TextTooLong { .. }
            | TokenizerError::UnknownId { .. } => Class::Data,
        }
    }
}
