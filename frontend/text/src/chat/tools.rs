//! What the tools' schemas say of parameters. Formats that write values as they are cannot tell the text `1` from the number; the schemas can.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// What a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text.
    Text,
    /// A text or `null`.
    TextOrNull,
    /// Another value of JSON.
    Value,
}

/// Parameters of tools, as far as their schemas say which are strings; and which tools there are.
#[derive(Clone, Debug, Default)]
pub struct TextParameters {
    tools: HashSet<String>,
    kinds: HashMap<(String, String), Kind>,
}

impl TextParameters {
    /// From a list of tools as OpenAI's interface has it, `[{"type": "function", "function": {"name": …, "parameters": …}}, …]`. What is
    /// not of that form says nothing.
    pub fn of_tools(tools: &str) -> TextParameters {
        let tools: Value = serde_json::from_str(tools).unwrap_or_default();
        let mut known = TextParameters::default();
        for tool in tools.as_array().into_iter().flatten() {
            let function = tool.get("function").unwrap_or(tool);
            let Some(name) = function.get("name").and_then(Value::as_str) else { continue };
            known.tools.insert(name.to_owned());
            let properties = function.pointer("/parameters/properties").and_then(Value::as_object);
            let kinds = properties
                .into_iter()
                .flatten()
                .filter_map(|(parameter, schema)| Some(((name.to_owned(), parameter.clone()), kind_of(schema)?)));
            known.kinds.extend(kinds);
        }
        known
    }

    /// Of tools one by one, each as JSON.
    pub fn of_each<'t>(tools: impl Iterator<Item = &'t str>) -> TextParameters {
        TextParameters::of_tools(&format!("[{}]", tools.collect::<Vec<_>>().join(",")))
    }

    /// Whether there is a tool at all.
    pub(super) fn has_tools(&self) -> bool {
        !self.tools.is_empty()
    }

    /// Whether there is this tool.
    pub(super) fn has_tool(&self, tool: &str) -> bool {
        self.tools.contains(tool)
    }

    /// Whether this begins the name of a tool.
    pub(super) fn may_be_tool(&self, beginning: &str) -> bool {
        self.tools.iter().any(|tool| tool.starts_with(beginning))
    }

    /// What a parameter is; `None` where nothing says so.
    pub(super) fn kind(&self, tool: &str, parameter: &str) -> Option<Kind> {
        // The map is small, and a key of borrowed halves is no key of it.
        self.kinds.get(&(tool.to_owned(), parameter.to_owned())).copied()
    }
}

/// What a schema says of a value: by its types, those of its alternatives, or by the values that it lists.
fn kind_of(schema: &Value) -> Option<Kind> {
    let mut types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().map(|one| one.as_str().unwrap_or("")).collect(),
        _ => Vec::new(),
    };
    if types.is_empty() {
        let type_of = |value: &Value| match value {
            Value::String(_) => "string",
            Value::Null => "null",
            _ => "other",
        };
        types = match (schema["enum"].as_array(), schema.get("const")) {
            (Some(values), _) => values.iter().map(type_of).collect(),
            (None, Some(value)) => vec![type_of(value)],
            (None, None) => {
                let any = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array())?;
                any.iter().map(|one| one["type"].as_str().unwrap_or("")).collect()
            }
        };
    }
    let has = |wanted: &str| types.contains(&wanted);
    match (has("string"), has("null")) {
        _ if types.is_empty() || has("") => None,
        (true, false) if types.iter().all(|one| *one == "string") => Some(Kind::Text),
        (true, true) if types.iter().all(|one| matches!(*one, "string" | "null")) => Some(Kind::TextOrNull),
        // It may be a text, and something else.
        (true, _) => None,
        (false, _) => Some(Kind::Value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_say_what_is_a_text() {
        let cases = [
            (r#"{"type": "string"}"#, Some(Kind::Text)),
            (r#"{"type": ["string"]}"#, Some(Kind::Text)),
            (r#"{"enum": ["a", "1"]}"#, Some(Kind::Text)),
            (r#"{"const": "a"}"#, Some(Kind::Text)),
            (r#"{"anyOf": [{"type": "string"}, {"type": "null"}]}"#, Some(Kind::TextOrNull)),
            (r#"{"type": ["null", "string"]}"#, Some(Kind::TextOrNull)),
            (r#"{"type": "integer"}"#, Some(Kind::Value)),
            (r#"{"type": ["object", "null"]}"#, Some(Kind::Value)),
            (r#"{"oneOf": [{"type": "string"}, {"type": "number"}]}"#, None),
            (r#"{"type": ["string", "number"]}"#, None),
            (r##"{"anyOf": [{"$ref": "#/x"}, {"type": "null"}]}"##, None),
            ("{}", None),
            (r#"{"enum": []}"#, None),
            ("true", None),
        ];
        for (schema, expected) in cases {
            assert_eq!(kind_of(&serde_json::from_str(schema).unwrap()), expected, "{schema}");
        }
    }
}
