//! Grammars of answers: a JSON schema, a regular expression, or a grammar in Lark or GBNF. They
//! become masks over a model's vocabulary.
//!
//! | file | what it owns |
//! | --- | --- |
//! | `source` | the kinds of grammars in requests |
//! | `error` | errors of grammars, and limits on their cost |
//! | `gbnf` | llama.cpp's grammars: read, and written as Lark |
//! | `gbnf/lexemes` | parts of such a grammar that can be lexemes without changing the language |
//! | `schema` | a compiler from JSON schemas to Lark rules |
//! | `keys` | the keys of an answer's open objects, so that no key is written twice |
//! | `vocabulary` | a model's tokens in the form of the matcher |
//! | `compile` | compilation on a separate thread, with a time limit |
//! | `isolate` | a first compilation in a helper process |
//! | `helper` | the program of the helper process |
//! | `clock` | CPU time of a thread |
//! | `matcher` | a grammar that an answer is following |
//!
//! ```
//! use ixc_grammar::{GrammarSource, Vocabulary};
//! # use {ixc_grammar::GrammarError, ixc_text::tokenizer::Tokenizer};
//! # fn allowed(tokenizer: &Tokenizer) -> Result<(), GrammarError> {
//! let vocabulary = Vocabulary::new(tokenizer)?;
//! let mut matcher = vocabulary.matcher(&GrammarSource::Regex("[0-9]+".into()))?;
//! let mask = matcher.token_mask()?; // One bit for each token.
//! # let _ = mask; Ok(()) }
//! ```
//!
//! llguidance (<https://github.com/guidance-ai/llguidance>) computes the masks. No tokens are
//! forced. If a grammar allows only one text, the model still chooses how the text is divided into
//! tokens, as without a grammar.
//!
//! Invariant: an untrusted grammar costs bounded time and memory, and cannot end the process.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod clock;
mod compile;
mod error;
mod gbnf;
mod helper;
mod isolate;
mod keys;
mod matcher;
mod schema;
mod source;
mod vocabulary;

pub use clock::ThreadClock;
pub use error::{COMPILE_SECONDS, GrammarError, MAX_BYTES, MAX_DEPTH, MAX_SCHEMA_DEPTH};
pub use gbnf::to_lark;
pub use helper::serve_compile_request;
pub use isolate::COMPILE_ARGUMENT;
pub use keys::{Mark, ReasoningMarks};
pub use matcher::{Canceller, Matcher};
pub use schema::{KEYWORDS, Keyword, KeywordSupport};
pub use source::{Frame, GrammarSource, regex_literal};
pub use vocabulary::Vocabulary;
