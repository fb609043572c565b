//! Errors of vocabularies, texts and ids.

use ixc_failure::Class;

/// Reason why there is no tokenizer, or no tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A key has an invalid value.
    #[error("key \"{key}\" {found}; expected {expected}")]
    Invalid {
        /// Name of the key.
        key: String,
        /// Value of the key as a verb phrase: `is 8`, `has 7 elements`.
        found: String,
        /// Valid values.
        expected: String,
    },
    /// A vocabulary is needed, and the model has none (`no_vocab`).
    #[error(
        "the model has no vocabulary (tokenizer.ggml.model is missing, \"no_vocab\" or \"none\"): its input and output are token ids"
    )]
    NoVocabulary,
    /// The pre-tokenizer is not supported.
    #[error("key \"tokenizer.ggml.pre\" is {found:?}; supported are {}", supported.join(", "))]
    UnknownPreTokenizer {
        /// Name of the pre-tokenizer.
        found: String,
        /// The names that are supported.
        supported: Vec<&'static str>,
    },
    /// The vocabulary and the embedding matrix differ in size.
    #[error(
        "key \"tokenizer.ggml.tokens\" has {tokens} elements; expected {rows}, one for each row of token_embd.weight"
    )]
    RowsMismatch {
        /// Tokens in the vocabulary.
        tokens: usize,
        /// Rows of the embedding matrix.
        rows: u64,
    },
    /// The vocabulary has neither a token for a byte of the text, nor an unknown token.
    #[error("byte {byte:#04x} of the text has no token in this vocabulary")]
    NoTokenForByte {
        /// Byte without a token.
        byte: u8,
    },
    /// The text is too long to index.
    #[error("the text has {bytes} bytes; the limit is {limit}")]
    TextTooLong {
        /// Length in bytes.
        bytes: usize,
        /// Maximum length in bytes.
        limit: usize,
    },
    /// A token id outside of the vocabulary.
    #[error("token id {id} is outside of the vocabulary; ids go from 0 to {}", .tokens.saturating_sub(1))]
    UnknownId {
        /// Id outside of the vocabulary.
        id: u32,
        /// Number of tokens.
        tokens: usize,
    },
}

impl TokenizerError {
    /// Returns the kind of failure.
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
