//! Table of the keywords of JSON Schema, with the shape of each value and its support.

use serde_json::{Map, Value};

use super::document::escape_pointer;
use crate::GrammarError;

/// Shape that the value of a keyword must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueShape {
    Any,
    /// A schema: an object, `true` or `false`.
    Schema,
    Schemas,
    SchemaOrSchemas,
    SchemaMap,
    Number,
    /// A number, or `true` or `false` as in draft 4.
    NumberOrFlag,
    Positive,
    Count,
    Text,
    Texts,
    TextsMap,
    Flag,
    Types,
    List,
    Dependencies,
}

/// Support for a keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeywordSupport {
    /// Enforced: answers follow the keyword.
    Enforced,
    /// Ignored: the keyword does not constrain values.
    Annotation,
    /// Read: the keyword names places or dialects, but does not constrain values itself.
    Structure,
    /// Refused: the keyword is an error wherever it could constrain a value.
    Refused,
}

/// Row of the table of keywords.
#[derive(Clone, Copy, Debug)]
pub struct Keyword {
    /// Name of the keyword in a schema.
    pub name: &'static str,
    shape: ValueShape,
    /// Support for the keyword.
    pub support: KeywordSupport,
    /// Note for users, which is printed in `docs/json-schema.md`.
    pub note: &'static str,
}

const fn row(name: &'static str, shape: ValueShape, support: KeywordSupport, note: &'static str) -> Keyword {
    Keyword { name, shape, support, note }
}

use KeywordSupport::{Annotation, Enforced, Refused, Structure};
use ValueShape::{
    Any, Count, Dependencies, Flag, List, Number, NumberOrFlag, Positive, Schema, SchemaMap, SchemaOrSchemas, Schemas,
    Text, Texts, TextsMap, Types,
};

/// Table of all known keywords. Other keywords are annotations.
pub const KEYWORDS: &[Keyword] = &[
    row("type", Types, Enforced, "integers have no decimal point"),
    row("enum", List, Enforced, "numbers are exact, of any size"),
    row("const", Any, Enforced, "numbers are exact, of any size"),
    row("allOf", Schemas, Enforced, ""),
    row("anyOf", Schemas, Enforced, ""),
    row(
        "oneOf",
        Schemas,
        Enforced,
        "values that two parts allow are excluded; if the grammar cannot express that, it excludes more",
    ),
    row(
        "not",
        Schema,
        Enforced,
        "if the grammar cannot express the complement, it allows less; if nothing remains, the schema is refused",
    ),
    row("if", Schema, Enforced, "as `not`"),
    row("then", Schema, Enforced, ""),
    row("else", Schema, Enforced, ""),
    row("minimum", Number, Enforced, "exact for numbers of any size"),
    row("maximum", Number, Enforced, "exact for numbers of any size"),
    row("exclusiveMinimum", NumberOrFlag, Enforced, "also the boolean form of draft 4"),
    row("exclusiveMaximum", NumberOrFlag, Enforced, "also the boolean form of draft 4"),
    row("multipleOf", Positive, Enforced, "powers of ten, and other steps of up to 9 digits"),
    row("minLength", Count, Enforced, ""),
    row("maxLength", Count, Enforced, ""),
    row("pattern", Text, Enforced, "lookahead only after a leading `^`; no lookbehind and no backreferences"),
    row(
        "format",
        Text,
        Enforced,
        "date-time, date, time, duration, email, hostname, ipv4, ipv6, uuid, uri; others are annotations",
    ),
    row("items", SchemaOrSchemas, Enforced, "also the list form of draft 7"),
    row("prefixItems", Schemas, Enforced, ""),
    row("additionalItems", Schema, Enforced, ""),
    row("minItems", Count, Enforced, ""),
    row("maxItems", Count, Enforced, ""),
    row(
        "uniqueItems",
        Flag,
        Enforced,
        "for items from a list of values (in its order, if it has more than 8) or at most one item; otherwise refused",
    ),
    row("contains", Schema, Enforced, ""),
    row("minContains", Count, Enforced, ""),
    row("maxContains", Count, Enforced, ""),
    row("properties", SchemaMap, Enforced, "in the order of the schema"),
    row("required", Texts, Enforced, ""),
    row("additionalProperties", Schema, Enforced, "each key at most once"),
    row("patternProperties", SchemaMap, Enforced, "at most 6 patterns for an object"),
    row("propertyNames", Schema, Enforced, ""),
    row("minProperties", Count, Enforced, ""),
    row("maxProperties", Count, Enforced, ""),
    row("dependentRequired", TextsMap, Enforced, ""),
    row("dependentSchemas", SchemaMap, Enforced, ""),
    row("dependencies", Dependencies, Enforced, ""),
    row("unevaluatedProperties", Schema, Enforced, "as `additionalProperties`, across all subschemas that apply"),
    row("unevaluatedItems", Schema, Enforced, "as `items`, across all subschemas that apply"),
    row("nullable", Flag, Enforced, "from OpenAPI 3.0, next to `type`"),
    row("$ref", Text, Enforced, "within the schema: pointers, anchors and `$id`, also recursive"),
    row("$dynamicRef", Text, Enforced, "if it has only one possible target"),
    row("$recursiveRef", Text, Enforced, "as `$ref`"),
    row("$dynamicAnchor", Text, Structure, ""),
    row("$recursiveAnchor", Flag, Structure, ""),
    row("$anchor", Text, Structure, ""),
    row("$id", Text, Structure, ""),
    row("$schema", Text, Structure, "up to draft 7, keywords next to `$ref` are ignored"),
    row("$vocabulary", Any, Structure, ""),
    row("$defs", Any, Structure, ""),
    row("definitions", Any, Structure, ""),
    row("$comment", Any, Annotation, ""),
    row("title", Any, Annotation, ""),
    row("description", Any, Annotation, ""),
    row("default", Any, Annotation, ""),
    row("examples", Any, Annotation, ""),
    row("example", Any, Annotation, ""),
    row("deprecated", Any, Annotation, ""),
    row("readOnly", Any, Annotation, ""),
    row("writeOnly", Any, Annotation, ""),
    row("contentEncoding", Any, Annotation, ""),
    row("contentMediaType", Any, Annotation, ""),
    row("contentSchema", Any, Annotation, ""),
    row("discriminator", Any, Annotation, "from OpenAPI; `oneOf` already implies it"),
    row("extends", Any, Refused, "a keyword of draft 3; use `allOf`"),
    row("disallow", Any, Refused, "a keyword of draft 3; use `not`"),
    row("divisibleBy", Any, Refused, "a keyword of draft 3; use `multipleOf`"),
];

