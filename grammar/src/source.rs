//! Sources of grammars, as requests state them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{GrammarError, MAX_BYTES, MAX_DEPTH, MAX_LARK_BYTES, MAX_LARK_DEPTH, MAX_SCHEMA_DEPTH};
use crate::keys::ReasoningMarks;
use crate::schema::{self, escape_pointer};

/// Source of an answer's grammar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum GrammarSource {
    /// Schema that the JSON of the answer satisfies. The schema `true` allows any JSON.
    Schema(#[serde(with = "as_text")] Value),
    /// Schemas for the JSON in the answer, and a grammar for the text around it.
    Framed(Frame),
    /// Regular expression that matches the answer as a whole.
    Regex(String),
    /// Lark in the form of llguidance:
    /// <https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md>.
    Lark(String),
    /// GBNF, the grammar language of llama.cpp:
    /// <https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md>.
    Gbnf(String),
}

/// Grammar with schemas in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// Grammar in Lark. Its rules `schema0`, `schema1` and so on are the schemas.
    pub lark: String,
    /// Schemas in the order of their numbers.
    #[serde(with = "as_texts")]
    pub schemas: Vec<Value>,
    /// Names of the tools whose arguments the first schemas describe. The other schemas are for the
    /// answer itself.
    pub tools: Vec<String>,
    /// Marks of the reasoning before the JSON.
    pub begin: ReasoningMarks,
}

/// Source of a grammar, converted to Lark.
#[derive(Clone, Debug)]
pub(crate) struct LarkSource {
    pub lark: String,
    /// Marks of reasoning, and whether a schema restricts names. It is `None` for grammars without
    /// schemas.
    pub keys: Option<(ReasoningMarks, bool)>,
}

impl GrammarSource {
    /// Returns the source that allows any JSON object.
    pub fn json_object() -> GrammarSource {
        GrammarSource::Schema(json!({"type": "object"}))
    }

    /// Reads a grammar as users of llama.cpp write it: as GBNF, or as Lark after `%llguidance`.
    pub fn of_text(text: &str) -> GrammarSource {
        match text.trim_start().starts_with("%llguidance") {
            true => GrammarSource::Lark(text.to_owned()),
            false => GrammarSource::Gbnf(text.to_owned()),
        }
    }

    /// Compiles the source to Lark. The recursion is as deep as the nesting of the source, so the
    /// thread needs a large stack.
    ///
    /// # Errors
    /// If the source is too long or too deeply nested, is not valid GBNF, or has a schema that
    /// cannot be enforced.
    pub(crate) fn compile(&self) -> Result<LarkSource, GrammarError> {
        self.check_schemas()?;
        let without_keys = |lark: String| LarkSource { lark, keys: None };
        let compiled = match self {
            GrammarSource::Schema(schema) => {
                let grammar = schema::compile(schema)?;
                LarkSource { lark: grammar.lark, keys: Some((ReasoningMarks::default(), grammar.is_narrow)) }
            }
            GrammarSource::Framed(frame) => frame.compile()?,
            GrammarSource::Regex(regex) => {
                without_keys(check_bounds(format!("start: {}\n", regex_literal(&check_bounds(regex.clone())?)))?)
            }
            GrammarSource::Lark(lark) => without_keys(check_bounds(lark.clone())?),
            GrammarSource::Gbnf(gbnf) => without_keys(crate::gbnf::to_lark(&check_bounds(gbnf.clone())?)?),
        };
        let depth = compiled.lark.lines().fold(0, |sum, line| sum + 1 + depth(line));
        match () {
            () if compiled.lark.len() > MAX_LARK_BYTES => Err(GrammarError::TooLarge),
            () if depth > MAX_LARK_DEPTH => Err(GrammarError::TooLarge),
            () => Ok(compiled),
        }
    }
}

impl GrammarSource {
    /// Refuses schemas that are too long or too deeply nested. Uses no recursion.
    pub(crate) fn check_schemas(&self) -> Result<(), GrammarError> {
        match self {
            GrammarSource::Schema(schema) => check_schema(schema),
            GrammarSource::Framed(frame) => {
                let mut all = frame.schemas.iter().enumerate();
                all.try_for_each(|(at, schema)| check_schema(schema).map_err(|error| error.owned_by(frame.tool(at))))
            }
            GrammarSource::Regex(_) | GrammarSource::Lark(_) | GrammarSource::Gbnf(_) => Ok(()),
        }
    }

