//! JSON schemas as rules of Lark.
//!
//! ```text
//! {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}
//!
//! start: s0
//! s0: "{" /\x22a\x22/ ":" s1 "}"
//! s1: /true|false/
//! ```
//!
//! | file | what it owns |
//! | --- | --- |
//! | `keywords` | the table of keywords: what their values must be, and what becomes of them |
//! | `document` | places, anchors and references; `uri` resolves those |
//! | `expand` | subschemas as sets of values; `negate` has their opposites |
//! | `alternative` | those sets, one type at a time |
//! | `layout` | parts of objects and arrays; which sets are empty |
//! | `writer` | sets as rules; `automaton` has lists with commas |
//! | `number`, `decimal` | numbers, digit by digit |
//! | `text`, `pattern`, `formats` | texts, and what they look like in quotes |
//!
//! Invariant: a text of the rules is valid. A schema is refused before the first token where that
//! cannot be said, with the place in the schema.

mod alternative;
mod automaton;
mod decimal;
mod document;
mod expand;
mod formats;
mod keywords;
mod layout;
mod negate;
mod number;
mod pattern;
mod text;
mod uri;
mod writer;

use serde_json::Value;

use crate::GrammarError;

pub use keywords::{KEYWORDS, Keyword, Standing};

/// A schema's grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SchemaGrammar {
    /// Rules of Lark; the first is `start`.
    pub lark: String,
    /// Whether a key that was begun may have no end but keys that are taken.
    pub is_narrow: bool,
}

/// Compiles a schema. Recurses as the schema nests: for a thread with room for that.
///
/// # Errors
/// [`GrammarError::Schema`] with the place that is malformed, contradicts itself, or cannot be
/// followed.
pub(crate) fn compile(schema: &Value) -> Result<SchemaGrammar, GrammarError> {
    let mut writer = writer::Writer::of(schema);
    writer.write()?;
    let head = format!("%llguidance {{\"ignore_once\": true}}\n%ignore /{}/\n", writer::JSON_SPACE);
    Ok(SchemaGrammar { lark: head + &writer.lark, is_narrow: writer.is_narrow })
}
