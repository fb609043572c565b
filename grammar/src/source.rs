//! What can be asked for.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{GrammarError, MAX_BYTES, MAX_DEPTH, MAX_LARK_BYTES, MAX_LARK_DEPTH};
use crate::keys::Begin;
use crate::schema;

/// What an answer may be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Source {
    /// JSON that a schema describes; `true` is any.
    Schema(Value),
    /// JSON that schemas describe, with other text around it.
    Framed(Frame),
    /// A text that a regular expression matches, all of it.
    Regex(String),
    /// Lark, as llguidance takes it:
    /// <https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md>.
    Lark(String),
    /// llama.cpp's grammars:
    /// <https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md>.
    Gbnf(String),
}

/// A grammar around schemas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// Lark whose rules `schema0`, `schema1` and so on are the schemas.
    pub lark: String,
    /// The schemas.
    pub schemas: Vec<Value>,
    /// Text before the JSON.
    pub begin: Begin,
}

/// A source as Lark.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    pub lark: String,
    /// For schemas: the text before their JSON, and whether a schema restricts names.
    pub keys: Option<(Begin, bool)>,
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

    /// Compiles the source to Lark. Recurses as deep as the source nests, so the thread needs a
    /// large stack.
    ///
    /// # Errors
    /// When it is too long or too deep, no GBNF, or a schema that cannot be followed.
    pub(crate) fn compile(&self) -> Result<Compiled, GrammarError> {
        let without_keys = |lark: String| Compiled { lark, keys: None };
        let compiled = match self {
            Source::Schema(schema) => {
                let grammar = schema::compile(bounded_schema(schema)?)?;
                Compiled { lark: grammar.lark, keys: Some((Begin::default(), grammar.is_narrow)) }
            }
            Source::Framed(frame) => frame.compile()?,
            Source::Regex(regex) => {
                without_keys(bounded(format!("start: {}\n", regex_literal(&bounded(regex.clone())?)))?)
            }
            Source::Lark(lark) => without_keys(bounded(lark.clone())?),
            Source::Gbnf(gbnf) => without_keys(crate::gbnf::to_lark(&bounded(gbnf.clone())?)?),
        };
        let depth = compiled.lark.lines().fold(0, |sum, line| sum + 1 + depth(line));
        match () {
            () if compiled.lark.len() > MAX_LARK_BYTES => Err(GrammarError::TooLarge),
            () if depth > MAX_LARK_DEPTH => Err(GrammarError::TooLarge),
            () => Ok(compiled),
        }
    }
}

impl Source {
    /// Translates an error of the Lark compiler into one about the user's source.
    pub(crate) fn refusal(&self, message: &str) -> GrammarError {
        let is_own = match self {
            Source::Regex(_) | Source::Lark(_) => true,
            Source::Framed(frame) => frame.schemas.is_empty(),
            Source::Schema(_) | Source::Gbnf(_) => false,
        };
        // Other sources were rewritten to Lark, so the message is about text that users never saw.
        // Only names are the user's own.
        let name = message.find("unknown special token").map(|at| message[at..].split(';').next().unwrap_or_default());
        match (name, is_own) {
            _ if message.contains("panic") => GrammarError::TooLarge,
            (_, true) => GrammarError::Compile { message: message.to_owned() },
            (Some(name), _) => GrammarError::Compile { message: name.to_owned() },
            _ => GrammarError::TooLarge,
        }
    }
}

/// A regular expression as a part of a Lark grammar.
pub fn regex_literal(regex: &str) -> String {
    // A slash ends an expression in Lark.
    format!("/{}/", regex.replace("\\/", "/").replace('/', "\\x2f").replace('\n', "\\n"))
}

impl Frame {
    fn compile(&self) -> Result<Compiled, GrammarError> {
        let mut compiled =
            Compiled { lark: self.lark.clone(), keys: (!self.schemas.is_empty()).then(|| (self.begin.clone(), false)) };
        let mut known: Vec<(&Value, usize)> = Vec::new();
        for (number, schema) in self.schemas.iter().enumerate() {
            let name = format!("schema{number}");
            if let Some((_, same)) = known.iter().find(|(known, _)| *known == schema) {
                compiled.lark.push_str(&format!("{name}: schema{same}\n"));
                continue;
            }
            known.push((schema, number));
            let grammar = schema::compile(bounded_schema(schema)?)?;
            compiled.lark.push_str(&format!("{name}: %lark {{\n{}}}\n", grammar.lark));
            compiled.keys = compiled.keys.map(|(begin, is_narrow)| (begin, is_narrow || grammar.is_narrow));
        }
        Ok(compiled)
    }
}

/// Refuses a schema that is too long or too deep.
fn bounded_schema(schema: &Value) -> Result<&Value, GrammarError> {
    bounded(schema.to_string())?;
    Ok(schema)
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