    /// Converts a message of the compiler to an error that users understand from their source.
    pub(crate) fn refusal(&self, message: &str) -> GrammarError {
        let is_own = match self {
            GrammarSource::Regex(_) | GrammarSource::Lark(_) => true,
            GrammarSource::Framed(frame) => frame.schemas.is_empty(),
            GrammarSource::Schema(_) | GrammarSource::Gbnf(_) => false,
        };
        // Other sources were converted to Lark, so the message is about a text that users never
        // saw. They know only the names in it.
        let name = message.find("unknown special token").map(|at| message[at..].split(';').next().unwrap_or_default());
        match (name, is_own) {
            _ if message.contains("panic") => GrammarError::TooLarge,
            (_, true) => GrammarError::Compile { message: message.to_owned() },
            (Some(name), _) => GrammarError::Compile { message: name.to_owned() },
            _ => GrammarError::TooLarge,
        }
    }
}

/// Returns a regular expression as a literal of a Lark grammar.
pub fn regex_literal(regex: &str) -> String {
    // A slash ends an expression in Lark.
    format!("/{}/", regex.replace("\\/", "/").replace('/', "\\x2f").replace('\n', "\\n"))
}

impl Frame {
    /// Returns the name of a schema's tool. Returns an empty text for an answer's schema.
    fn tool(&self, number: usize) -> &str {
        self.tools.get(number).map_or("", String::as_str)
    }

    fn compile(&self) -> Result<LarkSource, GrammarError> {
        let mut compiled = LarkSource {
            lark: self.lark.clone(),
            keys: (!self.schemas.is_empty()).then(|| (self.begin.clone(), false)),
        };
        let mut known: Vec<(&Value, usize)> = Vec::new();
        for (number, schema) in self.schemas.iter().enumerate() {
            let name = format!("schema{number}");
            if let Some((_, same)) = known.iter().find(|(known, _)| *known == schema) {
                compiled.lark.push_str(&format!("{name}: schema{same}\n"));
                continue;
            }
            known.push((schema, number));
            let grammar = schema::compile(schema).map_err(|error| error.owned_by(self.tool(number)))?;
            compiled.lark.push_str(&format!("{name}: %lark {{\n{}}}\n", grammar.lark));
            compiled.keys = compiled.keys.map(|(begin, is_narrow)| (begin, is_narrow || grammar.is_narrow));
        }
        Ok(compiled)
    }
}

/// Refuses a schema that is too long or too deeply nested.
fn check_schema(schema: &Value) -> Result<(), GrammarError> {
    if let Some(place) = too_deep(schema) {
        let message = format!(
            "it nests more than {MAX_SCHEMA_DEPTH} levels deep here; move parts to $defs, and name them by $ref"
        );
        return Err(GrammarError::Schema { owner: String::new(), place, message });
    }
    // The nesting was just checked, so the schema can be written as text.
    let bytes = schema.to_string().len();
    if bytes > MAX_BYTES { Err(GrammarError::TooLong { bytes }) } else { Ok(()) }
}

/// Returns the first position that is nested too deeply.
fn too_deep(schema: &Value) -> Option<String> {
    // These are an iterator over the members of each open value, and the names on the path to it.
    let mut open: Vec<Box<dyn Iterator<Item = (String, &Value)>>> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    let mut next = Some(schema);
    loop {
        match next {
            Some(Value::Object(members)) => {
                open.push(Box::new(members.iter().map(|(name, value)| (escape_pointer(name), value))))
            }
            Some(Value::Array(all)) => {
                open.push(Box::new(all.iter().enumerate().map(|(at, value)| (at.to_string(), value))));
            }
            _ => drop(names.pop()),
        }
        if open.len() > MAX_SCHEMA_DEPTH {
            return Some(shorten_pointer(&names));
        }
        next = loop {
            match open.last_mut()?.next() {
                Some((name, value)) => {
                    names.push(name);
                    break Some(value);
                }
                None => {
                    open.pop();
                    names.pop();
                }
            }
        };
    }
}

