//! Tools of a request, and the choice of those that may or must be called, in OpenAI's and
//! Anthropic's form.
//!
//! ```text
//! tool_choice          tools in the prompt     the answer
//! auto                 all tools               may call
//! none                 no tool                 is text, even if it looks like a call
//! required, any        all tools               has one or more calls
//! a function           all tools               is one call of this function
//! allowed_tools        the allowed tools       may call, or has calls
//! ```

use std::collections::HashSet;

use ixc_text::chat::is_name;
use ixc_text::template::Json;
use serde_json::{Map, Value, json};

use crate::http::error::HttpError;
use crate::http::fields::Fields;
use crate::model::Constraint;

/// Max tools of a request.
pub(crate) const MAX_TOOLS: usize = 1024;
/// Field with the tools.
const TOOLS: &str = "tools";
/// Field with the tool choice.
const CHOICE: &str = "tool_choice";

/// The tools of a request.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// Tools for the prompt, as templates have them.
    pub(crate) prompt_tools: Vec<Json>,
    /// Tools that the model may call, with the schemas of their arguments.
    callable_tools: Vec<(String, Value)>,
    /// Whether a tool must be called.
    is_required: bool,
    /// Whether several tools may be called at once.
    pub(crate) allows_parallel: bool,
}

/// The choice of tools.
#[derive(Debug, PartialEq, Eq)]
enum ToolChoice {
    Auto,
    None,
    Required,
    /// A call of the tool with this name.
    One(String),
    /// Only some of the tools may be called.
    Allowed {
        names: Vec<String>,
        is_required: bool,
    },
}

impl Tools {
    /// Reads the tools of a chat completion.
    pub(crate) fn of_chat(fields: &Fields) -> Result<Tools, HttpError> {
        let tools = list(fields)?.iter().enumerate().map(|(i, tool)| function(i, tool)).collect::<Result<_, _>>()?;
        let allows_parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
        Tools::new(tools, &choice(fields)?, allows_parallel)
    }

    /// Reads the tools of a message in Anthropic's interface.
    pub(crate) fn of_messages(fields: &Fields) -> Result<Tools, HttpError> {
        let tools = list(fields)?.iter().enumerate().map(|(i, tool)| anthropic(i, tool)).collect::<Result<_, _>>()?;
        let disables_parallel = fields.get(CHOICE).map(|choice| &choice["disable_parallel_tool_use"]);
        let allows_parallel = match disables_parallel {
            None | Some(Value::Null) => true,
            Some(Value::Bool(disables_parallel)) => !disables_parallel,
            Some(_) => return Err(wrong(CHOICE, "tool_choice.disable_parallel_tool_use must be true or false")),
        };
        Tools::new(tools, &anthropic_choice(fields)?, allows_parallel)
    }

    fn new(tools: Vec<Map<String, Value>>, choice: &ToolChoice, allows_parallel: bool) -> Result<Tools, HttpError> {
        let name = |function: &Map<String, Value>| function["name"].as_str().unwrap_or_default().to_owned();
        let mut names = HashSet::new();
        if let Some(duplicate) = tools.iter().map(name).find(|name| !names.insert(name.clone())) {
            return Err(wrong(TOOLS, format!("tools: two tools have the name {duplicate:?}; names must be unique")));
        }
        let unknown = |name: &String| wrong(CHOICE, format!("tool_choice: there is no tool {name:?}"));
        let allowed = match choice {
            ToolChoice::One(name) => std::slice::from_ref(name),
            ToolChoice::Allowed { names, .. } => names,
            ToolChoice::Auto | ToolChoice::None | ToolChoice::Required => &[],
        };
        if let Some(name) = allowed.iter().find(|name| !names.contains(*name)) {
            return Err(unknown(name));
        }
        let is_required =
            matches!(choice, ToolChoice::Required | ToolChoice::One(_) | ToolChoice::Allowed { is_required: true, .. });
        if is_required && names.is_empty() {
            return Err(wrong(CHOICE, "tool_choice: the request has no tools"));
        }
        let is_in_prompt = |name: &String| match choice {
            ToolChoice::None => false,
            ToolChoice::Allowed { names, .. } => names.contains(name),
            ToolChoice::Auto | ToolChoice::Required | ToolChoice::One(_) => true,
        };
        let is_callable = |name: &String| allowed.is_empty() || allowed.contains(name);
        let (mut prompt_tools, mut callable_tools) = (Vec::new(), Vec::new());
        for (i, function) in tools.into_iter().enumerate() {
            let name = name(&function);
            if is_in_prompt(&name) {
                if is_callable(&name) {
                    callable_tools.push((name, arguments(i, function.get("parameters"), is_required)?));
                }
                prompt_tools.push(json_text(&json!({"type": "function", "function": function}))?);
            }
        }
        let allows_parallel = allows_parallel && !matches!(choice, ToolChoice::One(_));
        Ok(Tools { prompt_tools, callable_tools, is_required, allows_parallel })
    }

