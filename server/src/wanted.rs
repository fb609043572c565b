//! What requests want of answers, whichever interface they are of: how tokens are chosen, and what the whole must be.

use ixc_grammar::Source;
use ixc_runtime::sample::{self, Kind, Settings};
use serde_json::{Map, Value, json};

use crate::app::Asked;
use crate::error::HttpError;
use crate::fields::{Fields, Unsupported};
use crate::model::{Constraint, Model};

/// Most texts that repetitions do not go over, and most bytes of each.
const MOST_BREAKERS: usize = 64;
const MOST_BREAKER_BYTES: usize = 64;

/// How tokens are chosen; the defaults are those of a run. Fields are named as the sampler names its settings.
pub(crate) async fn sampling<M: Model>(app: &Asked<M>, fields: &Fields) -> Result<Settings, HttpError> {
    let mut settings = Settings::default();
    for number in sample::NUMBERS {
        if let Some(found) = fields.number(number.name)? {
            (number.set)(&mut settings, found);
        }
    }
    // One of the two names that it has.
    if let Some(found) = fields.number_as("typ_p", "typical_p")? {
        settings.typical_p = found as f32;
    }
    fields.number("min_keep")?;
    // -1 is any seed.
    let seed = fields.number("seed")?.filter(|seed| *seed >= 0.0).map(|seed| seed as u64);
    settings.seed = seed.unwrap_or_else(any_seed);
    settings.bias = fields.biases()?;
    if let Some(samplers) = fields.get("samplers") {
        settings.samplers = kinds(samplers)?;
    }
    if settings.dry_multiplier > 0.0 {
        settings.dry_breakers = app.breakers(breakers(fields)?).await?;
    }
    // What is wrong is said before anything is begun.
    settings.check().map_err(|error| HttpError::invalid(Some(error.setting), error.to_string()))?;
    Ok(settings)
}

/// Samplers by their names, or by their letters.
fn kinds(value: &Value) -> Result<Vec<Kind>, HttpError> {
    let wrong = |what: &str| {
        let names: Vec<&str> = sample::SAMPLERS.iter().map(|row| row.name).collect();
        HttpError::invalid(Some("samplers"), format!("samplers: there is no {what}, only {}", names.join(", ")))
    };
    let kinds: Vec<Kind> = match value {
        Value::String(letters) => letters
            .chars()
            .map(|letter| Kind::lettered(letter).ok_or_else(|| wrong(&format!("{letter:?}"))))
            .collect::<Result<_, _>>()?,
        Value::Array(names) => names
            .iter()
            .map(|name| name.as_str().and_then(Kind::named).ok_or_else(|| wrong(&name.to_string())))
            .collect::<Result<_, _>>()?,
        other => return Err(wrong(&other.to_string())),
    };
    match kinds.iter().enumerate().find(|(i, kind)| kinds[..*i].contains(kind)) {
        Some((_, twice)) => Err(HttpError::invalid(Some("samplers"), format!("samplers has {} twice", twice.name()))),
        None => Ok(kinds),
    }
}

/// Whether these can be [`Options::defaults`](crate::Options::defaults): texts and lengths, for which every request would be refused.
///
/// # Errors
/// What is wrong, for people.
pub fn check_defaults(defaults: &Map<String, Value>) -> Result<(), String> {
    let fields = Fields::new(defaults.clone());
    let checked = || -> Result<(), HttpError> {
        ["stop", "stop_sequences"].into_iter().try_for_each(|name| fields.stop(name).map(drop))?;
        fields.limit()?;
        breakers(&fields).map(drop)
    };
    checked().map_err(|error| error.message().to_owned())
}

fn breakers(fields: &Fields) -> Result<Option<Vec<String>>, HttpError> {
    let wrong = || {
        let most = format!("a list of at most {MOST_BREAKERS} texts, each of 1 to {MOST_BREAKER_BYTES} bytes");
        HttpError::invalid(Some("dry_sequence_breakers"), format!("dry_sequence_breakers must be {most}"))
    };
    let Some(value) = fields.get("dry_sequence_breakers") else { return Ok(None) };
    let list = value.as_array().filter(|list| list.len() <= MOST_BREAKERS).ok_or_else(wrong)?;
    let is_one = |text: &String| (1..=MOST_BREAKER_BYTES).contains(&text.len());
    let texts: Option<Vec<String>> = list.iter().map(|value| Some(value.as_str()?.to_owned()).filter(is_one)).collect();
    texts.map(Some).ok_or_else(wrong)
}

/// A seed that no other request has, as far as the clock goes.
fn any_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

/// What a completion must be: llama-server's fields.
pub(crate) fn constraint_of_text(fields: &Fields) -> Result<Option<Constraint>, HttpError> {
    let grammar = fields.text("grammar")?.filter(|grammar| !grammar.is_empty());
    match (grammar, fields.get("json_schema")) {
        (Some(_), Some(_)) => {
            Err(HttpError::invalid(Some("grammar"), "grammar and json_schema: only one can be followed"))
        }
        (Some(grammar), None) => Ok(Some(Constraint::Text(Source::of_text(grammar)))),
        (None, Some(schema)) => Ok(Some(Constraint::Text(Source::Schema(schema_of("json_schema", schema)?)))),
        (None, None) => match format_of(fields)? {
            Some(schema) => Ok(Some(Constraint::Text(Source::Schema(schema)))),
            None => Ok(None),
        },
    }
}

