//! Tools of `/v1/responses` requests, converted to functions for the model, and calls of these
//! functions, converted back to the items that clients expect.
//!
//! | tool in the request | function for the model | item for a call |
//! | --- | --- | --- |
//! | `function` | the function | `function_call` |
//! | `custom` (as `apply_patch`) | a function with one parameter, `input` | `custom_tool_call` |
//! | `namespace` (as MCP servers) | its functions | `function_call` with the `namespace` |
//! | `web_search`, `image_generation`, `tool_search` | none; also omitted in the answer | |
//! | other types | refused, with the name of the type | |

use std::collections::{HashMap, HashSet};

use ixc_text::chat::ToolCall;
use serde_json::{Map, Value, json};

use crate::http::error::HttpError;
use crate::http::fields::Fields;
use crate::http::tools::MAX_TOOLS;

/// The parameter of a custom tool.
pub(crate) const INPUT: &str = "input";
/// Types of tools that are left out, or prefixes of these types.
const OMITTED_TYPES: [&str; 3] = ["web_search", "image_generation", "tool_search"];

/// The tools of a request.
#[derive(Debug, Default)]
pub(crate) struct ResponseTools {
    /// The functions, in the form of a chat completion.
    pub(crate) functions: Vec<Value>,
    /// Tools in the prompt, in the form of the request.
    pub(crate) prompt_tools: Vec<Value>,
    custom_tools: HashSet<String>,
    /// Functions of namespaces, each with its namespace.
    namespace_of: HashMap<String, String>,
}

fn wrong(what: String) -> HttpError {
    HttpError::invalid(Some("tools"), what)
}

impl ResponseTools {
    /// Reads the tools of a request.
    pub(crate) fn parse(fields: &Fields) -> Result<ResponseTools, HttpError> {
        let mut tools = ResponseTools::default();
        let Some(list) = fields.get("tools") else { return Ok(tools) };
        let list = list.as_array().filter(|list| list.len() <= MAX_TOOLS);
        let list = list.ok_or_else(|| wrong(format!("tools must be a list of at most {MAX_TOOLS}")))?;
        for (i, tool) in list.iter().enumerate() {
            let kind = tool["type"].as_str().unwrap_or_default();
            if OMITTED_TYPES.iter().any(|omitted| kind.starts_with(omitted)) {
                continue;
            }
            let name = tool["name"].as_str().ok_or_else(|| wrong(format!("tools[{i}] has no name")));
            match kind {
                "function" => {
                    name?;
                    tools.add(tool)?;
                }
                "custom" => {
                    tools.custom_tools.insert(name?.to_owned());
                    tools.add(&as_function(tool))?;
                }
                "namespace" => {
                    let (name, inner) = (name?, tool["tools"].as_array());
                    for inner in inner.into_iter().flatten().filter(|inner| inner["type"] == "function") {
                        let own = inner["name"].as_str().unwrap_or_default().to_owned();
                        tools.namespace_of.insert(own, name.to_owned());
                        tools.add(inner)?;
                    }
                }
                _ => {
                    let only = "only functions and custom tools are supported";
                    return Err(wrong(format!("tools[{i}] is of type {}: {only}", tool["type"])));
                }
            }
            tools.prompt_tools.push(tool.clone());
        }
        Ok(tools)
    }

    /// Adds a function.
    fn add(&mut self, tool: &Value) -> Result<(), HttpError> {
        if self.functions.len() == MAX_TOOLS {
            return Err(wrong(format!("tools must be at most {MAX_TOOLS}")));
        }
        let members = ["name", "description", "parameters", "strict"].into_iter();
        let function = members.filter_map(|name| Some((name.to_owned(), tool.get(name)?.clone())));
        self.functions.push(json!({"type": "function", "function": function.collect::<Map<_, _>>()}));
        Ok(())
    }

    /// Returns whether a tool takes a text instead of JSON arguments.
    pub(crate) fn is_custom(&self, name: &str) -> bool {
        self.custom_tools.contains(name)
    }

    /// Converts a call to an item.
    pub(crate) fn call_item(&self, id: &str, call: &ToolCall, status: &str) -> Value {
        let ToolCall { id: call_id, name, arguments } = call;
        if self.is_custom(name) {
            let members: Value = serde_json::from_str(arguments).unwrap_or_default();
            let input = members[INPUT].as_str().unwrap_or_default();
            return json!({
                "id": id, "type": "custom_tool_call", "call_id": call_id, "name": name, "input": input, "status": status,
            });
        }
        let mut item = json!({
            "id": id, "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, "status": status,
        });
        if let Some(namespace) = self.namespace_of.get(name) {
            item["namespace"] = namespace.as_str().into();
        }
        item
    }
}

/// Converts a custom tool to a function with one text parameter.
fn as_function(tool: &Value) -> Value {
    let mut description = tool["description"].as_str().unwrap_or_default().to_owned();
    if let Some(definition) = tool["format"]["definition"].as_str() {
        description = format!("{description}\nThe text of {INPUT:?} follows this grammar:\n{definition}");
    }
    json!({
        "name": tool["name"], "description": description.trim(),
        "parameters": {
            "type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT], "additionalProperties": false,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_tools(tools: Value) -> Result<ResponseTools, String> {
        ResponseTools::parse(&Fields::new(Map::from_iter([("tools".to_owned(), tools)])))
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn tools_are_a_list_of_known_types() {
        let function = || json!({"type": "function", "name": "f"});
        assert!(
            parse_tools(json!([])).is_ok()
                && parse_tools(json!([function()])).is_ok()
                && parse_tools(Value::Null).is_ok()
        );
        for (tools, says) in [
            (function(), "must be a list"),
            (json!("f"), "must be a list"),
            (vec![function(); MAX_TOOLS + 1].into(), "must be a list"),
            (json!([{"type": "namespace", "name": "n", "tools": vec![function(); MAX_TOOLS + 1]}]), "at most"),
            (json!([{"type": "function"}]), "tools[0] has no name"),
            (json!([{"type": "local_shell"}]), "\"local_shell\""),
            (json!([function(), {"type": "file_search"}]), "tools[1] is of type \"file_search\""),
            (json!([{}]), "functions and custom"),
        ] {
            let error = parse_tools(tools.clone()).unwrap_err();
            assert!(error.contains(says), "{tools}: {error}");
        }
    }

    #[test]
    fn tool_calls_become_response_items_of_their_type() {
        let tools = parse_tools(json!([
            {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": {"type": "grammar", "definition": "start: x"}},
            {"type": "namespace", "name": "mcp__files", "tools": [{"type": "function", "name": "read", "parameters": {}}]},
            {"type": "web_search", "external_web_access": false},
        ]))
        .unwrap();
        let names: Vec<_> = tools.functions.iter().map(|tool| &tool["function"]["name"]).collect();
        assert_eq!(names, ["apply_patch", "read"]);
        assert!(tools.functions[0].to_string().contains("start: x"));
        assert_eq!(tools.prompt_tools.len(), 2);
        let item = |name: &str, arguments: &str| {
            let call = ToolCall { id: "c".into(), name: name.into(), arguments: arguments.into() };
            tools.call_item("i", &call, "completed")
        };
        let patch = item("apply_patch", r#"{"input": "*** \"a\"\n"}"#);
        assert_eq!((&patch["type"], &patch["input"]), (&json!("custom_tool_call"), &json!("*** \"a\"\n")));
        let read = item("read", "{}");
        assert_eq!((&read["type"], &read["namespace"]), (&json!("function_call"), &json!("mcp__files")));
    }
}
