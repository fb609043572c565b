//! Names of a model file's keys for the vocabulary. Errors state these names.

/// Texts of the tokens.
pub const TOKENS: &str = "tokenizer.ggml.tokens";
/// Scores of the tokens.
pub const SCORES: &str = "tokenizer.ggml.scores";
/// Types of the tokens.
pub const TYPES: &str = "tokenizer.ggml.token_type";
/// Merges of a BPE vocabulary.
pub const MERGES: &str = "tokenizer.ggml.merges";
/// Id of the token that begins a sequence.
pub const BOS: &str = "tokenizer.ggml.bos_token_id";
/// Id of the token that ends a sequence.
pub const EOS: &str = "tokenizer.ggml.eos_token_id";
/// Id of the token that ends a turn.
pub const EOT: &str = "tokenizer.ggml.eot_token_id";
/// Id of the token that ends a message.
pub const EOM: &str = "tokenizer.ggml.eom_token_id";
/// Id of the token for unknown text.
pub const UNK: &str = "tokenizer.ggml.unknown_token_id";
/// Id of the padding token.
pub const PAD: &str = "tokenizer.ggml.padding_token_id";
/// Keys of ids of tokens that end generation, if the file has them.
pub const FIM_ENDS: [&str; 3] =
    ["tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id"];
/// SentencePiece's map of characters.
pub const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