/// What an answer in a chat must be: by its format, by the tools that it must call, or by llama-server's fields.
pub(crate) fn constraint_of_chat(fields: &Fields) -> Result<Option<Constraint>, HttpError> {
    let format = format_of(fields)?;
    let schema = fields.get("json_schema").map(|schema| schema_of("json_schema", schema)).transpose()?;
    let grammar = fields.text("grammar")?.filter(|grammar| !grammar.is_empty());
    let calls = calls_of(fields)?;
    let has_tools = fields.get("tools").is_some_and(|tools| tools.as_array().is_some_and(|tools| !tools.is_empty()));
    let uses_tools = has_tools && fields.get("tool_choice").is_none_or(|choice| choice != "none");
    let mut wanted: Vec<Constraint> = [format, schema].into_iter().flatten().map(Constraint::Json).collect();
    wanted.extend(grammar.map(|grammar| Constraint::Text(Source::of_text(grammar))));
    if uses_tools && !wanted.is_empty() {
        return Err(HttpError::unsupported("tools", "an answer of a given form beside tools"));
    }
    wanted.extend(calls);
    if wanted.len() > 1 {
        return Err(HttpError::invalid(None, "response_format, json_schema, grammar: only one can be followed"));
    }
    Ok(wanted.pop())
}

/// The schema that `response_format` has.
fn format_of(fields: &Fields) -> Result<Option<Value>, HttpError> {
    let Some(format) = fields.get("response_format") else { return Ok(None) };
    let wrong = |what: &str| HttpError::invalid(Some("response_format"), format!("response_format{what}"));
    let any = || json!({"type": "object"});
    let schema = format.get("json_schema").and_then(|of| of.get("schema")).or_else(|| format.get("schema"));
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(schema.cloned().unwrap_or_else(any))),
        Some("json_schema") => {
            let schema = schema.ok_or_else(|| wrong(".json_schema.schema is missing"))?;
            Ok(Some(schema_of("response_format", schema)?))
        }
        _ => Err(wrong(".type must be text, json_object or json_schema")),
    }
}

fn schema_of(param: &'static str, value: &Value) -> Result<Value, HttpError> {
    match value {
        Value::Object(_) | Value::Bool(true) => Ok(value.clone()),
        // In a text, as some clients have it.
        Value::String(text) => match serde_json::from_str(text) {
            Ok(schema @ (Value::Object(_) | Value::Bool(true))) => Ok(schema),
            _ => Err(HttpError::invalid(Some(param), format!("{param} is no JSON schema"))),
        },
        _ => Err(HttpError::invalid(Some(param), format!("{param} must be a JSON schema: an object"))),
    }
}

/// The calls that `tool_choice` wants.
fn calls_of(fields: &Fields) -> Result<Option<Constraint>, HttpError> {
    let Some(choice) = fields.get("tool_choice") else { return Ok(None) };
    let name = choice["function"]["name"].as_str().or_else(|| choice["name"].as_str());
    match (choice, name) {
        (Value::String(choice), _) if choice == "auto" || choice == "none" => Ok(None),
        (Value::String(choice), _) if choice == "required" => must_call(fields, "tools", None),
        (Value::Object(_), Some(name)) if choice["type"] == "function" => must_call(fields, "tools", Some(name)),
        _ => Err(HttpError::unsupported("tool_choice", "a tool_choice other than auto, none, required and a function")),
    }
}

/// A call of that tool, or of any.
fn must_call(fields: &Fields, param: &'static str, name: Option<&str>) -> Result<Option<Constraint>, HttpError> {
    let list = fields.get(param).and_then(Value::as_array).cloned().unwrap_or_default();
    let tool = |tool: &Value| {
        let function = tool.get("function").unwrap_or(tool);
        let schema = function.get("parameters").or_else(|| function.get("input_schema"));
        let schema = schema.filter(|schema| schema.is_object()).cloned();
        Some((function["name"].as_str()?.to_owned(), schema.unwrap_or_else(|| json!({"type": "object"}))))
    };
    let tools = list.iter().filter_map(tool).filter(|(own, _)| name.is_none_or(|name| name == own));
    let tools: Vec<(String, Value)> = tools.collect();
    if tools.is_empty() {
        let wrong = name.map_or("there are no tools".to_owned(), |name| format!("there is no tool {name:?}"));
        return Err(HttpError::invalid(Some("tool_choice"), format!("tool_choice: {wrong}")));
    }
    let several = name.is_none() && fields.flag("parallel_tool_calls")?.unwrap_or(true);
    Ok(Some(Constraint::Calls { tools, several }))
}

/// The calls that Anthropic's `tool_choice` wants, and whether tools are told of.
pub(crate) fn anthropic_calls(fields: &Fields) -> Result<(Option<Constraint>, bool), HttpError> {
    let Some(choice) = fields.get("tool_choice") else { return Ok((None, true)) };
    match (choice["type"].as_str(), choice["name"].as_str()) {
        (Some("auto"), _) => Ok((None, true)),
        (Some("none"), _) => Ok((None, false)),
        (Some("any"), _) => Ok((must_call(fields, "tools", None)?, true)),
        (Some("tool"), Some(name)) => Ok((must_call(fields, "tools", Some(name))?, true)),
        _ => Err(HttpError::invalid(
            Some("tool_choice"),
            "tool_choice must be of type auto, none, any, or tool with a name",
        )),
    }
}

/// How many of the likeliest tokens are told with each token of a chat.
pub(crate) fn likeliest_of_chat(fields: &Fields) -> Result<Option<usize>, HttpError> {
    let top = fields.number("top_logprobs")?.map(|top| top as usize);
    match (fields.flag("logprobs")?.unwrap_or(false), top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(HttpError::invalid(Some("top_logprobs"), "top_logprobs wants logprobs to be true")),
    }
}

/// What is refused in chats and completions.
pub(crate) const COMMON_UNSUPPORTED: &[Unsupported] =
    &[("functions", |_| false, "functions, which tools have replaced,"), ("audio", |_| false, "audio")];
