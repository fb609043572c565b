//! Tokenizers, which convert text to token ids and back, built from a model file's own metadata.
//!
//! The input is a [`TokenizerSpec`]: plain data from a model file or a plan, which are both
//! untrusted. The output is a [`Tokenizer`]. For the same file, it returns the same ids as
//! llama.cpp. Encoding takes O(n log n) time, and memory in proportion to the text.
//!
//! | file | what it owns |
//! | --- | --- |
//! | `spec` | vocabulary of a file, and its checks |
//! | `keys` | keys of a vocabulary in a model file |
//! | `vocabulary` | bytes and type of each token; tokens that end generation |
//! | `special` | search for special tokens in text |
//! | `values` | protection of rendered prompts against control tokens in user text |
//! | `pretokenize` | pre-tokenizers, which split text into words; a table row for each |
//! | `byte_level` | GPT-2's alphabet, which writes bytes as printable characters |
//! | `merge` | merge loop of BPE and SPM |
//! | `charsmap` | SentencePiece's map of characters |
//! | `bpe`, `spm`, `unigram`, `sentencepiece_unigram`, `rwkv_world`, `wordpiece` | the algorithms |
//! | `tokenizer` | public interface |
//! | `stream` | conversion of ids to text, one id at a time |
//! | `error` | errors |
//!
//! ```
//! use ixc_text::tokenizer::{ModelKind, Tokenizer, TokenizerSpec};
//! let spec = TokenizerSpec {
//!     model: ModelKind::Bpe,
//!     pre_tokenizer: "qwen2".into(),
//!     tokens: ["l", "o", "w", "lo", "low"].map(String::from).into(),
//!     merges: ["l o", "lo w"].map(String::from).into(),
//!     ..TokenizerSpec::default()
//! };
//! let tokenizer = Tokenizer::new(&spec)?;
//! assert_eq!(tokenizer.encode("lowlo", false)?, [4, 3]);
//! assert_eq!(tokenizer.decode(&[4, 3])?, "lowlo");
//! # Ok::<(), ixc_text::tokenizer::TokenizerError>(())
//! ```

mod bpe;
mod byte_level;
mod charsmap;
mod error;
mod escapes;
pub mod keys;
mod merge;
mod pretokenize;
mod rwkv_world;
mod sentencepiece_unigram;
mod spec;
mod special;
mod spm;
mod stream;
#[allow(clippy::module_inception, reason = "the type that the folder is about")]
mod tokenizer;
mod unigram;
mod values;
mod vocabulary;
mod wordpiece;

pub use error::TokenizerError;
pub use pretokenize::{Alphabet, BYTE_LEVEL_PATTERN, Bos, PreTokenizer, WholeWords, supported_pre_tokenizers};
pub use spec::{MAX_TOKENS, ModelKind, SpecialIds, TokenType, TokenizerSpec, byte_of, check_id, split_merge};
pub use stream::Stream;
pub use tokenizer::{DecodeOptions, Tokenizer};
pub use values::Values;
