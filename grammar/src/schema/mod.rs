//! Compiler from JSON schemas to Lark rules.
//!
//! ```text
//! {"type": "object", "properties": {"a": {"type": "boolean"}},
//!  "required": ["a"], "additionalProperties": false}
//!
//! start: s0
//! s0: "{" /\x22a\x22/ ":" s1 "}"
//! s1: /true|false/
//! ```
//!
//! | file | what it owns |
//! | --- | --- |
//! | `keywords` | the table of keywords: shape of the value, and support |
//! | `document` | places, anchors and references; `uri` resolves those |
//! | `expand` | subschemas as sets of values; `negate` has the complements |
//! | `alternative` | those sets, one type at a time |
//! | `layout` | parts of objects and arrays; which sets are empty |
//! | `writer` | sets as rules; `automaton` has lists with commas |
//! | `number`, `decimal` | numbers, digit by digit |
//! | `text`, `pattern`, `formats` | regular expressions for texts and for their quoted form |
//!
//! Invariant: every text that the rules allow is valid. If a schema has no such rules, it is
//! refused before the first token. The error has its position in the schema.

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

pub(crate) use document::escape_pointer;
pub use keywords::{KEYWORDS, Keyword, KeywordSupport};

/// Grammar that was compiled from a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SchemaGrammar {
    /// Rules in Lark. The first rule is `start`.
    pub lark: String,
    /// Whether names are so restricted that a key may have only duplicates as completions.
    pub is_narrow: bool,
}

/// Compiles a schema. The recursion is as deep as the nesting of the schema, so the thread needs a
/// large stack.
///
/// # Errors
/// [`GrammarError::Schema`], with the position of a schema that is malformed, contradicts itself,
/// or is not supported.
pub(crate) fn compile(schema: &Value) -> Result<SchemaGrammar, GrammarError> {
    let mut writer = writer::Writer::new(schema);
    writer.write()?;
    let head = format!("%llguidance {{\"ignore_once\": true}}\n%ignore /{}/\n", writer::JSON_SPACE);
    Ok(SchemaGrammar { lark: head + &writer.lark, is_narrow: writer.is_narrow })
}