    /// Returns the constraint of an answer: calls of tools, or content in the output format `form`.
    pub(crate) fn constraint(&self, form: Option<Constraint>) -> Result<Option<Constraint>, HttpError> {
        let calls = |otherwise| {
            let (tools, several) = (self.callable_tools.clone(), self.allows_parallel);
            Some(Constraint::Calls { tools, several, otherwise })
        };
        match form {
            Some(Constraint::Text(_)) if self.is_required => Err(wrong(
                CHOICE,
                "tool_choice and a grammar for the whole answer cannot be combined; give only one of them",
            )),
            // Content is not allowed with required calls.
            _ if self.is_required => Ok(calls(None)),
            Some(form @ (Constraint::Json(_) | Constraint::Regex(_))) if !self.callable_tools.is_empty() => {
                Ok(calls(Some(Box::new(form))))
            }
            form => Ok(form),
        }
    }
}

pub(crate) fn json_text(value: &Value) -> Result<Json, HttpError> {
    Json::new(value.to_string()).map_err(|error| HttpError::invalid(None, error.to_string()))
}

fn wrong(field: &'static str, what: impl Into<String>) -> HttpError {
    HttpError::invalid(Some(field), what)
}

fn list(fields: &Fields) -> Result<&[Value], HttpError> {
    match fields.get(TOOLS) {
        None => Ok(&[]),
        Some(Value::Array(list)) if list.len() <= MAX_TOOLS => Ok(list),
        Some(_) => Err(wrong(TOOLS, format!("tools must be a list of at most {MAX_TOOLS}"))),
    }
}

/// Returns the name of a tool, if a call can have this name.
fn check_name(i: usize, name: &Value) -> Result<(), HttpError> {
    match name.as_str() {
        Some(name) if is_name(name) => Ok(()),
        Some(_) => Err(wrong(
            TOOLS,
            format!(
                "tools[{i}] has a name that no call can have: 1 to 256 bytes, without white space and any of <>\"{{}}"
            ),
        )),
        None => Err(wrong(TOOLS, format!("tools[{i}] has no function with a name"))),
    }
}

/// Reads the function of an OpenAI tool.
fn function(i: usize, tool: &Value) -> Result<Map<String, Value>, HttpError> {
    match tool["type"].as_str() {
        None | Some("function") => {}
        Some(other) => {
            return Err(wrong(TOOLS, format!("tools[{i}] is of type {other:?}, and only functions are supported")));
        }
    }
    let Some(function) = tool["function"].as_object() else {
        return Err(wrong(TOOLS, format!("tools[{i}] has no function with a name")));
    };
    check_name(i, &tool["function"]["name"])?;
    Ok(function.clone())
}

/// Reads the function of an Anthropic tool.
fn anthropic(i: usize, tool: &Value) -> Result<Map<String, Value>, HttpError> {
    if !matches!(tool["type"].as_str(), None | Some("custom")) {
        let what = "the server has no tools of its own; only tools with an input_schema are supported";
        return Err(wrong(TOOLS, format!("tools[{i}] has type {}: {what}", tool["type"])));
    }
    if !tool["name"].is_string() || !tool["input_schema"].is_object() {
        return Err(wrong(TOOLS, format!("tools[{i}] must have a name and an input_schema")));
    }
    check_name(i, &tool["name"])?;
    let members = [("name", "name"), ("description", "description"), ("parameters", "input_schema")];
    let members = members.into_iter().filter_map(|(name, own)| Some((name.to_owned(), tool.get(own)?.clone())));
    Ok(members.collect())
}

