//! Which parameters are texts. Formats that write values as they are cannot tell the text `1` from the number; the tools' schemas can.

use std::collections::HashSet;

use serde_json::Value;

/// Parameters of tools whose schema says that they are strings.
#[derive(Clone, Debug, Default)]
pub struct TextParameters {
    names: HashSet<(String, String)>,
}

impl TextParameters {
    /// From a list of tools as OpenAI's interface has it, `[{"type": "function", "function": {"name": …, "parameters": …}}, …]`. What is
    /// not of that form says nothing.
    pub fn of_tools(tools: &str) -> TextParameters {
        let tools: Value = serde_json::from_str(tools).unwrap_or_default();
        let mut names = HashSet::new();
        for tool in tools.as_array().into_iter().flatten() {
            let function = tool.get("function").unwrap_or(tool);
            let Some(name) = function.get("name").and_then(Value::as_str) else { continue };
            let properties = function.pointer("/parameters/properties").and_then(Value::as_object);
            let texts = properties.into_iter().flatten().filter(|(_, schema)| schema["type"] == "string");
            names.extend(texts.map(|(parameter, _)| (name.to_owned(), parameter.clone())));
        }
        TextParameters { names }
    }

    /// Whether this parameter is a text.
    pub(super) fn contains(&self, tool: &str, parameter: &str) -> bool {
        // The set is small, and a key of borrowed halves is no key of it.
        self.names.contains(&(tool.to_owned(), parameter.to_owned()))
    }
}
