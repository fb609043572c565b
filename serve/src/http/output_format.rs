//! Output formats in requests: schemas, regular expressions, choices and grammars, in the fields of
//! OpenAI, Anthropic, llama-server and vLLM.

use std::fmt::Write;

use ixc_grammar::GrammarSource;
use serde_json::{Value, json};

use crate::http::error::HttpError;
use crate::http::fields::Fields;
use crate::model::Constraint;

/// Max choices of `guided_choice`.
const MAX_CHOICES: usize = 1024;
/// Members of `structured_outputs` that control compilation in vLLM and do not change answers here.
const IGNORED_MEMBERS: [&str; 2] = ["disable_fallback", "_backend"];

/// A field that sets the output format.
struct FormatField {
    name: &'static str,
    /// Parser of the field's value; its first parameter is the field's name.
    read: fn(&'static str, &Value) -> Result<Option<Constraint>, HttpError>,
}

/// Fields of chats and completions that set the output format.
const FORMATS: &[FormatField] = &[
    FormatField { name: "response_format", read: response_format },
    FormatField { name: "json_schema", read: schema },
    FormatField { name: "grammar", read: grammar },
    FormatField { name: "guided_json", read: schema },
    FormatField { name: "guided_regex", read: regex },
    FormatField { name: "guided_choice", read: choice },
    FormatField { name: "guided_grammar", read: grammar },
    FormatField { name: "structured_outputs", read: structured_outputs },
];

/// Reads the output format of a chat's answer. It applies to the content, or for
/// [`Constraint::Text`] to the whole answer.
///
/// # Errors
/// When two formats are set, or one is malformed.
pub(crate) fn of_chat(fields: &Fields) -> Result<Option<Constraint>, HttpError> {
    let mut constraint: Option<(&str, Constraint)> = None;
    for FormatField { name, read } in FORMATS {
        let Some(found) = fields.get(name).map(|value| read(name, value)).transpose()?.flatten() else { continue };
        if let Some((other, _)) = constraint {
            let wrong = format!("{other} and {name} both constrain the answer; give only one of them");
            return Err(HttpError::invalid(Some(name), wrong));
        }
        constraint = Some((name, found));
    }
    Ok(constraint.map(|(_, constraint)| constraint))
}

/// Reads the output format of a completion.
pub(crate) fn of_text(fields: &Fields) -> Result<Option<Constraint>, HttpError> {
    Ok(of_chat(fields)?.map(|constraint| match constraint {
        Constraint::Json(schema) => Constraint::Text(GrammarSource::Schema(schema)),
        Constraint::Regex(regex) => Constraint::Text(GrammarSource::Regex(regex)),
        other => other,
    }))
}

/// Reads the output format of Anthropic's `output_config`, or of `output_format` from older
/// clients.
pub(crate) fn of_messages(fields: &Fields) -> Result<Option<Constraint>, HttpError> {
    let config = fields.get("output_config").and_then(|config| config.get("format")).filter(|format| !format.is_null());
    let format = config.map(|format| ("output_config", format));
    let format = format.or_else(|| Some(("output_format", fields.get("output_format")?)));
    let Some((name, format)) = format else { return Ok(None) };
    match (format["type"].as_str(), format.get("schema")) {
        (Some("json_schema"), Some(of)) => schema(name, of),
        _ => Err(HttpError::invalid(
            Some(name),
            format!("{name}: the format must be of type json_schema, with a schema"),
        )),
    }
}

/// Reads OpenAI's `response_format`, or `text.format` of its newer interface.
fn response_format(name: &'static str, format: &Value) -> Result<Option<Constraint>, HttpError> {
    let wrong = |what: &str| HttpError::invalid(Some(name), format!("{name}{what}"));
    let inner = format.get("json_schema").and_then(|of| of.get("schema")).or_else(|| format.get("schema"));
    let inner = inner.filter(|schema| !schema.is_null());
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") => match inner {
            Some(inner) => schema(name, inner),
            None => Ok(Some(Constraint::Json(json!({"type": "object"})))),
        },
        Some("json_schema") => schema(name, inner.ok_or_else(|| wrong(".json_schema.schema is missing"))?),
        _ => Err(wrong(".type must be text, json_object or json_schema")),
    }
}

/// Reads a JSON schema, or a text with a JSON schema, as some clients send it.
fn schema(name: &'static str, value: &Value) -> Result<Option<Constraint>, HttpError> {
    let wrong = |what: String| HttpError::invalid(Some(name), format!("{name} {what}"));
    let schema = match value {
        Value::String(text) => serde_json::from_str(text)
            .map_err(|error| wrong(format!("must be a JSON schema; its text is not JSON: {error}")))?,
        other => other.clone(),
    };
    match schema {
        Value::Object(_) | Value::Bool(true) => Ok(Some(Constraint::Json(schema))),
        _ => Err(wrong("must be a JSON schema: an object".to_owned())),
    }
}

fn text<'v>(name: &'static str, value: &'v Value) -> Result<&'v str, HttpError> {
    value.as_str().ok_or_else(|| HttpError::invalid(Some(name), format!("{name} must be a text")))
}

/// Reads a grammar of the whole answer. An empty text is no grammar.
fn grammar(name: &'static str, value: &Value) -> Result<Option<Constraint>, HttpError> {
    let grammar = text(name, value)?;
    Ok((!grammar.is_empty()).then(|| Constraint::Text(GrammarSource::of_text(grammar))))
}