/// Returns the schema of a call's arguments, always of an object. The object of a function without
/// parameters is empty.
fn arguments(i: usize, schema: Option<&Value>, is_required: bool) -> Result<Value, HttpError> {
    let none = || json!({"type": "object", "properties": {}, "additionalProperties": false});
    let mut schema = match schema {
        None | Some(Value::Null) => return Ok(none()),
        Some(Value::Bool(true)) => return Ok(json!({"type": "object"})),
        Some(Value::Object(schema)) if schema.is_empty() => return Ok(none()),
        Some(Value::Object(schema)) => schema.clone(),
        Some(_) => return Err(wrong(TOOLS, format!("tools[{i}]: the parameters must be a JSON schema, an object"))),
    };
    let takes_objects = match schema.get("type") {
        None | Some(Value::Null) => true,
        Some(Value::String(one)) => one == "object",
        Some(Value::Array(several)) => several.iter().any(|one| one == "object"),
        Some(_) => false,
    };
    if !takes_objects && is_required {
        return Err(wrong(TOOLS, format!("tools[{i}]: the parameters must be of the type object")));
    }
    schema.insert("type".to_owned(), "object".into());
    // For functions without parameters, some clients send a schema that has only these annotations.
    let annotations = ["type", "properties", "required", "title", "description", "$schema", "strict"];
    let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    if schema.get("properties").is_some_and(is_empty) && schema.keys().all(|key| annotations.contains(&&**key)) {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
    Ok(Value::Object(schema))
}

/// Reads OpenAI's `tool_choice`.
fn choice(fields: &Fields) -> Result<ToolChoice, HttpError> {
    let Some(choice) = fields.get(CHOICE) else { return Ok(ToolChoice::Auto) };
    let expected = || {
        HttpError::unsupported_error(
            CHOICE,
            "a tool_choice other than auto, none, required, a function and allowed_tools",
        )
    };
    let name = |of: &Value| of["function"]["name"].as_str().or_else(|| of["name"].as_str()).map(str::to_owned);
    let word = choice.as_str().or_else(|| choice["type"].as_str());
    match word {
        Some("auto") => Ok(ToolChoice::Auto),
        Some("none") => Ok(ToolChoice::None),
        // Mistral's clients send `any`.
        Some("required" | "any") => Ok(ToolChoice::Required),
        Some("function" | "custom") => {
            name(choice).map(ToolChoice::One).ok_or_else(|| wrong(CHOICE, "tool_choice names no function"))
        }
        Some("allowed_tools") => {
            let of = choice.get("allowed_tools").unwrap_or(choice);
            let names = of["tools"].as_array().and_then(|tools| tools.iter().map(name).collect::<Option<Vec<_>>>());
            let names = names.filter(|names| !names.is_empty());
            let is_required = match of["mode"].as_str() {
                Some("auto") => false,
                Some("required") => true,
                _ => return Err(wrong(CHOICE, "tool_choice: the mode of allowed_tools must be auto or required")),
            };
            let names = names.ok_or_else(|| wrong(CHOICE, "tool_choice: allowed_tools must name functions"))?;
            Ok(ToolChoice::Allowed { names, is_required })
        }
        _ => Err(expected()),
    }
}

/// Reads Anthropic's `tool_choice`.
fn anthropic_choice(fields: &Fields) -> Result<ToolChoice, HttpError> {
    let Some(choice) = fields.get(CHOICE) else { return Ok(ToolChoice::Auto) };
    match (choice["type"].as_str(), choice["name"].as_str()) {
        (Some("auto"), _) => Ok(ToolChoice::Auto),
        (Some("none"), _) => Ok(ToolChoice::None),
        (Some("any"), _) => Ok(ToolChoice::Required),
        (Some("tool"), Some(name)) => Ok(ToolChoice::One(name.to_owned())),
        _ => Err(wrong(CHOICE, "tool_choice must be of type auto, none, any, or tool with a name")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(fields: Value) -> Fields {
        Fields::parse(fields.to_string().as_bytes()).unwrap()
    }

    fn named_choice(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    /// Returns the number of tools in the prompt, the names of callable tools, and the flags
    /// `is_required` and `allows_parallel`.
    fn parse_choice(choice: Value) -> Result<(usize, Vec<String>, bool, bool), String> {
        let tools = json!([named_choice("a"), named_choice("b")]);
        let tools = Tools::of_chat(&fields(json!({"tools": tools, "tool_choice": choice})));
        let tools = tools.map_err(|error| error.message().to_owned())?;
        let callable_tools = tools.callable_tools.into_iter().map(|(name, _)| name).collect();
        Ok((tools.prompt_tools.len(), callable_tools, tools.is_required, tools.allows_parallel))
    }

    #[test]
    fn tool_choice_determines_offered_and_required_tools() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let both = || names(&["a", "b"]);
        let allowed = |mode: &str| json!({"mode": mode, "tools": [{"type": "function", "function": {"name": "b"}}]});
        for (choice, expected) in [
            (Value::Null, (2, both(), false, true)),
            (json!("auto"), (2, both(), false, true)),
            (json!({"type": "auto"}), (2, both(), false, true)),
            (json!("none"), (0, names(&[]), false, true)),
            (json!("required"), (2, both(), true, true)),
            (json!("any"), (2, both(), true, true)),
            (json!({"type": "function", "function": {"name": "a"}}), (2, names(&["a"]), true, false)),
            (json!({"type": "function", "name": "a"}), (2, names(&["a"]), true, false)),
            (json!({"type": "allowed_tools", "allowed_tools": allowed("auto")}), (1, names(&["b"]), false, true)),
            (json!({"type": "allowed_tools", "allowed_tools": allowed("required")}), (1, names(&["b"]), true, true)),
            (
                json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "a"}]}),
                (1, names(&["a"]), true, true),
            ),
        ] {
            assert_eq!(parse_choice(choice.clone()), Ok(expected), "{choice}");
        }
        for (choice, says) in [
            (json!("sometimes"), "auto, none, required"),
            (json!(1), "auto, none, required"),
            (json!({"type": "web_search"}), "auto, none, required"),
            (json!({"type": "function"}), "names no function"),
            (json!({"type": "function", "function": {"name": "c"}}), "there is no tool \"c\""),
            (json!({"type": "allowed_tools", "mode": "auto", "tools": []}), "must name functions"),
            (json!({"type": "allowed_tools", "tools": [{"name": "a"}]}), "auto or required"),
        ] {
            let wrong = parse_choice(choice.clone()).unwrap_err();
            assert!(wrong.contains(says), "{choice}: {wrong}");
        }
        let none = Tools::of_chat(&fields(json!({"tools": [], "tool_choice": "required"}))).unwrap_err();
        assert!(none.message().contains("no tools"), "{none:?}");
    }

    #[test]
    fn arguments_are_always_an_object() {
        let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
        let parsed = |schema: Value| arguments(0, Some(&schema), true).map_err(|error| error.message().to_owned());
        assert_eq!(arguments(0, None, true).unwrap(), none);
        for empty in [json!({}), Value::Null, json!({"type": "object", "properties": {}})] {
            assert_eq!(parsed(empty.clone()), Ok(none.clone()), "{empty}");
        }
        for schema in [
            json!({"properties": {"a": {}}}),
            json!({"type": ["object", "null"], "properties": {"a": {}}}),
            json!({"type": null, "properties": {"a": {}}}),
        ] {
            assert_eq!(parsed(schema), Ok(json!({"type": "object", "properties": {"a": {}}})));
        }
        assert_eq!(parsed(json!({"type": "object"})), Ok(json!({"type": "object"})));
        assert_eq!(parsed(json!(true)), Ok(json!({"type": "object"})));
        assert_eq!(parsed(json!({"anyOf": [{}]})), Ok(json!({"anyOf": [{}], "type": "object"})));
        for wrong in [json!({"type": "string"}), json!({"type": ["null"]}), json!("x"), json!(false)] {
            assert!(parsed(wrong.clone()).unwrap_err().contains("tools[0]"), "{wrong}");
        }
    }

    #[test]
    fn tools_that_cannot_be_called_are_refused() {
        for (tools, says) in [
            (json!({}), "must be a list"),
            (json!([1]), "tools[0] has no function"),
            (json!([named_choice("a"), {"type": "function"}]), "tools[1] has no function"),
            (json!([{"type": "custom", "custom": {"name": "a"}}]), "\"custom\""),
            (json!([named_choice("")]), "no call can have"),
            (json!([named_choice("a b")]), "no call can have"),
            (json!([named_choice("a\n")]), "no call can have"),
            (json!([named_choice(&"a".repeat(257))]), "no call can have"),
            (json!([named_choice("a"), named_choice("b"), named_choice("a")]), "two tools have the name \"a\""),
            (json!(vec![named_choice("a"); MAX_TOOLS + 1]), "must be a list of at most"),
        ] {
            let wrong = Tools::of_chat(&fields(json!({"tools": tools}))).unwrap_err();
            assert!(wrong.message().contains(says), "{tools}: {wrong:?}");
        }
        for (tool, says) in [
            (json!({"type": "web_search_20250305", "name": "web_search"}), "the server has no tools of its own"),
            (json!({"name": "a"}), "input_schema"),
            (json!({"name": "a b", "input_schema": {}}), "no call can have"),
        ] {
            let wrong = Tools::of_messages(&fields(json!({"tools": [tool]}))).unwrap_err();
            assert!(wrong.message().contains(says), "{tool}: {wrong:?}");
        }
        // Names of MCP servers have dots and slashes.
        assert!(Tools::of_chat(&fields(json!({"tools": [named_choice("mcp__a.b/c:d-e")]}))).is_ok());
    }
}
