//! What can be asked for.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{GrammarError, MAX_BYTES, MAX_DEPTH, MAX_LARK_BYTES, MAX_LARK_DEPTH};

/// White space between the parts of JSON: some, as people indent it. Without a bound models that are not sure write nothing else.
const JSON_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,20}";

/// What an answer may be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Source {
    /// JSON that a schema describes; `true` is any.
    Schema(Value),
    /// A text that a regular expression matches, all of it.
    Regex(String),
    /// Lark, as llguidance takes it: <https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md>.
    Lark(String),
    /// llama.cpp's grammars: <https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md>.
    Gbnf(String),
}

impl Source {
    /// Any JSON object.
    pub fn json_object() -> Source {
        Source::Schema(json!({"type": "object"}))
    }

    /// A grammar as llama.cpp's users write it: GBNF, or Lark behind `%llguidance`.
    pub fn of_text(text: &str) -> Source {
        match text.trim_start().starts_with("%llguidance") {
            true => Source::Lark(text.to_owned()),
            false => Source::Gbnf(text.to_owned()),
        }
    }

    /// As Lark. Recurses as the source nests: for a thread with room for that.
    ///
    /// # Errors
    /// When it is longer or deeper than what is taken, or no GBNF.
    pub(crate) fn lark(&self) -> Result<String, GrammarError> {
        let lark = match self {
            Source::Schema(schema) => bounded(format!("start: %json {}\n", with_space(schema.clone())))?,
            Source::Regex(regex) => {
                let regex = bounded(regex.clone())?;
                // A slash ends an expression in Lark.
                let regex = regex.replace("\\/", "/").replace('/', "\\x2f").replace('\n', "\\n");
                bounded(format!("start: /{regex}/\n"))?
            }
            Source::Lark(lark) => bounded(lark.clone())?,
            Source::Gbnf(gbnf) => crate::gbnf::to_lark(&bounded(gbnf.clone())?)?,
        };
        let depth = lark.lines().fold(0, |sum, line| sum + 1 + depth(line));
        match () {
            () if lark.len() > MAX_LARK_BYTES => Err(GrammarError::TooLarge),
            () if depth > MAX_LARK_DEPTH => Err(GrammarError::TooLarge),
            () => Ok(lark),
        }
    }
}

/// A schema as a part of a Lark grammar: `%json` and its text, with bounded white space.
pub fn json_literal(schema: &Value) -> String {
    format!("%json {}", with_space(schema.clone()))
}

/// The schema, which says what white space it takes unless it did.
fn with_space(schema: Value) -> Value {
    let mut members = match schema {
        Value::Object(members) => members,
        // Any.
        Value::Bool(true) => serde_json::Map::new(),
        other => return other,
    };
    members.entry("x-guidance").or_insert_with(|| json!({"whitespace_pattern": JSON_SPACE}));
    Value::Object(members)
}

/// Refuses what is too long or too deep.
fn bounded(text: String) -> Result<String, GrammarError> {
    if text.len() > MAX_BYTES {
        return Err(GrammarError::TooLong { bytes: text.len() });
    }
    let depth = depth(&text);
    if depth > MAX_DEPTH { Err(GrammarError::TooDeep { depth }) } else { Ok(text) }
}

/// How deep brackets nest.
fn depth(text: &str) -> usize {
    let (mut open, mut depth) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        depth = depth.max(open);
    }
    depth
}