fn regex(name: &'static str, value: &Value) -> Result<Option<Constraint>, HttpError> {
    Ok(Some(Constraint::Regex(text(name, value)?.to_owned())))
}

/// Reads a list of texts. The answer is one of them.
fn choice(name: &'static str, value: &Value) -> Result<Option<Constraint>, HttpError> {
    let wrong = || HttpError::invalid(Some(name), format!("{name} must be a list of 1 to {MAX_CHOICES} texts"));
    let list = value.as_array().filter(|list| (1..=MAX_CHOICES).contains(&list.len())).ok_or_else(wrong)?;
    let texts = list.iter().map(Value::as_str).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
    let mut any = String::new();
    for (i, text) in texts.into_iter().enumerate() {
        any.push_str(if i > 0 { "|" } else { "" });
        for c in text.chars() {
            // Writing to a string cannot fail.
            let _ = write!(any, "\\x{{{:x}}}", u32::from(c));
        }
    }
    Ok(Some(Constraint::Regex(any)))
}

/// Reads vLLM's object, which sets one of several output formats.
fn structured_outputs(name: &'static str, value: &Value) -> Result<Option<Constraint>, HttpError> {
    let wrong = |what: String| HttpError::invalid(Some(name), format!("{name}{what}"));
    let members = value.as_object().ok_or_else(|| wrong(" must be an object".to_owned()))?;
    let mut constraint = None;
    for (member, value) in members {
        let found = match &**member {
            _ if value.is_null() || *value == json!(false) => continue,
            "json" => schema(name, value)?,
            "regex" => regex(name, value)?,
            "choice" => choice(name, value)?,
            "grammar" => grammar(name, value)?,
            "json_object" => Some(Constraint::Json(json!({"type": "object"}))),
            known if IGNORED_MEMBERS.contains(&known) => continue,
            other => {
                return Err(wrong(format!(
                    ".{other} is not supported; json, regex, choice, grammar and json_object are"
                )));
            }
        };
        if constraint.is_some() && found.is_some() {
            return Err(wrong(" has several constraints; give only one of them".to_owned()));
        }
        constraint = constraint.or(found);
    }
    Ok(constraint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(fields: Value) -> Fields {
        Fields::parse(fields.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn all_output_format_fields_become_constraints() {
        let schema = || json!({"type": "integer"});
        let json = || Some(Constraint::Json(schema()));
        let regex = |regex: &str| Some(Constraint::Regex(regex.to_owned()));
        let grammar = || Some(Constraint::Text(GrammarSource::Gbnf("root ::= \"a\"".to_owned())));
        for (request, expected) in [
            (json!({}), None),
            (json!({"response_format": {"type": "text"}, "grammar": "", "guided_json": null}), None),
            (json!({"response_format": {"type": "json_object"}}), Some(Constraint::Json(json!({"type": "object"})))),
            (json!({"response_format": {"type": "json_object", "schema": schema()}}), json()),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema()}}}),
                json(),
            ),
            (json!({"response_format": {"type": "json_schema", "schema": schema()}}), json()),
            (json!({"json_schema": schema()}), json()),
            (json!({"guided_json": schema().to_string()}), json()),
            (json!({"guided_regex": "a|b"}), regex("a|b")),
            (json!({"guided_choice": ["a", "(b"]}), regex("\\x{61}|\\x{28}\\x{62}")),
            (json!({"guided_grammar": "root ::= \"a\""}), grammar()),
            (json!({"structured_outputs": {"json": schema(), "regex": null, "json_object": false}}), json()),
            (json!({"structured_outputs": {"grammar": "root ::= \"a\"", "disable_fallback": true}}), grammar()),
            (json!({"structured_outputs": {}}), None),
        ] {
            assert_eq!(of_chat(&fields(request.clone())), Ok(expected), "{request}");
        }
        for (request, field, says) in [
            (json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}), "guided_regex", "only one"),
            (json!({"grammar": "a", "json_schema": {}}), "grammar", "json_schema and grammar"),
            (json!({"structured_outputs": {"json": {}, "regex": "a"}}), "structured_outputs", "several"),
            (json!({"structured_outputs": {"structural_tag": "x"}}), "structured_outputs", "structural_tag is not"),
            (json!({"structured_outputs": 1}), "structured_outputs", "object"),
            (json!({"guided_choice": []}), "guided_choice", "1 to"),
            (json!({"guided_choice": [1]}), "guided_choice", "1 to"),
            (json!({"guided_regex": 1}), "guided_regex", "a text"),
            (json!({"guided_json": "no JSON"}), "guided_json", "schema"),
            (json!({"guided_json": 1}), "guided_json", "schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}),
                "response_format",
                "missing",
            ),
        ] {
            let error = of_chat(&fields(request.clone())).unwrap_err();
            let body = error.body();
            assert_eq!(body["error"]["param"], field, "{request}");
            assert!(error.message().contains(says), "{request}: {error:?}");
        }
    }

    #[test]
    fn anthropic_output_formats_become_constraints() {
        let format = json!({"type": "json_schema", "schema": {"type": "object"}});
        let expected = Some(Constraint::Json(json!({"type": "object"})));
        for request in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
            assert_eq!(of_messages(&fields(request)), Ok(expected.clone()));
        }
        assert_eq!(of_messages(&fields(json!({"output_config": {"effort": "low"}}))), Ok(None));
        assert!(of_messages(&fields(json!({"output_config": {"format": {"type": "xml"}}}))).is_err());
    }
}