/// Names of JSON's types.
pub(super) const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Refuses a schema in which the value of a keyword has the wrong shape.
pub(super) fn check(members: &Map<String, Value>, pointer: &str) -> Result<(), GrammarError> {
    for (name, value) in members {
        let Some(keyword) = KEYWORDS.iter().find(|keyword| keyword.name == name) else { continue };
        let at = |message: String| schema_error(&format!("{pointer}/{}", escape_pointer(name)), message);
        if keyword.support == Refused {
            return Err(at(format!("{name} is not supported: {}", keyword.note)));
        }
        if let Some(message) = fault(keyword.shape, value) {
            return Err(at(message));
        }
    }
    Ok(())
}

/// Returns an error at a position in the schema.
pub(super) fn schema_error(pointer: &str, message: String) -> GrammarError {
    GrammarError::Schema { owner: String::new(), place: pointer.to_owned(), message }
}

/// Returns a value as a text, shortened if it is long.
pub(super) fn value_excerpt(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// Describes why a value does not have a shape. Returns `None` if it has.
fn fault(shape: ValueShape, value: &Value) -> Option<String> {
    let is_schema = |value: &Value| value.is_object() || value.is_boolean();
    let is_text_list = |value: &Value| value.as_array().is_some_and(|all| all.iter().all(Value::is_string));
    let all =
        |value: &Value, test: &dyn Fn(&Value) -> bool| value.as_object().is_some_and(|map| map.values().all(test));
    let is_schemas = |value: &Value| value.as_array().is_some_and(|all| all.iter().all(is_schema));
    let expected = match shape {
        Any => return None,
        Schema if is_schema(value) => return None,
        Schema => "a schema: an object, true or false",
        Schemas if is_schemas(value) => return None,
        Schemas => "a list of schemas",
        SchemaOrSchemas if is_schema(value) || is_schemas(value) => return None,
        SchemaOrSchemas => "a schema, or a list of schemas",
        SchemaMap if all(value, &is_schema) => return None,
        SchemaMap => "an object whose values are schemas",
        Number if value.is_number() => return None,
        Number => "a number",
        NumberOrFlag if value.is_number() || value.is_boolean() => return None,
        NumberOrFlag => "a number, or true or false as in draft 4",
        Positive if value.as_f64().is_some_and(|value| value > 0.0) => return None,
        Positive => "a number above 0",
        Count if count(value).is_some() => return None,
        Count => "an integer of 0 or more",
        Text if value.is_string() => return None,
        Text => "a string",
        Texts if is_text_list(value) => return None,
        Texts => "a list of names",
        TextsMap if all(value, &is_text_list) => return None,
        TextsMap => "an object whose values are lists of names",
        Flag if value.is_boolean() => return None,
        Flag => "true or false",
        List if value.is_array() => return None,
        List => "a list of values",
        Dependencies if all(value, &|value| is_schema(value) || is_text_list(value)) => return None,
        Dependencies => "an object whose values are schemas or lists of names",
        Types => return type_fault(value),
    };
    Some(format!("{} is not {expected}", value_excerpt(value)))
}

fn type_fault(value: &Value) -> Option<String> {
    let known = || TYPES.join(", ");
    let one = |value: &Value| match value.as_str() {
        Some(name) if TYPES.contains(&name) => None,
        Some(name) => Some(format!("unknown type {name:?}; the types are {}", known())),
        None => Some(format!("{} is not the name of a type; the types are {}", value_excerpt(value), known())),
    };
    match value {
        Value::Array(all) if all.is_empty() => Some("the list of types is empty, which allows nothing".to_owned()),
        Value::Array(all) => all.iter().find_map(one),
        value => one(value),
    }
}

/// Reads a count, which may also be written as `2.0`.
pub(super) fn count(value: &Value) -> Option<u64> {
    value
        .as_u64()
        .or_else(|| value.as_f64().filter(|value| value.fract() == 0.0 && *value >= 0.0).map(|value| value as u64))
}
