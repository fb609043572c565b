//! Types of parameters, from the schemas of tools. Formats that write values without quotation
//! marks cannot distinguish the string `1` from the number 1; the schemas can.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// Type of a parameter, by its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterType {
    /// A string.
    Text,
    /// A string or `null`.
    TextOrNull,
    /// A JSON value of another type.
    Value,
}

/// Names of a request's tools, and types of their parameters.
#[derive(Clone, Debug, Default)]
pub struct TextParameters {
    tools: HashSet<String>,
    kinds: HashMap<(String, String), ParameterType>,
}

impl TextParameters {
    /// Reads a list of tools in the form of OpenAI's interface: `[{"type": "function", "function":
    /// {"name": …, "parameters": …}}, …]`. Ignores elements in any other form.
    pub fn of_tools(tools: &str) -> TextParameters {
        let tools: Value = serde_json::from_str(tools).unwrap_or_default();
        let mut known = TextParameters::default();
        for tool in tools.as_array().into_iter().flatten() {
            let function = tool.get("function").unwrap_or(tool);
            let Some(name) = function.get("name").and_then(Value::as_str) else { continue };
            known.tools.insert(name.to_owned());
            let properties = function.pointer("/parameters/properties").and_then(Value::as_object);
            let kinds = properties.into_iter().flatten().filter_map(|(parameter, schema)| {
                Some(((name.to_owned(), parameter.clone()), parameter_type(schema)?))
            });
            known.kinds.extend(kinds);
        }
        known
    }

    /// Reads tools, each given as JSON in the form of OpenAI's interface.
    pub fn of_each<'t>(tools: impl Iterator<Item = &'t str>) -> TextParameters {
        TextParameters::of_tools(&format!("[{}]", tools.collect::<Vec<_>>().join(",")))
    }

    /// Returns whether there are tools.
    pub(super) fn has_tools(&self) -> bool {
        !self.tools.is_empty()
    }

    /// Returns whether a tool with this name exists.
    pub(super) fn has_tool(&self, tool: &str) -> bool {
        self.tools.contains(tool)
    }

    /// Returns whether some tool's name begins with this text.
    pub(super) fn may_be_tool(&self, beginning: &str) -> bool {
        self.tools.iter().any(|tool| tool.starts_with(beginning))
    }

    /// Returns the type of a parameter; `None` if its schema does not determine it.
    pub(super) fn kind(&self, tool: &str, parameter: &str) -> Option<ParameterType> {
        // The map is small. Its keys own their strings, so a lookup needs copies.
        self.kinds.get(&(tool.to_owned(), parameter.to_owned())).copied()
    }
}

/// Returns the type that a schema states with `type`, with alternatives, or with a list of values.
fn parameter_type(schema: &Value) -> Option<ParameterType> {
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
        (true, false) if types.iter().all(|one| *one == "string") => Some(ParameterType::Text),
        (true, true) if types.iter().all(|one| matches!(*one, "string" | "null")) => Some(ParameterType::TextOrNull),
        // A value that may be a string or another type has no certain type.
        (true, _) => None,
        (false, _) => Some(ParameterType::Value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_schemas_keep_parameters_as_text() {
        let cases = [
            (r#"{"type": "string"}"#, Some(ParameterType::Text)),
            (r#"{"type": ["string"]}"#, Some(ParameterType::Text)),
            (r#"{"enum": ["a", "1"]}"#, Some(ParameterType::Text)),
            (r#"{"const": "a"}"#, Some(ParameterType::Text)),
            (r#"{"anyOf": [{"type": "string"}, {"type": "null"}]}"#, Some(ParameterType::TextOrNull)),
            (r#"{"type": ["null", "string"]}"#, Some(ParameterType::TextOrNull)),
            (r#"{"type": "integer"}"#, Some(ParameterType::Value)),
            (r#"{"type": ["object", "null"]}"#, Some(ParameterType::Value)),
            (r#"{"oneOf": [{"type": "string"}, {"type": "number"}]}"#, None),
            (r#"{"type": ["string", "number"]}"#, None),
            (r##"{"anyOf": [{"$ref": "#/x"}, {"type": "null"}]}"##, None),
            ("{}", None),
            (r#"{"enum": []}"#, None),
            ("true", None),
        ];
        for (schema, expected) in cases {
            assert_eq!(parameter_type(&serde_json::from_str(schema).unwrap()), expected, "{schema}");
        }
    }
}