/// Returns a JSON pointer. If it is long, its middle is omitted.
fn shorten_pointer(names: &[String]) -> String {
    const SHOWN: usize = 4;
    match names.len() > 2 * SHOWN {
        true => format!("#/{}/…/{}", names[..SHOWN].join("/"), names[names.len() - SHOWN..].join("/")),
        false => format!("#/{}", names.join("/")),
    }
}

/// Serialisation of schemas as JSON texts, so that they add no levels to the message around them.
mod as_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    pub fn serialize<S: Serializer>(schema: &Value, serializer: S) -> Result<S::Ok, S::Error> {
        schema.to_string().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        serde_json::from_str(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Serialisation of lists of schemas as JSON texts.
mod as_texts {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use serde_json::Value;

    pub fn serialize<S: Serializer>(schemas: &[Value], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(schemas.iter().map(Value::to_string))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Value>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| serde_json::from_str(text).map_err(D::Error::custom)).collect()
    }
}

/// Refuses a text that is too long or too deeply nested.
fn check_bounds(text: String) -> Result<String, GrammarError> {
    if text.len() > MAX_BYTES {
        return Err(GrammarError::TooLong { bytes: text.len() });
    }
    let depth = depth(&text);
    if depth > MAX_DEPTH { Err(GrammarError::TooDeep { depth }) } else { Ok(text) }
}

/// Returns the max nesting depth of brackets in a text.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolate::Request;

    /// Returns a schema of objects in lists of objects, nested `depth` levels deep.
    fn nested_schema(depth: usize) -> Value {
        (1..depth).fold(json!({}), |inner, level| if level % 2 > 0 { json!([inner]) } else { json!({"allOf": inner}) })
    }

    #[test]
    fn deepest_allowed_schema_reaches_the_helper() {
        let (max, more) = (nested_schema(MAX_SCHEMA_DEPTH), nested_schema(MAX_SCHEMA_DEPTH + 1));
        assert_eq!(max.to_string().matches(['[', '{']).count(), MAX_SCHEMA_DEPTH);
        let frame = Frame { schemas: vec![max.clone(), json!(true)], ..Frame::default() };
        for source in [GrammarSource::Schema(max), GrammarSource::Framed(frame)] {
            assert_eq!(source.check_schemas(), Ok(()));
            let request = serde_json::to_vec(&Request { source: source.clone(), special: Default::default() }).unwrap();
            assert_eq!(serde_json::from_slice::<Request>(&request).unwrap().source, source);
        }
        let tools = vec!["look".to_owned(), "find".to_owned()];
        let frame = Frame { schemas: vec![json!({}), more.clone()], tools: tools.clone(), ..Frame::default() };
        let error = GrammarSource::Framed(frame.clone()).check_schemas().unwrap_err().to_string();
        assert!(error.starts_with("the schema of the tool \"find\" at #/allOf/0/"), "{error}");
        let wrong = Frame { schemas: vec![json!({"type": "x"}), json!(1)], tools, ..Frame::default() };
        let error = GrammarSource::Framed(wrong).compile().unwrap_err().to_string();
        assert!(error.starts_with("the schema of the tool \"look\" at #/type: unknown type"), "{error}");
        let frame = Frame { tools: Vec::new(), ..frame };
        for source in [GrammarSource::Schema(more), GrammarSource::Framed(frame)] {
            let error = source.check_schemas().unwrap_err();
            assert_eq!(
                error.to_string(),
                "the schema at #/allOf/0/allOf/0/…/allOf/0/allOf/0: it nests more than 120 levels deep here; \
                 move parts to $defs, and name them by $ref"
            );
        }
        // A program can build a schema that nests deeper than any text that can be read.
        let deep = (0..1000).fold(json!({}), |inner, _| json!({"not": inner}));
        assert!(GrammarSource::Schema(deep).check_schemas().is_err());
    }

    #[test]
    fn depth_check_finds_deep_places_in_wide_schemas() {
        let wide = json!({"a/b": [{}, [1, {"x": {}}]], "c": nested_schema(MAX_SCHEMA_DEPTH - 1), "d": []});
        assert_eq!(too_deep(&wide), None);
        let deep = json!({"a": [[], {}], "b/c": {"d": [], "e": nested_schema(MAX_SCHEMA_DEPTH - 1)}});
        assert!(too_deep(&deep).unwrap().starts_with("#/b~1c/e/allOf/0/…/"), "{:?}", too_deep(&deep));
    }
}
